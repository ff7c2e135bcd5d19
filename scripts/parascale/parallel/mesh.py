"""Processes and their places: the process group, the device mesh of a layout, and the timeout of every group."""

import contextlib
import os
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from parascale import loopback
from parascale.settings import Layout
from parascale.settings.layout import DATA_AXES, MESH_AXES, TARGET_AXES


@dataclass(frozen=True)
class Mesh:
    """This process's place in a layout.

    devices: the mesh over those of `MESH_AXES` that the layout uses, or None for a single process, which needs no communication.
    data_devices: `dp × fsdp` flattened, the ranks that see different samples; None where there are no others.
    timeout_seconds: of every group.
    sharing: what FSDP works on: 1-D over shards or, without `fsdp`, over replicas; 2-D (replicas, shards) with both. None without FSDP.
    """

    layout: Layout
    device: torch.device
    devices: Any  # DeviceMesh | None: only code that runs with several processes touches it
    data_devices: Any
    timeout_seconds: float = 0.0
    sharing: Any = None

    @property
    def rank(self) -> int:
        return dist.get_rank() if self.devices is not None else 0

    @property
    def world_size(self) -> int:
        return self.layout.world_size

    @cached_property
    def host_group(self) -> dist.ProcessGroup | None:
        """The group of all ranks for what lies in host memory; None for a single process.

        Beside NCCL it is one more, over gloo, that every rank makes when it first asks. Were gloo a part of every group, each axis would
        join all its ranks by sockets.
        """
        if self.devices is None:
            return None
        return self.new_host_group() if dist.get_backend() == "nccl" else dist.group.WORLD

    def new_host_group(self) -> dist.ProcessGroup:
        """One more such group, for a thread of its own. Every rank must call this."""
        return dist.new_group(backend="gloo", timeout=timedelta(seconds=self.timeout_seconds), group_desc="all ranks")

    def coordinate(self, axis: str) -> int:
        """This process's number along one axis."""
        used = self.devices is not None and axis in self.devices.mesh_dim_names
        return self.devices.get_local_rank(axis) if used else 0

    def leads(self, *but: str) -> bool:
        """Whether this process is the first of those with its targets, along all axes `but` some."""
        return not any(self.coordinate(axis) for axis in MESH_AXES if axis not in (*TARGET_AXES, *but))

    @property
    def data_rank(self) -> int:
        """Which share of a step's samples this process takes."""
        number = 0
        for axis in DATA_AXES:
            number = number * getattr(self.layout, axis) + self.coordinate(axis)
        return number


def start_processes(device_kind: str, timeout_seconds: float, store: dist.Store | None = None) -> torch.device:
    """Join the process group that the launcher's variables describe; return this process's device.

    One process in all joins none. Every collective gives up after `timeout_seconds`.
    store: where processes meet, if they have met already (`communication.meet`).
    """
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    device = torch.device("cuda", local_rank) if device_kind == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        backend = "nccl" if device.type == "cuda" else "gloo"
        timeout = timedelta(seconds=timeout_seconds)
        hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # by torchrun
        if store is None and os.environ.get("MASTER_ADDR") in loopback.ADDRESSES and not hosted:
            store = open_store(timeout)
        place: dict[str, Any] = (
            {} if store is None else {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
        )
        if device.type == "cuda":
            place["device_id"] = device  # then NCCL splits communicators for groups instead of making each anew
        else:
            disable_wakeup_preemption()
        dist.init_process_group(backend, timeout=timeout, store=store, **place)
    return device


def open_store(timeout: timedelta, wait_for_workers: bool = True) -> dist.TCPStore:
    """The store in which the processes of the launcher's variables meet. On one node rank 0 listens on the loopback alone: torch itself
    would on every interface, and it asks nobody who they are."""
    rank, address = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    listener: dict[str, Any] = {}
    if rank == 0 and address[0] in loopback.ADDRESSES:
        listener["master_listen_fd"] = loopback.listen(*address).detach()
    ranks = int(os.environ["WORLD_SIZE"])
    return dist.TCPStore(*address, ranks, rank == 0, timeout, wait_for_workers=wait_for_workers, **listener)


def disable_wakeup_preemption() -> None:
    """On CPUs: threads that this one starts from now on, gloo's among them, do not push aside the one that runs when they wake up.

    The thread that receives for gloo tries the lock of its connection and, where another has it, polls on. If it has just pushed
    that other one off the core they share, both wait for the scheduler's next tick, milliseconds away, in each small sum.
    """
    with contextlib.suppress(OSError):  # a sandbox that forbids the calls costs speed alone
        if os.sched_getscheduler(0) == os.SCHED_OTHER:  # who chose another policy keeps it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def stop_processes() -> None:
    """Leave the process group in step with all others: ranks that exit while peers still talk can abort them."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def make_mesh(layout: Layout, device: torch.device, timeout_seconds: float) -> Mesh:
    """The Mesh of a layout for this process; every group of it gets the timeout (sub-groups do not inherit it)."""
    if layout.world_size == 1:
        return Mesh(layout, device, None, None)
    # No axis of one rank: each of its groups, one for every rank, would cost a call on all.
    degrees = layout.dimensions
    axes = tuple(axis for axis in MESH_AXES if axis in degrees)
    options: dict[Any, Any] = {}
    if layout.pp > 1 and dist.get_backend() == "gloo":
        # Stages send and receive, and for that gloo knows only the timeout that a group was made with.
        options["pp"] = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # torch's stubs lack it
        options["pp"]._timeout = timedelta(seconds=timeout_seconds)
    shape = tuple(degrees[axis] for axis in axes)
    devices = init_device_mesh(device.type, shape, mesh_dim_names=axes, backend_override=options)
    data_axes = tuple(axis for axis in DATA_AXES if axis in degrees)
    data_devices: Any = devices[data_axes] if data_axes else None
    if len(data_axes) > 1:
        data_devices = data_devices._flatten("data")
    groups = [devices.get_group(axis) for axis in axes] + [dist.group.WORLD]
    if data_devices is not None:
        groups.append(data_devices.get_group())
    for group in groups:
        set_timeout(group, timeout_seconds)
    sharing = _sharing(layout, devices, timeout_seconds) if layout.uses_fsdp else None
    return Mesh(layout, device, devices, data_devices, timeout_seconds, sharing)


def _sharing(layout: Layout, devices: Any, timeout_seconds: float) -> Any:
    used = [axis for axis in MESH_AXES if axis in TARGET_AXES and axis in layout.dimensions]
    shards = [axis for axis in used if axis not in DATA_AXES or axis == "fsdp"] if layout.fsdp > 1 else []
    meshes = []
    for axes in ([axis for axis in used if axis not in shards], shards):
        mesh: Any = devices[tuple(axes)] if axes else None
        if len(axes) > 1:
            mesh = mesh._flatten("_".join(axes))
            set_timeout(mesh.get_group(), timeout_seconds)
        meshes += [mesh] if axes else []
    return DeviceMesh._concatenate(meshes) if meshes[1:] else meshes[0]


def set_timeout(group: dist.ProcessGroup | None, timeout_seconds: float) -> None:
    """Make collectives of `group` give up after `timeout_seconds`."""
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_seconds), group)
