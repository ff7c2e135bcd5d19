"""The process of a rank: where it stands, how it is asked to stop, how it ends when it hangs, what memory it took."""

import faulthandler
import gc
import os
import resource
import signal
import sys
import threading
import time
from contextlib import contextmanager

import torch

from parascale.errors import Interrupted

GRACE = 1.5  # a collective's own timeout names the operation, so it may come first
SLACK = 0.1  # part of the time in which another feeding does nothing: each one starts a thread, which would slow a step
MOVED_BYTES = 16 << 20  # moved between two looks: only a state is so large; samples of devices and logs are smaller
# The environment that torchrun and our launcher set; one process in all needs none of it.
PLACE = (("RANK", 0), ("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1))


def place():
    """(rank, rank on this node, processes on this node) of this process."""
    return tuple(int(os.environ.get(name, default)) for name, default in PLACE)


def listen_for_signals():
    """SIGTERM and SIGINT ask for a stop after the current step; returns the function that tells whether one came."""
    asked = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, frame: asked.append(received))
    return lambda: bool(asked)


class Watchdog:
    """A step that takes too long ends the process, with the stack of every thread in its log.

    Collectives have timeouts of their own; this one also ends a rank that hangs elsewhere. While entered it must be fed at
    least every `timeout_seconds` × GRACE × (1 − SLACK). Bytes that the process reads or writes feed it too: a large state takes
    longer than a step. alone: this is the run's only process.
    """

    def __init__(self, timeout_seconds, alone):
        self.seconds, self.alone = timeout_seconds * GRACE, alone
        self.fed = -float("inf")
        self.left = threading.Event()
        self.follower = threading.Thread(target=self._follow_bytes, name="watchdog", daemon=True)

    def feed(self):
        """All is well: start waiting again."""
        now = time.monotonic()
        if now - self.fed > SLACK * self.seconds:
            self.fed = now
            faulthandler.dump_traceback_later(self.seconds, exit=True, file=sys.stderr)

    def _follow_bytes(self):
        seen = _moved_bytes()
        while not self.left.wait(SLACK * self.seconds):
            if (moved := _moved_bytes()) > seen + MOVED_BYTES:
                self.feed()
            seen = moved

    def __enter__(self):
        self.feed()
        self.follower.start()
        return self

    def __exit__(self, kind, *_):
        self.left.set()
        self.follower.join()
        # Beside peers it stays after an error: where one of them hangs, this process may not get to its end either.
        if kind is None or self.alone or issubclass(kind, (Interrupted, KeyboardInterrupt)):
            faulthandler.cancel_dump_traceback_later()


def _moved_bytes():
    """Bytes that this process has read and written so far, in files as in pipes."""
    with open("/proc/self/io") as counters:
        return sum(int(line.split()[1]) for line in counters if line.startswith(("rchar", "wchar")))


@contextmanager
def garbage_kept():
    """While the body runs, Python collects cyclic garbage only when it is told to, and then skips what is there now."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def peak_memory(device):
    """Bytes: the most that torch allocated on a GPU, or the largest resident set of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts it in KiB
