"""Verify that a converted checkpoint is the trained model: compare every tensor bit for bit, and the loss on the test split.

Each form is read by the library it is made for (safetensors, `torch.load`, `transformers`), not by the code that wrote it.
"""

import math
from pathlib import Path

import torch
from safetensors.torch import load_file

from parascale.checkpoint import metadata
from parascale.checkpoint.export import words_of
from parascale.checkpoint.load import Exported, fill
from parascale.checkpoint.manifest import check_files, read_manifest
from parascale.checkpoint.source import STEMS, WEIGHTS, safetensors_files
from parascale.checkpoint.tensors import DTYPES
from parascale.errors import CheckpointError
from parascale.evaluation.evaluate import split_sums
from parascale.evaluation.task import open_task
from parascale.families.build import build_model
from parascale.files import read_json
from parascale.paths import RunFolder
from parascale.settings import run_from_dict
from parascale.settings.layout import DEGREES

SCHEMA_VERSION = 1
EVALUATION_BATCH = 32  # samples; the loss does not depend on it
LOGITS_TOLERANCE = 1e-4  # of fp32 logits: transformers sums in another order


def verify(source, folder, data):
    """Compare the converted checkpoint in `folder` with the sharded one in `source`, on the prepared data in folder `data`.

    Returns the values of `verify.json`: {run, strategy, layout, step, dtype, test_loss, forms: {form: {identical, differs, tensors,
    test_loss, bytes, seconds, peak_memory_bytes, …}}}. A form is identical if it has exactly the requested tensors, bit for bit (rounded
    if another dtype was requested); a transformers folder, if its logits match ours. Raises CheckpointError if files are missing or
    changed.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    check_files(folder, manifest["files"])
    conversion = manifest["facts"]["conversion"]
    record = read_json(RunFolder(folder).record)
    expected = metadata.read(
        source, [name for name in metadata.tensors(source) if conversion["optimizer"] or _is_weight(name)]
    )
    if conversion["dtype"]:
        dtype = DTYPES[conversion["dtype"]]
        rounded = [name for name, tensor in expected.items() if _is_weight(name) and tensor.dtype.is_floating_point]
        expected |= {name: expected[name].to(dtype) for name in rounded}
    judge = _Judge(run_from_dict(record["settings"]), expected, data)
    forms = {name: cost | judge.compare(name, folder) for name, cost in conversion["forms"].items()}
    return {
        "schema_version": SCHEMA_VERSION,
        "run": record["run"],
        "strategy": record["strategy"],
        "layout": {axis: getattr(judge.run.layout, axis) for axis in DEGREES},
        "step": manifest["facts"]["step"],
        "dtype": conversion["dtype"],
        "test_loss": judge.loss,
        "forms": forms,
    }


def require_identical(result):
    """Raise CheckpointError for the first form that differs from the source, naming tensors."""
    for form, found in result["forms"].items():
        if not found["identical"]:
            differs = ", ".join(found["differs"][:5])
            raise CheckpointError(f"run {result['run']}: {form} differs from its source in {differs}")


def load_form(folder, form):
    """Name → tensor for all tensors of a form, read by the form's own library; weights under `model.`."""
    folder = Path(folder)
    if form == "sharded":
        return metadata.read(folder)
    tensors = {}
    for stem, prefix in STEMS.items():
        names = safetensors_files(folder, stem)[0] if form == "safetensors" else [f"{stem}.pt"]
        for path in (folder / name for name in names):
            if path.is_file():
                held = load_file(path) if form == "safetensors" else torch.load(path, weights_only=True)
                tensors |= {prefix + name: tensor for name, tensor in held.items()}
    return tensors


class _Judge:
    """Compares forms with the tensors of a source, and evaluates all with the same code."""

    def __init__(self, run, expected, data):
        self.run, self.expected = run, expected
        task = open_task(run.workload, data)
        self.samples, self.outputs = task.judged, task.outputs
        self.model = self._model(expected)
        self.loss = self._loss(self.model)

    def compare(self, form, folder):
        if form == "transformers":
            return self._compare_transformers(folder)
        held = load_form(folder, form)
        differs = [name for name, tensor in self.expected.items() if not same_bits(held.get(name), tensor)]
        differs += [name for name in held if name not in self.expected]
        loss = self._loss(self._model(held)) if not differs else None
        found = {"identical": not differs and loss == self.loss, "differs": differs, "tensors": len(held)}
        return found | {"optimizer": not all(map(_is_weight, held)), "test_loss": loss}

    @torch.no_grad()
    def _compare_transformers(self, folder):
        theirs = Exported(folder / "transformers")
        inputs = torch.from_numpy(self.samples.batch(range(min(EVALUATION_BATCH, len(self.samples))))[0])
        difference = (theirs(inputs) - self.model(inputs)).abs().max().item()
        same = difference <= LOGITS_TOLERANCE
        return {
            "identical": same,
            "differs": [] if same else ["logits"],
            "tensors": len(theirs.state_dict()),
            "optimizer": False,
            "test_loss": self._loss(theirs),
            "logits_difference": difference,
            "architecture": words_of(self.run.workload.model.kind).architecture(self.run.workload.model),
        }

    def _model(self, tensors):
        """The whole model on the CPU with the given weights, in fp32, or fp64 if they are."""
        workload = self.run.workload
        model = build_model(workload.model, self.outputs, *workload.sizes)
        if any(tensor.dtype == torch.float64 for tensor in tensors.values()):
            model.double()  # batch norm's counters stay integers
        return fill(model, tensors, "the converted checkpoint")

    def _loss(self, model):
        """Mean loss in nats over the test split."""
        summed, count = split_sums(model, self.samples, 0, 1, EVALUATION_BATCH, torch.device("cpu")).tolist()
        return summed / count if count else math.nan


def _is_weight(name):
    return name.startswith(WEIGHTS)


def same_bits(one, other):
    """True if two tensors have the same dtype, shape and bytes (so a NaN equals itself, and 0.0 is not -0.0)."""
    if one is None or other is None or one.dtype != other.dtype or one.shape != other.shape:
        return False
    one, other = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other))
    return torch.equal(one, other)
