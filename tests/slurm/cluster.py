"""A real Slurm on one computer: controller, accounting with its database, and nodes connected by a network.

    with Cluster("/tmp/box") as cluster:
        job = cluster.submit("--nodes=2", "--wrap=srun hostname")
        cluster.wait(job)
        print(cluster.sacct(job)["NodeList"])

The machines are nested namespaces:

    this computer      the login node shares its network, and so has internet
      login            slurmctld, slurmdbd, MariaDB, munged; the cluster's /etc/slurm and /etc/hosts
        switch         an Ethernet bridge in its own network, unaffected by the computer's firewall
        jrc0001 …      slurmd; its own address, host name, processes and /dev/shm; connected only to the switch

All share the file system, like the nodes of a cluster. Killing `login` ends everything.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
import shlex
import shutil
import subprocess
import time
from datetime import datetime
from pathlib import Path

import daemons
import network
from machine import BoxError, Machine, tail
from shape import Addresses, Shape, munge_socket, step_socket, write_configuration

FINAL_STATES = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED"),
    *("NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"),
}
UP_STATES = {"idle", "allocated", "mixed", "completing"}
SACCT_FIELDS = (
    *("JobID", "JobName", "Partition", "Account", "State", "ExitCode", "AllocNodes", "NTasks", "AllocCPUS"),
    *("ReqTRES", "AllocTRES", "NodeList", "ElapsedRaw", "TimelimitRaw", "Submit", "Start", "End"),
)
LONGEST_SOCKET_PATH = 107  # unix(7): sun_path has 108 bytes, the last one is zero


class ClusterError(BoxError):
    """The cluster cannot do what was requested; the message says why and what to do."""


class Cluster:
    """A cluster. All its files are below `directory`, which must be new, empty, or from an earlier cluster."""

    def __init__(self, directory: str | Path, shape: Shape | None = None) -> None:
        self.directory = Path(directory).resolve()
        self.shape = shape or Shape()
        self.login = Machine(self.shape.login, self.directory)
        self._switch = Machine("switch", self.directory)
        self.nodes = {name: Machine(name, self.directory) for name in self.shape.node_names}
        self._children: list[subprocess.Popen] = []

    @classmethod
    def find(cls, directory: str | Path) -> Cluster:
        """The cluster that another process started in `directory`."""
        record = Path(directory) / "cluster.json"
        if not record.exists():
            raise ClusterError(f"no cluster in {directory}: start one there first")
        return cls(directory, Shape.from_json(json.loads(record.read_text())["shape"]))

    # ---- up and down ---------------------------------------------------------------------------------------

    def __enter__(self) -> Cluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        return self.login.pid is not None

    @property
    def addresses(self) -> Addresses:
        return Addresses(ipaddress.ip_network(json.loads(self._record.read_text())["subnet"]))

    def start(self) -> None:
        """Start the cluster and wait until every node is idle. Does nothing if it is already running."""
        if self.running:
            return
        reason = daemons.why_not()
        if reason:
            raise ClusterError(reason)
        self._prepare_directory()
        try:
            self._start_machines()
            self._start_daemons()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Kill all processes of the cluster, including jobs, and remove its network. The logs remain."""
        if self.running and "subnet" in json.loads(self._record.read_text()):
            network.remove(self.addresses.subnet)
        for machine in [self.login, self._switch, *self.nodes.values()]:
            machine.switch_off()
        for child in self._children:
            child.wait()
        self._children.clear()

    @property
    def _record(self) -> Path:
        return self.directory / "cluster.json"

    def _write_record(self, **more: str) -> None:
        self._record.write_text(json.dumps({"shape": dataclasses.asdict(self.shape), **more}))

    def _prepare_directory(self) -> None:
        if self.directory.exists() and any(self.directory.iterdir()) and not self._record.exists():
            raise ClusterError(f"{self.directory} holds other files: give the cluster a directory of its own")
        if self.shape.own_shared_memory and self.directory.is_relative_to("/dev/shm"):
            raise ClusterError("in /dev/shm a cluster needs own_shared_memory=False, or its nodes cannot see it")
        sockets = [munge_socket(self.directory), *(step_socket(self.directory, name) for name in self.nodes)]
        if max(len(os.fsencode(path)) for path in sockets) > LONGEST_SOCKET_PATH:
            raise ClusterError(f"{self.directory} is too long a name for sockets: choose a shorter one")
        shutil.rmtree(self.directory, ignore_errors=True)
        (self.directory / "etc").mkdir(parents=True)
        self._write_record()

    def _start_machines(self) -> None:
        etc = self.directory / "etc"
        hosts = etc / "hosts"
        hosts.write_text(own_hosts := Path("/etc/hosts").read_text())
        setup = "\n".join(
            f"mount --bind {shlex.quote(str(ours))} {theirs}"
            for ours, theirs in ((etc, "/etc/slurm"), (hosts, "/etc/hosts"))
        )
        self._children.append(self.login.switch_on(setup, network=False))
        self._children.append(self._switch.switch_on(inside=self.login))
        self._write_record(subnet=str(network.free_subnet(self.shape.network, self._switch)))
        write_configuration(self.shape, self.addresses, self.directory, own_hosts)
        for name in self.nodes:
            self._switch_on(name)

    def _switch_on(self, name: str) -> None:
        setup = ["mount -t proc proc /proc"]
        if self.shape.own_shared_memory:
            setup.append("mount -t tmpfs tmpfs /dev/shm")
        self._children.append(self.nodes[name].switch_on("\n".join(setup), inside=self.login))
        address = self.addresses.node(self.shape.node_names.index(name))
        network.connect(self.nodes[name], self.shape.fabric_interface, address, self._switch)

    def _start_daemons(self) -> None:
        login, directory = self.login, self.directory
        self._children.append(daemons.start_munge(login, directory))
        self._children.append(daemons.start_database(login, directory))
        self._children.append(daemons.start_accounting(login, directory, self.shape, self.addresses.login))
        slurmctld = daemons.start(login, directory, ["slurmctld", "-D"])
        self._children.append(slurmctld)
        for name in self.nodes:
            self._start_slurmd(name)
        logs = [directory / "log/slurmctld.log", directory / f"log/slurmd-{self.shape.node_names[0]}.log"]
        daemons.until("every node is idle", lambda: set(self.sinfo().values()) == {"idle"}, logs, slurmctld)

    def _start_slurmd(self, name: str) -> None:
        self._children.append(daemons.start(self.nodes[name], self.directory, ["slurmd", "-D"]))

    # ---- commands ------------------------------------------------------------------------------------------

    def run(self, command: list[str], cwd: str | Path | None = None, **options: object) -> subprocess.CompletedProcess:
        """Run a command on the login node.

        Options are those of subprocess.run; by default it raises on failure and returns both streams as text.
        """
        options = {"check": True, "capture_output": True, "text": True, **options}
        return subprocess.run(self.on_login(command, cwd), **options)

    def on_login(self, command: list[str], cwd: str | Path | None = None) -> list[str]:
        """The command line that runs `command` on the login node. With Popen, the pid is that of the command."""
        return self.login.enter(command, cwd, own_processes=False)

    def on_node(self, name: str, command: list[str], cwd: str | Path | None = None) -> list[str]:
        """The command line that runs `command` on a node, bypassing Slurm, as an administrator could."""
        return self.nodes[name].enter(command, cwd)

    def submit(self, *arguments: str, cwd: str | Path | None = None) -> str:
        """Submit with sbatch and return the job's id. The default account is the cluster's."""
        account = f"--account={self.shape.account}"
        return self.run(["sbatch", "--parsable", account, *arguments], cwd).stdout.strip()

    def state(self, job: str) -> str:
        """A job's state in squeue: PENDING, RUNNING, COMPLETED, …; "" if it ended more than MinJobAge ago or the controller does not
        answer."""
        listing = self.run(["squeue", "--noheader", "--states=all", "--format=%i %T"], check=False).stdout
        return dict(line.split() for line in listing.splitlines()).get(job, "")

    def wait(self, job: str, *states: str, timeout: float = 60) -> str:
        """Wait until a job is in one of these states (default: ended), and return the state."""
        wanted = set(states) or FINAL_STATES
        deadline = time.monotonic() + timeout
        while (state := self.state(job)) not in wanted:
            if time.monotonic() > deadline or state in FINAL_STATES:
                log = tail(self.directory / "log/slurmctld.log")
                raise ClusterError(f"job {job} is {state}, not {' or '.join(sorted(wanted))}; {log}")
            time.sleep(0.1)
        return state

    def sacct(self, job: str, step: str = "", timeout: float = 60) -> dict[str, str]:
        """Field → text from the accounting, of a job or of one of its steps ("batch", "0", …).

        Waits until a short job's name and nodes appear, up to 5 s after its end.
        """
        state, deadline = self.state(job), time.monotonic() + timeout
        while True:
            rows = self._sacct_rows(job)
            whole = rows.get(job, {})
            if whole.get("Partition") and (state not in FINAL_STATES or whole["State"].startswith(state)):
                break
            if time.monotonic() > deadline:
                raise ClusterError(f"job {job} is {state} to squeue, but sacct has {whole or 'nothing'}")
            time.sleep(0.1)
        wanted = f"{job}.{step}" if step else job
        if wanted not in rows:
            raise ClusterError(f"the accounting has no {wanted}, only {', '.join(rows)}")
        return rows[wanted]

    def starts(self, which: str, timeout: float = 60) -> dict[str, list[tuple[int, float]]]:
        """Wait until jobs have ended. Returns job → [(cores of its nodes, seconds), one pair for each start].

        which: option of sacct that chooses jobs, `--jobs=7` or `--name=parascale_0`.
        """
        command = ["sacct", "--allocations", "--duplicates", "--noheader", "--parsable2", "--starttime=now-1days"]
        deadline = time.monotonic() + timeout
        while True:
            answer = self.run([*command, which, "--format=JobIDRaw,NNodes,Start,End"]).stdout
            rows = [line.split("|") for line in answer.splitlines()]
            # A requeued job may leave a row without start and end.
            if all(end != "Unknown" or start == "Unknown" for *_, start, end in rows):
                break
            if time.monotonic() > deadline:
                raise ClusterError(f"jobs that have not ended: {rows}")
            time.sleep(0.5)
        found: dict[str, list] = {job: [] for job, *_ in rows}
        cores = self.shape.sockets * self.shape.cores_per_socket  # of a node; Slurm's CPUs are threads
        for job, nodes, start, end in rows:
            if start not in ("None", "Unknown"):
                lasted = datetime.fromisoformat(end) - datetime.fromisoformat(start)
                found[job].append((int(nodes) * cores, lasted.total_seconds()))
        return found

    def _sacct_rows(self, job: str) -> dict[str, dict[str, str]]:
        command = ["sacct", "--noheader", "--parsable2", f"--format={','.join(SACCT_FIELDS)}", f"--job={job}"]
        rows = [line.split("|") for line in self.run(command).stdout.splitlines()]
        return {row[0]: dict(zip(SACCT_FIELDS, row, strict=True)) for row in rows}

    def sinfo(self) -> dict[str, str]:
        """Node → state: idle, allocated, down*, …; {} while the controller does not answer."""
        result = self.run(["sinfo", "--noheader", "--Node", "--format=%N %T"], check=False)
        return dict(line.split() for line in result.stdout.splitlines())

    def job_processes(self, job: str) -> dict[int, str]:
        """Process id → command line of all processes of a job, on all nodes. After the job's end, these are orphans."""
        found = {}
        for node in self.nodes.values():
            found |= node.processes(f"SLURM_JOB_ID={job}")
        return found

    # ---- faults --------------------------------------------------------------------------------------------

    def kill_slurmd(self, name: str) -> None:
        """Kill a node's slurmd. Slurm notices after SlurmdTimeout and requeues the jobs; tasks on the node continue.

        A slurmd that is restarted within 10 s of the job's end does not kill them; kill_node does.
        """
        subprocess.run(self.on_node(name, ["pkill", "-KILL", "-x", "slurmd"], cwd="/"), check=True)

    def kill_node(self, name: str) -> None:
        """Simulate a power cut: kill all processes of the node at once and remove its /dev/shm and network."""
        self.nodes[name].switch_off()
        network.disconnect(self.nodes[name], self._switch)

    def restart_node(self, name: str, timeout: float = 120) -> None:
        """Restart only what was killed on the node, and wait until it accepts jobs again."""
        if self.nodes[name].pid is None:
            self._switch_on(name)
        search = self.on_node(name, ["pgrep", "-x", "slurmd"], cwd="/")
        if subprocess.run(search, capture_output=True).returncode:
            self._start_slurmd(name)
        address = self.addresses.node(self.shape.node_names.index(name))
        daemons.until(
            f"{name} is back",
            lambda: daemons.listens(address, self.shape.node_port) and self.sinfo().get(name) in UP_STATES,
            [self.directory / f"log/slurmd-{name}.log"],
            timeout=timeout,
        )
