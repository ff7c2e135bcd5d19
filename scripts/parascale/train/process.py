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
from parascale.train.witness import Witness

GRACE = 1.5  # a collective's own timeout names the operation, so it may come first
SLACK = 0.1  # part of the time in which another feeding does nothing: each one starts a thread, which would slow a step
NOTED = 0.7  # part of the timeout after which a rank says what it does: its peers' collectives end with the whole of it
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
    """A step that takes too long ends the process, with the stack of every thread and what it was doing in its log.

    Collectives have timeouts of their own; this one also ends a rank that hangs elsewhere. While entered it must be fed at
    least every `timeout_seconds` × GRACE × (1 − SLACK). Bytes that the process reads or writes feed it too: a large state takes
    longer than a step. Before collectives give up, and where an error ends the process, a note for the launcher says what it does.
    devices: the run's DeviceMesh; None for its only process.
    """

    def __init__(self, timeout_seconds, devices):
        self.timeout, self.seconds, self.alone = timeout_seconds, timeout_seconds * GRACE, devices is None
        self.fed = self.stepped = -float("inf")
        self.left = threading.Event()
        self.witness = Witness(devices)
        self.follower = threading.Thread(target=self._follow, name="watchdog", daemon=True)

    def feed(self):
        """All is well: start waiting again."""
        self.stepped = time.monotonic()
        self._restart()

    def _restart(self):
        now = time.monotonic()
        if now - self.fed > SLACK * self.seconds:
            self.fed = now
            # For a process that keeps Python's lock: the follower would be as late as its looks.
            faulthandler.dump_traceback_later((1 + 2 * SLACK) * self.seconds, exit=True, file=sys.stderr)

    def _follow(self):
        seen, noted = _moved_bytes(), False
        while not self.left.wait(SLACK * self.seconds):
            if (moved := _moved_bytes()) > seen + MOVED_BYTES:
                self._restart()
            seen, quiet = moved, time.monotonic() - self.stepped
            if quiet > NOTED * self.timeout:
                self.witness.write(time.time() - quiet)
                noted = True
            elif noted:
                self.witness.forget()
                noted = False
            if time.monotonic() - self.fed > self.seconds and not self.left.is_set():
                self._end(quiet)

    def _end(self, quiet):
        faulthandler.dump_traceback(file=sys.stderr)
        note = self.witness.note(time.time() - quiet)
        place = f" at {note['where']}" if note["where"] else ""
        print(f"no step or batch ended for {quiet:.0f} s: {note['doing']}{place}", file=sys.stderr, flush=True)
        os._exit(1)

    def __enter__(self):
        self.feed()
        self.follower.start()
        return self

    def __exit__(self, kind, error, _):
        self.left.set()
        self.follower.join()
        expected = kind is None or issubclass(kind, (Interrupted, KeyboardInterrupt))
        if not expected:
            self.witness.write(time.time() - (time.monotonic() - self.stepped), error)
        # Beside peers it stays after an error: where one of them hangs, this process may not get to its end either.
        if expected or self.alone:
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
