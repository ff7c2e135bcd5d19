"""Sharded checkpoints of a training in `torch.distributed.checkpoint`'s format.

A checkpoint is a folder `step-<number>` with the shards, their index (`.metadata`) and `checkpoint.json`, which holds
step, settings and the checksum of every file and is written last: a folder without it is not a checkpoint. Names are those
of the single process in every layout, and tied parameters stand once, so any layout can load what any other saved.
"""

import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import xxhash
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from parascale.errors import CheckpointError
from parascale.files import BLOCK_BYTES, read_json, require_space, sync_tree, write_json

MANIFEST = "checkpoint.json"
OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)


def save(folder, model, optimizers, facts):
    """Write the checkpoint `folder`, whole or not at all. Called by every rank.

    model: ParallelModel. optimizers: one a part, or empty to save the weights alone. facts: JSON values to keep beside.
    """
    folder = Path(folder)
    partial = folder.with_name(f"{folder.name}.partial")
    lead = model.mesh.rank == 0
    _together(model.mesh, lambda: _prepare(partial, model, optimizers) if lead else None)
    state = state_dict(model, optimizers)
    _together(model.mesh, lambda: dcp.save(state, storage_writer=dcp.FileSystemWriter(partial, overwrite=True)))
    checksums = _together(model.mesh, lambda: _checksums(partial, model.mesh.rank))
    _together(model.mesh, lambda: _seal(partial, folder, facts, checksums) if lead else None)


def load(folder, model, optimizers):
    """Fill model and optimizers from a whole checkpoint of any layout. Called by every rank; returns its facts."""
    facts = verify(folder)
    state = state_dict(model, optimizers)
    try:
        dcp.load(state, storage_reader=dcp.FileSystemReader(folder))
    except (dcp.api.CheckpointException, KeyError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{folder} does not fit this model: {error}") from error
    _put(model, optimizers, state)
    return facts


def verify(folder):
    """The facts of a checkpoint whose every file is there with the right checksum, else CheckpointError that names it."""
    folder = Path(folder)
    if not (folder / MANIFEST).is_file():
        raise CheckpointError(f"{folder}: not a whole checkpoint ({MANIFEST} is missing)")
    manifest = read_json(folder / MANIFEST)
    for name, entry in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{folder}: {name} is missing")
        if path.stat().st_size != entry["bytes"] or _checksum(path) != entry["xxh3"]:
            raise CheckpointError(f"{folder}: {name} is damaged (its checksum differs from {MANIFEST})")
    return manifest["facts"]


def whole_checkpoints(folder):
    """Checkpoint folders below `folder`, the newest step first."""
    found = [entry.parent for entry in Path(folder).glob(f"step-*/{MANIFEST}")]
    return sorted((entry for entry in found if not entry.name.endswith(".partial")), reverse=True)


def step_folder(folder, step):
    """The folder of the checkpoint after `step` optimizer steps."""
    return Path(folder) / f"step-{step:09d}"


def state_dict(model, optimizers):
    """Name → tensor of everything that this rank holds, tied parameters once.

    Tensors only: settings of the optimizer come from the configuration, and nothing needs unpickling to be read.
    Where ranks train apart (local SGD), each keeps its own state beside the shared weights, under `ranks.<rank>.`.
    """
    state = {}
    for number, part in enumerate(model.parts):
        entries = _part_state(part, optimizers[number] if optimizers else None)
        state |= {_first_name(key, model.tied): value for key, value in entries.items() if isinstance(value, torch.Tensor)}
    if not model.ranks_differ or not optimizers:
        return state
    shared = {key: value for key, value in state.items() if key.startswith("model.")}
    return shared | {f"ranks.{model.mesh.rank}.{key}": value for key, value in state.items()}


def _part_state(part, optimizer):
    """Everything of one part under its own names: `model.<name>`, `optimizer.state.<name>.<moment>`, `optimizer.param_groups...`."""
    entries = {f"model.{name}": value for name, value in get_model_state_dict(part, options=OPTIONS).items()}
    if optimizer is not None:
        moments = get_optimizer_state_dict(part, optimizer, options=OPTIONS)
        entries |= {f"optimizer.{name}": value for name, value in moments.items()}
    return entries


def _put(model, optimizers, state):
    """Hand a loaded state to the parts, under the names that each part uses."""
    for number, part in enumerate(model.parts):
        optimizer = optimizers[number] if optimizers else None
        entries = {
            key: state.get(_first_name(key, model.tied), value) for key, value in _part_state(part, optimizer).items()
        }
        set_model_state_dict(part, _below("model.", entries), options=OPTIONS)
        if optimizer is not None:
            set_optimizer_state_dict(part, optimizer, _below("optimizer.", entries), options=OPTIONS)


def _below(prefix, entries):
    return {key.removeprefix(prefix): value for key, value in entries.items() if key.startswith(prefix)}


def _first_name(key, tied):
    """A key under the first name of the parameter it speaks of."""
    for second, first in tied.items():
        for prefix in ("model.", "optimizer.state.", "optimizer.param_groups."):
            if key == prefix + second or key.startswith(f"{prefix}{second}."):
                return prefix + first + key.removeprefix(prefix + second)
    return key


def _prepare(partial, model, optimizers):
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    copies = 3 if optimizers else 1  # AdamW keeps two moments of each parameter
    held = sum(p.numel() * p.element_size() for _, p in model.named_parameters())
    require_space(partial, held * copies, "a checkpoint")


def _checksums(folder, rank):
    """File name → size and checksum of the files that this rank wrote (rank 0: the index too)."""
    names = [path.name for path in folder.glob(f"__{rank}_*.distcp")] + ([".metadata"] if rank == 0 else [])
    return {name: {"bytes": (folder / name).stat().st_size, "xxh3": _checksum(folder / name)} for name in names}


def _checksum(path):
    digest = xxhash.xxh3_128()
    with open(path, "rb") as handle:
        while block := handle.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _seal(partial, folder, facts, checksums):
    """Make a written folder a checkpoint: manifest last, flushed, renamed."""
    files = {name: entry for rank in checksums for name, entry in rank.items()}
    write_json(partial / MANIFEST, {"schema_version": 1, "facts": facts, "files": files})
    sync_tree(partial)
    if folder.exists():
        old = folder.with_name(f"{folder.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
        partial.rename(folder)
        shutil.rmtree(old)
    else:
        partial.rename(folder)


def _together(mesh, work):
    """Do `work` on every rank; an error on one rank is raised on all, so that none waits for another.

    Returns the list of all ranks' results.
    """
    try:
        outcome = (work(), None)
    except Exception as error:
        outcome = (None, f"rank {mesh.rank}: {type(error).__name__}: {error}")
    if mesh.devices is None:
        outcomes = [outcome]
    else:
        outcomes = [None] * mesh.world_size
        dist.all_gather_object(outcomes, outcome)
    failures = [failure for _, failure in outcomes if failure]
    if failures:
        raise CheckpointError(f"a checkpoint could not be written: {'; '.join(failures)}")
    return [result for result, _ in outcomes]
