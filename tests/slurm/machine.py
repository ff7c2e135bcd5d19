"""A computer made of Linux namespaces: its own processes, host name, mounts and optionally its own network.

The first process of a machine (pid 1 in its namespace) only waits and reaps orphans. If it ends, the kernel
kills all processes of the machine and of machines inside it. So one signal switches a machine off, and nothing
is left behind.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

# Reads its identity before anything is mounted over /proc, where the process still has its outer pid.
FIRST_PROCESS = """
set -e
read -r identity </proc/self/stat
hostname {name}
{setup}
echo "$identity" >{identity}.part
mv {identity}.part {identity}
while :; do sleep 3600 & wait; done
"""


class BoxError(RuntimeError):
    """An error for users of the cluster; the message says what is wrong and what to do."""


class MachineError(BoxError):
    """A machine could not be switched on, or is off but needed."""


class Machine:
    """One machine. Its state is in two files, so that other processes can find it."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self._identity = directory / f"{name}.stat"

    @property
    def pid(self) -> int | None:
        """The outer pid of the machine's first process; None if the machine is off."""
        try:
            pid, start = _pid_and_start(self._identity.read_text())
            state = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None  # never started, or ended
        # The start time distinguishes our process from a later one with the same pid.
        is_ours = _pid_and_start(state) == (pid, start) and _fields(state)[0] not in ("Z", "X")
        return pid if is_ours else None

    def switch_on(
        self, setup: str = "", network: bool = True, inside: Machine | None = None, timeout: float = 60
    ) -> subprocess.Popen:
        """Start the first process and wait until it has run the shell lines `setup`."""
        self._identity.unlink(missing_ok=True)
        script = FIRST_PROCESS.format(
            name=shlex.quote(self.name), setup=setup, identity=shlex.quote(str(self._identity))
        )
        command = ["unshare", "--fork", "--pid", "--mount", "--uts", *(["--net"] if network else [])]
        command += ["sh", "-c", script]
        process = (inside or OUTSIDE).popen(command, self.log)
        deadline = time.monotonic() + timeout
        while not self._identity.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                raise MachineError(f"machine {self.name} did not start: {tail(self.log)}")
            time.sleep(0.005)
        return process

    def switch_off(self, timeout: float = 60) -> None:
        """Kill everything on the machine at once, like a power cut. Does nothing if it is off."""
        pid = self.pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + timeout
        while self.pid is not None:
            if time.monotonic() > deadline:
                raise MachineError(f"machine {self.name} (process {pid}) survives SIGKILL")
            time.sleep(0.005)
        self._identity.unlink(missing_ok=True)

    def enter(self, command: list[str], cwd: str | Path | None = None, own_processes: bool = True) -> list[str]:
        """The command line that runs `command` on this machine.

        Without `own_processes` the command stays in the caller's pid namespace: it can be signalled by
        Popen's pid, and outlives the machine.
        """
        if self.pid is None:
            raise MachineError(f"machine {self.name} is off")
        namespaces = ["--mount", "--uts", "--net", *(["--pid"] if own_processes else [])]
        return ["nsenter", f"--target={self.pid}", *namespaces, f"--wdns={cwd or Path.cwd()}", "--", *command]

    def popen(self, command: list[str], log: Path, env: dict[str, str] | None = None) -> subprocess.Popen:
        """Start a daemon on this machine in a new session, with both streams appended to `log`."""
        with log.open("ab") as stream:
            streams = {"stdin": subprocess.DEVNULL, "stdout": stream, "stderr": stream}
            return subprocess.Popen(self.enter(command, cwd="/"), **streams, env=env, start_new_session=True)

    def processes(self, environment: str = "") -> dict[int, str]:
        """Outer pid → command line of all processes on this machine except the first.

        With `environment` ("NAME=value"), only those that have this in their environment.
        """
        pid = self.pid
        if pid is None:
            return {}
        namespace = os.readlink(f"/proc/{pid}/ns/pid")
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal() or int(entry.name) == pid:
                continue
            try:
                if os.readlink(entry / "ns/pid") != namespace:
                    continue
                started_with = (entry / "environ").read_bytes().split(b"\0")
                if environment and environment.encode() not in started_with:
                    continue
                found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ").strip()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # it has just ended; or root may not read it, so it is not ours
        return found


class _Outside(Machine):
    """The real computer."""

    def enter(self, command: list[str], cwd: str | Path | None = None, own_processes: bool = True) -> list[str]:
        return command


OUTSIDE = _Outside("outside", Path("/"))


def tail(log: Path, lines: int = 8) -> str:
    """The last lines of a log, for an error message."""
    if not log.exists():
        return f"(no log at {log})"
    return "\n".join([f"{log}:", *log.read_text(errors="replace").splitlines()[-lines:]])


def _fields(stat: str) -> list[str]:
    # proc(5): "pid (comm) state ppid ..."; comm may contain blanks and brackets.
    return stat.rpartition(")")[2].split()


def _pid_and_start(stat: str) -> tuple[int, int]:
    return int(stat.split()[0]), int(_fields(stat)[19])
