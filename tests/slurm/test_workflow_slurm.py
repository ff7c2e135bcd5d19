"""The shipped JURECA profile on a real Slurm: every rule, the right resources, and the numbers of one machine."""

import csv
import subprocess

import pytest
from workflow import Workflow, assert_same_numbers

from parascale.files import read_json

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(3600)]

# The default matrix, with a run on two nodes in it.
MATRIX = [
    {"run": "single"},
    {"run": "ddp", "gpus_per_node": 2, "dp": 2},
    {"run": "ddp-two-nodes", "nodes": 2, "dp": 2},
    {"run": "fsdp", "gpus_per_node": 2, "fsdp": 2},
    {"run": "tp", "gpus_per_node": 2, "tp": 2},
    {"run": "pp", "gpus_per_node": 2, "pp": 2, "micro_batches": 4, "schedule": "1F1B"},
]
# What each job must get: rule, nodes, tasks of its step, GPUs in all. A node has 128 cores.
GRANTED = {
    "single": ("single", 1, 1, 1),
    "ddp": ("ddp", 1, 1, 2),
    "ddp-two-nodes": ("multi_node", 2, 2, 2),
    "fsdp": ("fsdp", 1, 1, 2),
    "tp": ("tp", 1, 1, 2),
    "pp": ("pp", 1, 1, 2),
}


@pytest.mark.slow
def test_every_rule_of_the_default_matrix(cluster, tmp_path):
    """From data to report, each job on what its layout needs, and each training with the numbers it has without Slurm."""
    rows = [{**row, "baseline": "single", "deterministic": "true"} for row in MATRIX]
    with Workflow(cluster, tmp_path / "project", rows) as workflow:
        workflow.start("all").wait(timeout=1200)
        for row in rows:
            granted(cluster, workflow, row["run"])
            verdict = read_json(workflow.root / "results/parity" / row["run"] / "verdict.json")["verdict"]
            assert verdict == ("baseline" if row["run"] == "single" else "same")
        assert (workflow.root / "results/report/index.html").exists()
        assert left_in_memory(cluster) == []

        here = workflow.beside(tmp_path / "here")
        here.start(*(here.run(row["run"]).target for row in rows), profile="local").wait(timeout=1200)
        for row in rows:
            assert_same_numbers(workflow.run(row["run"]), here.run(row["run"]))


def granted(cluster, workflow, name):
    """Check what the accounting says of a run's only job."""
    rule, nodes, tasks, gpus = GRANTED[name]
    (job,) = workflow.jobs(f"train_{rule}")
    whole, step = cluster.sacct(job), cluster.sacct(job, step="0")
    assert (whole["Partition"], whole["Account"], whole["AllocNodes"]) == ("dc-gpu", "training", str(nodes)), name
    asked = dict(pair.split("=") for pair in whole["ReqTRES"].split(","))
    assert (asked["cpu"], asked["gres/gpu"]) == (str(128 * nodes), str(gpus)), name
    assert (step["NTasks"], step["AllocNodes"]) == (str(tasks), str(nodes)), name
    hosts = [host for attempt in workflow.run(name).attempts() for host in attempt["hosts"]]
    assert len(set(hosts)) == nodes and all(host.startswith("jrc") for host in hosts), name


IMAGES = {
    "task": "classification",
    "data": {"dataset": "drawn", "images": {"train": 40, "validation": 10, "test": 10, "size": 16}},
    "training": {"steps": 1},
}


@pytest.mark.slow
def test_formats_and_loaders(cluster, tmp_path):
    """Images and text are converted, proven and measured by jobs of one node without GPUs, charged as all others."""
    with Workflow(cluster, tmp_path / "project", [{"run": "single"}], measured={"drawn": IMAGES}) as workflow:
        workflow.start("formats", "loaders").wait(timeout=900)
        for dataset, formats in (("drawn", {"hdf5"}), ("prose", {"flat", "arrow"})):
            with open(workflow.root / f"results/loaders/{dataset}.csv", newline="") as file:
                rows = list(csv.DictReader(file))
            assert {row["format"] for row in rows} == formats
            assert all(float(row["samples_per_second"]) > 0 for row in rows)
        proofs = [workflow.root / "results/data" / name / "verify.json" for name in ("drawn/hdf5", "prose/arrow")]
        assert all(read_json(proof)["identical"] for proof in proofs)
        for rule in ("index_images", "convert_shard", "convert_tokens", "verify_format", "benchmark_loaders"):
            for job in workflow.jobs(rule):
                whole = cluster.sacct(job)
                assert (whole["Partition"], whole["Account"], whole["AllocNodes"]) == ("dc-gpu", "training", "1"), rule
                assert "gpu" not in whole["ReqTRES"], rule
        assert len(workflow.jobs("verify_format")) == len(workflow.jobs("benchmark_loaders")) == 2


def left_in_memory(cluster):
    """What trainings left in the nodes' /dev/shm."""
    commands = (cluster.on_node(name, ["ls", "-A", "/dev/shm"], cwd="/") for name in cluster.nodes)
    listings = (subprocess.run(command, check=True, capture_output=True, text=True).stdout for command in commands)
    return [entry for listing in listings for entry in listing.split() if "parascale" in entry]


@pytest.mark.slow
def test_two_workflows_of_one_checkout_do_not_collide(cluster, tmp_path):
    """The same runs at the same time, two nodes each: ports, files and job names are told apart."""
    rows = [{"run": "ddp", "nodes": 2, "dp": 2, "deterministic": "true"}]
    one = Workflow(cluster, tmp_path / "project", rows, pause=10.0, root=tmp_path / "one")
    two = one.beside(tmp_path / "two")
    with one, two:
        for workflow in (one, two):
            workflow.start(workflow.run("ddp").target)
        for workflow in (one, two):
            workflow.when(workflow.run("ddp").checkpoints, "a checkpoint", timeout=600)
        one.full_speed()  # both are at it now, and the checkout's brake is that of both
        names = {cluster.sacct(job)["JobName"] for workflow in (one, two) for job in workflow.jobs("train")}
        for workflow in (one, two):
            workflow.wait(timeout=600)
    assert len(names) == 2
    attempts = [workflow.run("ddp").attempts() for workflow in (one, two)]
    assert [[attempt["outcome"] for attempt in each] for each in attempts] == [["finished"], ["finished"]]
    assert len({attempt["job_id"] for each in attempts for attempt in each}) == 2
    assert_same_numbers(one.run("ddp"), two.run("ddp"))
