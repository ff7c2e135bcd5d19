"""A checkpoint of any form, opened: checked against its checksums, its tensors by name.

sharded      `.metadata` and `*.distcp` of torch.distributed.checkpoint, as trainings save them
safetensors  `model.safetensors`, or shards and `model.safetensors.index.json`; `optimizer.safetensors` likewise
pt           `model.pt` and `optimizer.pt`, as `torch.save` writes a dictionary of tensors

Weights stand under `model.<name>` in the sharded form and under `<name>` in the `model` file of the others; what a training
needs besides (`optimizer.state.<name>.<moment>`) stands under its full name in the `optimizer` file.
"""

import json
import struct
from pathlib import Path

import torch

from parascale.checkpoint.manifest import check_files, read_manifest
from parascale.checkpoint.metadata import INDEX, read_index
from parascale.checkpoint.pieces import Handle, Piece, StoredTensor, bytes_of, load_places, place_of
from parascale.errors import CheckpointError
from parascale.files import read_json

WEIGHTS = "model."
RUN_RECORD = "run.json"
HEADER_LIMIT = 100 << 20  # bytes; the safetensors library refuses longer headers too
SAFETENSORS_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


class CheckpointReader:
    """An open checkpoint; close it by `with`.

    tensors: name → StoredTensor, as the sharded form names them. facts: of `checkpoint.json`. run_record: the run's
    `run.json`, or None where it stands neither in the folder nor beside it.
    """

    def __init__(self, folder, form, threads):
        self.folder, self.form = Path(folder), form
        manifest = read_manifest(folder)
        self.facts = manifest["facts"]
        check_files(folder, {name: entry for name, entry in manifest["files"].items() if _belongs(name, form)}, threads)
        records = [place / RUN_RECORD for place in (self.folder, self.folder.parent)]
        self.run_record = next((read_json(path) for path in records if path.is_file()), None)
        self.handles = {}
        try:
            self.tensors = READERS[form](self)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Close the files."""
        for handle in self.handles.values():
            handle.close()

    def handle(self, name):
        """The open file `name` of the folder."""
        if name not in self.handles:
            self.handles[name] = Handle(self.folder / name)
        return self.handles[name]

    @property
    def weights(self):
        """Name → StoredTensor of the model's weights, without the prefix."""
        return {name.removeprefix(WEIGHTS): entry for name, entry in self.tensors.items() if name.startswith(WEIGHTS)}

    @property
    def training_state(self):
        """Name → StoredTensor of everything else."""
        return {name: entry for name, entry in self.tensors.items() if not name.startswith(WEIGHTS)}

    @property
    def bytes(self):
        """Bytes of all tensors."""
        return sum(map(bytes_of, self.tensors.values()))


def open_source(folder, form=None, threads=2):
    """Open a checkpoint folder. form: which to read where it holds several (default: the first of sharded, safetensors, pt).

    Raises CheckpointError that names what is missing, damaged or refused.
    """
    if not Path(folder).is_dir():
        raise CheckpointError(f"{folder}: no such checkpoint folder")
    held = forms_in(folder)
    if not held:
        read_manifest(folder)  # says so where the whole folder is unfinished
        raise CheckpointError(f"{folder}: no checkpoint (none of {', '.join(map(str, _marks()))} is there)")
    if form is not None and form not in held:
        raise CheckpointError(f"{folder} holds {', '.join(held)}, not {form}")
    return CheckpointReader(folder, form or held[0], threads)


def forms_in(folder):
    """The forms that a folder holds."""
    held = [form for mark, form in _marks().items() if (Path(folder) / mark).is_file()]
    return list(dict.fromkeys(held))


def index_name(stem):
    """The file that tells which shard holds which tensor, as transformers names it."""
    return f"{stem}.safetensors.index.json"


def _marks():
    return {INDEX: "sharded", "model.safetensors": "safetensors", index_name("model"): "safetensors", "model.pt": "pt"}


def _belongs(name, form):
    if form == "sharded":
        return "/" not in name and not name.endswith((".safetensors", ".safetensors.index.json", ".pt"))
    return "/" not in name and name.endswith((f".{form}", f".{form}.index.json", RUN_RECORD))


def _read_sharded(source):
    index = read_index(source.folder)
    places = {(key.fqn, tuple(key.offset or ())): info for key, info in index.storage_data.items()}

    def shard(name, chunk, dtype):
        place = places.get((name, tuple(chunk.offsets)))
        if place is None or place.transform_descriptors:
            raise CheckpointError(
                f"{source.folder}: the index names no plain place for {name} at {list(chunk.offsets)}"
            )
        handle = source.handle(place.relative_path)

        def locate():
            tensor = load_places(handle, place.offset, place.length)
            if tuple(tensor.shape) != tuple(chunk.sizes) or tensor.dtype != dtype:
                raise CheckpointError(f"{handle.path}: holds another shape or dtype of {name} than the index says")
            return place_of(handle, place.offset, tensor)

        return Piece(handle, chunk.offsets, chunk.sizes, dtype, locate)

    tensors = {}
    for name, entry in index.state_dict_metadata.items():
        dtype = entry.properties.dtype
        tensors[name] = StoredTensor(name, entry.size, dtype, [shard(name, chunk, dtype) for chunk in entry.chunks])
    return tensors


def _read_pt(source):
    tensors = {}
    for stem, prefix in _stems(source, "{}.pt"):
        handle = source.handle(f"{stem}.pt")
        held = load_places(handle, 0, handle.size)
        if not isinstance(held, dict) or not all(isinstance(value, torch.Tensor) for value in held.values()):
            raise CheckpointError(f"{handle.path}: not a dictionary of tensors")
        for name, tensor in held.items():
            tensors[prefix + name] = _whole(
                prefix + name, handle, tensor.shape, tensor.dtype, place_of(handle, 0, tensor)
            )
    return tensors


def _read_safetensors(source):
    tensors = {}
    for stem, prefix in _stems(source, "{}.safetensors", index_name("{}")):
        index = source.folder / index_name(stem)
        expected = read_json(index)["weight_map"] if index.is_file() else None
        found = {}
        for name in sorted(set(expected.values())) if expected else [f"{stem}.safetensors"]:
            handle = source.handle(name)
            for key, (dtype, shape, start) in read_header(handle).items():
                found[key] = name
                tensors[prefix + key] = _whole(prefix + key, handle, shape, dtype, start)
        if expected is not None and found != expected:
            odd = sorted(key for key, _ in found.items() ^ expected.items())
            raise CheckpointError(f"{index} and its shards disagree on {', '.join(odd[:3])}")
    return tensors


def _whole(name, handle, shape, dtype, start):
    return StoredTensor(name, shape, dtype, [Piece(handle, [0] * len(shape), shape, dtype, lambda: start)])


def _stems(source, *patterns):
    """(stem, prefix of its names) of the files that are there: the model's, and the optimizer's."""
    for stem, prefix in (("model", WEIGHTS), ("optimizer", "")):
        if any((source.folder / pattern.format(stem)).is_file() for pattern in patterns):
            yield stem, prefix


def read_header(handle):
    """Name → (dtype, shape, first byte) of a safetensors file; CheckpointError where header and file do not agree.

    Format: https://huggingface.co/docs/safetensors (8 bytes of length, JSON, then the tensors without gaps).
    """
    (length,) = struct.unpack("<Q", handle.read(0, 8))
    if length > HEADER_LIMIT:
        raise CheckpointError(f"{handle.path} is not a safetensors file (a header of {length:,} bytes)")
    try:
        header = json.loads(handle.read(8, length))
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        tensors, end = {}, 0
        for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
            dtype, shape = SAFETENSORS_DTYPES[entry["dtype"]], entry["shape"]
            start, stop = entry["data_offsets"]
            if start != end or stop - start != torch.Size(shape).numel() * dtype.itemsize:
                raise CheckpointError(
                    f"{handle.path}: bytes {start} to {stop} are not those of {name}, {dtype} {shape}"
                )
            tensors[name], end = (dtype, shape, 8 + length + start), stop
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{handle.path}: its header is damaged ({type(error).__name__}: {error})") from None
    if handle.size != 8 + length + end:
        raise CheckpointError(f"{handle.path} is damaged: {handle.size:,} bytes instead of {8 + length + end:,}")
    return tensors


READERS = {"sharded": _read_sharded, "safetensors": _read_safetensors, "pt": _read_pt}
