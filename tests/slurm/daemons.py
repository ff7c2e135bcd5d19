"""Starting what a Slurm cluster consists of, in the order in which one needs the other."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from machine import BoxError, Machine, tail
from shape import Shape, database_socket, munge_socket


class DaemonError(BoxError):
    """A daemon did not come up; the message has the end of its log."""


# What the computer must have, and the Debian package that has it.
PROGRAMS = {name: name for name in ("slurmctld", "slurmd", "slurmdbd", "hostname")}
PROGRAMS |= {"sbatch": "slurm-client", "munged": "munge", "ip": "iproute2", "unshare": "util-linux", "pkill": "procps"}
PROGRAMS |= dict.fromkeys(("mariadbd", "mariadb-install-db"), "mariadb-server")


def why_not() -> str | None:
    """What keeps this computer from carrying a cluster; None where nothing does."""
    if os.geteuid() != 0:
        return "a cluster in a box needs root: it makes network interfaces and mounts"
    packages = sorted({package for program, package in PROGRAMS.items() if not shutil.which(program)})
    if packages:
        return f"missing programs; on Debian: apt-get install {' '.join(packages)}"
    probe = ["unshare", "--fork", "--pid", "--mount", "--uts", "--net", "true"]
    result = subprocess.run(probe, capture_output=True, text=True)
    if result.returncode:
        return f"the kernel gives us no namespaces (a container must be privileged): {result.stderr.strip()}"
    return None


def start(machine: Machine, directory: Path, command: list[str], env: dict[str, str] | None = None) -> subprocess.Popen:
    """Start a daemon on a machine; its streams go to a log of their own."""
    return machine.popen(command, directory / f"log/{machine.name}-{command[0]}.out", env)


def start_munge(login: Machine, directory: Path) -> subprocess.Popen:
    """Who is who. The secret is the cluster's own: it neither needs nor touches the computer's."""
    state, log = directory / "state", directory / "log/munged.log"
    key = state / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    command = ["munged", "--foreground", "--force", f"--socket={munge_socket(directory)}", f"--log-file={log}"]
    command += [f"--key-file={key}", f"--pid-file={state}/munge.pid", f"--seed-file={state}/munge.seed"]
    munged = start(login, directory, command)
    logs = [log, directory / f"log/{login.name}-munged.out"]
    until("munged answers", munge_socket(directory).exists, logs, munged)
    return munged


def start_database(login: Machine, directory: Path) -> subprocess.Popen:
    data, log = directory / "state/mariadb", directory / "log/mariadb.log"
    # A server that starts removes every temporary table that it finds where it keeps its own: those of a neighbour's, in /tmp.
    temporary = directory / "state/mariadb-tmp"
    temporary.mkdir(exist_ok=True)
    common = ["--no-defaults", "--user=root", f"--datadir={data}", f"--tmpdir={temporary}"]
    install = ["mariadb-install-db", *common, "--skip-test-db", "--auth-root-authentication-method=normal"]
    install += ["--skip-name-resolve"]
    with log.open("w") as stream:
        if subprocess.run(install, stdout=stream, stderr=stream).returncode:
            raise DaemonError(f"the database was not made:\n{log.read_text()}")
    command = ["mariadbd", *common, "--skip-networking", f"--socket={database_socket(directory)}"]
    command += [f"--pid-file={directory}/state/mariadb.pid", f"--log-error={log}", "--innodb-lock-wait-timeout=900"]
    # Nothing here has to survive a power cut, so no write waits for the disk.
    command += ["--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0"]
    mariadb = start(login, directory, command)
    until("MariaDB answers", database_socket(directory).exists, [log], mariadb)
    return mariadb


def start_accounting(login: Machine, directory: Path, shape: Shape, address: str) -> subprocess.Popen:
    """slurmdbd, with the account in it: slurmctld refuses to start for a cluster without one."""
    # The variable is how MariaDB's client library learns of the socket; slurmdbd has no setting for it.
    environment = {**os.environ, "MYSQL_UNIX_PORT": str(database_socket(directory))}
    slurmdbd = start(login, directory, ["slurmdbd", "-D"], environment)
    logs = [directory / "log/slurmdbd.log"]
    until("slurmdbd answers", lambda: listens(address, shape.accounting_port), logs, slurmdbd)
    cluster = f"cluster={shape.cluster}"
    for entity in (
        ["cluster", shape.cluster],
        ["qos", shape.qos, *shape.qos_limits],
        ["account", shape.account, cluster, f"qos=normal,{shape.qos}"],
        ["user", "root", f"account={shape.account}", cluster],
    ):
        command = login.enter(["sacctmgr", "--immediate", "add", *entity], cwd="/")
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            raise DaemonError(f"sacctmgr add {' '.join(entity)}: {result.stdout}{result.stderr}")
    return slurmdbd


def until(
    what: str,
    condition: Callable[[], bool],
    logs: Iterable[Path],
    daemon: subprocess.Popen | None = None,
    timeout: float = 60,
) -> None:
    """Wait until `condition` holds; a daemon that dies meanwhile, or too long a wait, is an error."""
    deadline = time.monotonic() + timeout
    while not condition():
        died = daemon is not None and daemon.poll() is not None
        if died or time.monotonic() > deadline:
            reason = f"ended with status {daemon.returncode}" if died else f"not within {timeout:.0f} s"
            raise DaemonError("\n".join([f"waiting until {what}: {reason}", *map(tail, logs)]))
        time.sleep(0.02)


def listens(address: str, port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex((address, port)) == 0
