"""`parascale check gpu` on CPUs: with four libraries alone, part by part whatever fails, and one page that needs no other file."""

import gzip
import json
import math
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from parascale import check
from parascale.check import parts, processes
from parascale.check.processes import FailedError, Here
from parascale.files import read_json, write_json, write_text

from ..distributed.harness import run_on_ranks

ROOT = Path(__file__).parents[2]
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
    logs = "".join(log.read_text() for log in sorted(output.glob("*/*/*.log")))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    found, page = read_json(output / "check.json"), (output / "check.html").read_text()
    assert found["machine"]["tiny"] and {"psutil", "tqdm", "xxhash"} <= set(found["machine"]["not installed"])
    assert all(name in page for name in found["parts"]) and "src=" not in page and "href=" not in page
    return done.stdout, found["parts"]


def test_four_libraries_are_enough(tmp_path):
    """Neither the command's own library nor those of reports, data and tests."""
    said, found = checked(tmp_path, "--part", "tests")
    assert found["tests"][0]["verdict"] == "passed" and "No module named pytest" in found["tests"][0]["value"]
    assert "tests marked `gpu`: " in said


@pytest.mark.slow
def test_every_part_runs_at_tiny_sizes(tmp_path):
    _, found = checked(tmp_path)
    assert list(found) == list(parts.PARTS)
    rows = {row["what"]: row for part in found.values() for row in part}
    assert {row["verdict"] for row in rows.values()} == {"passed", "not measured"}
    assert rows["step with which it continued"]["value"] == parts.SAVED + 1
    assert {rows[f"bits of {which} training"]["value"] for which in ("the continued", "a repeated")} == {"same"}
    verdicts = {
        name: rows[name]["value"] for name in rows if rows[name]["value"] in ("baseline", "same") and "-" in name
    }
    assert {"single-fsdp2", "single-tp2", "single-pp2", "images-single-dp2", "summary-single-dp2"} <= set(verdicts)
    assert rows["gpt2: graphs"]["value"] > 0 and rows["gpt2: graphs compiled after the second step"]["value"] == 0
    assert rows["gpt2: attention"]["value"] == "flash" and rows["gpt2: MFU over the plan's"]["value"] > 0
    assert rows["our step over a bare loop's"]["value"] > 0
    rates = [row for row in found["collectives"] if "bus bandwidth" in row["what"]]
    assert len(rates) == 10 and all(row["value"] > 0 for row in rates)


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
    "slow link": {"collectives": ["all_reduce's bandwidth over the site's link"]},
}


def planted(fault):
    """In the place of `launched`: what processes on H100s leave behind, with a fault in it."""

    def launched(here, function, ranks, job=None, kill=None, quiet=False, **_):
        if quiet and fault == "waits":
            raise FailedError("RuntimeError: called a synchronizing CUDA operation")
        if function == "benchmark":
            return [
                f"gpt2, seconds a step: ours 1 ms, bare 1 ms, ratio {1.05 if fault == 'slow beside bare' else 1.02}"
            ]
        if function == "collectives":
            rate = 310.0 if fault == "slow link" else 320.0  # of 450
            return [[{"operation": "all_reduce", "bytes": 2**28, "bus_gigabytes_per_second": rate}]] * ranks
        if kill and fault != "went on":
            write_text(job.results / "killed", str(time.time() - (31 if fault == "ended late" else 2)))
            raise FailedError("error: rank 1 on here failed: ended by SIGKILL")
        predicted = parts._predicted(here, job.run)
        other = fault == "other bits again" and job.run.run == "again"
        other = other or (fault == "other bits when continued" and job.run.run == "killed")
        seconds = {"total": predicted.step_seconds * (1.2 if fault == "slow" else 1.15)}
        lines = [
            {"step": step, "loss": 3.0, "grad_norm": 1.0, "tokens": 4096, "seconds": seconds} for step in range(1, 17)
        ]
        lines[8] |= {"loss": 3.0000000000000004 if other else 3.0, "checkpoint_seconds": 0.5}
        write_text(job.output / "steps.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
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
    return Here(tmp_path_factory.mktemp("gpus"), [["NVIDIA H100 80GB HBM3", 85.5e9]] * 2, False, [])


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_fails_its_row(fault, here, monkeypatch):
    monkeypatch.setattr(parts, "launched", planted(fault))
    for part, expected in FAULTS[fault].items():
        here.begin(part, math.inf)
        rows = list(parts.PARTS[part][2](here))
        assert [row["what"] for row in rows if row["verdict"] == "failed"] == expected
        assert len(rows) > 1


def test_rates_of_an_unknown_gpu_have_no_limit(tmp_path):
    here = Here(tmp_path, [["NVIDIA B1000", 300e9]], False, [])
    here.begin("speed", math.inf)
    assert here.project.site.device == "cuda" and here.project.site.peak_tflops == {} and not here.judges


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        (1, []),
        (2, ["dp2", "tp2", "fsdp2", "pp2"]),
        (3, ["dp2", "tp2", "fsdp2", "pp2"]),
        (4, ["dp4", "dp2 tp2", "dp2 fsdp2", "dp2 pp2", "fsdp2 tp2", "tp2 pp2", "fsdp4"]),
        (8, ["dp8", "dp4 tp2", "dp4 fsdp2", "dp4 pp2", "dp2 fsdp2 tp2", "dp2 tp2 pp2", "fsdp8"]),
    ],
)
def test_strategies_are_tried_alone_and_together_on_all_gpus(gpus, expected, here):
    found = parts.products(gpus)
    assert [" ".join(f"{axis}{n}" for axis, n in degrees.items() if n > 1) for degrees in found] == expected
    here.begin("parity", math.inf)
    for degrees in found:
        job = parts._made(here, "single", "spread", degrees, kind="parity")
        job.run.check()
        assert job.run.layout.world_size == min(8, 1 << gpus.bit_length() - 1) and job.run.deterministic


def test_time_in_which_nccl_alone_runs():
    """Of 10: 2 that nothing covers; a copy is no kernel."""
    events = [("kernel", "gemm", 0, 4), ("kernel", "ncclDevKernel_AllGather", 3, 3), ("kernel", "gemm", 7, 3)]
    events += [("gpu_memcpy", "Memcpy HtoD", 4, 2), ("cpu_op", "nccl:all_gather", 0, 10)]
    found = [{"cat": cat, "name": name, "ts": start, "dur": length} for cat, name, start, length in events]
    assert parts.exposed(found) == pytest.approx(0.2)
    assert parts.exposed([]) is None and parts.exposed(found[:1]) == 0


def test_it_ends_in_time_with_what_it_has(tmp_path, monkeypatch, capsys):
    """Rows that were there stay; what a part of its own time did not end is a failure, what the whole time did not reach is none."""

    def endless(here):
        yield parts.row("first", 1.0)
        subprocess.run(["sleep", "60"], timeout=here.left)

    def failing(here):
        yield parts.row("second", 2.0, most=1.0)
        raise FailedError("rank 1 failed")

    found = {"short": ("ends late", 0.2, endless), "bad": ("fails", 60, failing), "long": ("cut", 60, endless)}
    monkeypatch.setattr(parts, "PARTS", found | {"last": ("never begun", 60, endless)})
    monkeypatch.setattr(check, "FACTS", 'print(\'["2.13", null, [["H100", 1]]]\')')
    started = time.monotonic()
    assert check.main(["--output", str(tmp_path), "--seconds", "2"]) == 1
    assert time.monotonic() - started < 30
    rows = read_json(tmp_path / "check.json")["parts"]
    assert {name: [row["verdict"] for row in rows[name]] for name in rows} == {
        "short": ["passed", "failed"],
        "bad": ["failed", "failed"],
        "long": ["passed", "not reached"],
        "last": ["passed", "not reached"],
    }
    assert "rank 1 failed" in capsys.readouterr().out


def test_a_process_that_fails_says_why(tmp_path):
    """By the launcher's last line, which names the rank."""
    here = Here(tmp_path, [], True, [])
    here.begin("part", time.monotonic() + 600)
    with pytest.raises(FailedError, match=r"1-unheard: error: rank 0 on .* failed: .*unheard"):
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
    here = Here(tmp_path, [], True, ["pynvml"])
    here.begin("part", math.inf)
    jobs = [parts._made(here, "gpt2-1", name, {"fsdp": 2}, 6, deterministic=True) for name in ("one", "other")]
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
