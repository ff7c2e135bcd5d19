"""The shape of the cluster in a box, and Slurm's configuration files for it."""

from __future__ import annotations

import ipaddress
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Partition:
    name: str
    time_limit: str
    # JSC allocates whole nodes, even if a job requests only a part.
    whole_nodes: bool = True


@dataclass(frozen=True)
class Shape:
    """The cores, memory and GPUs that Slurm is told, which the real computer does not have.

    The defaults are those of JURECA-DC. `settings` adds lines to slurm.conf or replaces them.
    """

    cluster: str = "jureca"
    login: str = "jrlogin01"
    node_prefix: str = "jrc"
    nodes: int = 4
    sockets: int = 2
    cores_per_socket: int = 64
    threads_per_core: int = 2
    gpus: int = 4
    memory_mb: int = 512_000
    partitions: tuple[Partition, ...] = (
        Partition("dc-gpu", "24:00:00"),
        Partition("dc-gpu-devel", "02:00:00"),
        Partition("dc-cpu", "24:00:00"),
    )
    account: str = "training"
    # In addition to `normal`, which every cluster has: one short job at a time, as for a course.
    qos: str = "course"
    qos_limits: tuple[str, ...] = ("MaxJobsPerUser=1", "MaxWall=00:30:00", "Flags=DenyOnLimit")
    # On JURECA and JUWELS a node's name with this suffix is its InfiniBand address, on this interface.
    fabric_suffix: str = "i"
    fabric_interface: str = "ib0"
    # Each cluster uses one /24 of this network; its daemons listen only there.
    network: str = "10.117.0.0/16"
    controller_port: int = 6817
    node_port: int = 6818
    accounting_port: int = 6819
    # Each node has its own /dev/shm, because computers do not share memory.
    own_shared_memory: bool = True
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def node_names(self) -> list[str]:
        return [f"{self.node_prefix}{number:04d}" for number in range(1, self.nodes + 1)]

    @classmethod
    def from_json(cls, values: dict) -> Shape:
        partitions = tuple(Partition(**partition) for partition in values["partitions"])
        return cls(**{**values, "partitions": partitions, "qos_limits": tuple(values["qos_limits"])})


@dataclass(frozen=True)
class Addresses:
    """The addresses of a cluster in its own /24: the login node is .1, the nodes start at .11."""

    subnet: ipaddress.IPv4Network

    @property
    def login(self) -> str:
        return str(self.subnet[1])

    def node(self, number: int) -> str:
        """Address of a node; numbers start at 0."""
        return str(self.subnet[11 + number])


def slurm_conf(shape: Shape, addresses: Addresses, directory: Path) -> str:
    """slurm.conf, as at JSC but with shorter waits."""
    settings = {
        "ClusterName": shape.cluster,
        "SlurmctldHost": f"{shape.login}({addresses.login})",
        "SlurmctldPort": shape.controller_port,
        "SlurmdPort": shape.node_port,
        # Listen only on the cluster's own address, so that two clusters can use the same ports, and the
        # computer's network does not see them.
        "CommunicationParameters": "NoCtldInAddrAny",
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        # A requeued job must wait for the lifetime of credentials before it can start again.
        "AuthInfo": f"socket={munge_socket(directory)},cred_expire=20",
        "StateSaveLocation": directory / "state",
        "SlurmdSpoolDir": directory / "spool/%n",
        "SlurmctldPidFile": directory / "state/slurmctld.pid",
        "SlurmdPidFile": directory / "state/slurmd-%n.pid",
        "SlurmctldLogFile": directory / "log/slurmctld.log",
        "SlurmdLogFile": directory / "log/slurmd-%n.log",
        "SlurmdParameters": "config_overrides",  # believe NodeName below, not the computer
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "MpiDefault": "none",
        "ReturnToService": 2,
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "GresTypes": "gpu",
        "SchedulerParameters": "bf_interval=1,sched_interval=1,batch_sched_delay=0",
        "EnforcePartLimits": "ALL",
        # All partitions have the same priority, so nothing is preempted, unless a test changes that.
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": addresses.login,
        "AccountingStoragePort": shape.accounting_port,
        # Not a password but the socket: slurmdbd's clients look for it here instead of in AuthInfo.
        "AccountingStoragePass": munge_socket(directory),
        "AccountingStorageEnforce": "associations,limits,qos",
        "AccountingStorageTRES": "gres/gpu",
        "JobAcctGatherType": "jobacct_gather/linux",
        "JobAcctGatherFrequency": 5,
        # Snakemake trusts squeue only if finished jobs stay visible for 3 times its first delay (40 s).
        "MinJobAge": 300,
        "KillWait": 10,
        "SlurmdTimeout": 15,
        **shape.settings,
    }
    lines = [f"{key}={value}" for key, value in settings.items()]
    for number, name in enumerate(shape.node_names):
        lines.append(
            f"NodeName={name} NodeAddr={addresses.node(number)} Sockets={shape.sockets}"
            f" CoresPerSocket={shape.cores_per_socket} ThreadsPerCore={shape.threads_per_core} RealMemory={shape.memory_mb}"
            f" Gres=gpu:{shape.gpus}"
        )
    for number, partition in enumerate(shape.partitions):
        lines.append(
            f"PartitionName={partition.name} Nodes=ALL MaxTime={partition.time_limit} DefaultTime=01:00:00"
            f" Default={'NO' if number else 'YES'}"
            f" OverSubscribe={'EXCLUSIVE' if partition.whole_nodes else 'NO'}"
        )
    return "\n".join(lines) + "\n"


def slurmdbd_conf(shape: Shape, addresses: Addresses, directory: Path) -> str:
    settings = {
        "DbdHost": shape.login,
        "DbdAddr": addresses.login,
        "DbdPort": shape.accounting_port,
        "CommunicationParameters": "NoInAddrAny",
        "SlurmUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={munge_socket(directory)}",
        "LogFile": directory / "log/slurmdbd.log",
        "PidFile": directory / "state/slurmdbd.pid",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",  # through the socket, because the database does not listen on a network
        "StorageUser": "root",
        "StorageLoc": "slurm_acct_db",
    }
    return "\n".join(f"{key}={value}" for key, value in settings.items()) + "\n"


def gres_conf(shape: Shape, directory: Path) -> str:
    return f"Name=gpu File={directory}/devices/gpu[0-{shape.gpus - 1}]\n" if shape.gpus else ""


def hosts(shape: Shape, addresses: Addresses) -> str:
    """The lines for /etc/hosts with the cluster's machines."""
    lines = [f"{addresses.login} {shape.login}"]
    for number, name in enumerate(shape.node_names):
        lines.append(f"{addresses.node(number)} {name} {name}{shape.fabric_suffix}")
    return "\n".join(lines) + "\n"


def munge_socket(directory: Path) -> Path:
    return directory / "state/munge.socket"


def step_socket(directory: Path, node: str) -> Path:
    """The longest socket name that slurmd uses: for the batch step of a job with a six-digit id."""
    return directory / "spool" / node / f"{node}_999999.4294967291"


def database_socket(directory: Path) -> Path:
    return directory / "state/mariadb.socket"


def write_configuration(shape: Shape, addresses: Addresses, directory: Path, own_hosts: str) -> None:
    """Write all files that the daemons read. own_hosts: the text of the computer's own /etc/hosts."""
    for name in ("etc", "log", "state", "devices"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    for number in range(shape.gpus):
        # Slurm sets CUDA_VISIBLE_DEVICES only if GPUs are devices. These are all /dev/null.
        os.mknod(directory / f"devices/gpu{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    for name in shape.node_names:
        (directory / "spool" / name).mkdir(parents=True, exist_ok=True)
    etc = directory / "etc"
    (etc / "slurm.conf").write_text(slurm_conf(shape, addresses, directory))
    (etc / "gres.conf").write_text(gres_conf(shape, directory))
    (etc / "slurmdbd.conf").write_text(slurmdbd_conf(shape, addresses, directory))
    (etc / "slurmdbd.conf").chmod(0o600)  # slurmdbd refuses a file that others can read
    (etc / "hosts").write_text(own_hosts.rstrip("\n") + "\n" + hosts(shape, addresses))
