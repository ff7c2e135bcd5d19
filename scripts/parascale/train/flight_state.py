"""Record what this rank is doing if no step ends, for `parascale.notes`: its source line, and its collectives from torch's flight recorder.

The recorder is read without stacks: resolving them takes seconds the first time, and the waiting line is known anyway.
It does not record gloo's sends and receives.
"""

import os
import pickle
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist

from parascale import slurm
from parascale.files import write_json
from parascale.notes import OF_OTHERS, WAITING, note_path, operation_of, state_of

AXIS = "mesh_"  # prefix of torch's description of a mesh's group
WORLD = "default_pg"


class FlightState:
    """Notes about the state of this process; may be used from another thread. devices: the run's DeviceMesh, or None."""

    def __init__(self, devices):
        self._world = devices.mesh_dim_names[0] if devices is not None and devices.ndim == 1 else "all ranks"
        file = os.environ.get("TORCHELASTIC_ERROR_FILE")
        self.rank = int(os.environ.get("RANK", 0))
        self.path = note_path(Path(file).parent, self.rank) if file else None

    def write(self, since, error=None):
        """Write a note. Returns how many seconds this rank has waited for others, 0 if it does not. since: when the last step ended, None
        before the first. error: the exception that ends this process."""
        waited = 0.0
        # Neither a full disk nor a different torch version may hide the original error or end a working process.
        with suppress(Exception):
            note = self.note(since, error)
            if note["doing"] == WAITING and (call := note["call"]):
                waited = time.time() - (call["time"] or since or 0.0)
            if self.path:
                write_json(self.path, note)
                for dump in _dumps():  # for torch's own analyser
                    if pickle.loads(dump).get("entries"):
                        self.path.with_name(f"flight_recorder_rank{self.rank}").write_bytes(dump)
        return waited

    def forget(self):
        """Remove the note: the rank has made progress."""
        with suppress(OSError):
            if self.path:
                self.path.unlink()

    def note(self, since, error=None):
        """The mapping that `parascale.notes` describes."""
        entries = [entry for dump in _dumps() for entry in pickle.loads(dump).get("entries", [])]
        error = error and _origin(error)
        calls, groups = sorted(map(_call, entries), key=lambda call: call["time"]), self._groups()
        if error is None:
            walked = traceback.walk_stack(sys._current_frames()[threading.main_thread().ident or 0])
        else:
            walked = reversed(list(traceback.walk_tb(error.__traceback__)))
        # From the innermost frame outwards, of the main thread or of the error's origin.
        frames = [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in walked]
        (doing, where), operation = state_of(frames), operation_of(frames)
        call = next((call for call in calls if not call["done"]), None)
        if error is not None:
            broken = isinstance(error, dist.DistError) or any(word in str(error) for word in OF_OTHERS)
            doing = WAITING if broken else f"failed ({type(error).__name__})"
        elif call:
            doing = WAITING
        stages = [name for name, (axis, _) in groups.items() if axis == "pp"]
        if call is None and doing == WAITING and stages and "/pipeline.py:" in (where or ""):
            call = {"group": stages[0], "counted": None, "number": None, "operation": "send or receive", "time": None}
        if call is None and error is not None and calls and not (operation or "").endswith(("recv", "send")):
            call = calls[-1]  # the recorder counts a failed call as done
        return {
            "host": slurm.node_name(),
            # Not torch's current device: each thread has its own.
            "gpu": int(os.environ.get("LOCAL_RANK", 0)) if torch.cuda.is_initialized() else None,
            "doing": doing,
            "where": where,
            "operation": operation,
            "since": since,
            "groups": groups,
            "joined": {each["counted"]: each["number"] for each in calls},
            "call": call,
            "new": call in calls
            and is_new([(each["group"], each["operation"]) for each in calls[: calls.index(call) + 1]]),
        }

    def _groups(self):
        """Map the name of each of this process's groups to (mesh axis or description, ranks)."""
        found = {}
        if dist.is_initialized():
            for group, name in dist.distributed_c10d._world.pg_names.items():
                axis = self._world if group.group_desc == WORLD else group.group_desc.removeprefix(AXIS)
                found[name] = (axis, dist.get_process_group_ranks(group))
        return found


def _origin(error):
    """The root cause of an exception, such as the error inside a pipeline stage."""
    while before := error.__cause__ or (None if error.__suppress_context__ else error.__context__):
        error = before
    return error


def is_new(kinds):
    """True if the sequence of calls since the previous call of the last one's kind has not occurred before.

    Every step calls the same collectives in the same order. A rank that leaves one out or swaps two produces a new sequence.
    """
    last, known = kinds[-1], set()
    between: tuple | None = None
    for kind in kinds[:-1]:
        if kind == last:
            known.add(between)
            between = ()
        elif between is not None:
            between = (*between, kind)
    return between not in known


def _dumps():
    """Yield the dumps of torch's flight recorders for gloo and NCCL."""
    for name in ("_dump_fr_trace", "_dump_nccl_trace"):
        with suppress(AttributeError, RuntimeError):  # the second is missing in torch without NCCL
            yield getattr(torch._C._distributed_c10d, name)(includeStackTraces=False)


def _call(entry):
    backend, _, operation = entry["profiling_name"].partition(":")
    sizes = "; ".join(" × ".join(map(str, size)) for size in entry["input_sizes"])
    group, alone = entry["process_group"][0], entry["is_p2p"]  # sends and receives are not counted in the group
    return {
        "group": group,
        "counted": None if alone else f"{group} {backend}",  # each backend of a group counts its own
        "number": None if alone else entry["collective_seq_id"],
        "operation": f"{operation} ({sizes})",
        "time": entry["time_created_ns"] / 1e9,
        "done": entry["retired"] or entry["state"] == "completed",
    }
