"""Save and load sharded checkpoints of a training, in `torch.distributed.checkpoint`'s format.

A checkpoint is a folder `step-<number>` with the shards, their index (`.metadata`) and `checkpoint.json`, which has the step, the
settings and every file's checksum and is written last: a folder without it is not a checkpoint. In every layout tensors have the
names of the single process, and tied parameters are saved once, so any layout can load what any other saved.
"""

import collections
import shutil
import threading
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor

from parascale.checkpoint.manifest import check_files, describe_files, read_manifest, write_manifest
from parascale.checkpoint.metadata import INDEX, load_tensors, read_index, save_tensors
from parascale.checkpoint.ranks import gather, on_rank0, together
from parascale.errors import CheckpointError, ParascaleError
from parascale.files import require_space, sync_tree

BUFFER = 2**30  # bytes of a host buffer that several tensors share
ALIGNED = 512  # bytes
OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)


class Saver:
    """Saves checkpoints of one training, synchronously or in the background.

    asynchronous: training waits only until the state is copied to host memory. A thread then writes it, over its own process group,
    because two threads must not share one. At most one save runs at a time. Every rank has a Saver, and every call is collective.
    """

    def __init__(self, mesh, asynchronous):
        self.mesh, self.asynchronous = mesh, asynchronous
        self.thread = self.error = None
        self.group = mesh.new_host_group() if asynchronous and mesh.devices is not None else mesh.host_group
        self.copies = {}  # name → tensor in host memory

    def save(self, folder, model, optimizers, facts, after=None):
        """Write the checkpoint `folder` atomically.

        model: ParallelModel. optimizers: one per model part, or empty to save only the weights. facts: JSON values for the manifest.
        after: called on rank 0 once the checkpoint is complete. If a background save fails, the next call raises its error.
        """
        self.wait()
        state = state_dict(model, optimizers)
        if not self.asynchronous:
            self._write(Path(folder), state, facts, after)
            return
        # A daemon: a training that fails must not wait for peers that will never write their part.
        arguments = (Path(folder), self._copied(state), facts, after)
        self.thread = threading.Thread(target=self._write_behind, args=arguments, daemon=True)
        self.thread.start()

    def wait(self):
        """Wait for the save under way; raises its error on every rank."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        error, self.error = self.error, None
        if error is not None:
            raise error

    @torch.no_grad()
    def _copied(self, state):
        """Copy the state to host memory that all saves reuse: the kernel zeroes new memory, which takes as long as a copy.

        From a GPU it goes into pinned memory, one copy right after the other, and the host waits only for the last.
        """
        self.copies |= host_places({name: value for name, value in state.items() if name not in self.copies})
        for name, value in state.items():
            self.copies[name].copy_(value, non_blocking=True)
        if any(value.is_cuda for value in state.values()):
            torch.cuda.current_stream().synchronize()
        return {name: self.copies[name] for name in state}

    def _write_behind(self, folder, state, facts, after):
        try:
            self._write(folder, state, facts, after)
        except Exception as error:
            self.error = error

    def _write(self, folder, state, facts, after):
        lead = self.mesh.rank == 0
        partial = folder.with_name(f"{folder.name}.partial")
        try:
            merged = self._write_files(partial, state)
            self._together(lambda: _seal(partial, folder, facts, merged) if lead else None)
        except ParascaleError:
            if lead:
                # Free the space: a full disk must not keep the run from recording why it ended.
                shutil.rmtree(partial, ignore_errors=True)
            raise
        self._together(lambda: after() if lead and after is not None else None)

    def _write_files(self, partial, state):
        """Write the state into `partial`; returns size and checksum of every file of all ranks."""
        rank = self.mesh.rank
        local = [value.to_local() if isinstance(value, DTensor) else value for value in state.values()]
        held = self._together(lambda: sum(value.nbytes for value in local))
        self._together(lambda: _prepare(partial, sum(held)) if rank == 0 else None)
        # With copy-ahead, torch waits for the GPU's current stream, the training's, even if the tensors are in host memory.
        writer = dcp.FileSystemWriter(partial, overwrite=True, per_thread_copy_ahead=0)
        self._together(lambda: save_tensors(state, writer, self.group))
        index = [INDEX] if rank == 0 else []
        written = self._together(
            lambda: describe_files(partial, [*index, *(path.name for path in partial.glob(f"__{rank}_*.distcp"))])
        )
        return dict(collections.ChainMap(*written))

    def _together(self, work):
        return together(self.mesh, work, "could not be written", self.group)


def check(folder, mesh):
    """Verify every byte of a checkpoint; returns its facts. Every rank calls it; if it is damaged, all raise CheckpointError."""
    manifest = on_rank0(mesh, lambda: read_manifest(folder))
    share = dict(list(manifest["files"].items())[mesh.rank :: mesh.world_size])  # the ranks share the files
    together(mesh, lambda: check_files(folder, share), "cannot be loaded")
    return manifest["facts"]


def load(folder, model, optimizers):
    """Load a checkpoint of any layout into model and optimizers; returns its facts. Called by every rank.

    Raises CheckpointError, on every rank, if the checkpoint is damaged or another model's.
    """
    mesh = model.mesh
    facts = check(folder, mesh)
    state = state_dict(model, optimizers)
    shapes = {name: list(value.shape) for name, value in state.items()}
    wanted = dict(collections.ChainMap(*gather(mesh, shapes)))
    together(mesh, lambda: _check_names(folder, wanted), "cannot be loaded")
    # If ranks keep their own states, these include the weights; the shared weights would be read into the same tensors.
    own = _own_prefix(model, optimizers)
    state = {key: value for key, value in state.items() if key.startswith(own)}
    together(mesh, lambda: load_tensors(state, folder, process_group=mesh.host_group), "cannot be loaded")
    state = _below(own, state)
    for number, part in enumerate(model.parts):  # under the names that each part uses
        optimizer = optimizers[number] if optimizers else None
        held = _part_state(part, optimizer)
        entries = {key: state.get(_first_name(key, model.tied), value) for key, value in held.items()}
        set_model_state_dict(part, _below("model.", entries), options=OPTIONS)
        if optimizer is not None:
            set_optimizer_state_dict(part, optimizer, _below("optimizer.", entries), options=OPTIONS)
    return facts


def state_dict(model, optimizers):
    """Name → tensor of this rank's state, tied parameters once.

    Tensors only: the optimizer's settings come from the configuration, and loading needs no unpickling.
    If ranks train independently (`average_every`), each also saves its own state, under `ranks.<rank>.`.
    """
    state = {}
    for number, part in enumerate(model.parts):
        entries = _part_state(part, optimizers[number] if optimizers else None)
        tensors = {key: value for key, value in entries.items() if isinstance(value, torch.Tensor)}
        state |= {_first_name(key, model.tied): value for key, value in tensors.items()}
    own = _own_prefix(model, optimizers)
    shared = {key: value for key, value in state.items() if not own or key.startswith("model.")}
    if own:
        state |= {f"kept.{name}": value for name, value in model.kept.items()}
    return shared | {own + key: value for key, value in state.items()}


def host_places(state):
    """Allocate host memory for copies of tensors: name → its place in one of a few buffers, pinned if tensors are on a GPU.

    torch rounds each pinned buffer up to a power of two: with one per tensor, 106 GB for the 81 GB of a 7 B Llama. So a buffer has such
    a size, and holds the largest tensors that still fit. A copy's storage has exactly its size: torch would save a copy of a larger one.
    """
    local = {name: value.to_local() if isinstance(value, DTensor) else value for name, value in state.items()}
    needed = {name: -(-value.nbytes // ALIGNED) * ALIGNED for name, value in local.items()}
    rooms, filled, places = [], [], {}
    for name in sorted(needed, key=lambda name: needed[name], reverse=True):
        size = needed[name]
        number = next((number for number, room in enumerate(rooms) if filled[number] + size <= room), len(rooms))
        if number == len(rooms):
            rooms.append(max(BUFFER, 1 << (size - 1).bit_length()))
            filled.append(0)
        places[name] = number, filled[number]
        filled[number] += size
    pinned = any(value.is_cuda for value in local.values())
    buffers = [torch.empty(size, dtype=torch.uint8, pin_memory=pinned).numpy() for size in filled]
    copies = {}
    for name, value in local.items():
        number, start = places[name]
        flat = torch.from_numpy(buffers[number][start : start + value.nbytes]).view(value.dtype)
        copy = flat.as_strided(value.shape, torch.empty_like(value, device="meta").stride())
        of = state[name]
        copies[name] = DTensor(copy, of._spec, requires_grad=False) if isinstance(of, DTensor) else copy
    return copies


def _own_prefix(model, optimizers):
    """Prefix of the names in this rank's own state; empty if ranks share one state."""
    return f"ranks.{model.mesh.rank}." if model.ranks_differ and optimizers else ""


def _part_state(part, optimizer):
    """The state of one part under its own names: `model.<name>`, `optimizer.state.<name>.<moment>`, `optimizer.param_groups...`."""
    entries = {f"model.{name}": value for name, value in get_model_state_dict(part, options=OPTIONS).items()}
    if optimizer is not None:
        moments = get_optimizer_state_dict(part, optimizer, options=OPTIONS)
        entries |= {f"optimizer.{name}": value for name, value in moments.items()}  # type: ignore[misc] # flat: no lists
    return entries


def _below(prefix, entries):
    return {key.removeprefix(prefix): value for key, value in entries.items() if key.startswith(prefix)}


def _first_name(key, tied):
    """Rename the key of a tied parameter to the parameter's first name."""
    for second, first in tied.items():
        for prefix in ("model.", "optimizer.state.", "optimizer.param_groups."):
            if key == prefix + second or key.startswith(f"{prefix}{second}."):
                return prefix + first + key.removeprefix(prefix + second)
    return key


def _check_names(folder, wanted):
    """Raise CheckpointError unless the checkpoint has what the model needs (name → shape) and no other weights."""
    held = {name: list(entry.size) for name, entry in read_index(folder).state_dict_metadata.items()}
    problems = [f"missing {name}" for name in wanted if name not in held]
    problems += [f"unexpected {name}" for name in held if name.startswith("model.") and name not in wanted]
    odd = [name for name, shape in wanted.items() if held.get(name, shape) != shape]
    problems += [f"{name} has shape {held[name]} instead of {wanted[name]}" for name in odd]
    if problems:
        more = f", and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise CheckpointError(f"{folder} does not fit the model: {'; '.join(problems[:3])}{more}")


def _prepare(partial, needed_bytes):
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    require_space(partial, needed_bytes, "a checkpoint")


def _seal(partial, folder, facts, files):
    """Complete a checkpoint: write the manifest, flush, rename."""
    write_manifest(partial, facts, files)
    sync_tree(partial)
    if folder.exists():
        old = folder.with_name(f"{folder.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
        partial.rename(folder)
        shutil.rmtree(old)
    else:
        partial.rename(folder)
