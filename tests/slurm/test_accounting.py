"""What a job was charged, by a real accounting: whole nodes × their cores × the time from start to end, each start of a job."""

import time
from pathlib import Path

import pytest

from parascale import slurm
from parascale.plan.predict import charged_core_hours
from parascale.settings import Config, load_site

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).parents[2]
CORES = 128  # of a node of the box, as of JURECA
SHAPES = {"one node": (1, 1), "two nodes": (2, 4)}


def charged(cluster, job):
    """Core-hours as the plan's comparison takes them from `sacct`."""
    site = load_site(Config(sites=str(ROOT / "config" / "sites")), "jureca")
    found = slurm.parse_sacct(cluster.run(slurm.sacct_command([job])).stdout)[job]
    return charged_core_hours(site, found.nodes, found.seconds, found.cores)


def by_hand(cluster, job):
    """Cores × (end − start) in hours, over all starts."""
    return sum(cores * seconds / 3600 for cores, seconds in cluster.starts(f"--jobs={job}")[job])


@pytest.mark.parametrize("name", SHAPES)
def test_a_job_is_charged_whole_nodes_for_its_time(cluster, tmp_path, name):
    nodes, gpus = SHAPES[name]
    options = (f"--nodes={nodes}", f"--gres=gpu:{gpus}", f"--chdir={tmp_path}")
    job = cluster.submit(*options, "--wrap=date +%s > begin; sleep 12; date +%s > end")
    assert cluster.wait(job) == "COMPLETED"
    cluster.sacct(job)  # waits until the accounting knows the job
    expected = by_hand(cluster, job)
    assert charged(cluster, job) == pytest.approx(expected, rel=0.001)
    slept = int((tmp_path / "end").read_text()) - int((tmp_path / "begin").read_text())
    assert slept - 1 <= expected * 3600 / (nodes * CORES) <= slept + 3


def test_a_requeued_job_is_charged_for_each_start(cluster, tmp_path):
    job = cluster.submit("--requeue", f"--chdir={tmp_path}", "--wrap=date >> began; sleep 6")
    cluster.wait(job, "RUNNING")
    time.sleep(3)
    cluster.run(["scontrol", "requeue", job])
    assert cluster.wait(job, timeout=120) == "COMPLETED"
    cluster.sacct(job)
    assert len(cluster.starts(f"--jobs={job}")[job]) == 2
    assert charged(cluster, job) == pytest.approx(by_hand(cluster, job), rel=0.001)
