"""`parascale check gpu` on CPUs: with four libraries alone, and part by part whatever fails."""

import gzip
import json
import math
import os
import pickle
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from parascale import check
from parascale.check import parts, processes
from parascale.check.processes import Here
from parascale.errors import TrainingError
from parascale.files import read_json, write_json, write_text
from parascale.parallel.communication import OPERATIONS
from parascale.plan.planner import data_facts
from parascale.plan.predict import predict
from parascale.train import parity
from tests.command import program
from tests.made_up.results import write_lines

from ..distributed.harness import run_on_ranks

ROOT = Path(__file__).parents[2]
H100 = ("NVIDIA H100 80GB HBM3", 85.5e9, 700.0)  # as torch and NVML tell of one
FACTS = 'print(\'["2.13", null, [["H100", 1, "0"]]]\')'
# What installs itself when Python starts, in the processes of parts too: packages that are installed here and not allowed are not
# found. torch's own requirements are.
BLOCKER = """
import importlib.machinery, importlib.metadata, sys

def names(package):
    return {str(file).split("/")[0].removesuffix(".py") for file in package.files or [] if "." not in str(file).split("/")[0][:1]}

def needs(name, seen):
    if name.lower() not in seen:
        seen.add(name.lower())
        for need in importlib.metadata.requires(name) or []:
            if "extra ==" not in need:
                words = need.replace(";", " ").replace("<", " ").replace(">", " ").replace("=", " ").replace("!", " ")
                try:
                    needs(words.split()[0].split("[")[0].replace("_", "-"), seen)
                except importlib.metadata.PackageNotFoundError:
                    pass
    return seen

allowed = {"optree"}  # torch uses it where another package brought it
for name in ("torch", "numpy", "PyYAML", "pydantic"):
    needs(name, allowed)
packages = list(importlib.metadata.distributions())
known = {each.metadata["Name"].lower().replace("_", "-") for each in packages}
kept = {name for each in packages if each.metadata["Name"].lower().replace("_", "-") in allowed for name in names(each)}
gone = {name for each in packages for name in names(each)} - kept - set(sys.stdlib_module_names) - {"parascale"}
assert {"click", "rich", "pandas", "matplotlib", "tqdm", "psutil", "xxhash", "PIL"} <= gone | {"rich"}, sorted(gone)

class Finder:
    find_distributions = staticmethod(importlib.machinery.PathFinder.find_distributions)  # torch registers gloo by its own from 2.15 on

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in gone:
            return importlib.machinery.PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Finder()
"""


def checked(folder, *words):
    """(what was printed, rows by part) of the command in a Python that has little else."""
    (folder / "sitecustomize.py").write_text(BLOCKER)
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT / 'scripts'}", "CUDA_VISIBLE_DEVICES": ""}
    output = folder / "out"
    command = [sys.executable, "-m", "parascale", "check", "gpu", "--output", output, "--seconds", "1800", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    logs = "".join(log.read_text() for log in sorted(output.glob("logs/*/*.log")))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    found = read_json(output / "check.json")
    assert found["machine"]["tiny"] and {"psutil", "tqdm", "xxhash"} <= set(found["machine"]["not installed"])
    return done.stdout, found["parts"]


@pytest.mark.slow
def test_four_libraries_are_enough(tmp_path):
    """Neither the command's own library nor those of reports, data, checkpoints and tests, for what trains is loaded."""
    _, found = checked(tmp_path, "--part", "collectives")
    rates = [row for row in found["collectives"] if "bus bandwidth" in row["what"]]
    assert len(rates) == 2 * len(OPERATIONS) and all(row["value"] > 0 for row in rates)


@pytest.mark.slow
def test_every_part_runs_at_tiny_sizes(tmp_path):
    said, found = checked(tmp_path)
    assert found["tests"][0]["verdict"] == "not measured" and "tests marked `gpu`: None" in said
    assert list(found) == list(parts.PARTS)
    rows = {row["what"]: row for part in found.values() for row in part}
    assert {row["verdict"] for row in rows.values()} == {"passed", "not measured"}
    assert rows["step with which it continued"]["value"] == parts.SAVED + 1
    assert {rows[f"bits of {which} training"]["value"] for which in ("the continued", "a repeated")} == {"same"}
    verdicts = {row["what"]: row["value"].partition(",")[0] for row in found["parity"]}
    assert verdicts == {"single": "baseline"} | dict.fromkeys(("cpus", "ddp", "fsdp", "tp", "pp"), "same")
    assert rows["gpt2: graphs"]["value"] > 0 and rows["gpt2: graphs compiled after the second step"]["value"] == 0
    assert rows["gpt2: attention"]["value"] == "flash" and rows["gpt2: part of a step that waits for data"]["value"] > 0
    assert rows["our step over a bare loop's"]["value"] > 0


FAULTS = {  # what is planted → the rows that fail
    "": {"training": [], "speed": [], "collectives": []},
    "went on": {"training": ["after a rank was killed"]},
    "ended late": {"training": ["seconds from a killed rank to the end of all"]},
    "began anew": {"training": ["step with which it continued"]},
    "other bits when continued": {"training": ["bits of the continued training"]},
    "other bits again": {"training": ["bits of a repeated training"]},
    "slow": {"speed": ["gpt2: MFU over the plan's", "llama: MFU over the plan's"]},
    "waits": {"speed": ["gpt2: where a step waits for the GPU", "llama: where a step waits for the GPU"]},
    "slow beside bare": {"speed": ["our step over a bare loop's"]},
    "graph break": {"speed": ["gpt2: graph breaks", "llama: graph breaks"]},
    "compiled again": {"speed": [f"{name}: graphs compiled after the second step" for name in ("gpt2", "llama")]},
    "not compiled": {"speed": [f"{name}: graphs" for name in ("gpt2", "llama")]},
    "math": {"speed": ["gpt2: attention", "llama: attention"]},
    "memory": {"speed": ["gpt2: peak memory over the plan's", "llama: peak memory over the plan's"]},
    "slow link": {"collectives": ["all_reduce over the site's link"]},
}


def planted(fault):
    """In the place of `launched`: what processes on H100s leave behind, with a fault in it."""

    def launched(here, function, ranks, job=None, kill=None, quiet=False, **_):
        if quiet and fault == "waits":
            raise TrainingError("RuntimeError: called a synchronizing CUDA operation")
        if function == "overhead":
            return [1.05 if fault == "slow beside bare" else 1.02]
        if function == "collectives":
            rate = 310.0 if fault == "slow link" else 320.0  # of 450
            return [[{"operation": "all_reduce", "bytes": 2**28, "bus_gigabytes_per_second": rate}]] * ranks
        if kill and fault != "went on":
            write_text(job.results / "killed", str(time.time() - (31 if fault == "ended late" else 2)))
            raise TrainingError("error: rank 1 on here failed: ended by SIGKILL")
        predicted = predict(job.run, here.project.site, facts=data_facts(job.run, here.project.paths))
        other = fault == "other bits again" and job.run.run == "again"
        other = other or (fault == "other bits when continued" and job.run.run == "killed")
        seconds = {"total": (predicted.step_seconds or 1.0) * (1.2 if fault == "slow" else 1.15)}
        common = {"loss": 3.0, "grad_norm": 1.0, "tokens": 4096, "seconds": seconds}
        lines = [{"step": step, **common} for step in range(1, 17)]
        lines[8] |= {"loss": 3.0000000000000004 if other else 3.0, "checkpoint_seconds": 0.5}
        write_lines(job.output / "steps.jsonl", lines)
        write_json(job.output / "run.json", {"attempts": [{"first_step": 1 if fault == "began anew" else 5}]})
        summary = {"work_unit": "tokens", "seconds": 1.0, "phases": {"data": 0.01}}
        write_json(job.output / "summary.json", summary | {"attention": "math" if fault == "math" else "cudnn"})
        write_text(job.output / "checkpoint/shard", "x")
        (job.output / "profile").mkdir(exist_ok=True)
        with gzip.open(job.output / "profile/trace.json.gz", "wt") as trace:
            json.dump({"traceEvents": []}, trace)
        planned = sum(size for part, size in predicted.memory.items() if part not in ("libraries", "communicators"))
        allocated = planned * (1.5 if fault == "memory" else 1.0)
        graphs = {"compiled again": [0, 5, 5, 6], "not compiled": [0, 0, 0, 0]}.get(fault, [0, 5, 5, 5])
        rank = {"allocated": allocated, "reserved": 1.1 * allocated, "graphs": graphs}
        return [rank | {"breaks": int(fault == "graph break")}] * ranks

    return launched


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """Two H100s, as a machine with them is checked."""
    return Here(tmp_path_factory.mktemp("gpus"), [H100] * 2, [], math.inf)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_fails_its_row(fault, here, monkeypatch):
    monkeypatch.setattr(parts, "launched", planted(fault))
    for part, expected in FAULTS[fault].items():
        rows = list(parts.PARTS[part](here))
        assert [row["what"] for row in rows if row["verdict"] == "failed"] == expected
        assert len(rows) > 1


def test_rates_of_an_unknown_gpu_are_not_judged(tmp_path, monkeypatch):
    here = Here(tmp_path, [("NVIDIA B1000", 300e9, None)] * 2, [], math.inf)
    assert here.project.site.device == "cuda"
    monkeypatch.setattr(parts, "launched", planted("slow link"))
    assert list(parts.collectives(here))[-1]["verdict"] == "not measured"
    monkeypatch.setattr(parts, "launched", planted("slow"))
    verdicts = {row["what"]: row["verdict"] for row in parts.speed(here)}
    assert "failed" not in verdicts.values() and verdicts["gpt2: MFU over the plan's"] == "not measured"


@pytest.mark.parametrize(("gpus", "expected"), [(1, 2), (2, 7), (3, 7), (4, 9), (8, 10)])
def test_strategies_are_tried_as_they_are_shipped_where_there_are_gpus_for_them(gpus, expected, tmp_path, monkeypatch):
    here = Here(tmp_path, [H100] * gpus, [], math.inf)
    tried = []

    def launched(here, function, ranks, job):
        job.run.check()
        tried.append((job.run.layout, ranks, job.site.device))
        raise TrainingError

    monkeypatch.setattr(parts, "launched", launched)
    assert [row["verdict"] for row in parts.parity(here)] == ["failed"] * expected
    layouts = [here.project.runs[name].layout for name in ("single", *parts.STRATEGIES[: expected - 1])]
    devices = ["cuda", "cpu", *["cuda"] * (expected - 2)]
    assert tried == [(each, each.world_size, device) for each, device in zip(layouts, devices, strict=True)]


def test_strategies_are_reported_after_a_baseline_that_failed(tmp_path, monkeypatch):
    here = Here(tmp_path, [H100] * 2, [], math.inf)

    def launched(here, function, ranks, job):
        if ranks == 1:
            raise TrainingError("OutOfMemoryError")
        write_text(job.output / "steps.jsonl", "")

    monkeypatch.setattr(parts, "launched", launched)
    rows = list(parts.parity(here))
    names = ["single", "cpus", *parts.STRATEGIES[1:6]]
    assert [(row["what"], row["verdict"]) for row in rows] == [(name, "failed") for name in names]
    assert rows[0]["value"] == "OutOfMemoryError" and "single/" in rows[2]["value"]


@pytest.mark.parametrize(
    ("said", "code", "verdict"),
    [
        ("3 passed in 1 s", 0, "passed"),
        ("F\nFAILED tests/unit/test_dali.py::test - no\n1 failed in 1 s", 1, "failed"),
        ("", -9, "failed"),
        ("/usr/bin/python: No module named pytest", 1, "not measured"),
    ],
)
def test_tests_of_gpus_are_told_in_a_row(said, code, verdict, here, monkeypatch):
    done = SimpleNamespace(stdout=said, stderr="", returncode=code)
    monkeypatch.setattr(parts.subprocess, "run", lambda *_, **__: done)
    [row] = parts.tests(here)
    assert row["verdict"] == verdict and ("test_dali" in said) == ("test_dali" in (row["value"] or ""))


def test_time_in_which_nccl_alone_runs():
    """Of 10: 2 that nothing covers; a copy is no kernel."""
    events = [("kernel", "gemm", 0, 4), ("kernel", "ncclDevKernel_AllGather", 3, 3), ("kernel", "gemm", 7, 3)]
    events += [("gpu_memcpy", "Memcpy HtoD", 4, 2), ("cpu_op", "nccl:all_gather", 0, 10)]
    found = [{"cat": cat, "name": name, "ts": start, "dur": length} for cat, name, start, length in events]
    assert parts.exposed(found) == pytest.approx(0.2)
    assert parts.exposed([]) is None and parts.exposed(found[:1]) == 0


def test_it_ends_in_time_with_what_it_has(tmp_path, monkeypatch, capsys):
    """Rows that were there stay; what the time did not reach is no failure."""

    def endless(here):
        """Its end comes with the time."""
        yield parts.row("first", 1.0)
        subprocess.run(["sleep", "600"], timeout=here.deadline - time.monotonic())

    def failing(here):
        """It fails."""
        yield parts.row("second", 2.0, most=1.0)
        raise TrainingError("rank 1 failed")

    monkeypatch.setattr(parts, "PARTS", {"bad": failing, "long": endless, "last": endless})
    monkeypatch.setattr(check, "FACTS", FACTS)
    started = time.monotonic()
    assert check.main(["--output", str(tmp_path), "--seconds", "2"]) == 1
    assert time.monotonic() - started < 600
    rows = read_json(tmp_path / "check.json")["parts"]
    verdicts = {name: [row["verdict"] for row in rows[name]] for name in rows}
    assert verdicts == {"bad": ["failed"] * 2, "long": ["passed", "not reached"], "last": ["passed", "not reached"]}
    assert "rank 1 failed" in capsys.readouterr().out


CUT = """
import os, sys
from parascale import check
from parascale.check import parts

def cut(here):
    "It is killed, as the first part before its first row."
    yield from [parts.row("before", 1.0)] * bool(name != [*parts.PARTS][0])
    os.kill(os.getpid(), 9)

check.FACTS = sys.argv[1]
for name in parts.PARTS:
    rows = {each: lambda here: [parts.row("all", 1.0)] for each in parts.PARTS}
    if not os.fork():
        parts.PARTS = rows | {name: cut}
        check.main(["--output", f"{sys.argv[2]}/{name}"])
    assert os.wait()[1] == 9
"""


def test_a_kill_in_any_part_leaves_what_came_before(tmp_path):
    subprocess.run([sys.executable, "-c", CUT, FACTS, tmp_path], check=True, stdout=subprocess.DEVNULL)
    names = list(parts.PARTS)
    for number, name in enumerate(names):
        found = read_json(tmp_path / name / "check.json")
        assert list(found["seconds"]) == names[: number + 1] and found["machine"]["gpus"] == ["H100"]
        expected = [["all"]] * number + [["before"] * (number > 0)] + [[]] * (len(names) - number - 1)
        assert [[row["what"] for row in rows] for rows in found["parts"].values()] == expected


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_gpu_is_judged_by_the_cpus_beside_it_by_a_tolerance_of_its_own(gpus, tmp_path, monkeypatch):
    here, asked = Here(tmp_path, [H100] * gpus, [], math.inf), {}

    def compare(run, baseline, folder, baseline_folder, tolerance):
        asked[run.run] = (baseline.run, run.precision, tolerance)
        verdict = "different" if run.run == "cpus" else "same"
        return {"verdict": verdict, "loss_difference": 2e-5, "weight_difference": 0.0}

    monkeypatch.setattr(parts, "launched", lambda *_, **__: None)
    monkeypatch.setattr(parity, "compare", compare)
    rows = {row["what"]: row for row in parts.parity(here)}
    assert [name for name, row in rows.items() if row["verdict"] == "failed"] == ["cpus"]
    assert rows["cpus"]["value"] == "different, loss_difference 2.0e-05" and rows["single"]["value"] == "baseline"
    assert asked.pop("cpus") == ("single", "fp32", replace(parity.TOLERANCES["fp32"], loss=parts.ACROSS))
    assert asked == dict.fromkeys(("ddp", "fsdp", "tp", "pp", "cp") if gpus == 2 else (), ("single", "fp32", None))


def test_nothing_that_compiles_comes_before_collectives_and_parity(here):
    """Compiling may take the ten minutes."""
    assert list(parts.PARTS)[:2] == ["collectives", "parity"]
    assert not any(here.project.runs[name].layout.compile for name in parts.STRATEGIES)


@pytest.mark.parametrize(
    ("gpu", "share", "bf16"),
    [
        (H100, 1.0, 989),
        ((*H100[:2], 350.0), 0.5, 989),  # a board that its owner slowed down
        ((*H100[:2], None), 1.0, 989),
        (("NVIDIA H100 PCIe", 85.0e9, 310.0), 310 / 350, 756),
        (("NVIDIA H100 NVL", 100.0e9, 400.0), 1.0, 835),
        (("NVIDIA H100", 85.0e9, 350.0), 1.0, 756),  # its power tells what its name does not
        (("NVIDIA B1000", 300e9, 350.0), 1.0, None),
    ],
)
def test_a_step_is_judged_by_what_its_board_may_draw(gpu, share, bf16, tmp_path, monkeypatch):
    here = Here(tmp_path, [gpu], [], math.inf)
    assert here.power == pytest.approx(share) and here.project.site.peak_tflops.get("bf16") == bf16
    monkeypatch.setattr(parts, "launched", planted("slow"))
    limits = {row["limit"] for row in parts.speed(here) if "MFU over" in row["what"]}
    assert limits == {f"≥ {0.85 * share:.3g}"}


@pytest.mark.parametrize(
    ("said", "watts"), [("echo 310.00", 310.0), ("echo '[N/A]'", None), ("exit 9", None), ("", None)]
)
def test_power_is_what_the_driver_says_of_this_gpu(said, watts, tmp_path, monkeypatch):
    if said:
        program(tmp_path / "nvidia-smi", f'test "$1" = --id=GPU-0a && {said}')
    monkeypatch.setenv("PATH", str(tmp_path))
    assert processes.power_limit("0a") == watts


@pytest.mark.slow
def test_a_process_that_fails_says_why(tmp_path):
    """By the launcher's last line, which names the rank."""
    here = Here(tmp_path, [], [], time.monotonic() + 600)
    with pytest.raises(TrainingError, match=r"1-unheard: error: rank 0 on .* failed: .*unheard"):
        processes.launched(here, "unheard", 1)


def train_with(fault, path):
    """A training of the check with a fault planted into it."""
    from parascale.check import ranks
    from parascale.families.language import modules
    from parascale.train import loop

    ranks.make_tiny()
    if fault == "graph break":
        heads = modules.Attention._heads
        modules.Attention._heads = lambda *each: torch._dynamo.graph_break() or heads(*each)
    if fault == "chance":
        rate = loop.learning_rate
        loop.learning_rate = lambda *each: rate(*each) * (1 + 1e-3 * os.urandom(1)[0])
    return ranks.training(**pickle.loads(Path(path).read_bytes()))


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["", "chance", "graph break"])
def test_planted_faults_are_found_in_real_trainings(fault, tmp_path):
    here = Here(tmp_path, [], ["pynvml"], math.inf)
    jobs = [parts._short(here, "gpt2-124m", name, 2, 6, deterministic=True) for name in ("one", "other")]
    for job in jobs:
        (tmp_path / "task").write_bytes(pickle.dumps({"job": job}))
        train = (train_with, 2, tmp_path / job.run.run, fault, str(tmp_path / "task"))
        if fault == "graph break":
            with pytest.raises(AssertionError, match="graph_break"):
                run_on_ranks(*train)
            return
        run_on_ranks(*train)
    row = parts.same("bits", *jobs)
    assert (row["verdict"], row["value"]) == (("failed", "differ from step 2 on") if fault else ("passed", "same"))
