"""The processes of one node: started with the environment that torch expects, watched, stopped, and explained.

Each rank writes to a log of its own; the run's rank 0 is shown on the launcher's output as well.
"""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from parascale import slurm
from parascale.errors import PERMANENT_FAILURE
from parascale.launch import STOPPED, die_with_parent
from parascale.launch.hang import speak_for
from parascale.notes import note_path, state_in

ABORT_SECONDS = 2.0  # for a rank that is ended to write its stack into its log
TAIL_BYTES = 4096
KILLED = " (killed from outside: the machine ran out of memory, or someone killed it)"


@dataclass(frozen=True)
class Failure:
    """Why a rank ended."""

    rank: int | None  # None: the launcher of a node
    host: str
    reason: str
    log: str | None
    time: float  # seconds since 1970
    certain: bool  # cannot be the consequence of another rank's failure
    permanent: bool = False  # the same start would fail again

    def __str__(self) -> str:
        if self.rank is None:
            return f"{self.reason} ({self.host})"
        return f"rank {self.rank} on {self.host} failed: {self.reason}\n  log: {self.log}"


def root_cause(failures):
    """The failure that the others follow from: a certain one before others, then the earliest."""
    return min(failures, key=lambda failure: (not failure.certain, failure.time))


class Worker:
    """One rank: a process with its log."""

    def __init__(self, rank, command, environment, cores, logs, shown):
        self.rank, self._command = rank, command
        self.log = Path(logs) / f"rank{rank}.log"
        self.error_file = Path(logs) / f"rank{rank}.error.json"
        for old in (self.error_file, note_path(logs, rank)):
            old.unlink(missing_ok=True)
        self.returncode = None
        self.ended = None
        self._status = None  # of a process that is ended by us, as it was until then
        agent = os.getpid()

        def prepare():
            die_with_parent(agent)
            resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
            if cores:
                os.sched_setaffinity(0, cores)

        # Appending keeps the logs of earlier attempts.
        self._file = open(self.log, "ab", buffering=0)  # noqa: SIM115 (it lives as long as the worker)
        started = f"{time.strftime('%FT%TZ', time.gmtime())} rank {rank} on {socket.gethostname()}"
        self._file.write(f"--- {started}\n".encode())
        self._process = subprocess.Popen(
            command,
            env={**environment, "TORCHELASTIC_ERROR_FILE": str(self.error_file)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if shown else self._file,
            stderr=subprocess.STDOUT,
            process_group=0,  # so that a rank's own children end with it
            preexec_fn=prepare,
        )
        self.output, self.pid = self._process.stdout, self._process.pid
        if self.output:
            os.set_blocking(self.output.fileno(), False)

    def poll(self):
        """See whether the process has ended, and copy what a shown rank has written to its log and to our output."""
        if self.returncode is None and self._process.poll() is not None:
            self.returncode, self.ended = self._process.returncode, time.time()
        while self.output and (block := self.output.read(1 << 16)):
            self._file.write(block)
            sys.stdout.buffer.write(block)
            sys.stdout.buffer.flush()

    def signal(self, number):
        """Send a signal to the rank; to its whole process group when it is SIGKILL."""
        with suppress(ProcessLookupError, psutil.NoSuchProcess):  # it ended just now
            if self.returncode is None:
                os.kill(self._rank_process(), number)
        with suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(self._process.pid, number)

    def _rank_process(self):
        """The process that Python runs in: what watches it, as Nsight Systems does, would keep a signal to itself."""
        python = self._command[self._command.index(sys.executable) :]
        if python != self._command:
            below = psutil.Process(self._process.pid).children(recursive=True)
            # What it forks has the same command until it runs another, but is younger.
            if found := [(each.create_time(), each.pid) for each in below if each.cmdline() == python]:
                return min(found)[1]
        return self._process.pid

    def failure(self):
        """The Failure of a rank that ended badly, from its error file or its exit."""
        reason, when = self._exception()
        code = self.returncode
        if reason is None and code < 0:
            reason = f"ended by {signal.Signals(-code).name}" + (KILLED if code == -signal.SIGKILL else "")
            doing, where = state_in(self.log) if code == -signal.SIGABRT else (None, None)  # as by the watchdog's guard
            reason += f": {doing} at {where}" if doing else ""
        elif reason is None:
            reason = f"exit code {code}" + (f": {line}" if (line := last_line(self.log)) else "")
        # A library may abort a process because a peer is gone; every other signal comes from outside.
        certain = code < 0 and code not in (-signal.SIGABRT, -signal.SIGTERM)
        place, when = (self.rank, slurm.node_name()), when or self.ended
        return Failure(*place, reason, str(self.log), when, certain, permanent=code == PERMANENT_FAILURE)

    def look(self):
        """Remember what the process does, before it is ended."""
        with suppress(psutil.NoSuchProcess):
            self._status = psutil.Process(self._rank_process()).status()

    def speak(self, logs):
        """Complete the rank's note, if it could not say itself why it did not join the others."""
        reason, decisive = None, False
        if self._status:
            decisive = self._status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
            reason = "it was stopped (SIGSTOP, a debugger, or a suspended job)" if decisive else None
        elif self.returncode in (0, STOPPED):
            reason, decisive = "it had ended", True
        elif decisive := self.failure().certain:
            reason = self.failure().reason
        asleep = self._status not in (None, psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)
        speak_for(logs, self.rank, self.log, reason, decisive, guessed=asleep)

    def _exception(self):
        """Message and time that torch's `@record` left, if it did."""
        try:
            message = json.loads(self.error_file.read_text(encoding="utf-8"))["message"]
            # The file's own time: the one inside is cut to whole seconds.
            reason = message["message"].strip().encode(errors="replace").decode()[:TAIL_BYTES]
            return reason, self.error_file.stat().st_mtime
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None, None


class Workers:
    """All ranks of one node."""

    def __init__(self, workers):
        self.ranks = list(workers)

    def poll(self):
        """Look at every rank."""
        for worker in self.ranks:
            worker.poll()

    @property
    def running(self):
        """Ranks that have not ended."""
        return [worker for worker in self.ranks if worker.returncode is None]

    @property
    def ended(self):
        """Exit codes of the ranks that ended well: done, or stopped with their state saved."""
        return [worker.returncode for worker in self.ranks if worker.returncode in (0, STOPPED)]

    def failures(self):
        """Failures of the ranks that ended badly so far."""
        return [worker.failure() for worker in self.ranks if worker.returncode not in (None, 0, STOPPED)]

    def end(self):
        """End what still runs: SIGABRT, on which Python writes every thread's stack into the log, then SIGKILL."""
        for worker in self.running:
            worker.look()
        for worker in self.running:
            worker.signal(signal.SIGABRT)
        deadline = time.monotonic() + ABORT_SECONDS
        while self.running and time.monotonic() < deadline:
            self.poll()
            time.sleep(0.05)
        for worker in self.ranks:
            worker.signal(signal.SIGKILL)
        while self.running:
            self.poll()
            time.sleep(0.05)


def last_line(path):
    """The last line of a log that says anything."""
    with open(path, "rb") as handle:
        handle.seek(max(0, handle.seek(0, os.SEEK_END) - TAIL_BYTES))
        lines = [line.strip() for line in handle.read().decode("utf-8", "replace").splitlines()]
    return next((line for line in reversed(lines) if line and not line.startswith("---")), "")
