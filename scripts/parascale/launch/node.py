"""The launcher of one node: it meets the other launchers, starts its ranks, and exits with the verdict that all nodes share."""

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType

from parascale import loopback, slurm
from parascale.errors import FAILED, RequirementError
from parascale.launch import STOPPED, TERMINATED
from parascale.launch.binding import cores_of_ranks, visible_devices
from parascale.launch.environment import check_node, of_allocator
from parascale.launch.hang import explain, note_cause
from parascale.launch.interpreter import OURS, Interpreter
from parascale.launch.peers import LOOKS_A_SECOND, SETTLE_SECONDS, TICK_SECONDS, Node, NodeReport, Peers
from parascale.launch.rendezvous import interface_addresses, local_store, reserve_port
from parascale.launch.silence import Silence
from parascale.launch.workers import STACK_SIGNAL, Failure, Worker, Workers, root_cause
from parascale.lease import SuspendAwareClock
from parascale.recording import FOLDER
from parascale.settings import Site

# Shorter than the warning before a job's time limit in the profiles (`--signal=TERM@120`), so that ranks get all of it.
GRACE_SECONDS = 100.0

NOTES_SECONDS = 5.0  # time for other nodes' launchers to see the verdict and write notes about their ranks

# Snakemake sets all of these to a rule's `threads`, and torch prefers MKL's to OpenMP's: four processes with two threads each on two
# cores took ten times as long, because threads spin while they wait.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
# On CPUs, keep freed memory in the process. By default glibc returns each large tensor to the system and requests memory for the next:
# thousands of page faults per step, a quarter of its time.
KEEP_FREED_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**34)}


@dataclass(frozen=True)
class Launch:
    """The processes to start; the same on every node."""

    command: tuple[str, ...]  # what Python runs, and its arguments
    nodes: int
    processes: int  # on each node
    site: Site
    timeout: float  # seconds that other ranks may still run after one has ended
    grace: float  # seconds that a rank has to save its state after SIGTERM
    logs: str
    cores: int  # cores of this node that the run may use
    nsight: bool = False  # profile every process with Nsight Systems
    work: str | None = None  # work folder of the run, whose record gets the cause of a hang
    alone: bool = False  # nothing else may run on this machine, because times are compared
    # Folder of a user's own script. When asked to stop, such a script may exit with 0 without having finished.
    files: str | None = None
    ends_silent: bool = False  # end a script that records no steps for too long, even if it computes
    interpreter: Interpreter = OURS

    @property
    def hosts_store(self) -> bool:
        """True if node 0's launcher hosts torch's store, for runs on one machine: a user's program would listen on every interface."""
        return self.nodes * self.processes > 1 and self.command[:2] != ("-m", "parascale")

    @property
    def threads(self) -> int:
        """Threads per process."""
        return max(1, self.cores // self.processes)

    @property
    def python_command(self) -> list[str]:
        """The command of one process; unbuffered, so that the log is complete if the process is killed."""
        return [*(_nsight(self.logs) if self.nsight else []), *self.interpreter.command("-u", *self.command)]


@dataclass(frozen=True)
class Place:
    """This node's number and address, and where the launchers of several nodes meet."""

    node: int = 0
    folder: str | None = None
    address: str = field(default_factory=loopback.loopback)  # of this node
    bind: bool = False  # bind ranks to cores; assumes that all cores that we see are ours
    gone: Callable[[int], bool] = lambda node: False  # true for a node whose launcher is known to have ended


class Stop:
    """Signal handlers that note a request to stop; the second Ctrl-C ends the run at once."""

    def __init__(self) -> None:
        self.asked = self.at_once = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.at_once = self.asked and number == signal.SIGINT
        self.asked = True


def run_node(
    launch: Launch,
    place: Place,
    watched: Callable[
        [dict[int, Callable[[], int]]], contextlib.AbstractContextManager[object]
    ] = contextlib.nullcontext,
) -> int:
    """Run this node's ranks until they end. Returns the exit code that all nodes of the run share.

    watched: makes a context manager from {rank: function that returns the process id}; it is active while the ranks run.
    """
    stop = Stop()

    def wait() -> None:
        if stop.asked:
            sys.exit(TERMINATED)
        time.sleep(TICK_SECONDS)

    stack, store_ended = contextlib.ExitStack(), lambda: ""
    with Peers(_described(launch, place), place.folder, place.gone) as peers, reserve_port() as holder, stack:
        if launch.interpreter.setup is None:  # else the ranks have a torch of their own
            check_node(launch.site)
        address, port = peers.meet(holder.getsockname()[1], wait)
        if launch.nodes > 1 and address not in loopback.ADDRESSES:
            interface_addresses(launch.site.network, slurm.node_name())  # raises if there is no such interface
        if place.node == 0 and launch.nodes * launch.processes > 1:
            print("\n".join(node.line() for node in peers.nodes), flush=True)
        os.makedirs(launch.logs, exist_ok=True)
        if launch.hosts_store and address in loopback.ADDRESSES and place.node == 0:
            store_ended = stack.enter_context(local_store(address, port, launch.interpreter, launch.logs))
        workers = Workers(_start(launch, place, address, port))
        silence = Silence(launch, place.node, workers, peers) if launch.files else None
        try:
            with watched({worker.rank: worker.python_pid for worker in workers.ranks}):
                own = _watch(launch, workers, peers, stop, silence)
            verdict = peers.verdict(own, launch.timeout)
            if verdict.failures and (why := store_ended()):
                print(why, file=sys.stderr)
        finally:
            workers.end()
    if verdict.failures:
        with contextlib.suppress(OSError):  # a full disk
            for worker in workers.ranks:
                worker.speak(launch.logs)
        if peers.speaks:
            _explain(launch, verdict.failures, silence.reported if silence else None)
    return verdict.code


def _described(launch: Launch, place: Place) -> Node:
    """The description of this node that its launcher sends to the others."""
    devices = visible_devices(launch.site, launch.processes, os.environ.get("CUDA_VISIBLE_DEVICES"))
    detail = f"{launch.threads} threads a process" + (f", GPUs {devices}" if devices else "")
    return Node(place.node, slurm.node_name(), place.address, launch.nodes, launch.processes, detail)


def _start(launch: Launch, place: Place, address: str, port: int) -> Iterator[Worker]:
    """Start this node's ranks, one by one."""
    environment = process_environment(launch, os.environ)
    # A single node uses the loopback, whatever its host name resolves to.
    local = address in loopback.ADDRESSES
    if interface := loopback.INTERFACE if local else launch.site.network.interface:
        environment["GLOO_SOCKET_IFNAME"] = interface
        if not local:
            environment["NCCL_SOCKET_IFNAME"] = interface
    if local and launch.hosts_store:
        environment["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # ranks use the store of `local_store`
    cores = cores_of_ranks(launch.site, launch.processes) if place.bind else [None] * launch.processes
    for local_rank in range(launch.processes):
        rank = place.node * launch.processes + local_rank
        ranks = {
            "RANK": rank,
            "LOCAL_RANK": local_rank,
            "WORLD_SIZE": launch.nodes * launch.processes,
            "LOCAL_WORLD_SIZE": launch.processes,
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
            # From these, libraries see that a launcher has already started the processes, also in a Slurm job.
            "GROUP_RANK": place.node,
            "TORCHELASTIC_RUN_ID": "parascale",
            "TORCHELASTIC_RESTART_COUNT": 0,  # older torch reads it
        }
        if launch.files:
            ranks["PARASCALE_STACK"] = f"{int(STACK_SIGNAL)}:{launch.logs}/rank{rank}.stack"
        own = {**environment, **{name: str(value) for name, value in ranks.items()}}
        own = launch.interpreter.environment(own) if launch.files else own
        given = ["-u", *launch.command]
        yield Worker(rank, launch.python_command, own, cores[local_rank], launch.logs, rank == 0, given)


def process_environment(launch: Launch, environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` plus the variables that every process of a run gets, whether it has one process or many."""
    devices = visible_devices(launch.site, launch.processes, environment.get("CUDA_VISIBLE_DEVICES"))
    added = {
        **dict.fromkeys(THREAD_VARIABLES, str(launch.threads)),
        "PYTHONFAULTHANDLER": "1",  # an aborted process prints its stack
        # Compute nodes have no internet: a training that asks for it must fail at once, not wait.
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        # Flight recorder: each rank's last collectives, for the analysis of a hang, with gloo as with NCCL.
        "TORCH_FR_BUFFER_SIZE": "2000",
    }
    if launch.site.device == "cpu":
        added.update(KEEP_FREED_MEMORY)
    else:
        added["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # `binding` assumes this order
    environment = {**environment, **added, **{name: str(value) for name, value in launch.site.environment.items()}}
    if launch.site.device == "cuda":
        environment |= of_allocator(environment)
    if launch.files:
        environment[FOLDER] = launch.files
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    if devices:
        environment["CUDA_VISIBLE_DEVICES"] = devices
    return environment


def _watch(launch: Launch, workers: Workers, peers: Peers, stop: Stop, silence: Silence | None = None) -> NodeReport:
    """Wait until this node's ranks have ended, or a rank or another node has failed. Returns this node's report."""
    stop_at, ended_at, awake = None, None, SuspendAwareClock()
    while workers.running:
        time.sleep(TICK_SECONDS)
        now = awake()
        workers.poll()
        peers.listen()
        if (stop.asked or peers.stopping) and stop_at is None:
            print(f"{slurm.node_name()}: stopping, ranks have {launch.grace:.0f} s to save their state", flush=True)
            for worker in workers.running:
                worker.signal(signal.SIGTERM)
            peers.send(stopping=True)
            stop_at = now
        if (workers.ended or peers.ended) and ended_at is None:
            ended_at = now
        late = None
        if stop.at_once:
            late = "interrupted a second time"
        elif stop_at and now > stop_at + launch.grace:
            late = f"did not stop within {launch.grace:.0f} s of SIGTERM"
        elif ended_at and now > ended_at + launch.timeout:
            late = f"still ran {launch.timeout:.0f} s after another rank had ended"
        why = None
        with contextlib.suppress(Exception):  # an error in the watcher must not end a working script
            why = silence.tick(now) if silence and stop_at is None and ended_at is None else None
        if why:
            return NodeReport(FAILED, [Failure(None, slurm.node_name(), why, None, time.time(), certain=False)])
        if late:
            host, now = slurm.node_name(), time.time()
            return NodeReport(
                FAILED, [Failure(each.rank, host, late, str(each.log), now, False) for each in workers.running]
            )
        if workers.failures() or peers.failed:
            break
    deadline = time.monotonic() + SETTLE_SECONDS  # lets ranks that fail as a consequence report it
    while (workers.failures() or peers.failed) and workers.running and time.monotonic() < deadline:
        time.sleep(TICK_SECONDS)
        workers.poll()
    if not (failures := workers.failures()):
        stopped = STOPPED in workers.ended or (launch.files and stop_at is not None)
        return NodeReport(STOPPED if stopped else 0, [])
    only_terminated = stop_at is not None and all(failure.reason == "ended by SIGTERM" for failure in failures)
    return NodeReport(TERMINATED if only_terminated else FAILED, failures)


def _explain(launch: Launch, failures: list[Failure], reported: str | None) -> None:
    """Print the rank that failed first, where, why and its log; then, as the last line and in the run's record, the rank that kept others
    waiting, if any. reported: the cause of a hang that was reported while the ranks ran, if any."""
    first = root_cause(failures)
    others = sorted(failure.rank for failure in failures if failure is not first and failure.rank is not None)
    if others:
        print(f"ended after it: rank {', '.join(map(str, others))}", file=sys.stderr)
    print(f"error: {first}", file=sys.stderr, flush=True)
    with contextlib.suppress(Exception):  # an unreadable note must not change how the run ends
        seconds = NOTES_SECONDS + launch.nodes / LOOKS_A_SECOND if launch.nodes > 1 else 0.0
        waited = first.waited or first.rank is None
        cause = (reported if waited else None) or explain(launch.logs, launch.nodes * launch.processes, seconds)
        if cause:
            print(f"hang: {cause}", file=sys.stderr, flush=True)
        if cause and launch.work:
            note_cause(launch.work, cause)


def _nsight(logs: str) -> list[str]:
    """The command prefix that runs a process under Nsight Systems; its reports go to the folder `logs`.

    The training starts and stops the collection (`cudaProfilerStart` and `cudaProfilerStop` around the steps of `profile`) and continues.
    """
    if (program := shutil.which("nsys")) is None:
        raise RequirementError("`profiler: nsight` needs `nsys`: load Nsight Systems, or set `profiler: torch`")
    options = ["--trace=cuda,nvtx,cublas,cudnn,osrt", "--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
    return [program, "profile", f"--output={logs}/nsight-%h-%p", *options, "--force-overwrite=true"]  # host and process
