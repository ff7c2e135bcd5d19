"""The ranks of one node: start them with the environment that torch expects, watch and stop them, and explain their failures.

Each rank writes to its own log; rank 0 also writes to the launcher's output.
"""

import json
import math
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from parascale import slurm
from parascale.errors import PERMANENT_FAILURE
from parascale.launch import STOPPED, die_with_parent
from parascale.launch.hang import speak_for
from parascale.notes import GAVE_UP, OF_OTHERS, RANK_PREFIX, WAITING, error_in, note_path, state_in, state_of, tail_of

# Makes a rank of a user's script write its stack. No known library or scheduler uses this signal.
STACK_SIGNAL = signal.SIGRTMAX - 7
ABORT_SECONDS = 2.0  # time for an aborted rank to write its stack into its log
TAIL_BYTES = 4096
STATUS_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
WAS_STOPPED = "it was stopped (SIGSTOP, a debugger, or a suspended job)"
KILLED = " (killed from outside: the machine ran out of memory, or someone killed it)"


@dataclass(frozen=True)
class Failure:
    """Why a rank ended."""

    rank: int | None  # None: a node's launcher
    host: str
    reason: str
    log: str | None
    time: float  # seconds since 1970
    certain: bool  # cannot be a consequence of another rank's failure
    permanent: bool = False  # another start would fail in the same way
    waited: bool = False  # ended because another rank did not join it

    def __str__(self) -> str:
        if self.rank is None:
            return f"{self.reason} ({self.host})"
        how = "gave up waiting for others" if self.waited else "failed"
        return f"rank {self.rank} on {self.host} {how}: {self.reason}\n  log: {self.log}"


def root_cause(failures: Iterable[Failure]) -> Failure:
    """The failure that caused the others: certain ones come first, ranks that waited for another come last, then the earliest counts."""
    return min(failures, key=lambda failure: (not failure.certain, failure.waited, failure.time))


class Worker:
    """One rank: a process with its log. given: Python's own arguments, to find its process if another program starts it."""

    def __init__(
        self,
        rank: int,
        command: list[str],
        environment: Mapping[str, str],
        cores: set[int] | None,
        logs: str | Path,
        shown: bool,
        given: Sequence[str] = (),
    ) -> None:
        self.rank, self._given = rank, () if command[0] == sys.executable else given
        self.log = Path(logs) / f"rank{rank}.log"
        self.error_file = Path(logs) / f"rank{rank}.error.json"
        self.look_file, self.stack_file = (Path(logs) / f"rank{rank}.{name}" for name in ("look.json", "stack"))
        for old in (self.error_file, note_path(logs, rank), self.look_file, self.stack_file):
            old.unlink(missing_ok=True)
        self.returncode: int | None = None
        self.ended = 0.0  # seconds since 1970
        self._status: str | None = None  # state of the process before we ended it
        agent = os.getpid()

        def prepare() -> None:
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
            process_group=0,  # so that a rank's children end with it
            preexec_fn=prepare,
        )
        self.output, self.pid = self._process.stdout, self._process.pid
        if self.output:
            os.set_blocking(self.output.fileno(), False)

    def poll(self) -> None:
        """Check if the process has ended, and copy the output of a shown rank to its log and to our output."""
        if self.returncode is None and self._process.poll() is not None:
            self.returncode, self.ended = self._process.returncode, time.time()
        while self.output and (block := self.output.read(1 << 16)):
            self._file.write(block)
            sys.stdout.buffer.write(block)
            sys.stdout.buffer.flush()

    def signal(self, number: int) -> None:
        """Send a signal to the rank; SIGKILL also goes to its whole process group."""
        with suppress(ProcessLookupError, psutil.NoSuchProcess):  # it has just ended
            if self.returncode is None:
                os.kill(self.python_pid(), number)
        with suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(self._process.pid, number)

    def ask_for_stack(self) -> bool:
        """Have the rank write its stack into `stack_file`. Returns False if it has no handler, since the signal would kill it."""
        with suppress(OSError, psutil.Error):
            pid = self.python_pid()
            caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
            if caught and int(caught[1], 16) >> (STACK_SIGNAL - 1) & 1:
                os.truncate(self.stack_file, 0)
                os.kill(pid, STACK_SIGNAL)
                return True
        return False

    def python_pid(self) -> int:
        """The id of the Python process itself; a wrapper such as Nsight Systems or a container may not pass signals on."""
        found = [(math.inf, 0.0, self._process.pid)]
        if self._given:
            first = psutil.Process(self._process.pid)
            for each in (first, *first.children(recursive=True)):
                with suppress(psutil.Error):
                    line = each.cmdline()
                    # A wrapper's command line is longer, since its words come first. A fork has the same command line, but is younger.
                    if line[-len(self._given) :] == [*self._given]:
                        found.append((len(line), each.create_time(), each.pid))
        return min(found)[2]

    def failure(self) -> Failure:
        """The Failure of a rank that failed, from its error file or exit code."""
        reason, when, printed = self._exception()
        code = self.returncode or 0
        if reason is None and code < 0:
            reason = f"ended by {signal.Signals(-code).name}" + (KILLED if code == -signal.SIGKILL else "")
            doing, where = state_in(self.log) if code == -signal.SIGABRT else (None, None)  # as by our watchdog
            reason += f": {doing} at {where}" if doing else ""
        elif reason is None:
            reason = f"exit code {code}" + (f": {line}" if (line := last_line(self.log)) else "")
        printed = printed or tail_of(self.log)
        if (error := error_in(printed)) and error[0] != error[1] and error[0] in reason:
            reason += f" (from {error[1]}, at {state_of(error[2])[1]})"
        waited = code > 0 and any(word in reason for word in OF_OTHERS) and bool(GAVE_UP.search(reason))
        waited = waited or (code == -signal.SIGABRT and "collective operation timeout" in printed)  # NCCL's watchdog
        # A library may abort a process because a peer is gone; all other signals come from outside.
        certain = code < 0 and code not in (-signal.SIGABRT, -signal.SIGTERM)
        place, when = (self.rank, slurm.node_name()), when or self.ended
        permanent = code == PERMANENT_FAILURE
        return Failure(*place, reason, str(self.log), when, certain, permanent, waited)

    def status(self) -> str | None:
        """The process state that Linux reports; None if the process is gone."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.python_pid()).status()
        return None

    def look(self) -> None:
        """Remember the process state before we end it."""
        self._status = self.status()

    def speak(self, logs: str | Path) -> None:
        """Complete the rank's note, if the rank could not write why it did not join the others."""
        reason, decisive = None, False
        if self._status:
            decisive = self._status in STATUS_STOPPED
            reason = WAS_STOPPED if decisive else None
        elif self.returncode in (0, STOPPED):
            reason, decisive = "it had ended", True
        elif (failure := self.failure()).waited:
            reason = WAITING
        elif failure.certain or (self.returncode or 0) > 0:
            reason, decisive = failure.reason, failure.certain
        asleep = self._status not in (None, psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)
        speak_for(logs, self.rank, self.log, reason, decisive, guessed=asleep)

    def _exception(self) -> tuple[str | None, float | None, str | None]:
        """(message, time, traceback) that torch's `@record` wrote, each None if it wrote none."""
        try:
            message = json.loads(self.error_file.read_text(encoding="utf-8"))["message"]
            # The file's modification time, because the time inside is in whole seconds.
            reason = message["message"].strip().encode(errors="replace").decode()[:TAIL_BYTES]
            return reason, self.error_file.stat().st_mtime, message.get("extraInfo", {}).get("py_callstack")
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None, None, None


class Workers:
    """All ranks of one node."""

    def __init__(self, workers: Iterable[Worker]) -> None:
        self.ranks = list(workers)

    def poll(self) -> None:
        """Poll every rank."""
        for worker in self.ranks:
            worker.poll()

    @property
    def running(self) -> list[Worker]:
        """Ranks that have not ended."""
        return [worker for worker in self.ranks if worker.returncode is None]

    @property
    def ended(self) -> list[int]:
        """Exit codes of the ranks that finished, or stopped with their state saved."""
        return [worker.returncode for worker in self.ranks if worker.returncode in (0, STOPPED)]

    def failures(self) -> list[Failure]:
        """The failures so far."""
        return [worker.failure() for worker in self.ranks if worker.returncode not in (None, 0, STOPPED)]

    def end(self) -> None:
        """End ranks that still run: SIGABRT, on which Python writes the stacks of all threads to the log, then SIGKILL."""
        for worker in self.running:
            worker.look()
        for worker in self.running:
            worker.signal(signal.SIGABRT)
        self._wait(ABORT_SECONDS)
        for worker in self.ranks:
            worker.signal(signal.SIGKILL)
        self._wait(math.inf)

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.running and time.monotonic() < deadline:
            with suppress(OSError):  # the log's disk is full
                self.poll()
            time.sleep(0.05)


def last_line(path: str | Path) -> str:
    """The last line of a log that is not empty, a header or one of torch's warnings."""
    lines = [RANK_PREFIX.sub("", line).strip() for line in tail_of(path).splitlines()]
    return next((line for line in reversed(lines) if line and not re.match(r"---|:?\[W", line)), "")[-TAIL_BYTES:]
