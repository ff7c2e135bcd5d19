"""A rank's process: stop signals, the watchdog against hangs, garbage collection, peak memory."""

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

# Timeout in seconds for torch's collectives. Torch's clock also runs while this process is suspended, so our watchdog must decide first.
PATIENCE = 30 * 86400.0
GRACE = 1.5  # multiple of the timeout for a step that waits for no peer
SLACK = 0.1  # interval between checks, as a fraction of that time
NOTED = 0.7  # fraction of the timeout after which a rank writes its note; at the full timeout, waiting peers exit
MOVED_BYTES = 16 << 20  # I/O between checks that counts as progress: checkpoints are so large, logs are not

# The guard is a separate process: while a thread holds the GIL, none of our threads runs. It gets our ticks and counts its own.
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
    """Make SIGTERM and SIGINT request a stop after the current step. Returns a function that is True once one arrived."""
    asked = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, frame: asked.append(received))
    return lambda: bool(asked)


class Watchdog:
    """End the process if a step takes too long, and log the stack of every thread and what the rank was doing.

    The same applies if a collective waits for `timeout_seconds`. While active, it must be fed at least every `timeout_seconds` × GRACE.
    Reading or writing many bytes also feeds it: a large checkpoint takes longer than a step. Time while the process is suspended does
    not count. Before ending the process, or if an error ends it, a note for the launcher says what the rank was doing.
    devices: the run's DeviceMesh; None for a single process.
    """

    def __init__(self, timeout_seconds, devices):
        self.timeout, self.seconds, self.alone = timeout_seconds, timeout_seconds * GRACE, devices is None
        self.tick = min(1.0, SLACK * self.seconds)
        self.awake, self.now = SuspendAwareClock(2 * self.tick), 0.0  # now: time of the follower's last tick
        self.left = threading.Event()
        self.flight_state, self.first_ended = FlightState(devices), False
        self.follower = threading.Thread(target=self._follow, name="watchdog", daemon=True)

    def feed(self, stepped=None):
        """Report progress and restart the timer. stepped: True if a step has ended, None if unknown."""
        self.first_ended = self.first_ended if stepped is None else stepped
        self.since, self.stepped = time.time() if self.first_ended else None, self.now
        self.fed = self.now

    def _rest(self):
        """Count ticks until the next check is due. Returns True if the watchdog was left."""
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
        # Later than the follower, which can report more. On its signal Python's fault handler, enabled by torch, writes all stacks.
        command = [sys.executable, "-I", "-S", "-c", GUARD, str((1 + 2 * SLACK) * self.seconds), str(self.tick)]
        # In its own process group, so Ctrl-C does not reach it.
        self.guard = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0, process_group=0)
        self.follower.start()
        return self

    def __exit__(self, kind, error, _):
        self.left.set()
        self.follower.join()
        expected = kind is None or issubclass(kind, (Interrupted, KeyboardInterrupt))
        if not expected:
            self.flight_state.write(self.since, error)
        # With peers, it stays active after an error: if one of them hangs, this process may not end either.
        if expected or self.alone:
            with self.guard:
                self.guard.kill()


def _moved_bytes():
    """Bytes that this process has read and written so far, including pipes."""
    with open("/proc/self/io") as counters:
        return sum(int(line.split()[1]) for line in counters if line.startswith(("rchar", "wchar")))


@contextmanager
def garbage_kept():
    """A context in which Python collects cyclic garbage only on request, and skips objects that exist now."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def peak_memory(device):
    """Peak memory in bytes: torch's allocations on a GPU, or the process's resident set on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts it in KiB
