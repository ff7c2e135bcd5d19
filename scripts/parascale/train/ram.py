"""Read a dataset from each node's memory (`data.stage: ram`), where opening and reading files is fast."""

import hashlib
import os
import shutil
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch.distributed as dist

from parascale.errors import FullDiskError
from parascale.files import atomic_path
from parascale.train.gauges import place

RAM = Path("/dev/shm")


@contextmanager
def data_folder(job):
    """Yield the folder of a job's dataset: the original, or its copy in this node's memory.

    Every rank must call this; the first of each node copies. Files must be opened within the body: the copy is unlinked once all
    ranks have left it, and its memory is freed when their processes end in any way. So nothing is left behind.
    """
    if job.run.workload.data.stage != "ram":
        yield job.data
        return
    rank, local_rank, _ = place()
    copy = place_in_ram(job.work, first_rank=rank - local_rank)
    if local_rank == 0:
        _copy(job.data, copy)
    _wait_for_all()
    yield copy
    _wait_for_all()
    if local_rank == 0:
        shutil.rmtree(copy)


def place_in_ram(work_folder, first_rank):
    """The path of a run's copy, unique to each run and to each simulated node of one machine."""
    own = f"{os.getuid()} {Path(work_folder).resolve()} {first_rank}"
    return RAM / f"parascale-{hashlib.sha256(own.encode()).hexdigest()[:16]}"


def _copy(folder, copy):
    """Copy a dataset into memory atomically. Raises FullDiskError if it does not fit."""
    for left in [copy, *RAM.glob(f".{copy.name}.*")]:  # left by an attempt that was killed while copying
        shutil.rmtree(left, ignore_errors=True)
    # Count a file with several names or links once; splits of tokens may share files.
    found = (path.stat() for path in Path(folder).rglob("*") if path.is_file())
    needed, free = sum({_identity(status): status.st_size for status in found}.values()), free_bytes()
    if needed > free:
        raise FullDiskError(
            f"{folder} takes {needed / 2**20:,.0f} MiB, but {RAM} of {os.uname().nodename} has room for {free / 2**20:,.0f} MiB: "
            "leave out `data.stage: ram`, or train on nodes with more memory"
        )
    started, copied = time.monotonic(), {}

    def copy_once(source, target):
        first = copied.setdefault(_identity(os.stat(source)), target)
        os.link(first, target) if first != target else shutil.copy2(source, target)

    with atomic_path(copy) as partial:
        shutil.copytree(folder, partial, copy_function=copy_once)
    print(f"staged {needed / 2**20:,.1f} MiB into {RAM} in {time.monotonic() - started:.1f} s", flush=True)


def _identity(status):
    return status.st_dev, status.st_ino


def free_bytes():
    """Bytes available for a copy: the smaller of the room in `/dev/shm` and the node's free memory."""
    return min(shutil.disk_usage(RAM).free, psutil.virtual_memory().available)


def _wait_for_all():
    if dist.is_initialized():
        dist.barrier()
