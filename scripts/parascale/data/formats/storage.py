"""The filesystem that holds a path, and how to read from it."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import psutil

from parascale.files import require_space, tree_bytes

# On these filesystems a page fault is a request over a network (or to another process), so one `pread` of the whole sample is
# faster than faulting it in page by page.
REMOTE = {"lustre", "gpfs", "nfs", "nfs4", "beegfs", "ceph", "cifs", "smb3", "9p", "pvfs2", "orangefs", "panfs", "afs"}
SHARED_MEMORY = Path("/dev/shm")
TRIES = 3
MAPPED_SHARE = 0.5  # largest share of memory for a mapped data set


def filesystem(path):
    """The type of the filesystem of `path` (`ext4`, `lustre`, `tmpfs`, …), from the list of mounts."""
    path = Path(os.path.realpath(path))
    mounts = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    return next((mounts[folder] for folder in (path, *path.parents) if folder in mounts), "unknown")


def default_io(folder, size):
    """`mmap` for data on a local filesystem that fits in memory with room to spare, else `pread`. size: bytes of the data.

    The kernel reads far ahead at each page fault, which is useful only if everything stays in memory.
    """
    kind = filesystem(folder)
    stays = size <= MAPPED_SHARE * psutil.virtual_memory().total
    return "mmap" if stays and kind not in REMOTE and not kind.startswith("fuse") else "pread"


def require_room(folder, shared_memory=SHARED_MEMORY):
    """Raise RequirementError unless a copy of a format's folder fits in shared memory."""
    remedy = "Set `loaders.shared_memory: false`, or remove what others have left there."
    require_space(shared_memory, tree_bytes(folder), f"a copy of {folder}", remedy)


@contextlib.contextmanager
def copy_in_memory(folder, shared_memory=SHARED_MEMORY):
    """Yield a copy of a format's folder in shared memory. RequirementError if it does not fit."""
    require_room(folder, shared_memory)
    with tempfile.TemporaryDirectory(prefix="parascale-", dir=shared_memory) as place:
        yield Path(shutil.copytree(folder, Path(place) / Path(folder).name))


def drop_from_cache(paths):
    """Ask the kernel to forget the pages of files; returns whether it did (it cannot on `tmpfs`, or if a file is mapped)."""
    remaining = list(paths)
    for _ in range(TRIES):  # recently used pages are first kept in a separate list
        for path in remaining:
            with open(path, "rb") as handle:
                os.fsync(handle.fileno())  # a page that is not on disk yet cannot be dropped
                os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        remaining = [path for path in remaining if _is_cached(path)]
        if not remaining:
            return True
    return False


def _is_cached(path):
    """True if reading the first page of a file does not wait for the disk."""
    with open(path, "rb") as handle:
        try:
            return os.preadv(handle.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT) > 0
        except BlockingIOError:
            return False
        except OSError:
            return True  # the filesystem cannot tell: assume that it is cached
