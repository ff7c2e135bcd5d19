"""Functions that the processes of a part call. Each returns a JSON value."""

import os
import signal
import time
from functools import partial
from statistics import median

import torch
import torch.distributed as dist

from parascale.check.parts import WARM_UP
from parascale.check.processes import TIMEOUT_SECONDS
from parascale.parallel import start_processes, stop_processes
from parascale.parallel.communication import measure


def make_tiny():
    """Use one thread and run graphs eagerly, since compiling would take longer than everything else."""
    torch.set_num_threads(1)
    torch.compile = partial(torch.compile, backend="eager")


def collectives(sizes):
    """Bandwidths of collectives between all processes, as rows of `measure`."""
    device = start_processes("cuda" if torch.cuda.is_available() else "cpu", TIMEOUT_SECONDS)
    rows = measure({"all": dist.group.WORLD}, sizes, 5, device, dist.get_world_size())
    stop_processes()
    return rows


def training(job, kill=None, quiet=False):
    """Train a job. Returns {graphs: number compiled by the end of each step, breaks: graph breaks, allocated and reserved: peak bytes}.

    kill: step in which the last rank is killed. quiet: a step after WARM_UP that waits for the GPU is an error. The loop's two regular reads wait
    for events, which torch permits.
    """
    from torch._dynamo.utils import counters  # slow to load, as is the next import

    from parascale.train import loop

    graphs = []

    def make_steps(session):
        step, last = session.stepper.step, session.mesh.rank == session.mesh.world_size - 1
        wait = torch.cuda.set_sync_debug_mode if quiet and session.mesh.device.type == "cuda" else lambda mode: None

        def watched(*arguments):
            if session.stepper.number == kill and last:
                (job.results / "killed").write_text(str(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)
            wait("error" if session.stepper.number > WARM_UP else "default")
            result = step(*arguments)
            wait("default")
            graphs.append(counters["stats"]["unique_graphs"])
            return result

        session.stepper.step = watched
        loop.make_steps_of_engine(session)

    loop.train(job, make_steps)
    memory = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}  # 0 on CPUs
    return {**memory, "graphs": graphs, "breaks": sum(counters["graph_break"].values())}


def overhead(size, turns):
    """Time per step of our loop over that of a bare loop: the median of `turns` measurements."""
    from loop_overhead import compared

    return median(ours[0] / bare[0] for ours, bare in compared(size, turns, steps=10))
