"""A checkpoint as `transformers` has it: the model's family knows the names, its tensors get them as they are read."""

import torch

from parascale.checkpoint.tensors import Rows, joined
from parascale.errors import CheckpointError
from parascale.families import kinds, part_of
from parascale.settings import run_from_dict


def config(source, dtype):
    """`config.json` of a StoredCheckpoint whose weights are written as `dtype`, as plain values.

    Raises CheckpointError for settings without an equal there.
    """
    workload = _workload(source)
    words = words_of(workload.model.kind)
    vocabulary = source.weights[words.VOCABULARY].shape[0]
    described = words.config(workload.model, vocabulary, workload.training.window)
    return described | {"dtype": str(dtype).removeprefix("torch.")}


def tensors(source, weights):
    """Name in `transformers` → Rows, of `weights` (our name → Rows)."""
    model = _workload(source).model
    found = {}
    for theirs, (ours, turned) in words_of(model.kind).tensors(model).items():
        parts = [weights.get(name) or _no_bias(weights[name.removesuffix("bias") + "weight"]) for name in ours]
        found[theirs] = joined(parts, turned) if turned or len(parts) > 1 else parts[0]
    return found


def _no_bias(weight):
    return Rows(weight.shape[:1], weight.dtype, lambda first, last: torch.zeros(last - first, dtype=weight.dtype))


def _workload(source):
    """What the run of a checkpoint trained."""
    if source.run_record is None:
        raise CheckpointError(f"{source.folder}: run.json is needed beside the checkpoint to know the model's settings")
    return run_from_dict(source.run_record["settings"]).workload


def words_of(kind):
    """The module `export` of the family of a model kind, as `families/language/export.py` has it.

    Raises CheckpointError for a kind without an equal in `transformers`.
    """
    words = part_of(kind, "export")
    if words is None:
        exported = ", ".join(name for name, kind in kinds().items() if kind.export)
        raise CheckpointError(f"transformers has no equal of model.kind = {kind}; only {exported} is exported")
    return words
