"""What the processes of a part do. Each function returns JSON values."""

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
    """One thread, and graphs that run as they are: a compiler takes longer than all the rest."""
    torch.set_num_threads(1)
    torch.compile = partial(torch.compile, backend="eager")


def collectives(sizes):
    """Rows of `measure`: bandwidths of collectives between all processes."""
    device = start_processes("cuda" if torch.cuda.is_available() else "cpu", TIMEOUT_SECONDS)
    rows = measure({"all": dist.group.WORLD}, sizes, 5, device, dist.get_world_size())
    stop_processes()
    return rows


def training(job, kill=None, quiet=False):
    """Train a job by `train`. {graphs: compiled by the end of each step, breaks, allocated, reserved: bytes at most}.

    kill: the step in which the last rank is killed. quiet: where a later step than WARM_UP waits for the GPU, that is an error; the two
    reads that are due wait for events, which torch lets pass.
    """
    from torch._dynamo.utils import counters  # slow to load, as what follows

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
    """Our loop's seconds a step over a bare one's: the median of `turns`."""
    from loop_overhead import compared

    return median(ours[0] / bare[0] for ours, bare in compared(size, turns, steps=10))
