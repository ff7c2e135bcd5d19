"""What surrounds a training: each row of the table planted, none in a clean environment, and where what was found is said."""

import os
import resource
import shutil
import subprocess
import sys
from collections import namedtuple
from types import SimpleNamespace

import psutil
import pynvml
import pytest

from parascale.files import read_json
from parascale.launch.node import Launch, process_environment
from parascale.report.job import load_job
from parascale.report.summary import runs_table
from parascale.settings import Site
from parascale.train import surroundings
from parascale.train.surroundings import ROWS, Seen, matches, noted, quota
from tests.made_up import failing
from tests.made_up.results import BASE, ddp, edited, fake, report_of

# Variable → values at which its row holds, and others at which it does not.
VARIABLES = {
    "ATEN_CPU_CAPABILITY": (["default"], ["avx512", ""]),
    "CUDA_CACHE_DISABLE": (["1"], ["0"]),
    "CUDA_DEVICE_MAX_CONNECTIONS": (["1"], ["8", "32"]),
    "CUDA_LAUNCH_BLOCKING": (["1"], ["0", ""]),
    "GOMP_CPU_AFFINITY": (["0-3"], [""]),
    "KMP_AFFINITY": (["granularity=fine,compact,1,0"], ["disabled", "none"]),
    "MALLOC_CHECK_": (["3"], ["0"]),
    "MALLOC_PERTURB_": (["165"], ["0"]),
    "NCCL_ALGO": (["Ring"], [""]),
    "NCCL_DEBUG": (["TRACE", "trace"], ["INFO", "WARN"]),
    "NCCL_IB_DISABLE": (["1"], ["0"]),
    "NCCL_MAX_NCHANNELS": (["2"], ["16", "32"]),
    "NCCL_NET": (["Socket"], ["IB", "AWS Libfabric"]),
    "NCCL_P2P_DISABLE": (["1"], ["0"]),
    "NCCL_P2P_LEVEL": (["LOC"], ["NVL", "SYS"]),
    "NCCL_PROTO": (["Simple"], [""]),
    "NCCL_SHM_DISABLE": (["1"], ["0"]),
    "NVIDIA_TF32_OVERRIDE": (["0", "1"], [""]),
    "OMP_PROC_BIND": (["close", "TRUE", "spread,close"], ["false"]),
    "OMP_WAIT_POLICY": (["active", "ACTIVE"], ["passive"]),
    "ONEDNN_DEFAULT_FPMATH_MODE": (["bf16", "any"], ["strict"]),
    "PYTHONDEVMODE": (["1"], [""]),
    "PYTHONMALLOC": (["debug", "malloc_debug", "malloc"], ["pymalloc", "default"]),
    "PYTHONTRACEMALLOC": (["25"], ["0"]),
    "PYTORCH_ALLOC_CONF": (["max_split_size_mb:128"], ["expandable_segments:True", "a:1,expandable_segments:True"]),
    "PYTORCH_CUDA_ALLOC_CONF": (["backend:cudaMallocAsync"], ["expandable_segments:True"]),
    "PYTORCH_HIP_ALLOC_CONF": (["garbage_collection_threshold:0.6"], ["expandable_segments:True"]),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": (["1"], ["0"]),
    "TORCHDYNAMO_DISABLE": (["1"], ["0"]),
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": (["1"], ["0"]),
    "TORCH_COMPILE_DISABLE": (["1"], ["0"]),
    "TORCH_DISTRIBUTED_DEBUG": (["DETAIL"], ["INFO", "OFF"]),
    "TORCH_NCCL_BLOCKING_WAIT": (["1"], ["0"]),
}
Usage = namedtuple("Usage", "total used free")


def seen(device="cpu", **options):
    return Seen(**({"environment": {}, "nodes": 1, "cores": 1, "local": 2} | options | {"device": device}))


def names(found):
    return [each["name"] for each in found]


@pytest.fixture
def plain(monkeypatch, tmp_path):
    """A machine with nothing but what is planted: four processors, no quota, a free GPU."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(surroundings, "CGROUP", tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 40, 0, 1 << 40))
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: [SimpleNamespace(mountpoint="/", fstype="ext4")])
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", lambda device: ["ours"])


def test_each_row_says_what_it_costs_and_cites():
    assert all(row.costs in ("speed", "results", "failure") and row.source.startswith("https://") for row in ROWS)
    assert all(row.device in ("", "cpu", "cuda") and row.consequence for row in ROWS)
    assert {row.name for row in ROWS if isinstance(row.holds, str)} == VARIABLES.keys()


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_is_named_at_the_values_that_matter(name, plain):
    (row,) = (row for row in ROWS if row.name == name)
    device = row.device or "cpu"
    holds, others = VARIABLES[name]
    for value in holds:
        (found,) = matches(seen(device, environment={name: value}))
        assert found["name"] == name and value in found["text"] and found["costs"] == row.costs
    assert [found for value in others for found in matches(seen(device, environment={name: value}))] == []
    other = {"cpu": "cuda", "cuda": "cpu"}.get(row.device)
    assert other is None or matches(seen(other, environment={name: holds[0]})) == []


def limit(name, soft):
    return lambda monkeypatch: monkeypatch.setattr(
        resource, "getrlimit", lambda asked: (soft if asked == name else -1, -1)
    )


def little(folder):
    def plant(monkeypatch):
        monkeypatch.setattr(shutil, "disk_usage", lambda of: Usage(9, 9, 1 << 20 if folder in str(of) else 1 << 40))

    return plant


def network(kind):
    return lambda monkeypatch: monkeypatch.setattr(
        psutil, "disk_partitions", lambda all: [SimpleNamespace(mountpoint="/", fstype=kind)]
    )


def neighbours(monkeypatch):
    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", lambda device: ["ours", *["other"] * device])


# What is planted, where (options of `seen`) → the only row that holds, and a word of its value.
PLACES = {
    "few cores by binding": (lambda m: m.setattr(os, "sched_getaffinity", lambda _: {0}), {"cores": 2}, "cores", "1 of 2"),
    "cores enough": (lambda m: None, {"cores": 4}, None, None),
    "a process on the GPU": (neighbours, {"device": "cuda", "rank": 3}, "processes on this GPU", "1 of others"),
    "its own processes": (neighbours, {"device": "cuda", "rank": 0}, None, None),
    "a GPU by name": (neighbours, {"device": "cuda", "environment": {"CUDA_VISIBLE_DEVICES": "2,1"}}, "processes on this GPU", "2 of"),
    "a network's /tmp": (network("nfs4"), {}, "temporary folder", "nfs4"),
    "a /tmp in user space": (network("fuse.sshfs"), {}, "temporary folder", "sshfs"),
    "a full /tmp": (little("tmp"), {}, "temporary folder", "1 MiB"),
    "little shared memory": (little("shm"), {"device": "cuda"}, "/dev/shm", "1 MiB"),
    "little shared memory, one process": (little("shm"), {"device": "cuda", "local": 1}, None, None),
    "few descriptors": (limit(resource.RLIMIT_NOFILE, 256), {}, "ulimit -n", "256"),
    "enough descriptors": (limit(resource.RLIMIT_NOFILE, 1024), {}, None, None),
    "few processes": (limit(resource.RLIMIT_NPROC, 100), {}, "ulimit -u", "100"),
    "locked memory": (limit(resource.RLIMIT_MEMLOCK, 8 << 20), {"device": "cuda", "nodes": 2}, "ulimit -l", "8,388,608"),
    "locked memory, one node": (limit(resource.RLIMIT_MEMLOCK, 8 << 20), {"device": "cuda"}, None, None),
    "addresses": (limit(resource.RLIMIT_AS, 1 << 36), {}, "ulimit -v", "68,"),
    "computing time": (limit(resource.RLIMIT_CPU, 1800), {}, "ulimit -t", "1,800"),
    "file size": (limit(resource.RLIMIT_FSIZE, 1 << 30), {}, "ulimit -f", "1,073"),
}  # fmt: skip


@pytest.mark.parametrize("case", PLACES)
def test_what_a_place_lacks_is_named(case, plain, monkeypatch):
    plant, options, name, word = PLACES[case]
    plant(monkeypatch)
    found = matches(seen(**options))
    assert names(found) == ([name] if name else [])
    assert not found or word in found[0]["text"]


def test_what_cannot_be_looked_at_ends_no_training(plain, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", failing(FileNotFoundError("/dev/shm")))
    assert matches(seen("cuda")) == []


def test_every_row_is_planted():
    planted = {name for _, _, name, _ in PLACES.values() if name}
    assert {row.name for row in ROWS if callable(row.holds)} == planted


@pytest.mark.parametrize(
    ("files", "most"),
    [
        ({"": "max 100000"}, float("inf")),
        ({"job/step": "150000 100000", "job": "max 100000"}, 1.5),
        ({"job": "300000 100000", "job/step": "max 100000"}, 3.0),  # one above holds too
        ({}, float("inf")),
    ],
)
def test_the_quota_of_a_cgroup_is_that_of_any_above(files, most, plain, monkeypatch, tmp_path):
    for place, text in files.items():
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / "cpu.max").write_text(text)
    monkeypatch.setattr(surroundings.Path, "read_text", _of_process("0::/job/step\n"))
    assert quota() == most
    assert names(matches(seen(cores=2))) == (["cores"] if most < 4 else [])


def _of_process(cgroup):
    read = surroundings.Path.read_text
    return lambda path, *words, **more: cgroup if str(path) == "/proc/self/cgroup" else read(path, *words, **more)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_clean_environment_has_none(device, plain):
    """Neither with what our launcher sets for each process."""
    launch = Launch(("x.py",), 1, 2, Site("here", device=device), 1.0, 1.0, "logs", cores=4)
    assert matches(seen(device, environment=process_environment(launch, {"PATH": "/bin"}), cores=2)) == []


REALLY = """
import os, resource
from parascale.train.surroundings import Seen, matches
os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
print(*(each["name"] for each in matches(Seen(dict(os.environ), "cpu", 1, 2))), sep="\\n")
"""


def test_this_machine_is_looked_at():
    """By a process that is really bound and limited."""
    command, environment = [sys.executable, "-c", REALLY], os.environ | {"MALLOC_CHECK_": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert {"cores", "ulimit -n", "MALLOC_CHECK_"} <= set(done.stdout.splitlines())


def test_what_ranks_found_is_said_once_with_its_ranks(capsys):
    one, other = ({"name": name, "costs": "speed", "text": name, "source": "s"} for name in ("one", "other"))
    told = noted([[one], [one, other], []])["surroundings"]
    assert told == [one | {"ranks": [0, 1]}, other | {"ranks": [1]}]
    assert capsys.readouterr().out.splitlines() == [
        "one (ranks 0, 1); it may cost speed: s",
        "other (ranks 1); it may cost speed: s",
    ]
    assert noted([[], []]) == {}


@pytest.mark.parametrize("costs", ["speed", "results"])
def test_it_stands_on_the_jobs_page_and_what_costs_speed_beside_the_row(costs, tmp_path):
    report_of(tmp_path, fake("single", **BASE), ddp("run", step_seconds=0.06))
    path = tmp_path / "results/runs/run/run.json"
    (attempt,) = read_json(path)["attempts"]
    found = {"name": "X", "costs": costs, "text": "X = 1: it waits", "source": "https://x", "ranks": [0]}
    edited(path, attempts=[attempt | {"surroundings": [found]}])
    job = load_job(tmp_path / "results", tmp_path / "work", "run")
    (finding,) = (finding for finding in job.findings if "X = 1" in finding.text)
    assert (finding.kind, finding.short) == (("bad", "X = 1") if costs == "speed" else ("note", ""))
    assert "https://x" in finding.source
    marked = runs_table(job.report).frame.set_index("run")["stands_out"].fillna("")["run"]
    assert ("X = 1" in marked) == (costs == "speed")
