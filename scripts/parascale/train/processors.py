"""Measure this machine's processors in 10 to 30 seconds: matrix products, memory bandwidth, operation overhead, and messages.

Each figure is the best of many short passes, so that other processes disturb it little; if they use much of the machine, the measurement
is refused. One process computes alone; then two exchange a number over gloo. Large collectives are not measured: from
one measurement of a busy machine to the next they differed by a factor of 2.5.
"""

import math
import os
import time

import psutil
import torch
from torch import distributed as dist
from torch import multiprocessing

from parascale import loopback
from parascale.errors import RequirementError
from parascale.parallel.mesh import disable_wakeup_preemption
from parascale.train.gauges import NOT_BUSY

ROWS, INNER, OUTPUTS = 512, 128, 512  # a matrix product of a small Transformer
ELEMENTS = 2**24  # elements of each array in a sum; the three arrays take 200 MB, more than the caches
RANKS = 2  # processes that exchange messages
PASS_SECONDS = 2e-3
# Share of the machine that other processes may use: they share its memory, caches and power with the measurement.
QUIET = 0.2


def measure(seconds=8.0, quiet=QUIET):
    """Figures of this machine by name; messages only if it has two cores. Raises RequirementError if other processes are busy."""
    context, each = multiprocessing.get_context("spawn"), seconds / 4
    with context.Pool(1) as pool:
        found, others = pool.apply(_alone, (each,))
    if others > quiet:
        raise RequirementError(
            f"other processes kept {others:.0%} of this machine busy meanwhile: run `parascale calibrate --machine` again when it is idle"
        )
    if (os.cpu_count() or 1) < RANKS:
        return found
    store = dist.TCPStore(loopback.loopback(), 0, is_master=True, wait_for_workers=False)
    with context.Pool(RANKS) as pool:
        return found | pool.starmap(_together, [(rank, store.port, each) for rank in range(RANKS)], chunksize=1)[0]


def _alone(seconds):
    """(figures of one process, `part_of_others` during the measurement)."""
    torch.set_num_threads(1)
    before, began = psutil.cpu_times(), time.process_time()
    one, other = torch.randn(ROWS, INNER), torch.randn(INNER, OUTPUTS)
    few, sum_ = torch.ones(16, requires_grad=True), torch.ones(16)
    many, more, sums = torch.ones(3, ELEMENTS)
    product = _best(lambda: one @ other, seconds)
    passed = _best(lambda: torch.add(many, more, out=sums), seconds)
    figures = {
        "gigaflops": 2e-9 * ROWS * INNER * OUTPUTS / product,
        "gigabytes_per_second": 1e-9 * 3 * many.nbytes / passed,
        "kernel_microseconds": 1e6 * _best(lambda: few + sum_, seconds),
    }
    return figures, part_of_others(before, psutil.cpu_times(), time.process_time() - began)


def part_of_others(before, after, own):
    """Share of the machine that other processes used between two `psutil.cpu_times`. own: CPU seconds of the caller in that time.

    Time that a hypervisor gave to other guests (`steal`) counts.
    """
    names = [name for name in after._fields if not name.startswith("guest")]  # already counted in `user`
    spent = {name: getattr(after, name) - getattr(before, name) for name in names}
    busy = sum(seconds for name, seconds in spent.items() if name not in ("idle", *NOT_BUSY))
    return max(0.0, busy - own) / max(sum(spent.values()), 1e-9)


def _together(rank, port, seconds):
    """Figures of one of two processes that exchange messages."""
    torch.set_num_threads(1)
    disable_wakeup_preemption()  # as in a training
    os.environ["GLOO_SOCKET_IFNAME"] = loopback.INTERFACE
    store = dist.TCPStore(loopback.loopback(), port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    try:
        message = _least(seconds, rank)
    finally:
        dist.destroy_process_group()
    return {"message_microseconds": 1e6 * message / (2 * (RANKS - 1))}


def _least(seconds, rank):
    """Seconds of an all-reduce of one number: the best of those that fit into `seconds`.

    Rank 0 decides when to stop: ranks must make the same number of calls, and their own clocks would disagree.
    """
    best, end, number, more = math.inf, time.perf_counter() + seconds, torch.ones(1), torch.ones(1)
    while more.item():
        for _ in range(10):
            dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(number)
            best = min(best, time.perf_counter() - began)
        more.fill_(rank == 0 and time.perf_counter() < end)
        dist.all_reduce(more)
    return best


def _best(call, seconds):
    """Seconds per call: the best of the passes that fit into `seconds`, each long enough for the clock."""
    call()
    began = time.perf_counter()
    call()
    calls = max(1, math.ceil(PASS_SECONDS / max(1e-7, time.perf_counter() - began)))
    best, end = math.inf, time.perf_counter() + seconds
    while best == math.inf or time.perf_counter() < end:
        began = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - began) / calls)
    return best
