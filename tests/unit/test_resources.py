"""What runs ask of Slurm, what is refused before anything is asked, and the shipped sites, profiles and run tables."""

import dataclasses
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import yaml

from parascale.launch.node import GRACE_SECONDS
from parascale.launch.resources import data_resources, node_resources, resources
from parascale.plan import limits
from parascale.settings import Config, Layout, load_project_file
from parascale.settings.site import Partition
from parascale.slurm import srun_command
from tests.made_up.project import shipped_site

ROOT = Path(__file__).parents[2]
CLUSTERS = ("slurm", "jureca", "juwels-booster", "jupiter")
JURECA = shipped_site("jureca")


STEP = {"mpi": "srun", "tasks": 2, "tasks_per_gpu": 0}


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ({}, {"nodes": 1, "gres": "gpu:1"}),
        ({"gpus_per_node": 4, "dp": 4}, {"nodes": 1, "gres": "gpu:4"}),
        ({"gpus_per_node": 4, "idle_gpus": 3}, {"nodes": 1, "gres": "gpu:4"}),
        ({"nodes": 2, "gpus_per_node": 4, "fsdp": 8}, {"nodes": 2, "gres": "gpu:4"} | STEP),
    ],
)
def test_a_layout_becomes_the_plugins_resources(layout, expected):
    common = {"cpus_per_task": 128, "mem_mb": 0, "runtime": 90, "slurm_partition": "dc-gpu"}
    assert resources(Layout(**layout), JURECA, 90) == {**common, **expected}


def test_account_and_partition_are_named_only_where_they_are_known():
    laptop = dataclasses.replace(JURECA, partitions=[], gpus_per_node=None)
    assert not {"slurm_account", "slurm_partition", "gres"} & set(resources(Layout(), laptop, 5))
    asked = resources(Layout(), JURECA, 5, partition="dc-gpu-devel", account="training")
    assert (asked["slurm_partition"], asked["slurm_account"]) == ("dc-gpu-devel", "training")
    assert "gres" not in node_resources(JURECA, 5)


def test_srun_is_told_everything():
    """Inside a job of the job-step plugin srun has no defaults to fall back to. With SMT, 128 CPUs are 64 cores unless it is told."""
    said = ["srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=128", "--wait=400"]
    assert srun_command(["x"], 2, JURECA, 4, 399.5) == [*said, "--threads-per-core=1", "--gres=gpu:4", "x"]
    without = dataclasses.replace(JURECA, threads_per_core=1)
    assert srun_command(["x"], 2, without, 4, 399.5) == [*said, "--gres=gpu:4", "x"]


# Values of the site, and of the configuration → partition, CPUs and GPUs of a job that needs no GPU.
DATA_JOBS = [
    ({}, {}, ("dc-cpu", 128, None)),
    ({}, {"partition": "dc-gpu-devel"}, ("dc-cpu", 128, None)),
    ({}, {"data_partition": "none"}, ("dc-gpu", 128, "gpu:1")),
    ({}, {"data_partition": "none", "partition": "dc-gpu-devel"}, ("dc-gpu-devel", 128, "gpu:1")),
    ({"data_partition": None}, {}, ("dc-gpu", 128, "gpu:1")),
    ({"data_partition": None, "demands_gpus": False}, {}, ("dc-gpu", 128, None)),
    ({"partitions": [Partition("dc-gpu"), Partition("dc-cpu", cores_per_node=96)]}, {}, ("dc-cpu", 96, None)),
]


@pytest.mark.parametrize(("site", "config", "expected"), DATA_JOBS)
def test_a_job_that_needs_no_gpu_goes_where_the_site_says(site, config, expected):
    asked = data_resources(dataclasses.replace(JURECA, **site), 30, Config(**config))
    assert (asked["slurm_partition"], asked["cpus_per_task"], asked.get("gres")) == expected


@pytest.mark.parametrize("name", CLUSTERS)
def test_shipped_clusters_take_every_shipped_run(monkeypatch, name):
    """A row of the run table that its site cannot start would be found by a class, on its day."""
    monkeypatch.chdir(ROOT)
    project = load_project_file(f"config/{name}.yaml")
    assert project.site.device == "cuda" and project.site.name == name
    for run in project.runs.values():
        asked = resources(run.layout, project.site, 60)
        assert asked["nodes"] == run.layout.nodes
        asked = run.run, run.layout.nodes, run.layout.gpus_per_node, 1.0
        assert limits.violations(*asked, project.site, project.config.partition) == []


def test_on_jsc_machines_results_lie_in_the_users_own_folder_below_scratch(monkeypatch):
    """`$SCRATCH` is a project's: two of its users, or two machines, never share a root."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("SCRATCH", "/p/scratch/training")
    roots = []
    for user, names in product(("ada", "emmy"), ("jureca", "juwels-booster", "jupiter", "jureca jureca-xsum-t5")):
        monkeypatch.setenv("USER", user)
        roots.append(load_project_file(*(f"config/{file}.yaml" for file in names.split())).root)
        assert roots[-1].parent == Path(f"/p/scratch/training/parascale-{user}")
    assert len(set(roots)) == len(roots)


@pytest.mark.parametrize("name", ("local", *CLUSTERS))
def test_profiles_explain_each_entry_and_name_their_configuration(name):
    path = ROOT / "profiles" / name / "config.yaml"
    profile = yaml.safe_load(path.read_text())
    assert (path.parent / profile["configfile"]).is_file(), "Snakemake takes it relative to the profile"
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        if line.strip() and not line.lstrip().startswith("#") and not line.rstrip().endswith(":"):
            assert "#" in line or lines[number - 1].lstrip().startswith("#"), f"{path}: `{line}` is not explained"
    if name != "local":
        first_look = profile["slurm-init-seconds-before-status-checks"]
        assert profile["slurm-status-command"] == "squeue" and 3 * first_look <= 300  # Slurm's default MinJobAge
        assert 1 <= profile["local-cores"] <= 4, "many share the login node"


GROUPING = ("groups", "group-components", "set-resource-scopes", "resources")


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_profile_groups_short_jobs_where_no_partition_is_theirs_and_knows_a_nodes_cores_as_the_site_does(name):
    """All in one way: that of any cluster shows it in comments, which are read here as they are meant."""
    text = (ROOT / "profiles" / name / "config.yaml").read_text()
    if name == "slurm":
        for key in GROUPING:
            assert f"# {key}: [" in text
            text = text.replace(f"# {key}: [", f"{key}: [")
    profile, site = yaml.safe_load(text), shipped_site(name)
    if site.data_partition:
        assert not set(GROUPING) & set(profile)
        return
    assert profile["resources"] == [f"cpus_per_task={site.cores_per_node}"]
    jupiter = yaml.safe_load((ROOT / "profiles/jupiter/config.yaml").read_text())
    assert {key: profile[key] for key in GROUPING[:3]} == {key: jupiter[key] for key in GROUPING[:3]}


@pytest.mark.parametrize("name", CLUSTERS)
def test_ranks_have_their_grace_between_slurms_warning_and_the_limit(name):
    profile = yaml.safe_load((ROOT / "profiles" / name / "config.yaml").read_text())
    said = profile["default-resources"]["slurm_extra"].strip("'").split()
    assert int(said[0].removeprefix("--signal=TERM@")) > GRACE_SECONDS
    smt = shipped_site(name).threads_per_core > 1
    assert said[1:] == ["--threads-per-core=1"] * smt


def test_the_jsc_environment_can_be_sourced_twice_and_refuses_other_machines(tmp_path):
    venv = tmp_path / ".venv-jureca"
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "jsc.sh").write_text((ROOT / "envs" / "jsc.sh").read_text())
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (venv / "installed").touch()
    script = """
        module() { echo "module $*"; }
        source envs/jsc.sh; first=$PATH; source envs/jsc.sh
        [ "$first" = "$PATH" ] && echo "$VIRTUAL_ENV"
    """
    environment = {"PATH": os.environ["PATH"], "SYSTEMNAME": "jureca"}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "module --force purge", "module load Stages/2025 GCC Python", str(venv)
    ], done.stderr  # fmt: skip
    environment["SYSTEMNAME"] = "laptop"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "neither JURECA" in done.stderr and "module" not in done.stdout
