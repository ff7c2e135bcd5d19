"""A user's script in whose last rank something happens at step 4: `silent_scripts.py KIND SECONDS`, KIND a function below.

SECONDS: the launcher's timeout. A KIND that ends in `-bare` records nothing; `KIND/MINUTES`, one of HEALTHY, does at every step what healthy
scripts do, for about so long. With `launcher NODE NODES PROCESSES FOLDER KIND SECONDS` it is
the launcher of a node.
"""

import ctypes
import os
import re
import sys
import threading
import time
from datetime import timedelta

STEPS = 12


def healthy(seconds):
    """Nothing happens."""


def sleeps(seconds):
    time.sleep(10**6)


def lost_lock(seconds):
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def in_c(seconds):
    re.match("(a+)+b", "a" * 64)


def asleep_in_c_with_pythons_lock(seconds):
    library, semaphore = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    library.sem_init(semaphore, 0, 0)
    library.sem_wait(semaphore)


def waits_for_a_message(seconds):
    import torch
    import torch.distributed as dist

    dist.recv(torch.zeros(1), src=0)


def skips_a_collective(seconds):
    import torch.distributed as dist

    dist.barrier()


def stopped(seconds):
    import signal

    os.kill(os.getpid(), signal.SIGSTOP)


def lost_worker(seconds):
    from torch.utils.data import DataLoader

    next(iter(DataLoader([1, 2], num_workers=1, collate_fn=sleeps)))


def evaluate(seconds):
    """In one go, as of a service elsewhere."""
    time.sleep(3 * seconds)


def evaluates_batches(seconds):
    until = time.monotonic() + 3 * seconds
    while time.monotonic() < until:
        time.sleep(0.05)


def evaluates_in_a_process(seconds):
    import subprocess

    subprocess.run(
        [sys.executable, "-c", f"import time\nend = time.time() + {3 * seconds}\nwhile time.time() < end: pass"]
    )


def slow_reader(seconds):
    from torch.utils.data import DataLoader

    def collate(values):
        time.sleep(seconds / 20)
        return values

    for _ in DataLoader(range(60), num_workers=1, collate_fn=collate):
        pass


def gave_up(seconds):
    """The others have a timeout of their own."""
    time.sleep(10**6)


def reads(step, seconds):
    """From a loader whose workers wait for a server."""
    from torch.utils.data import DataLoader

    def collate(values):
        time.sleep(seconds / 10)
        return values

    for _ in DataLoader(range(4), num_workers=2, collate_fn=collate):
        pass


def evaluates(step, seconds):
    """Now and then, elsewhere, for half of the time that a rank may wait: the rest is for a computer that others use."""
    time.sleep(seconds / 2 if step % 20 == 0 else 0.5)


def saves(step, seconds):
    """Often, to a disk that is slow."""
    if step % 5 == 0:
        import tempfile

        with tempfile.TemporaryFile() as file:
            file.write(os.urandom(2**23))
            os.fsync(file.fileno())
            time.sleep(seconds / 4)
    time.sleep(0.5)


HEALTHY = {"reads": 0.25, "evaluates": 1.0, "saves": 0.65}  # steps a second, about, where a timeout is 20 s


def train(kind, seconds):
    from parascale import record

    kind, _, bare = kind.partition("-")
    kind, _, minutes = kind.partition("/")
    rank, last = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]) - 1
    step_of = parallel_step(3 if kind == "gave_up" else 600) if last else lambda: 1.0
    for step in range(1, int(60 * float(minutes) * HEALTHY[kind]) + 1 if minutes else STEPS + 1):
        if minutes:
            if rank == 0:  # others wait meanwhile
                globals()[kind](step, seconds)
        elif step == 4 and rank == last:
            globals()[kind](seconds)
        loss = step_of()
        time.sleep(0.02)
        if not bare:
            record(step=step, loss=loss, samples=8)


def parallel_step(patience):
    """A function that makes a step with the other ranks."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=patience), dist.group.WORLD)

    def step():
        loss = model(torch.ones(8, 4)).mean()
        loss.backward()
        dist.all_reduce(loss.detach())
        return loss

    return step


def launch(node, nodes, processes, folder, kind, seconds):
    from parascale.launch.node import Launch, Place, run_node
    from parascale.settings import Site

    site, seconds = Site(name="test", cores_per_node=2, device="cpu"), float(seconds)
    command, work = (__file__, kind, str(seconds)), f"{folder}/work"
    launch = Launch(
        command, int(nodes), int(processes), site, seconds, 10.0, f"{folder}/logs", 2, work=work, files=f"{work}/files"
    )
    sys.exit(run_node(launch, Place(int(node), f"{folder}/meet" if int(nodes) > 1 else None)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["launcher"]:
        launch(*sys.argv[2:])
    train(sys.argv[1], float(sys.argv[2]))
