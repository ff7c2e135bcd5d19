"""Writing tensors as one form or another, a block of rows at a time, so that none is ever whole in memory.

Each writer takes a folder, `tensors` (name → anything with shape, dtype and rows) and a Streaming, and returns the names of
the files it made.
"""

import dataclasses
import io
import json
import pickle
import struct
import zipfile
from collections import OrderedDict

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from parascale.checkpoint.metadata import INDEX
from parascale.checkpoint.pieces import as_memory, bytes_of
from parascale.checkpoint.source import SAFETENSORS_DTYPES, index_name
from parascale.errors import CheckpointError
from parascale.files import open_flushed, write_json

SAFETENSORS_NAMES = {dtype: name for name, dtype in SAFETENSORS_DTYPES.items()}
CHUNK_BYTES = 16 << 20  # of a sharded checkpoint: whoever loads it plans with every chunk, so they are not too many
ALIGNMENT = 64  # bytes; where torch.save puts tensors, so that they can be mapped into memory


def write_safetensors(folder, stem, tensors, streaming, limit_bytes, metadata):
    """Write `<stem>.safetensors`; beyond `limit_bytes`, shards and an index, named as transformers names them.

    metadata: text → text, kept in every file's header.
    """
    shards = _shards(tensors, limit_bytes)
    total = len(shards)
    names = [f"{stem}-{number:05d}-of-{total:05d}.safetensors" for number in range(1, total + 1)]
    names = names if total > 1 else [f"{stem}.safetensors"]
    for name, shard in zip(names, shards, strict=True):
        _write_safetensors_file(folder / name, shard, streaming, metadata)
    if total == 1:
        return names
    index = {
        "metadata": {"total_size": sum(map(bytes_of, tensors.values()))},
        "weight_map": {key: name for name, shard in zip(names, shards, strict=True) for key in shard},
    }
    write_json(folder / index_name(stem), index)
    return [*names, index_name(stem)]


def _shards(tensors, limit_bytes):
    """Tensors in groups of at most `limit_bytes` (one that is larger stands alone), the largest elements first.

    With the larger dtypes first, every tensor is aligned to its dtype, as the safetensors library writes them.
    """
    shards, held = [{}], 0
    for name in sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name)):
        size = bytes_of(tensors[name])
        if shards[-1] and held + size > limit_bytes:
            shards.append({})
            held = 0
        shards[-1][name] = tensors[name]
        held += size
    return shards


def _write_safetensors_file(path, tensors, streaming, metadata):
    header, end = {"__metadata__": {"format": "pt", **metadata}}, 0
    for name, tensor in tensors.items():
        if tensor.dtype not in SAFETENSORS_NAMES:
            raise CheckpointError(f"tensor {name}: safetensors has no dtype {tensor.dtype}")
        start, end = end, end + bytes_of(tensor)
        header[name] = {
            "dtype": SAFETENSORS_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open_flushed(path) as handle:
        handle.write(struct.pack("<Q", len(text)) + text)
        for _, _, block in streaming.blocks(tensors):
            handle.write(as_memory(block))


def write_pt(folder, stem, tensors, streaming):
    """Write `<stem>.pt`: a dictionary of tensors that `torch.load(weights_only=True)` reads, also with mmap=True.

    The file is what torch.save makes: a zip archive of uncompressed members, a pickle first and one member a tensor.
    """
    path = folder / f"{stem}.pt"
    with open_flushed(path) as handle, zipfile.ZipFile(handle, "w", zipfile.ZIP_STORED) as archive:
        for name, value in (("data.pkl", _pickled(tensors)), ("byteorder", b"little"), ("version", b"3\n")):
            archive.writestr(zipfile.ZipInfo(f"{stem}/{name}"), value)
        numbers = {name: number for number, name in enumerate(tensors)}
        member, current = None, None
        for name, _, block in streaming.blocks(tensors):
            if name != current:
                if member is not None:
                    member.close()
                member, current = _open_member(archive, f"{stem}/data/{numbers[name]}", bytes_of(tensors[name])), name
            member.write(as_memory(block))
        if member is not None:
            member.close()
        for name in (name for name in tensors if bytes_of(tensors[name]) == 0):
            archive.writestr(zipfile.ZipInfo(f"{stem}/data/{numbers[name]}"), b"")
    return [path.name]


def _open_member(archive, name, size):
    """A member to write into, whose bytes begin at a multiple of ALIGNMENT."""
    entry = zipfile.ZipInfo(name)
    entry.file_size = size
    # An extra field (two bytes of identity, two of length) fills the gap; one of 8 and 16 bytes comes before it where
    # sizes need 64 bits, which is asked for always.
    fixed = archive.start_dir + 30 + len(name.encode()) + 20 + 4
    padding = -fixed % ALIGNMENT
    entry.extra = b"FB" + struct.pack("<H", padding) + b"\0" * padding
    return archive.open(entry, "w", force_zip64=True)


def _pickled(tensors):
    """The pickle of a dictionary of tensors whose numbers stand in members `data/<number>`."""
    buffer = io.BytesIO()
    pickler = _TensorPickler(buffer, protocol=2)
    pickler.dump({name: _Entry(number, tensor) for number, (name, tensor) in enumerate(tensors.items())})
    return buffer.getvalue()


class _Entry:
    """A tensor in a pickle: torch's rebuilding function and its arguments, which are all that a reader sees."""

    def __init__(self, number, tensor):
        self.storage = _Storage(number, tensor)
        self.shape = tuple(tensor.shape)

    def __reduce__(self):
        strides = torch.empty(self.shape, device="meta").stride()
        return torch._utils._rebuild_tensor_v2, (self.storage, 0, self.shape, strides, False, OrderedDict())


class _Storage:
    def __init__(self, number, tensor):
        kind = getattr(torch, torch.storage._dtype_to_storage_type_map()[tensor.dtype])
        self.identity = ("storage", kind, str(number), "cpu", torch.Size(tensor.shape).numel())


class _TensorPickler(pickle.Pickler):
    def persistent_id(self, value):
        return value.identity if isinstance(value, _Storage) else None


def write_sharded(folder, tensors, streaming):
    """Write `.metadata` and one `.distcp` file of torch.distributed.checkpoint. A block is a chunk, which any layout loads."""
    streaming = dataclasses.replace(streaming, largest_block=CHUNK_BYTES)
    entries, places = {}, {}
    file = "__0_0.distcp"
    for name, tensor in tensors.items():
        properties = TensorProperties(dtype=tensor.dtype)
        entries[name] = TensorStorageMetadata(properties=properties, size=torch.Size(tensor.shape), chunks=[])
    with open_flushed(folder / file) as handle:
        for name, first, block in streaming.blocks(tensors):
            block = block if tensors[name].shape else block.reshape(())
            _append_chunk(handle, file, name, first, block, entries, places)
        for name, tensor in tensors.items():
            if bytes_of(tensor) == 0:
                empty = torch.empty(tensor.shape, dtype=tensor.dtype)
                _append_chunk(handle, file, name, 0, empty, entries, places)
    index = Metadata(entries, planner_data={name: (name,) for name in tensors}, storage_data=places)
    with open(folder / INDEX, "wb") as handle:
        pickle.dump(index, handle)
    return [file, INDEX]


def _append_chunk(handle, file, name, first, block, entries, places):
    offsets = torch.Size([first] + [0] * (block.ndim - 1)) if block.ndim else torch.Size([])
    chunks = entries[name].chunks
    start = handle.tell()
    torch.save(block, handle)
    places[MetadataIndex(name, offsets, len(chunks))] = _StorageInfo(file, start, handle.tell() - start)
    chunks.append(ChunkStorageMetadata(offsets=offsets, sizes=block.shape))
