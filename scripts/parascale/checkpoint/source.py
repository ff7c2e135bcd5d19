"""Open a checkpoint of any form: verify its checksums and find its tensors by name.

sharded      `.metadata` and `*.distcp` of torch.distributed.checkpoint, as trainings save them
safetensors  `model.safetensors`, or shards and `model.safetensors.index.json`; `optimizer.safetensors` likewise
pt           `model.pt` and `optimizer.pt`, as `torch.save` writes a dictionary of tensors

Weights are named `model.<name>` in the sharded form and `<name>` in the `model` file of the others. The rest of the training
state (`optimizer.state.<name>.<moment>`) keeps its full name in the `optimizer` file.
"""

import functools
import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import _TYPES as SAFETENSORS_DTYPES
from torch.distributed.checkpoint.utils import _create_file_view

from parascale.checkpoint.manifest import check_files, read_manifest
from parascale.checkpoint.metadata import INDEX, read_index
from parascale.checkpoint.tensors import Piece, stored
from parascale.errors import CheckpointError
from parascale.files import read_json
from parascale.paths import RECORD, RunFolder

WEIGHTS = "model."
STEMS = {"model": WEIGHTS, "optimizer": ""}  # file stem → prefix of its tensors in the sharded form
ENDINGS = {"sharded": (INDEX, ".distcp"), "safetensors": (".safetensors", ".safetensors.index.json"), "pt": (".pt",)}


@dataclass(frozen=True)
class StoredCheckpoint:
    """A checkpoint whose files match its manifest.

    facts: from `checkpoint.json`. run_record: the run's `run.json` in the folder or its parent, None if neither has one. files: names
    of the form's files. tensors: name → Rows, named as in the sharded form.
    """

    folder: Path
    form: str
    facts: dict
    run_record: dict | None
    files: list
    tensors: dict

    @property
    def weights(self):
        """Name → Rows of the model's weights, without the prefix."""
        return {name.removeprefix(WEIGHTS): entry for name, entry in self.tensors.items() if name.startswith(WEIGHTS)}

    @property
    def training_state(self):
        """Name → Rows of everything else."""
        return {name: entry for name, entry in self.tensors.items() if not name.startswith(WEIGHTS)}


def open_source(folder, form=None, threads=2):
    """Open the checkpoint in a folder. form: the one to read of several (default: the first of sharded, safetensors, pt).

    Raises CheckpointError that names what is missing, damaged or refused.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such checkpoint folder")
    manifest, held = read_manifest(folder), forms_in(folder)
    if not held:
        raise CheckpointError(f"{folder}: no checkpoint (none of {', '.join(MARKS)} is there)")
    if form is not None and form not in held:
        raise CheckpointError(f"{folder} holds {', '.join(held)}, not {form}")
    form, found = form or held[0], manifest["files"].items()
    files = {name: entry for name, entry in found if "/" not in name and name.endswith((*ENDINGS[form], RECORD))}
    check_files(folder, files, threads)
    records = [RunFolder(place).record for place in (folder, folder.parent)]
    record = next((read_json(path) for path in records if path.is_file()), None)
    return StoredCheckpoint(folder, form, manifest["facts"], record, list(files), TENSORS[form](folder))


def forms_in(folder):
    return list(dict.fromkeys(form for mark, form in MARKS.items() if (Path(folder) / mark).is_file()))


def index_name(stem):
    """The file that maps tensors to shards, as transformers names it."""
    return f"{stem}.safetensors.index.json"


MARKS = {INDEX: "sharded", "model.safetensors": "safetensors", index_name("model"): "safetensors", "model.pt": "pt"}


def _sharded(folder):
    index = read_index(folder)
    places = {(key.fqn, tuple(key.offset or ())): info for key, info in index.storage_data.items()}

    def piece(name, chunk, dtype):
        place = places.get((name, tuple(chunk.offsets)))
        if place is None or place.transform_descriptors:
            raise CheckpointError(f"{folder}: the index has no location for {name} at {list(chunk.offsets)}")
        path = folder / place.relative_path

        @functools.cache  # each chunk is a pickle, and there may be 100,000s: open one only to read it
        def position():
            tensor = _load_places(path, place.offset, place.length)
            if tensor.shape != chunk.sizes or tensor.dtype != dtype:
                raise CheckpointError(f"{path}: shape or dtype at byte {place.offset:,} differs from the index")
            return _position(path, place.offset, tensor)

        return Piece(path, position, tuple(chunk.offsets), tuple(chunk.sizes))

    return {
        name: stored(
            name, entry.size, entry.properties.dtype, [piece(name, c, entry.properties.dtype) for c in entry.chunks]
        )
        for name, entry in index.state_dict_metadata.items()
    }


def _pt(folder):
    tensors = {}
    for stem, prefix in STEMS.items():
        path = folder / f"{stem}.pt"
        held = _load_places(path, 0, path.stat().st_size) if path.is_file() else {}
        if not isinstance(held, dict) or not all(isinstance(value, torch.Tensor) for value in held.values()):
            raise CheckpointError(f"{path}: not a dictionary of tensors")
        for name, tensor in held.items():
            place = _position(path, 0, tensor)
            tensors[prefix + name] = _whole(prefix + name, path, tensor.shape, tensor.dtype, place)
    return tensors


def _safetensors(folder):
    tensors = {}
    for stem, prefix in STEMS.items():
        names, expected = safetensors_files(folder, stem)
        found = {}
        for name in names:
            for key, (dtype, shape, position) in read_header(folder / name).items():
                found[key] = name
                tensors[prefix + key] = _whole(prefix + key, folder / name, shape, dtype, position)
        if expected is not None and found != expected:
            odd = sorted(key for key, _ in found.items() ^ expected.items())
            raise CheckpointError(f"{folder / index_name(stem)} and its shards disagree on {', '.join(odd[:3])}")
    return tensors


def safetensors_files(folder, stem):
    """(file names, tensor → file name) of the model or optimizer as safetensors; the second is None without an index."""
    index = folder / index_name(stem)
    if index.is_file():
        expected = read_json(index)["weight_map"]
        return sorted(set(expected.values())), expected
    return [name for name in [f"{stem}.safetensors"] if (folder / name).is_file()], None


def read_header(path):
    """Name → (dtype, shape, first byte) of a safetensors file. Raises CheckpointError if header and file disagree.

    Format: https://huggingface.co/docs/safetensors (8-byte length, JSON, then the tensors without gaps).
    """
    try:
        with safe_open(path, "pt"):  # checks that the header is consistent and fits the file's size
            pass
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        return {
            name: (SAFETENSORS_DTYPES[entry["dtype"]], entry["shape"], 8 + length + entry["data_offsets"][0])
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (SafetensorError, KeyError, OSError) as error:
        raise CheckpointError(f"{path}: its header is damaged ({type(error).__name__}: {error})") from None


def _whole(name, path, shape, dtype, position):
    return stored(name, shape, dtype, [Piece(path, lambda: position, (0,) * len(shape), tuple(shape))])


def _load_places(path, start, length):
    """Load tensors that `torch.save` wrote into a section of a file to the meta device: shapes and offsets, but not the data.

    Raises CheckpointError if the section is damaged, or would run code when unpickled.
    """
    try:
        with open(path, "rb") as file:
            view: Any = _create_file_view(file, start, length)
            return torch.load(view, map_location="meta", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{path}: refused, because it holds more than tensors ({reason})") from None
    except (RuntimeError, EOFError, ValueError, KeyError, OSError) as error:
        raise CheckpointError(f"{path} is damaged: {str(error).splitlines()[0]}") from None


def _position(path, start, tensor):
    """The byte of the file at which a tensor from `_load_places` begins."""
    offset = getattr(tensor.untyped_storage(), "_checkpoint_offset", None)
    if offset is None or not tensor.is_contiguous():
        raise CheckpointError(f"{path}: a tensor of shape {tuple(tensor.shape)} is not contiguous")
    return start + offset + tensor.storage_offset() * tensor.element_size()


TENSORS = {"sharded": _sharded, "safetensors": _safetensors, "pt": _pt}  # form → function: folder → name → Rows
