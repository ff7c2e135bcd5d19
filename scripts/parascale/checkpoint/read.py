"""Reading a sharded checkpoint in one process, without a model: names, shapes, and whole tensors one at a time."""

from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from parascale.errors import CheckpointError

GROUP_BYTES = 256 << 20


def tensors(folder):
    """Name → (shape, dtype) of every tensor in a checkpoint folder."""
    if not (Path(folder) / ".metadata").is_file():
        raise CheckpointError(f"{folder}: not a checkpoint (.metadata is missing)")
    entries = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    return {
        name: (entry.size, entry.properties.dtype)
        for name, entry in entries.items()
        if isinstance(entry, TensorStorageMetadata)
    }


def read(folder, names):
    """Name → whole tensor on the CPU, for some of a checkpoint's tensors."""
    known = tensors(folder)
    missing = [name for name in names if name not in known]
    if missing:
        raise CheckpointError(f"{folder} holds no tensor {', '.join(missing)}")
    state = {name: torch.empty(known[name][0], dtype=known[name][1]) for name in names}
    dcp.load(state, storage_reader=dcp.FileSystemReader(folder), no_dist=True)
    return state


def in_groups(folder, names, limit_bytes=GROUP_BYTES):
    """Yield name → whole tensor for groups of tensors of at most `limit_bytes` (or one larger tensor).

    Each read goes through the whole index again, so tensor by tensor is slow, and all at once may not fit.
    """
    known = tensors(folder)
    group, held = [], 0
    for name in names:
        size = known[name][0].numel() * known[name][1].itemsize
        if group and held + size > limit_bytes:
            yield read(folder, group)
            group, held = [], 0
        group.append(name)
        held += size
    if group:
        yield read(folder, group)
