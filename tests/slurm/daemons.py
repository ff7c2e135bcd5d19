"""Start the daemons of a Slurm cluster, in the order of their dependencies."""

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
    """A daemon did not start; the message has the end of its log."""


# Required program → Debian package.
PROGRAMS = {name: name for name in ("slurmctld", "slurmd", "slurmdbd", "hostname")}
PROGRAMS |= {"sbatch": "slurm-client", "munged": "munge", "ip": "iproute2", "unshare": "util-linux", "pkill": "procps"}
PROGRAMS |= dict.fromkeys(("mariadbd", "mariadb-install-db"), "mariadb-server")


def why_not() -> str | None:
    """Why this computer cannot run a cluster, or None."""
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
    """Start a daemon on a machine, with its output in its own log."""
    return machine.popen(command, directory / f"log/{machine.name}-{command[0]}.out", env)


def start_munge(login: Machine, directory: Path) -> subprocess.Popen:
    """Start munge, which authenticates, with the cluster's own key; the computer's is neither needed nor changed."""
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
    # At its start the server removes all temporary tables in its folder: in /tmp, those of other servers.
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
    # The data need not survive a power cut, so writes do not wait for the disk.
    command += ["--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0"]
    mariadb = start(login, directory, command)
    until("MariaDB answers", database_socket(directory).exists, [log], mariadb)
    return mariadb


def start_accounting(login: Machine, directory: Path, shape: Shape, address: str) -> subprocess.Popen:
    """Start slurmdbd and create the account, without which slurmctld refuses to start."""
    # slurmdbd has no setting for the socket; MariaDB's client library reads this variable.
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
    """Wait until `condition()` is true. Raises DaemonError if the daemon dies or the time is up."""
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
