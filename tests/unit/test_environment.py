"""The environment check names what is missing or of another version, and what to install."""

import dataclasses
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from parascale.config import Layout, Site, load_project_file
from parascale.errors import RequirementError
from parascale.launch import environment
from parascale.launch.environment import check_environment, driver_version, problems, read_pins

ROOT = Path(__file__).parents[2]
CPU = Site("here")
CUDA = Site("here", device="cuda")


def test_the_pins_of_what_a_run_needs_are_read():
    pins = read_pins(ROOT / "envs" / "requirements.txt")
    assert {"torch", "snakemake", "snakemake-executor-plugin-slurm", "snakemake-executor-plugin-slurm-jobstep"} <= set(
        pins
    )
    assert "pytest" not in pins and "aiohttp" not in pins


def test_this_environment_is_as_pinned():
    check_environment(ROOT / "envs" / "requirements.txt", CPU)


def test_wrong_and_missing_packages_are_named_with_the_remedy(tmp_path):
    pins = tmp_path / "requirements.txt"
    pins.write_text("# --- training\ntorch==1.0.0  # too old\nno-such-package==2\n# --- development\npytest==0.1\n")
    with pytest.raises(RequirementError) as raised:
        check_environment(pins, CPU)
    text = str(raised.value)
    assert f"torch {metadata.version('torch')} is installed, 1.0.0 is pinned" in text
    assert "no-such-package 2 is not installed" in text and f"-m pip install -r {pins}" in text
    assert "pytest 0.1" not in text and "0.1 is pinned" not in text


def test_another_build_of_the_same_version_is_accepted(monkeypatch):
    monkeypatch.setattr(environment.metadata, "version", lambda name: "2.13.0+cu130")
    assert problems({"torch": "2.13.0"}, CPU) == []
    assert problems({"torch": "2.13"}, CPU) != []


@pytest.mark.parametrize(
    ("cuda", "driver", "in_job", "message"),
    [
        (None, "", False, "built without CUDA"),
        ("13.0", None, False, None),
        ("13.0", None, True, "no NVIDIA driver"),
        ("13.0", "570.86.15", True, "needs driver 580 or newer; this node has 570.86.15"),
        ("12.8", "570.86.15", True, None),
        ("13.0", "580.65.06", True, None),
    ],
)
def test_torchs_cuda_is_held_against_the_driver(monkeypatch, tmp_path, cuda, driver, in_job, message):
    monkeypatch.setattr(environment, "cuda_of_torch", lambda: cuda)
    monkeypatch.setattr(environment, "DRIVER", tmp_path / "version")
    if driver is not None:
        (tmp_path / "version").write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Mon Jan 1\n")
    found = problems({}, CUDA, in_job=in_job)
    assert (message is None and not found) or (len(found) == 1 and message in found[0])


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.54.03  Release Build  (root@host)",
    ],
)
def test_both_kinds_of_driver_are_read(line):
    assert driver_version(line) == (535, 54, 3)


def test_interfaces_that_a_strategy_needs_are_imported(monkeypatch):
    """They move between versions of torch; better to know before a job has waited in the queue."""
    monkeypatch.chdir(ROOT)
    run = next(iter(load_project_file("config/config.yaml").runs.values()))
    layouts = [{"dp": 2}, {"fsdp": 2}, {"tp": 2}, {"pp": 2}]
    runs = [dataclasses.replace(run, layout=Layout(gpus_per_node=2, **degrees)) for degrees in layouts]
    assert problems({}, CPU, runs) == []
    monkeypatch.setitem(environment.INTERFACES, "tp", ["torch.distributed.tensor.parallel:no_such_thing"])
    assert problems({}, CPU, runs) == ["torch.distributed.tensor.parallel has no no_such_thing (needed for tp)"]


def test_the_script_is_quick_and_imports_no_torch():
    command = [sys.executable, "-X", "importtime", "scripts/check_environment.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "pinned versions as tested" in done.stdout
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)
