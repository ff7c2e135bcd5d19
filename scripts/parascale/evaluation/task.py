"""Tasks: the samples and metrics of a workload, for training and evaluation.

All tasks share the loss, cross-entropy summed over the labels that count, and the measure of work, the number of
those labels. They differ in their samples and in their metrics.
"""

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from parascale.data.formats import open_images, read_manifest
from parascale.data.manifests import require_split
from parascale.data.pairs import Pairs
from parascale.data.text import Tokens, Windows, check_expected
from parascale.evaluation.evaluate import correct_within
from parascale.settings import SPLITS


@dataclass(frozen=True)
class Task:
    """The opened data of a workload.

    splits: name → samples; images may lack a `test` split. Samples have `len` and `batch(numbers)`, which returns
    (*inputs, labels) as integer arrays with the sample as first dimension: inputs of the model, and labels, which do not
    count in the loss if they equal IGNORED.
    outputs: number of values of a label, the last dimension of the logits: entries of the vocabulary, or classes.
    metrics: name → function (logits, labels) that sums over the targets; evaluations report it per target.
    augmented: samples of the train split differ from epoch to epoch, so their numbers continue over epochs (see Sampler).
    excluded: split → {reason: number of samples that were left out or cut}, for the record of a run.
    workers: threads of each rank that decode ahead.
    """

    splits: dict
    outputs: int
    metrics: dict = field(default_factory=dict)
    augmented: bool = False
    excluded: dict = field(default_factory=dict)
    workers: int = 0

    @property
    def judged(self):
        """The split for the final evaluation: `test`, or `validation` if there is none."""
        return self.splits.get("test", self.splits["validation"])


def open_task(workload, folder, seed=0):
    """Open the Task of a workload whose prepared data is in `folder`. seed: for random augmentation."""
    return OPENERS[workload.task](workload, folder, seed)


def empty_batch(workload, samples):
    """(*inputs, labels) of a batch with true shapes and types but no data, to find out what a step needs."""
    if workload.task == "classification":
        (size,) = workload.sizes
        return np.zeros((samples, 3, size, size), np.uint8), np.zeros(samples, np.int64)
    if workload.task == "language_model":
        windows = np.zeros((samples, workload.training.window), np.int64)
        return windows, *([windows.copy()] if workload.training.documents == "separate" else []), windows.copy()
    documents, summaries = (np.zeros((samples, places), np.int64) for places in workload.sizes)
    return documents, np.ones(documents.shape, bool), summaries, summaries.copy()


class EmptySamples:
    """Samples without data, enough for two evaluation batches per rank: memory that the first leaves behind shows in the second."""

    def __init__(self, run):
        self.run = run

    def __len__(self):
        return 2 * self.run.evaluation_batch * self.run.layout.data_parallel

    def batch(self, numbers):
        """(*inputs, labels) of len(numbers) samples."""
        return empty_batch(self.run.workload, len(numbers))


def _open_language_model(workload, folder, seed):
    tokens, training = Tokens(folder), workload.training
    strides = {"train": training.stride}  # evaluation meets every token once
    training.require_ends(folder, tokens.manifest["splits"])
    end = tokens.tokenizer.end if training.documents == "separate" else None
    windows = {name: Windows(tokens.split(name), training.window, strides.get(name), end) for name in SPLITS}
    excluded = {name: {"without_text": tokens.manifest["splits"][name].get("without_text", 0)} for name in SPLITS}
    return Task(windows, tokens.vocabulary_size, excluded=excluded)


def _open_summarisation(workload, folder, seed):
    tokens, training = Tokens(folder), workload.training
    pairs = {name: Pairs(tokens, name, training.window, training.summary_window, training.over_long) for name in SPLITS}
    return Task(pairs, tokens.vocabulary_size, excluded={name: split.excluded for name, split in pairs.items()})


def _open_classification(workload, folder, seed):
    from parascale.data.classes import AugmentedImages, ClassImages  # loads libraries for images

    training = workload.training
    there = read_manifest(folder)["splits"]
    for name in ("train", "validation"):
        require_split(folder, name, there)
    readers = {name: open_images(folder, name, workload.data.io, check=True) for name in SPLITS if name in there}
    for reader in readers.values():
        reader.read_batch([0])  # opens its files now: the folder may be a copy that is soon removed
    bad = [sample["split"] for sample in readers["train"].manifest["bad"]]
    classes, images = len(readers["train"].classes), len(readers["train"]) + bad.count("train")
    found = {
        "vocabulary": (classes, "classes"),
        "train_samples": (images, "images in the train split, bad ones included"),
    }
    check_expected(workload.data.expected, found, folder)
    size, how = training.image_size, {"decoder": training.decoder, "crops": training.crops}
    splits = {name: ClassImages(readers[name], size, **how) for name in readers if name != "train"}
    splits["train"] = AugmentedImages(readers["train"], size, seed, training.smallest_crop, **how)
    return Task(
        splits,
        len(readers["train"].classes),
        metrics={"accuracy": partial(correct_within, count=1), "top5": partial(correct_within, count=5)},
        augmented=True,
        excluded={name: {"bad_images": bad.count(name)} for name in readers},
        workers=training.workers,
    )


OPENERS = {
    "language_model": _open_language_model,
    "summarisation": _open_summarisation,
    "classification": _open_classification,
}
