"""Where launchers look for each other, what each rank is told, and which failure is called the cause."""

import os
import select
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parascale import slurm
from parascale.cli import parascale
from parascale.commands.launch import start
from parascale.errors import RequirementError
from parascale.launch import binding
from parascale.launch.node import Launch, _watch, process_environment
from parascale.launch.peers import NodeReport
from parascale.launch.rendezvous import address_of, interface_addresses, own_address, reached, reserve_port
from parascale.launch.workers import Failure, Worker, Workers, root_cause
from parascale.settings.site import Network, Site
from tests.pace import gone, wait_for

ROOT = Path(__file__).parents[2]
GPU_NODE = Site("node", device="cuda", gpus_per_node=4, cores_per_node=128)


@pytest.mark.parametrize(
    ("network", "address"),
    [
        (Network(), "jrc0001"),
        (Network(host_suffix="i"), "jrc0001i"),
        (Network(host_template="{host}-interconnect-1.jupiter.internal"), "jrc0001-interconnect-1.jupiter.internal"),
    ],
)
def test_the_site_says_how_a_node_is_called_on_its_fast_network(network, address):
    assert address_of("jrc0001", network) == address


@pytest.mark.parametrize(
    ("found", "network", "address"),
    [
        ("10.0.0.5", Network(interface="lo"), "node0"),
        ("127.0.1.1", Network(interface="lo"), "127.0.0.1"),  # Debian's habit: by this name no other node reaches it
        ("127.0.1.1", Network(), "node0"),
        ("127.0.1.1", Network(interface="eth99"), "node0"),
        (None, Network(host_suffix="i"), "node0i"),
    ],
)
def test_a_node_gives_an_address_that_others_may_reach(found, network, address, monkeypatch):
    def resolve(name):
        if found is None:
            raise socket.gaierror(-2, "Name or service not known")
        return found

    monkeypatch.setattr(socket, "gethostbyname", resolve)
    assert own_address("node0", network) == address


def test_a_node_finds_out_whether_it_reaches_node_0_before_torch_listens_there():
    with reserve_port() as holder:
        assert reached("localhost", holder.getsockname()[1], "node1") == "127.0.0.1"
    with pytest.raises(
        RequirementError, match=r"^node1 cannot reach node 0 at no-such-node.invalid:1: .*; see `network`"
    ):
        reached("no-such-node.invalid", 1, "node1")


def test_a_held_port_goes_to_nobody_else_but_torch_can_listen_on_it():
    holders = [reserve_port() for _ in range(50)]
    ports = {holder.getsockname()[1] for holder in holders}
    assert len(ports) == 50
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch's store does
        listener.bind(("", holders[0].getsockname()[1]))
        listener.listen()
    for holder in holders:
        holder.close()


def test_the_sites_interface_is_found_or_named():
    for interface, addresses in ((None, []), ("lo", ["127.0.0.1"]), ("eth99,lo", ["127.0.0.1"])):
        assert interface_addresses(Network(interface=interface), "jrc0001") == addresses
    with pytest.raises(RequirementError, match=r"jrc0001: no network interface `eth99` among .*lo"):
        interface_addresses(Network(interface="eth99"), "jrc0001")


@pytest.mark.parametrize(
    ("preset", "processes", "seen"),
    [
        (None, 4, None),
        ("", 4, None),
        ("0,1,2,3", 4, "0,1,2,3"),
        ("2", 4, None),
        ("2", 1, "2"),
        ("0,1,2,3", 1, "0,1,2,3"),
    ],
)
def test_a_preset_made_for_one_gpu_a_task_is_dropped(preset, processes, seen):
    assert binding.visible_devices(GPU_NODE, processes, preset) == seen


def launch(**changes):
    site = changes.pop("site", GPU_NODE)
    return Launch(
        ("train.py",),
        **{"nodes": 1, "processes": 4, "timeout": 9, "grace": 9, "logs": "logs", "cores": 128, **changes},
        site=site,
    )


def test_processes_get_threads_devices_and_the_sites_variables():
    site = Site("node", device="cuda", environment={"NCCL_IB_TIMEOUT": 50})
    made = process_environment(
        launch(site=site), {"CUDA_VISIBLE_DEVICES": "0", "HOME": "/root", "MKL_NUM_THREADS": "2"}
    )
    assert (made["OMP_NUM_THREADS"], made["NCCL_IB_TIMEOUT"], made["HOME"]) == ("32", "50", "/root")
    assert made["MKL_NUM_THREADS"] == "32", "torch takes MKL's count before OpenMP's"
    assert "MALLOC_MMAP_MAX_" not in made
    assert "CUDA_VISIBLE_DEVICES" not in made
    assert made["HF_HUB_OFFLINE"] == made["HF_DATASETS_OFFLINE"] == "1"


@pytest.mark.parametrize("asked", [False, True])
def test_ranks_are_not_late_because_all_of_them_stood_still(asked, monkeypatch):
    """Neither after another has ended, nor after they were asked to stop."""
    clock = iter([*range(1, 6), *range(10**6, 10**6 + 9)])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(time, "sleep", lambda seconds: ranks.pop())
    ranks = [SimpleNamespace(rank=0, log="log", signal=lambda number: None)] * 9
    workers = SimpleNamespace(running=ranks, ended=[0], **dict.fromkeys(("poll", "failures"), list))
    peers = SimpleNamespace(stopping=False, ended=True, failed=False, listen=list, send=lambda **changes: None)
    stop = SimpleNamespace(asked=asked, at_once=False)
    assert _watch(launch(timeout=300, grace=300), workers, peers, stop) == NodeReport(0, [])


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_the_allocators_segments_grow_unless_somebody_says_otherwise(name):
    """Wherever it is said, under each name that torch reads: one of them would hide the other."""
    grow = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    other = {name: "max_split_size_mb:512"}

    def said(made):
        return {key: value for key, value in made.items() if key.endswith("ALLOC_CONF")}

    assert said(process_environment(launch(), {})) == grow
    assert said(process_environment(launch(), other)) == other
    assert said(process_environment(launch(site=Site("node", device="cuda", environment=other)), {})) == other
    assert said(process_environment(launch(site=Site("node")), {})) == {}, "there is no CUDA to tell"


@given(numbers=st.sets(st.integers(0, 300), min_size=1))
def test_kernel_cpu_lists_are_read(numbers):
    ordered = sorted(numbers)
    ranges, start = [], ordered[0]
    for here, after in zip(ordered, [*ordered[1:], None], strict=True):
        if after != here + 1:
            ranges.append(f"{start}-{here}" if here > start else f"{here}")
            start = after
    assert binding.cpu_list(",".join(ranges) + "\n") == numbers


def test_ranks_share_the_cores_without_overlap(monkeypatch):
    """Hyper-threads of a core stay together: 8 cores of 2 threads, numbered as Linux does."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.setattr(
        binding, "_physical", lambda allowed: [{core, core + 8} for core in range(8) if core in allowed]
    )
    shares = binding.cores_of_ranks(Site("node"), 4)
    assert shares == [{0, 1, 8, 9}, {2, 3, 10, 11}, {4, 5, 12, 13}, {6, 7, 14, 15}]
    assert binding.cores_of_ranks(Site("node"), 9) == [None] * 9


def test_ranks_are_bound_next_to_their_gpu(monkeypatch):
    """JURECA's order: GPU 0 is on the side of the last cores but one, and two GPUs may share a side."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(binding, "_physical", lambda allowed: [{core} for core in sorted(allowed)])
    near = [{4, 5}, {0, 1}, {6, 7, 2, 3}, {6, 7, 2, 3}]
    monkeypatch.setattr(binding, "_cores_near_gpus", lambda: near)
    assert binding.cores_of_ranks(GPU_NODE, 4) == [{4, 5}, {0, 1}, {2, 3}, {6, 7}]


@pytest.mark.parametrize("job", [None, "7"])
def test_a_single_process_is_bound_as_a_rank_is(monkeypatch, job):
    """With more cores, or those of another GPU, it would be no measure of what ranks gain."""
    bound, started = [], []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: bound.append(cores))
    monkeypatch.setattr(os, "execve", lambda *command: started.append(command))
    monkeypatch.setattr(slurm, "job_id", lambda: job)
    monkeypatch.setattr(slurm, "note_restarts", lambda: None)
    monkeypatch.setattr(binding, "_physical", lambda allowed: [{core} for core in sorted(allowed)])
    monkeypatch.setattr(binding, "_cores_near_gpus", lambda: [{4, 5, 6, 7}] * 2 + [{0, 1, 2, 3}] * 2)
    start(Launch(("x.py",), 1, 1, GPU_NODE, 60.0, 10.0, "logs", 8), None, 1, None)
    assert len(started) == 1
    assert bound == ([{4, 5}] if job else []) and binding.cores_of_ranks(GPU_NODE, 4)[0] == {4, 5}


@pytest.mark.parametrize(("job", "alone", "bound"), [(None, False, False), (None, True, True), ("7", False, True)])
def test_ranks_have_cores_of_their_own_where_nothing_else_is_to_run(monkeypatch, job, alone, bound):
    """A rank that wakes up on the core of another shares it until the system finds out. Beside other runs both would be dealt the
    same cores."""
    places = []
    monkeypatch.setattr(slurm, "job_id", lambda: job)
    monkeypatch.setattr(slurm, "note_restarts", lambda: None)
    launch = Launch(("x.py",), 1, 2, Site("node"), 60.0, 10.0, "logs", 2, alone=alone)
    start(launch, None, 2, lambda launch, place: places.append(place) or 0)
    assert [place.bind for place in places] == [bound]


@pytest.fixture
def started(monkeypatch, tmp_path):
    """A function from the words of a command line to the Launch that they start."""
    launches = []
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("parascale.commands.launch.start", lambda launch, *more: launches.append(launch) or 0)

    def launched(*words):
        assert parascale.main(["launch", *words, "--root", str(tmp_path)], standalone_mode=False) == 0
        return launches[-1]

    return launched


def test_only_runs_whose_times_are_compared_are_taken_to_be_alone(started):
    """Parity runs share a machine's cores, and GPUs of a machine without Slurm may be those of several runs."""
    assert started("--run", "ddp").alone and not started("--run", "ddp", "--kind", "parity").alone


def test_a_rank_is_told_names_and_paths_and_finds_its_settings_itself(started):
    """No settings on a command line: systems limit its length, and `ps` shows it to all users of a node."""
    for name, kind in (("three-d", "run"), ("multi-node", "parity")):
        launch = started("--run", name, "--kind", kind, "--configfile", "config/strategies.yaml")
        line = shlex.join(launch.python_command)
        assert f"--run {name}" in line and len(line) < 500 and "{" not in line, line


def test_the_line_that_starts_a_run_on_its_nodes_has_names_and_paths_alone(monkeypatch, tmp_path):
    """srun's line is handed to every node, and stands in Slurm's accounting."""
    lines, root = [], tmp_path / "results-of-a-project"
    words = ["--run", "ddp-8", "--configfile", "config/jureca.yaml", "--root", str(root)]
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["parascale", "launch", *words])
    monkeypatch.setattr(slurm, "job_id", lambda: "7")
    monkeypatch.setattr(slurm, "note_restarts", lambda: None)
    monkeypatch.setattr("parascale.commands.launch.check_node", lambda site: None)
    monkeypatch.setattr("parascale.commands.launch.run_in_step", lambda line: lines.append(line) or 0)
    assert parascale.main(["launch", *words], standalone_mode=False) == 0
    line = shlex.join(lines[0])
    assert line.startswith("srun --nodes=2 ") and "--run ddp-8" in line
    assert len(line) < 500 and "{" not in line, line


def failure(rank, when, certain=False):
    return Failure(rank, "host", "reason", "log", when, certain)


@pytest.mark.parametrize(
    ("failures", "cause"),
    [
        ([failure(0, 2.0), failure(1, 1.0)], 1),
        ([failure(0, 1.0), failure(1, 2.0, certain=True)], 1),
        ([failure(0, 1.0, certain=True), failure(1, 2.0, certain=True)], 0),
    ],
)
def test_the_cause_is_what_cannot_be_a_consequence_then_what_came_first(failures, cause):
    assert root_cause(failures).rank == cause


def test_a_child_dies_with_the_parent_that_is_killed(tmp_path):
    """Even where the parent gets no chance to say goodbye."""
    child = "import sys, time; from parascale.launch import die_with_parent; die_with_parent(); print('tied', flush=True); time.sleep(600)"
    parent = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {child!r}]); print(p.pid, flush=True); p.wait()"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    words = {process.stdout.readline().strip(), process.stdout.readline().strip()}
    (pid,) = words - {"tied"}
    process.kill()
    process.wait()
    wait_for(lambda: gone(pid), "the child to end")


def test_ranks_are_ended_where_their_log_cannot_be_written(tmp_path, monkeypatch):
    """A full disk fails the launcher itself, which must not leave its ranks."""
    program = (
        "import signal, time; signal.signal(signal.SIGABRT, signal.SIG_IGN); print('x', flush=True); time.sleep(600)"
    )
    ranks = [
        Worker(number, [sys.executable, "-c", program], dict(os.environ), None, tmp_path, shown=True)
        for number in (0, 1)
    ]
    for rank in ranks:
        select.select([rank.output], [], [])
        rank._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115
    monkeypatch.setattr("parascale.launch.workers.ABORT_SECONDS", 0.2)
    Workers(ranks).end()
    assert [rank.returncode for rank in ranks] == [-9, -9]
