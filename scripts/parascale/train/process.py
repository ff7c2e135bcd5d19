"""The process of a rank: where it stands, how it is asked to stop, how it ends when it hangs, what memory it took."""

import faulthandler
import gc
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress

import torch

from parascale.errors import Interrupted
from parascale.lease import SuspendAwareClock
from parascale.train.flight_state import FlightState

# Seconds for torch's collectives. Its clock goes on while this process stands still, so the watchdog is to decide long before.
PATIENCE = 30 * 86400.0
GRACE = 1.5  # times the timeout: for a step that waits for nobody
SLACK = 0.1  # part of that time between two looks
NOTED = 0.7  # part of the timeout after which a rank says what it does: with the whole of it a peer that waits ends
MOVED_BYTES = 16 << 20  # moved between two looks: only a state is so large; samples of devices and logs are smaller

# A process of its own: while a thread keeps Python's lock, no other of ours runs. It hears each of our ticks, and counts its own.
GUARD = """
import os, select, signal, sys
parent, quiet, seconds, tick = os.getppid(), 0.0, *map(float, sys.argv[1:])
while quiet < seconds:
    if os.getppid() != parent:
        sys.exit()
    if select.select([0], [], [], tick)[0]:
        if not os.read(0, 4096):
            sys.exit()
        quiet = 0.0
    elif open(f"/proc/{parent}/stat").read().rpartition(") ")[2][0] not in "Tt":
        quiet += tick
print(f"a thread has kept Python's lock for {quiet:.0f} s, or the process does not end", file=sys.stderr, flush=True)
os.kill(parent, signal.SIGABRT)
"""


def listen_for_signals():
    """SIGTERM and SIGINT ask for a stop after the current step; returns the function that tells whether one came."""
    asked = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, frame: asked.append(received))
    return lambda: bool(asked)


class Watchdog:
    """A step that takes too long ends the process, with the stack of every thread and what it was doing in its log.

    So does a collective that waits for `timeout_seconds`. While entered it must be fed at least every `timeout_seconds` × GRACE.
    Bytes that the process reads or writes feed it too: a large state takes longer than a step. Time in which the process stands still
    does not count. Before it ends anything, and where an error ends the process, a note for the launcher says what it does.
    devices: the run's DeviceMesh; None for its only process.
    """

    def __init__(self, timeout_seconds, devices):
        self.timeout, self.seconds, self.alone = timeout_seconds, timeout_seconds * GRACE, devices is None
        self.tick = min(1.0, SLACK * self.seconds)
        self.awake, self.now = SuspendAwareClock(2 * self.tick), 0.0  # the second as of the follower's last tick
        self.left = threading.Event()
        self.flight_state, self.first_ended = FlightState(devices), False
        self.follower = threading.Thread(target=self._follow, name="watchdog", daemon=True)

    def feed(self, stepped=None):
        """All is well: start waiting again. stepped: whether a step has ended, if that is known."""
        self.first_ended = self.first_ended if stepped is None else stepped
        self.since, self.stepped = time.time() if self.first_ended else None, self.now
        self.fed = self.now

    def _rest(self):
        """Count ticks until the next look is due; whether the watchdog was left meanwhile."""
        due = self.now + SLACK * self.seconds
        while self.now < due and not self.left.wait(self.tick):
            self.now = self.awake()
            with suppress(OSError):  # it was killed
                self.guard.stdin.write(b".")  # type: ignore[union-attr] # a pipe
        return self.left.is_set()

    def _follow(self):
        seen, noted = _moved_bytes(), False
        while not self._rest():
            if (moved := _moved_bytes()) > seen + MOVED_BYTES:
                self.fed = self.now
            seen, quiet, waited = moved, self.now - self.stepped, 0.0
            if quiet > NOTED * self.timeout:
                waited = min(quiet, self.flight_state.write(self.since))
                noted = True
            elif noted:
                self.flight_state.forget()
                noted = False
            if (waited > self.timeout or self.now - self.fed > self.seconds) and not self.left.is_set():
                self._end(quiet)

    def _end(self, quiet):
        faulthandler.dump_traceback(file=sys.stderr)
        with suppress(Exception):
            note = self.flight_state.note(self.since)
            place = f" at {note['where']}" if note["where"] else ""
            print(f"no step or batch ended for {quiet:.0f} s: {note['doing']}{place}", file=sys.stderr, flush=True)
        os._exit(1)

    def __enter__(self):
        self.feed()
        # Later than the follower, who can say more. At its signal Python's fault handler, which torch enables, writes all stacks.
        command = [sys.executable, "-I", "-S", "-c", GUARD, str((1 + 2 * SLACK) * self.seconds), str(self.tick)]
        # No Ctrl-C reaches its group.
        self.guard = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0, process_group=0)
        self.follower.start()
        return self

    def __exit__(self, kind, error, _):
        self.left.set()
        self.follower.join()
        expected = kind is None or issubclass(kind, (Interrupted, KeyboardInterrupt))
        if not expected:
            self.flight_state.write(self.since, error)
        # Beside peers it stays after an error: where one of them hangs, this process may not get to its end either.
        if expected or self.alone:
            with self.guard:
                self.guard.kill()


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
