"""Write tensors in each form, a block of rows at a time, so that no tensor is ever whole in memory.

Each writer takes a folder, `tensors` (name → Rows) and a Streaming, and returns the name or names of the files it made.
"""

import dataclasses
import io
import itertools
import json
import operator
import pickle
import struct
import sys
import zipfile
from collections import OrderedDict

import torch
from huggingface_hub import split_state_dict_into_shards_factory
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from parascale.checkpoint.metadata import INDEX
from parascale.checkpoint.source import SAFETENSORS_DTYPES, index_name
from parascale.checkpoint.tensors import as_memory
from parascale.errors import CheckpointError
from parascale.files import open_flushed, write_json

SAFETENSORS_NAMES = {dtype: name for name, dtype in SAFETENSORS_DTYPES.items()}
CHUNK_BYTES = 16 << 20  # in a sharded checkpoint: a loader plans every chunk, so there must not be too many
ALIGNMENT = 64  # bytes; torch.save aligns tensors so, to make them memory-mappable


def write_safetensors(folder, stem, tensors, streaming, limit_bytes, metadata):
    """Write `<stem>.safetensors`; beyond `limit_bytes`, shards and an index, named as in transformers.

    metadata: text → text, kept in every file's header. A tensor beyond the limit gets its own file.
    """
    # Larger dtypes first, as in the safetensors library: every tensor is then aligned to its dtype.
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    split = split_state_dict_into_shards_factory(
        {name: tensors[name] for name in names},
        get_storage_size=operator.attrgetter("bytes"),
        filename_pattern=f"{stem}{{suffix}}.safetensors",
        max_shard_size=limit_bytes,
    )
    for file, shard in split.filename_to_tensors.items():
        _write_safetensors_file(folder / file, {name: tensors[name] for name in shard}, streaming, metadata)
    if not split.is_sharded:
        return list(split.filename_to_tensors)
    write_json(folder / index_name(stem), {"metadata": split.metadata, "weight_map": split.tensor_to_filename})
    return [*split.filename_to_tensors, index_name(stem)]


def _write_safetensors_file(path, tensors, streaming, metadata):
    header, end = {"__metadata__": {"format": "pt", **metadata}}, 0
    for name, tensor in tensors.items():
        if tensor.dtype not in SAFETENSORS_NAMES:
            raise CheckpointError(f"tensor {name}: safetensors has no dtype {tensor.dtype}")
        start, end = end, end + tensor.bytes
        dtype = SAFETENSORS_NAMES[tensor.dtype]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open_flushed(path) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, block in streaming.blocks(tensors):
            file.write(as_memory(block))


def write_pt(folder, stem, tensors, streaming):
    """Write `<stem>.pt`: a dictionary of tensors that `torch.load(weights_only=True)` reads, also with mmap=True.

    In torch.save's format: a zip archive of uncompressed members, a pickle first and then one member per tensor.
    """
    path, pickled = folder / f"{stem}.pt", io.BytesIO()
    empty = {name: torch.empty(entry.shape, dtype=entry.dtype, device="meta") for name, entry in tensors.items()}
    _MetaPickler(pickled, protocol=2).dump(empty)
    filled = itertools.groupby(streaming.blocks(tensors), key=operator.itemgetter(0))
    with open_flushed(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, content in (("data.pkl", pickled.getvalue()), ("byteorder", sys.byteorder), ("version", "3\n")):
            archive.writestr(zipfile.ZipInfo(f"{stem}/{name}"), content)
        for number, tensor in enumerate(tensors.values()):
            with _open_member(archive, f"{stem}/data/{number}", tensor.bytes) as member:
                for _, _, block in next(filled)[1]:
                    member.write(as_memory(block))
    return path.name


class _MetaPickler(pickle.Pickler):
    """Pickles meta tensors, which take no memory, as torch.save does: their storages by number."""

    def __init__(self, file, protocol):
        super().__init__(file, protocol)
        self.numbers = itertools.count()

    def reducer_override(self, value):
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        storage = value._typed_storage()
        return torch._utils._rebuild_tensor_v2, (storage, 0, tuple(value.shape), value.stride(), False, OrderedDict())

    def persistent_id(self, value):
        if not isinstance(value, torch.TypedStorage):
            return None
        kind = getattr(torch, value._pickle_storage_type())
        return "storage", kind, str(next(self.numbers)), "cpu", value._size()


def _open_member(archive, name, size):
    """Open a member for writing, whose data begins at a multiple of ALIGNMENT."""
    entry = zipfile.ZipInfo(name)
    entry.file_size = size
    # An extra field (two bytes of id, two of length) fills the gap. Another one, of 20 bytes, has 64-bit sizes.
    fixed = archive.start_dir + 30 + len(name.encode()) + 20 + 4
    padding = -fixed % ALIGNMENT
    entry.extra = b"FB" + struct.pack("<H", padding) + b"\0" * padding
    return archive.open(entry, "w", force_zip64=True)


def write_sharded(folder, tensors, streaming):
    """Write `.metadata` and one `.distcp` file of torch.distributed.checkpoint. A block is a chunk, which any layout can load.

    `dcp.save` would keep the last chunk of every tensor in memory until its file is complete.
    """
    streaming = dataclasses.replace(streaming, largest_block=CHUNK_BYTES)
    name_of_file, places = "__0_0.distcp", {}
    entries: dict = {
        name: TensorStorageMetadata(TensorProperties(dtype=tensor.dtype), torch.Size(tensor.shape), chunks=[])
        for name, tensor in tensors.items()
    }
    with open_flushed(folder / name_of_file) as file:
        for name, first, block in streaming.blocks(tensors):
            block = block if tensors[name].shape else block.reshape(())
            offsets = torch.Size([first, *[0] * block.ndim][: block.ndim])
            start, chunks = file.tell(), entries[name].chunks
            torch.save(block, file)
            places[MetadataIndex(name, offsets, len(chunks))] = _StorageInfo(name_of_file, start, file.tell() - start)
            chunks.append(ChunkStorageMetadata(offsets=offsets, sizes=block.shape))
    index = Metadata(entries, planner_data={name: (name,) for name in tensors}, storage_data=places)
    (folder / INDEX).write_bytes(pickle.dumps(index))
    return [name_of_file, INDEX]
