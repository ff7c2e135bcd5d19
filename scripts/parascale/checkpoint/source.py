"""A checkpoint of any form, opened: checked against its checksums, its tensors by name.

sharded      `.metadata` and `*.distcp` of torch.distributed.checkpoint, as trainings save them
safetensors  `model.safetensors`, or shards and `model.safetensors.index.json`; `optimizer.safetensors` likewise
pt           `model.pt` and `optimizer.pt`, as `torch.save` writes a dictionary of tensors

Weights stand under `model.<name>` in the sharded form and under `<name>` in the `model` file of the others; what a training
needs besides (`optimizer.state.<name>.<moment>`) stands under its full name in the `optimizer` file.
"""

import json
import pickle
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import _TYPES as SAFETENSORS_DTYPES
from torch.distributed.checkpoint.utils import _create_file_view

from parascale.checkpoint.manifest import check_files, read_manifest
from parascale.checkpoint.metadata import INDEX, read_index
from parascale.checkpoint.tensors import Piece, stored
from parascale.errors import CheckpointError
from parascale.files import read_json

WEIGHTS = "model."
STEMS = {"model": WEIGHTS, "optimizer": ""}  # of files → what stands before their names
RUN_RECORD = "run.json"


class CheckpointReader(ExitStack):
    """An open checkpoint; close it by `with`.

    tensors: name → Rows, named as in the sharded form. facts: of `checkpoint.json`. run_record: the run's `run.json`, or
    None where it stands neither in the folder nor beside it. files: name → open file.
    """

    def __init__(self, folder, form, threads):
        super().__init__()
        self.folder, self.form, self.files = Path(folder), form, {}
        manifest = read_manifest(folder)
        self.facts = manifest["facts"]
        check_files(folder, {name: entry for name, entry in manifest["files"].items() if _belongs(name, form)}, threads)
        records = [place / RUN_RECORD for place in (self.folder, self.folder.parent)]
        self.run_record = next((read_json(path) for path in records if path.is_file()), None)
        try:
            self.tensors = READERS[form](self)
        except BaseException:
            self.close()
            raise

    def file(self, name):
        """The open file `name` of the folder."""
        if name not in self.files:
            try:
                file = open(self.folder / name, "rb", buffering=0)  # noqa: SIM115 (closed with the checkpoint)
            except OSError as error:
                raise CheckpointError(f"{self.folder / name} cannot be read: {error.strerror}") from None
            self.files[name] = self.enter_context(file)
        return self.files[name]

    @property
    def weights(self):
        """Name → Rows of the model's weights, without the prefix."""
        return {name.removeprefix(WEIGHTS): entry for name, entry in self.tensors.items() if name.startswith(WEIGHTS)}

    @property
    def training_state(self):
        """Name → Rows of everything else."""
        return {name: entry for name, entry in self.tensors.items() if not name.startswith(WEIGHTS)}


def open_source(folder, form=None, threads=2):
    """Open a checkpoint folder. form: which to read where it holds several (default: the first of sharded, safetensors, pt).

    Raises CheckpointError that names what is missing, damaged or refused.
    """
    if not Path(folder).is_dir():
        raise CheckpointError(f"{folder}: no such checkpoint folder")
    held = forms_in(folder)
    if not held:
        read_manifest(folder)  # says so where the whole folder is unfinished
        raise CheckpointError(f"{folder}: no checkpoint (none of {', '.join(MARKS)} is there)")
    if form is not None and form not in held:
        raise CheckpointError(f"{folder} holds {', '.join(held)}, not {form}")
    return CheckpointReader(folder, form or held[0], threads)


def forms_in(folder):
    """The forms that a folder holds."""
    return list(dict.fromkeys(form for mark, form in MARKS.items() if (Path(folder) / mark).is_file()))


def index_name(stem):
    """The file that says which shard holds which tensor, as transformers names it."""
    return f"{stem}.safetensors.index.json"


MARKS = {INDEX: "sharded", "model.safetensors": "safetensors", index_name("model"): "safetensors", "model.pt": "pt"}


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
        file = source.file(place.relative_path)
        tensor = _load_places(file, place.offset, place.length)
        if tensor.shape != chunk.sizes or tensor.dtype != dtype:
            raise CheckpointError(f"{file.name}: holds another shape or dtype of {name} than the index says")
        return Piece(file, _place_of(file, place.offset, tensor), tuple(chunk.offsets), tuple(chunk.sizes))

    tensors = {}
    for name, entry in index.state_dict_metadata.items():
        dtype = entry.properties.dtype
        tensors[name] = stored(name, entry.size, dtype, [shard(name, chunk, dtype) for chunk in entry.chunks])
    return tensors


def _read_pt(source):
    tensors = {}
    for stem, prefix in STEMS.items():
        path = source.folder / f"{stem}.pt"
        if not path.is_file():
            continue
        file = source.file(path.name)
        held = _load_places(file, 0, path.stat().st_size)
        if not isinstance(held, dict) or not all(isinstance(value, torch.Tensor) for value in held.values()):
            raise CheckpointError(f"{path}: not a dictionary of tensors")
        for name, tensor in held.items():
            position = _place_of(file, 0, tensor)
            tensors[prefix + name] = _whole(prefix + name, file, tensor.shape, tensor.dtype, position)
    return tensors


def _read_safetensors(source):
    tensors = {}
    for stem, prefix in STEMS.items():
        names, expected = safetensors_files(source.folder, stem)
        found = {}
        for name in names:
            file = source.file(name)
            for key, (dtype, shape, position) in read_header(source.folder / name).items():
                found[key] = name
                tensors[prefix + key] = _whole(prefix + key, file, shape, dtype, position)
        if expected is not None and found != expected:
            odd = sorted(key for key, _ in found.items() ^ expected.items())
            raise CheckpointError(f"{source.folder / index_name(stem)} and its shards disagree on {', '.join(odd[:3])}")
    return tensors


def safetensors_files(folder, stem):
    """(names of the files, tensor → name) of the model or optimizer as safetensors; without an index, the second is None."""
    index = folder / index_name(stem)
    if index.is_file():
        expected = read_json(index)["weight_map"]
        return sorted(set(expected.values())), expected
    return [name for name in [f"{stem}.safetensors"] if (folder / name).is_file()], None


def read_header(path):
    """Name → (dtype, shape, first byte) of a safetensors file; CheckpointError where header and file do not agree.

    Format: https://huggingface.co/docs/safetensors (8 bytes of length, JSON, then the tensors without gaps).
    """
    try:
        with safe_open(path, "pt"):  # checks the header against itself and the file's size
            pass
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        return {
            name: (SAFETENSORS_DTYPES[entry["dtype"]], entry["shape"], 8 + length + entry["data_offsets"][0])
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (SafetensorError, KeyError) as error:
        raise CheckpointError(f"{path}: its header is damaged ({type(error).__name__}: {error})") from None


def _whole(name, file, shape, dtype, position):
    return stored(name, shape, dtype, [Piece(file, position, (0,) * len(shape), tuple(shape))])


def _load_places(file, start, length):
    """What `torch.save` wrote into a section of a file, on the meta device: shapes and places are read, numbers are not.

    Raises CheckpointError where it is damaged or would need a pickle to run code.
    """
    try:
        with open(file.name, "rb") as opened:
            return torch.load(_create_file_view(opened, start, length), map_location="meta", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{file.name}: refused, because it holds more than tensors ({reason})") from None
    except (RuntimeError, EOFError, ValueError, KeyError, OSError) as error:
        raise CheckpointError(f"{file.name} is damaged: {str(error).splitlines()[0]}") from None


def _place_of(file, start, tensor):
    """The byte of the file at which a tensor of `_load_places` begins."""
    offset = getattr(tensor.untyped_storage(), "_checkpoint_offset", None)
    if offset is None or not tensor.is_contiguous():
        raise CheckpointError(f"{file.name}: a tensor of shape {tuple(tensor.shape)} does not lie in one block")
    return start + offset + tensor.storage_offset() * tensor.element_size()


READERS = {"sharded": _read_sharded, "safetensors": _read_safetensors, "pt": _read_pt}
