"""Read and write torch's sharded checkpoints. Their index (`.metadata`) is a pickle; reading it here runs no code from it.

torch reads it with plain `pickle.load`. Here only the few classes that an index needs are allowed, and entries
that are not tensors are refused, because torch would unpickle those too.
"""

import io
import pickle
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

from parascale.errors import CheckpointError

INDEX = ".metadata"
ALONE = "torch.distributed is disabled"  # torch's warning in a single process, which is intended
ALLOWED = {
    "torch": {"Size", "device"},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",  # loaded only to refuse the entry by name
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "collections": {"OrderedDict"},
    "pathlib": {"PosixPath", "PurePosixPath"},
}
DTYPES = {name for name, value in vars(torch).items() if isinstance(value, torch.dtype)}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if module == "pathlib._local":  # only Python 3.13 has the classes of paths there
            module = "pathlib"
        if name in ALLOWED.get(module, ()) or (module == "torch" and name in DTYPES):
            return super().find_class(module, name)
        raise CheckpointError(f"refuses to load `{module}.{name}`: an index of tensors does not need it")


def read_index(folder):
    """Read the `torch.distributed.checkpoint` Metadata of a folder. Raises CheckpointError unless it is an index of tensors only."""
    path = Path(folder) / INDEX
    if not path.is_file():
        raise CheckpointError(f"{folder}: not a sharded checkpoint ({INDEX} is missing)")
    try:
        index = _Unpickler(io.BytesIO(path.read_bytes())).load()
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except Exception as error:  # a damaged pickle raises nearly anything
        raise CheckpointError(f"{path} is damaged: {type(error).__name__}: {error}") from None
    if not isinstance(index, Metadata):
        raise CheckpointError(f"{path} holds a {type(index).__name__}, not the index of a checkpoint")
    for name, entry in index.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):
            raise CheckpointError(f"{path}: `{name}` is not a tensor but a pickled object, which is not loaded")
    return index


class SafeReader(dcp.FileSystemReader):
    """torch's reader of sharded checkpoints, but its index cannot run code. torch loads the tensors with weights_only=True."""

    def read_metadata(self, *args, **kwargs):
        index = read_index(self.path)
        if index.storage_meta is None:
            index.storage_meta = StorageMeta()
        index.storage_meta.load_id = self.load_id
        return index


def load_tensors(state, folder, **options):
    """Fill the tensors of `state` from a sharded checkpoint, with a SafeReader."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ALONE)
        dcp.load(state, storage_reader=SafeReader(folder), **options)


def save_tensors(state, writer, group):
    """Write `state` as a sharded checkpoint; called by every rank of the group."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ALONE)
        dcp.save(state, storage_writer=writer, process_group=group)


def tensors(folder):
    """Name → (shape, dtype) of every tensor in a checkpoint folder."""
    entries = read_index(folder).state_dict_metadata
    return {name: (entry.size, entry.properties.dtype) for name, entry in entries.items()}


def read(folder, names=None):
    """Load some or all tensors of a checkpoint to the CPU: name → whole tensor."""
    known = tensors(folder)
    names = list(known) if names is None else names
    missing = [name for name in names if name not in known]
    if missing:
        raise CheckpointError(f"{folder} holds no tensor {', '.join(missing)}")
    state = {name: torch.empty(known[name][0], dtype=known[name][1]) for name in names}
    load_tensors(state, folder, no_dist=True)
    return state
