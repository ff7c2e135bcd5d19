"""The process group, the device mesh of a layout, and the timeouts of all groups."""

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
    """This process's position in a layout.

    devices: the mesh over the axes of `MESH_AXES` that the layout uses; None for a single process, which needs no communication.
    data_devices: `dp × fsdp` flattened, the ranks that see different samples; None if all ranks see the same.
    timeout_seconds: applies to every group.
    sharing: the mesh for FSDP: 1-D over shards or, without `fsdp`, over replicas; 2-D (replicas, shards) with both. None without FSDP.
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
        """The group of all ranks for tensors in host memory; None for a single process.

        With NCCL this is an extra gloo group, which all ranks create on first use. If every group included gloo, each axis would connect
        all its ranks by sockets.
        """
        if self.devices is None:
            return None
        return self.new_host_group() if dist.get_backend() == "nccl" else dist.group.WORLD

    def new_host_group(self) -> dist.ProcessGroup:
        """Create another gloo group of all ranks, for use by a separate thread. Every rank must call this."""
        return dist.new_group(backend="gloo", timeout=timedelta(seconds=self.timeout_seconds), group_desc="all ranks")

    def coordinate(self, axis: str) -> int:
        """This process's coordinate along one axis."""
        used = self.devices is not None and axis in self.devices.mesh_dim_names
        return self.devices.get_local_rank(axis) if used else 0

    def leads(self, *but: str) -> bool:
        """True on the first of the processes that share its targets, ignoring the axes in `but`."""
        return not any(self.coordinate(axis) for axis in MESH_AXES if axis not in (*TARGET_AXES, *but))

    @property
    def data_rank(self) -> int:
        """Index of this process's share of a step's samples."""
        number = 0
        for axis in DATA_AXES:
            number = number * getattr(self.layout, axis) + self.coordinate(axis)
        return number


def start_processes(device_kind: str, timeout_seconds: float, store: dist.Store | None = None) -> torch.device:
    """Join the process group described by the launcher's environment variables; return this process's device.

    A single process joins no group. Every collective fails after `timeout_seconds`.
    store: the rendezvous store, if the processes have already met (`communication.meet`).
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
            place["device_id"] = device  # lets NCCL split communicators for groups instead of creating new ones
        else:
            disable_wakeup_preemption()
        dist.init_process_group(backend, timeout=timeout, store=store, **place)
    return device


def open_store(timeout: timedelta, wait_for_workers: bool = True) -> dist.TCPStore:
    """Open the rendezvous store described by the launcher's variables. On one node rank 0 listens on the loopback only: torch itself would
    listen on every interface, without authentication."""
    rank, address = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    listener: dict[str, Any] = {}
    if rank == 0 and address[0] in loopback.ADDRESSES:
        listener["master_listen_fd"] = loopback.listen(*address).detach()
    ranks = int(os.environ["WORLD_SIZE"])
    return dist.TCPStore(*address, ranks, rank == 0, timeout, wait_for_workers=wait_for_workers, **listener)


def disable_wakeup_preemption() -> None:
    """On CPUs: threads started by this one from now on, including gloo's, do not preempt a running thread when they wake up.

    Gloo's receiving thread polls while another thread has its connection's lock. If it has just preempted that thread on a shared
    core, both wait for the scheduler's next tick, which adds milliseconds to each small all-reduce.
    """
    with contextlib.suppress(OSError):  # in a sandbox that forbids the calls, only speed is lost
        if os.sched_getscheduler(0) == os.SCHED_OTHER:  # keep a policy that the user chose
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def stop_processes() -> None:
    """Leave the process group together: a rank that exits while peers still communicate can abort them."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def make_mesh(layout: Layout, device: torch.device, timeout_seconds: float) -> Mesh:
    """Make this process's Mesh of a layout and set the timeout of every group (sub-groups do not inherit it)."""
    if layout.world_size == 1:
        return Mesh(layout, device, None, None)
    # Leave out axes of one rank: creating their groups, one per rank, would each need a collective call.
    degrees = layout.dimensions
    axes = tuple(axis for axis in MESH_AXES if axis in degrees)
    options: dict[Any, Any] = {}
    if layout.pp > 1 and dist.get_backend() == "gloo":
        # For send and receive, gloo uses only the timeout that the group was created with.
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
    """Make collectives of `group` fail after `timeout_seconds`."""
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_seconds), group)
