"""Rates of this machine's processors, measured in 10 to 30 seconds: matrix products, passes over memory, starts of operations, and messages.

Each figure is the best of many short passes, which a neighbour on the machine disturbs least; one that takes much of it is noticed, and
nothing is measured. One process computes alone; then two tell each other a number over gloo. Large collectives are not among them: from
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

ROWS, INNER, OUTPUTS = 512, 128, 512  # a product of a small Transformer's
ELEMENTS = 2**24  # of a sum of arrays: three have 200 MB, beyond the caches
RANKS = 2  # that talk
PASS_SECONDS = 2e-3
# Part of a machine that others may keep busy: they share its memory, caches and power with what is measured.
QUIET = 0.2


def measure(seconds=8.0, quiet=QUIET):
    """{what: figure} of this machine; of messages only if it has two cores. Raises RequirementError where others compute beside it."""
    context, each = multiprocessing.get_context("spawn"), seconds / 4
    with context.Pool(1) as pool:
        found, others = pool.apply(_alone, (each,))
    if others > quiet:
        raise RequirementError(
            f"others kept {others:.0%} of this machine busy meanwhile: the measurement would include them. `parascale calibrate --machine` "
            "measures it again, once it is quiet"
        )
    if (os.cpu_count() or 1) < RANKS:
        return found
    store = dist.TCPStore(loopback.loopback(), 0, is_master=True, wait_for_workers=False)
    with context.Pool(RANKS) as pool:
        return found | pool.starmap(_together, [(rank, store.port, each) for rank in range(RANKS)], chunksize=1)[0]


def _alone(seconds):
    """(figures of one process, `part_of_others` meanwhile)."""
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
    """Part of a machine that others kept busy between two `psutil.cpu_times`, in which its caller took `own` seconds of the processor.

    What a virtual machine's neighbours took (`steal`) counts.
    """
    names = [name for name in after._fields if not name.startswith("guest")]  # which are in `user` as well
    spent = {name: getattr(after, name) - getattr(before, name) for name in names}
    busy = sum(seconds for name, seconds in spent.items() if name not in ("idle", *NOT_BUSY))
    return max(0.0, busy - own) / max(sum(spent.values()), 1e-9)


def _together(rank, port, seconds):
    """The figures of one of two processes that talk."""
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
    """Seconds of an all-reduce of one number: the best of those that fit into so many seconds.

    The first rank says when to stop: the ranks must call equally often, and by their own clocks they would not.
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
    """Seconds of a call: the best of the passes that fit into so many seconds, each long enough for the clock."""
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
