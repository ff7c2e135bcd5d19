"""What a plan knows of a run's data: from the data itself, or, before it is there, from what its workload expects."""

import math
from dataclasses import dataclass

from parascale.files import read_json

IMAGE_BYTES = 1e5  # of a JPEG that is not there yet
VALIDATION_PART = 0.1  # of the train split, where the data is not prepared yet
SEEN = ("train", "validation")  # splits whose size a plan needs


@dataclass(frozen=True)
class DataFacts:
    """What a plan must know of the data: entries of the vocabulary (or classes), samples of the train and validation splits.

    sample_bytes: of a compressed image, on average; 0 of text.
    """

    vocabulary: int | None
    train_samples: int | None = None
    validation_samples: int | None = None
    sample_bytes: float = 0.0


def data_facts(run, paths=None):
    """The DataFacts of a run: from the prepared data below `paths`, else from what its workload expects."""
    return facts_of(paths.data_of(run) if paths else None, run)


def facts_of(folder, run):
    """The DataFacts of a run whose prepared data is in `folder`; where it is not there, what its workload expects."""
    data, workload = run.workload.data, run.workload
    manifest = folder / "manifest.json" if folder else None
    if manifest is None or not manifest.is_file():
        samples, tokens = data.expected.train_samples, data.expected_tokens
        train = workload.windows_in(tokens) or samples
        evaluated = None if samples is None else VALIDATION_PART * samples
        if tokens is not None:
            evaluated = (data.expected.validation_tokens or VALIDATION_PART * tokens) / workload.training.window
        validation = None if evaluated is None else math.ceil(evaluated)
        return DataFacts(data.expected_outputs, train, validation, IMAGE_BYTES if workload.of_images else 0)
    values = read_json(manifest)
    splits = values["splits"]
    if workload.of_images:
        samples = sum(split["samples"] for split in splits.values())
        size = values.get("sample_bytes", 0) / max(1, samples)
        return DataFacts(len(values["classes"]), *(splits.get(name, {}).get("samples") for name in SEEN), size)
    if workload.of_pairs:  # at most: those with too long a summary are left out when the data is opened
        return DataFacts(values["vocabulary"], *(splits[name]["documents"] for name in SEEN))
    validation = max(1, math.ceil((splits["validation"]["tokens"] - 1) / workload.training.window))
    return DataFacts(values["vocabulary"], workload.windows_in(splits["train"]["tokens"]), validation)
