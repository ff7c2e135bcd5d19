"""Communication tests: does every link work, and how fast is each operation at each size?

Bandwidth is defined as in nccl-tests (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md): the *algorithm* bandwidth is
size over time, where size is that of the whole tensor; the *bus* bandwidth multiplies it by the operation's traffic over the slowest
link, for comparison with the hardware's rate.

Each operation is measured between all ranks and, on a mesh with several dimensions, along each of them; all groups of a dimension
then communicate at the same time, as in a training. All ranks also copy to their GPUs at the same time: copies are slow if processes
are bound to cores far from their GPU.
"""

import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from parascale.errors import RequirementError
from parascale.parallel.mesh import make_mesh, open_store, set_timeout
from parascale.settings import Layout

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "send_receive", "host_to_device")
COLUMNS: tuple[str, ...] = ("operation", "group", "nodes", "ranks", "bytes", "seconds")
COLUMNS += ("algorithm_gigabytes_per_second", "bus_gigabytes_per_second")
WARM_UPS = 2  # the first calls open connections
PROBE_ELEMENTS = 1 << 16  # size of the tensor that tests a link


def bus_factor(operation: str, ranks: int) -> float:
    """Ratio of bus to algorithm bandwidth for `ranks` ranks (nccl-tests, PERFORMANCE.md)."""
    others = (ranks - 1) / ranks
    return {"all_reduce": 2 * others, "all_gather": others, "reduce_scatter": others}.get(operation, 1.0)


def sizes_between(smallest: int, largest: int) -> list[int]:
    """Sizes in bytes, each four times the previous."""
    return [smallest, *sizes_between(4 * smallest, largest)] if smallest <= largest else []


def groups_of(layout: Layout, device: torch.device, timeout_seconds: float) -> dict[str, Any]:
    """Name → this process's group: `all` and, if the layout has several dimensions, one per dimension. Every rank must call this."""
    groups = {"all": dist.group.WORLD}
    if len(layout.dimensions) > 1:
        devices = make_mesh(layout, device, timeout_seconds).devices
        groups |= {axis: devices.get_group(axis) for axis in devices.mesh_dim_names}
    return groups


def measure(
    groups: dict[str, Any],
    sizes: Sequence[int],
    repeats: int,
    device: torch.device,
    processes_per_node: int,
) -> list[dict[str, Any]]:
    """Time every operation in every group (of `groups_of`) at every size (bytes, fp32 elements); returns rows of COLUMNS.

    A repeat is timed by its slowest rank; `seconds` is the median of the repeats. Every rank gets the same rows, except that
    `nodes` counts the nodes of its own group.
    """
    rows = []
    for dimension, group in groups.items():
        members = dist.get_process_group_ranks(group)
        ranks, nodes = len(members), len({member // processes_per_node for member in members})
        for name in OPERATIONS:
            for size in sizes:
                elements = max(1, size // 4 // ranks) * ranks  # every rank holds an equal part
                call, _ = operation(name, elements, device, group)
                seconds = statistics.median(_timed(call, repeats, device))
                rate = elements * 4 / 1e9 / seconds
                bus = rate * bus_factor(name, ranks)
                values = (name, dimension, nodes, ranks, elements * 4, seconds, rate, bus)
                rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def operation(
    name: str, elements: int, device: torch.device, group: dist.ProcessGroup, filled: float = 1.0
) -> tuple[Callable[[], object], torch.Tensor]:
    """(function that runs the operation once, this rank's result tensor) for `elements` fp32 elements, each equal to `filled`."""
    members = dist.get_process_group_ranks(group)
    rank, ranks = dist.get_rank(group), len(members)
    whole = torch.full((elements,), filled, device=device)
    part = torch.full((elements // ranks,), filled, device=device)
    if name == "send_receive":
        # A ring, as in nccl-tests: every rank sends to the next and receives from the previous.
        received = torch.empty_like(whole)

        def ring() -> None:
            requests = [
                dist.P2POp(dist.isend, whole, members[(rank + 1) % ranks], group),
                dist.P2POp(dist.irecv, received, members[(rank - 1) % ranks], group),
            ]
            for request in dist.batch_isend_irecv(requests):
                request.wait()

        return ring, received
    if name == "host_to_device":
        host = torch.full((elements,), filled, pin_memory=device.type == "cuda")
        copy = torch.zeros_like(whole)
        return lambda: copy.copy_(host, non_blocking=True), copy
    return {
        "all_reduce": (lambda: dist.all_reduce(whole, group=group), whole),
        "all_gather": (lambda: dist.all_gather_into_tensor(whole, part, group=group), whole),
        "reduce_scatter": (lambda: dist.reduce_scatter_tensor(part, whole, group=group), part),
        "broadcast": (lambda: dist.broadcast(whole, src=members[0], group=group), whole),
    }[name]


def _timed(call: Callable[[], object], repeats: int, device: torch.device) -> list[float]:
    """Seconds of each repeat on its slowest rank."""
    for _ in range(WARM_UPS):
        call()
    seconds = []
    for _ in range(repeats):
        dist.barrier()
        _wait_for(device)
        start = time.perf_counter()
        call()
        _wait_for(device)
        seconds.append(time.perf_counter() - start)
    slowest = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.tolist()


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def meet(timeout_seconds: float) -> dist.TCPStore:
    """Return a store in which all ranks have registered, for `start_processes`; raises RequirementError naming the missing ranks."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # The others wait longer: rank 0 knows who is missing, so it should speak first.
    patience = timedelta(seconds=timeout_seconds * (1 if rank == 0 else 2))
    store = open_store(patience, wait_for_workers=False)
    store.set(_key(rank), socket.gethostname())
    try:
        store.wait([_key(number) for number in range(ranks)], patience)
    except RuntimeError as error:
        if rank != 0:
            raise RequirementError(f"rank {rank} timed out waiting for the other ranks") from error
        missing = [str(number) for number in range(ranks) if not store.check([_key(number)])]
        raise RequirementError(
            f"no sign within {timeout_seconds:.0f} s from rank {', '.join(missing)} of {ranks}"
        ) from error
    return store


def preflight(store: dist.Store, device: torch.device, timeout_seconds: float, processes_per_node: int) -> None:
    """Test the links of `links`; raises RequirementError naming one that does not work. store: from `meet`."""
    rank = dist.get_rank()
    set_timeout(dist.group.WORLD, timeout_seconds)
    for pairs in links(dist.get_world_size() // processes_per_node, processes_per_node):
        partner = next((sum(pair) - rank for pair in pairs if rank in pair), None)
        if partner is not None:
            _try_link(rank, partner, store, device, timeout_seconds)


def links(nodes: int, ranks: int) -> Iterator[list[tuple[int, ...]]]:
    """Rounds of disjoint pairs: all pairs within a node, and each rank with the same local rank on the next node, forming rings.

    This tests every rank and every network card with at most `ranks` + 1 connections each, however many nodes there are.
    """
    for pairs in rounds(ranks):
        yield [(node * ranks + one, node * ranks + other) for node in range(nodes) for one, other in pairs]
    ring = [(node, node + 1) for node in range(nodes - 1)] + [(0, nodes - 1)] * (nodes > 2)
    even = nodes - nodes % 2
    for joined in (ring[:even:2], ring[1:even:2], ring[even:]):
        yield [(one * ranks + rank, other * ranks + rank) for one, other in joined for rank in range(ranks)]


def rounds(ranks: int) -> Iterator[list[tuple[int, ...]]]:
    """Rounds of disjoint pairs in which every two ranks meet exactly once (the circle method of tournaments)."""
    players = list(range(ranks + ranks % 2))  # if odd, one sits out each round
    for _ in range(len(players) - 1):
        half = len(players) // 2
        pairs = zip(players[:half], reversed(players[half:]), strict=True)
        yield [tuple(sorted(pair)) for pair in pairs if max(pair) < ranks]
        players = [players[0], players[-1], *players[1:-1]]


def _try_link(rank: int, partner: int, store: dist.Store, device: torch.device, timeout_seconds: float) -> None:
    """Exchange a tensor with the partner and check what arrives."""
    link = f"the link between {_named(min(rank, partner), store)} and {_named(max(rank, partner), store)}"
    mine = torch.full((PROBE_ELEMENTS,), float(rank), device=device)
    received = torch.empty_like(mine)
    try:
        requests = [dist.P2POp(dist.isend, mine, partner), dist.P2POp(dist.irecv, received, partner)]
        for request in dist.batch_isend_irecv(requests):
            request.wait(timedelta(seconds=timeout_seconds))
        _wait_for(device)
    except RuntimeError as error:
        raise RequirementError(f"{link} does not work: {str(error).splitlines()[0]}") from error
    if not torch.equal(received, torch.full_like(received, float(partner))):
        raise RequirementError(f"{link} delivers other numbers than were sent")


def _named(rank: int, store: dist.Store) -> str:
    return f"rank {rank} on {store.get(_key(rank)).decode()}"


def _key(rank: int) -> str:
    return f"preflight/host of rank {rank}"
