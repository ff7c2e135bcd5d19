"""A checkpoint as `transformers` has it: the model's family knows the words, here its tensors get them as they are read."""

import torch

from parascale.checkpoint.pieces import read_whole
from parascale.errors import CheckpointError
from parascale.families import kinds, part_of
from parascale.settings import run_from_dict


def config(source, dtype):
    """`config.json` of an open CheckpointReader whose weights are written as `dtype`, as plain values.

    Raises CheckpointError for settings without an equal there.
    """
    workload = _workload(source)
    words = words_of(workload.model.kind)
    vocabulary = source.weights[words.VOCABULARY].shape[0]
    described = words.config(workload.model, vocabulary, workload.training.window)
    return described | {"dtype": str(dtype).removeprefix("torch.")}


def tensors(source, weights):
    """Name in `transformers` → tensor, of `weights` (our name → tensor)."""
    model = _workload(source).model
    found = {}
    for theirs, (ours, turned) in words_of(model.kind).tensors(model).items():
        parts = [weights.get(name) or Zeros(weights[name.removesuffix("bias") + "weight"]) for name in ours]
        found[theirs] = Turned(parts) if turned else parts[0] if len(parts) == 1 else Joined(parts)
    return found


def _workload(source):
    """What the run that a checkpoint is of trained."""
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


class Zeros:
    """As many zeros as another tensor has rows."""

    indivisible = False

    def __init__(self, like):
        self.shape, self.dtype = like.shape[:1], like.dtype

    def rows(self, first, last):
        """Rows `first` to before `last`."""
        return torch.zeros(last - first, dtype=self.dtype)


class Joined:
    """Tensors one after the other along their first dimension."""

    indivisible = True

    def __init__(self, parts):
        self.parts = parts
        self.shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
        self.dtype = parts[0].dtype

    def rows(self, first, last):
        """Rows `first` to before `last`."""
        return torch.cat([read_whole(part) for part in self.parts])[first:last]


class Turned(Joined):
    """Matrices joined along their rows, then transposed: GPT-2 multiplies from the other side."""

    def __init__(self, parts):
        super().__init__(parts)
        self.shape = self.shape[::-1]

    def rows(self, first, last):
        """Rows `first` to before `last` of the transposed matrix."""
        joined = torch.empty(self.shape, dtype=self.dtype)
        start = 0
        for part in self.parts:
            joined[:, start : start + part.shape[0]] = read_whole(part).T
            start += part.shape[0]
        return joined[first:last]
