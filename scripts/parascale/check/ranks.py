"""What the processes of a part do. Each function returns JSON values."""

import io
import os
import runpy
import signal
import sys
import time
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from parascale.check.parts import WARM_UP, facts_of
from parascale.check.processes import TIMEOUT_SECONDS
from parascale.parallel import start_processes, stop_processes
from parascale.parallel.communication import measure
from parascale.settings import SPLITS

SAMPLES = 4000  # of made-up data


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


@dataclass
class MadeUp:
    """Samples of random numbers, each by its own number. empty: function that makes so many in their shapes and types."""

    empty: object
    outputs: int

    def __len__(self):
        return SAMPLES

    def batch(self, numbers):
        """(*inputs, labels); masks are whole."""
        arrays = self.empty(len(numbers))
        for row, number in enumerate(numbers):
            generator = np.random.default_rng(int(number))
            for array in arrays:
                if array.dtype != bool:
                    array[row] = generator.integers(
                        0, 256 if array.dtype == np.uint8 else self.outputs, array[row].shape
                    )
        return arrays


def training(job, kill=None, quiet=False):
    """Train a job by `train` on made-up data. {graphs: compiled by the end of each step, breaks, allocated, reserved: bytes at most}.

    kill: the step in which the last rank is killed. quiet: where a later step than WARM_UP waits for the GPU, that is an error; the two
    reads that are due wait for events, which torch lets pass.
    """
    from torch._dynamo.utils import counters  # slow to load, as what follows

    from parascale.evaluation.task import Task, empty_batch
    from parascale.train import loop

    graphs, samples = [], MadeUp(partial(empty_batch, job.run.workload), facts_of(job.run).vocabulary)
    loop.open_task = lambda *_: Task(dict.fromkeys(SPLITS, samples), samples.outputs)

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
        loop._make_steps(session)

    loop.train(job, make_steps)
    memory = {"allocated": torch.cuda.max_memory_allocated, "reserved": torch.cuda.max_memory_reserved}
    memory = {name: read() if torch.cuda.is_initialized() else None for name, read in memory.items()}
    return {**memory, "graphs": graphs, "breaks": sum(counters["graph_break"].values())}


def benchmark(words):
    """What a benchmark of this clone prints: a program and its arguments, run with what stands in for missing packages."""
    sys.argv, sys.path[:0] = words, [str(Path(words[0]).parent)]
    with redirect_stdout(io.StringIO()) as said:
        runpy.run_path(words[0], run_name="__main__")
    return said.getvalue()
