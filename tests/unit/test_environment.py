"""The environment check names what is missing or of another version, and what to install."""

import importlib.util
import operator
import re
import subprocess
import sys
from contextlib import nullcontext
from importlib import metadata
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from parascale import cli
from parascale.errors import PERMANENT_FAILURE, RequirementError
from parascale.launch import environment
from parascale.launch.environment import PINS, check_environment, problems, read_pins
from parascale.launch.preflight import check_root
from parascale.settings import Layout, Site, load_project_file
from tests.command import parascale
from tests.made_up.project import REPOSITORY, changed, write_files

CPU = Site("here")
CUDA = Site("here", device="cuda")


def test_the_pins_of_what_a_run_needs_are_read():
    pins = read_pins(PINS)
    plugins = {"snakemake-executor-plugin-slurm", "snakemake-executor-plugin-slurm-jobstep"}
    assert {"torch", "snakemake"} | plugins <= set(pins)
    assert not {"pytest", "aiohttp"} & set(pins)


def test_what_a_pinned_package_needs_is_pinned():
    """torch's default build pins its own."""
    pins = {canonicalize_name(name) for name in re.findall(r"(?m)^([\w.-]+)==", PINS.read_text())}
    for name in pins - {"torch"}:
        needs = map(Requirement, metadata.requires(name) or [])
        direct = {canonicalize_name(need.name) for need in needs if need.marker is None or need.marker.evaluate()}
        assert direct <= pins, name


def test_wrong_and_missing_packages_are_named_with_the_remedy(tmp_path, monkeypatch):
    pins = tmp_path / "constraints.txt"
    pins.write_text("# --- training\nnumpy==1.0.0  # too old\nno-such-package==2\n# --- what these need\npytest==0.1\n")
    with pytest.raises(RequirementError) as raised:
        check_environment(CPU, pins_path=pins)
    text = str(raised.value)
    assert f"numpy {metadata.version('numpy')} is installed, 1.0.0 is pinned" in text
    assert "no-such-package 2 is not installed" in text
    assert f"-m pip install 'parascale[train,workflow]' -c {pins}" in text
    assert "pytest 0.1" not in text
    assert "0.1 is pinned" not in text
    monkeypatch.setattr(environment.metadata, "version", lambda name: "2.13.0+local")
    assert problems({"h5py": "2.13.0"}, CPU) == []
    assert problems({"h5py": "2.13"}, CPU) != []


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("2.13.0+cu130", None),
        ("2.11.0", None),
        ("2.13.0a0+6b0a5fe.nv26.06", None),  # of NVIDIA's container
        ("2.12.0a0+gitd0c7c5c", None),  # of a site's own module, without a record of pip's
        ("3.0.1", None),
        ("2.9.1+cu128", "torch 2.9.1+cu128 is too old: at least 2.11 is needed"),
        (None, "torch is not installed"),
    ],
)
def test_any_torch_from_the_oldest_tested_on_is_accepted_for_its_interfaces(monkeypatch, tmp_path, version, problem):
    monkeypatch.setattr(environment.metadata, "version", pytest.fail)
    (tmp_path / "version.py").write_text(f"__version__ = '{version}'\ndebug = False\ncuda: Optional[str] = '13.0'\n")
    found = SimpleNamespace(origin=str(tmp_path / "__init__.py")) if version else None
    monkeypatch.setattr(environment.importlib.util, "find_spec", lambda name: found)
    assert problems({"torch": "2.13.0"}, CPU) == ([problem] if problem else [])
    assert environment.of_torch("cuda") == ("13.0" if version else None)


# What torch/version.py says, whether the node has AMD's driver → what is said in a job.
@pytest.mark.parametrize(
    ("line", "driver", "said"),
    [
        ("hip: Optional[str] = '6.4.43482-0f2d60242'", True, []),
        ("hip: Optional[str] = '6.4.43482-0f2d60242'", False, ["this node has no AMD GPU driver, but torch was built for ROCm"]),
        ("hip: Optional[str] = None", True, ["torch was built without CUDA, but the site's device is cuda: install the default build from PyPI"]),
    ],
)  # fmt: skip
def test_torch_for_amds_gpus_is_accepted(line, driver, said, tmp_path, monkeypatch):
    (tmp_path / "version.py").write_text(f"cuda: Optional[str] = None\n{line}\n")
    spec = importlib.machinery.ModuleSpec("torch", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(environment.importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(environment, "KFD", tmp_path if driver else tmp_path / "kfd")
    assert problems({}, CUDA, in_job=True) == said
    assert problems({}, CUDA) == [] or line.endswith("None")


@pytest.mark.parametrize(
    ("cuda", "driver", "in_job", "message"),
    [
        (None, "", False, "built without CUDA"),
        ("13.0", None, False, None),
        ("13.0", None, True, "no NVIDIA driver"),
        ("13.0", "570.86.15", True, "needs driver 580 or newer; this node has 570.86.15"),
        ("12.8", "570.86.15", True, None),
        ("13.0", "580.65.06", True, None),
        ("13.0", "for x86_64  570.86.15", True, "needs driver 580 or newer; this node has 570.86.15"),  # the open one
    ],
)
def test_torchs_cuda_is_held_against_the_driver(monkeypatch, tmp_path, cuda, driver, in_job, message):
    monkeypatch.setattr(environment, "of_torch", {"cuda": cuda}.get)
    monkeypatch.setattr(environment, "cuda_of_driver", lambda: None)
    monkeypatch.setattr(environment, "DRIVER", tmp_path / "version")
    if driver is not None:
        (tmp_path / "version").write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Mon Jan 1\n")
    found = problems({}, CUDA, in_job=in_job)
    assert (message is None and not found) or (len(found) == 1 and message in found[0])
    monkeypatch.setattr(environment, "cuda_of_driver", lambda: 13)
    assert problems({}, CUDA, in_job=in_job) == (found if cuda is None else []), "the driver's library knows best"


def test_the_launcher_refuses_a_node_without_driver_before_it_starts_anything(monkeypatch, capsys, tmp_path):
    """A login node may have none, so that only the job can tell."""
    monkeypatch.setattr(environment, "cuda_of_driver", lambda: None)
    monkeypatch.setattr(environment, "DRIVER", tmp_path / "version")
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, {"gpus.yaml": "device: cuda\n", "nothing.py": ""})
    with pytest.raises(SystemExit) as ended:  # not `main`, which would cut off this process at its end
        cli.parascale(["launch", "--site", "gpus.yaml", "--logs", "logs", "--", "nothing.py"])
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert re.fullmatch(r"error: (this node has no NVIDIA driver|torch was built without CUDA).*\n", said)
    assert not (tmp_path / "logs").exists()


def test_interfaces_that_a_strategy_needs_are_looked_for(monkeypatch):
    """They move between versions of torch; better to know before a job has waited in the queue."""
    monkeypatch.chdir(REPOSITORY)
    run = next(iter(load_project_file("config/config.yaml").runs.values()))
    runs = [changed(run, layout=Layout(gpus_per_node=2, **{axis: 2})) for axis in ("dp", "fsdp", "tp", "pp")]
    runs.append(changed(run, layout=Layout(gpus_per_node=4, dp=2, tp=2), engine="lightning"))
    assert problems({}, CPU, runs) == []
    gone = ["torch.distributed.tensor.parallel:no_such_thing", "torch.distributed.gone:tensor", "no_such_package:it"]
    monkeypatch.setitem(environment.INTERFACES, "tp", gone)
    assert problems({}, CPU, runs) == [
        "torch.distributed.tensor.parallel has no no_such_thing (needed for tp)",
        "there is no module torch.distributed.gone (needed for tp)",
        "there is no module no_such_package (needed for tp)",
    ]
    assert problems({}, CPU, runs[:2]) == []
    # Replicas of a model that is cut otherwise are FSDP's too.
    monkeypatch.setitem(environment.INTERFACES, "fsdp", ["torch.distributed.fsdp:gone"])
    assert "torch.distributed.fsdp has no gone (needed for fsdp)" in problems({}, CPU, runs[-1:])


def test_the_package_of_the_chosen_decoder_is_looked_for(monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    run = next(each for each in load_project_file("config/config.yaml").runs.values() if each.workload.of_images)
    chosen = changed(run, workload={"training": {"decoder": "dali"}})
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name.startswith("nvidia") else there(name))
    assert problems({}, CPU, [run]) == []
    (said,) = problems({}, CPU, [run, chosen])
    assert said.startswith("NVIDIA DALI is not installed")
    assert said.endswith("pip install -r envs/requirements-dali.txt")
    assert (REPOSITORY / said.split()[-1]).is_file()


@pytest.mark.parametrize(("version", "refused"), [("2.12.1+cu126", True), ("2.13.0+cpu", False)])
def test_a_torch_that_cannot_go_backward_in_two_passes_is_told_before_the_first_job(version, refused, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    run = next(iter(load_project_file("config/config.yaml").runs.values()))
    layout, schedules = Layout(gpus_per_node=2, pp=2, micro_batches=4), ("Interleaved1F1B", "ZBVZeroBubble")
    simple, split = (changed(run, layout=changed(layout, schedule=each)) for each in schedules)
    monkeypatch.setattr(environment, "of_torch", {"__version__": version}.get)
    assert problems({}, CPU, [simple]) == [] and len(problems({}, CPU, [simple, split])) == refused


@pytest.mark.parametrize(
    ("root", "scratch", "refused"),
    [
        ("${SOME_SCRATCH:-.}/results", None, True),
        ("${SOME_SCRATCH:-.}/results", "", True),
        ("${SOME_SCRATCH:-.}/results", "/scratch/me", False),
        ("${SOME_SCRATCH:-/tmp}/results", None, False),
        (".", None, False),
    ],
)
def test_jobs_do_not_write_beside_the_code_because_a_variable_is_not_set(monkeypatch, root, scratch, refused):
    monkeypatch.delenv("SOME_SCRATCH", raising=False)
    if scratch is not None:
        monkeypatch.setenv("SOME_SCRATCH", scratch)
    with pytest.raises(RequirementError, match=r"\$SOME_SCRATCH is not set") if refused else nullcontext():
        check_root(root)


def test_what_the_source_names_can_be_imported():
    """Interfaces are looked for in the source, which takes a moment; importing them takes seconds."""
    for user in environment.MODULES.keys() - {"lightning"}:
        for module, name in (need.split(":") for need in environment.interfaces(user)):
            assert operator.attrgetter(name)(importlib.import_module(module))


def test_the_command_is_quick_and_imports_no_torch():
    command = [sys.executable, "-X", "importtime", "-m", "parascale", "check", "--run", "ddp", "--run", "pp"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "pinned versions as tested" in done.stdout
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)


def test_a_pretrained_model_that_is_not_there_is_told(tmp_path):
    """As the workflow does before its first job, which a workflow that is imported as a module leaves to this verb."""
    model = "model: {kind: pretrained}\ndata: {text: {tokenizer: pretrained, pretrained: ../t5}}\n"
    files = {"workloads/w.yaml": f"task: summarisation\ntraining: {{steps: 2}}\n{model}"}
    files |= {"runs.tsv": "run\tworkload\nsingle\tw\n", "mine.yaml": "runs: runs.tsv\nworkloads: workloads\n"}
    write_files(tmp_path, files)
    done = parascale("check", "--configfile", tmp_path / "mine.yaml", "--base", REPOSITORY / "config")
    assert done.returncode == PERMANENT_FAILURE
    assert done.stderr.startswith("error: ")
    assert str(tmp_path / "t5") in done.stderr
