"""Reading a checkpoint of the sharded form in one process, without a model: names, shapes, and whole tensors by torch's loader."""

import torch

from parascale.checkpoint.metadata import load_tensors, read_index
from parascale.errors import CheckpointError


def tensors(folder):
    """Name → (shape, dtype) of every tensor in a checkpoint folder."""
    entries = read_index(folder).state_dict_metadata
    return {name: (entry.size, entry.properties.dtype) for name, entry in entries.items()}


def read(folder, names=None):
    """Name → whole tensor on the CPU, for some or all of a checkpoint's tensors."""
    known = tensors(folder)
    names = list(known) if names is None else names
    missing = [name for name in names if name not in known]
    if missing:
        raise CheckpointError(f"{folder} holds no tensor {', '.join(missing)}")
    state = {name: torch.empty(known[name][0], dtype=known[name][1]) for name in names}
    load_tensors(state, folder, no_dist=True)
    return state
