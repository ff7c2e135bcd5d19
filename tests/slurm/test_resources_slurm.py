"""The workflow refuses, before the first job if possible, what a real Slurm would refuse, and reads the cluster's description."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from workflow import Workflow

from parascale import slurm
from parascale.errors import RequirementError
from parascale.launch.preflight import preflight
from parascale.plan import limits
from parascale.settings import Config, load_site

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("qos", "refusal"), [("course", "Job violates accounting/QOS policy"), ("coarse", "Invalid qos specification")]
)
def test_what_a_qos_refuses_is_said_and_leaves_no_job(cluster, tmp_path, qos, refusal):
    """The box's QoS `course` allows no job of more than 30 minutes; a QoS `coarse` does not exist."""
    command = ["sacct", "--allocations", "--noheader", "--format=JobID", "--starttime=now-1days"]
    before = cluster.run(command).stdout
    options = ["--slurm-qos", qos, "--set-resources", "prepare:runtime=31", "--retries", "0"]
    with Workflow(cluster, tmp_path / "project", [{"run": "single"}]) as workflow:
        workflow.start("data", options=options).wait(timeout=200, succeeds=False)
    assert refusal in workflow.log and "prepare" in workflow.log, workflow.log
    assert cluster.run(command).stdout == before


def test_what_slurm_would_refuse_is_refused_before_the_first_job(cluster, monkeypatch):
    monkeypatch.setattr(slurm, "_ask", lambda command, within=0: cluster.run(command).stdout)
    site = load_site(Config(sites=str(ROOT / "config" / "sites")), "jureca")
    for wrong, message in (
        ({"account": None}, "takes no job without an account.*Yours: .*training"),
        ({"account": "trainig"}, "no account `trainig` here; did you mean `training`"),
        ({"partition": "dc-gpo"}, "no partition `dc-gpo` here; did you mean `dc-gpu`"),
        ({"reservation": "course"}, "no reservation `course`"),
    ):
        with pytest.raises(RequirementError, match=message):
            preflight(site, **{"account": "training", **wrong})
    words = "reservation=course starttime=now duration=10 users=root nodecnt=1"
    cluster.run(["scontrol", "create", *words.split()])
    try:
        preflight(site, account="training", reservation="course")
    finally:
        cluster.run(["scontrol", "delete", "reservation=course"])


def test_the_cluster_describes_itself(cluster, tmp_path):
    """`parascale site init` on the login node finds the facts that a plan and a profile need."""
    for name in ("Snakefile", "rules", "scripts", "envs"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name in ("config", "profiles"):
        shutil.copytree(ROOT / name, tmp_path / name)
    cluster.run([sys.executable, "-m", "parascale", "site", "init", "mine"], cwd=tmp_path, env=os.environ)
    found = load_site(Config(sites=str(tmp_path / "config/sites")), "mine")
    assert (found.cores_per_node, found.threads_per_core, found.gpus_per_node) == (128, 2, 4) and found.needs_account
    assert [(each.name, each.max_hours, each.max_nodes) for each in found.partitions] == [
        *(("dc-gpu", 24.0, 4), ("dc-gpu-devel", 2.0, 4), ("dc-cpu", 24.0, 4))
    ]
    assert "# ? not found out: account: <one of root, training>\n" in (tmp_path / "config/mine.yaml").read_text()
    assert "--threads-per-core=1" in (tmp_path / "profiles/mine/config.yaml").read_text()


def test_limits_are_those_that_slurm_states(cluster):
    """The box has fewer nodes than the real machine, so the plan refuses jobs that only the machine could run."""
    site = load_site(Config(sites=str(ROOT / "config" / "sites")), "jureca")
    stated = limits.partitions(
        slurm.parse_records("partition", cluster.run(["scontrol", "show", "partition", "--oneliner"]).stdout)
    )
    live = limits.with_partitions(site, stated)
    cases = [(4, 24.0, None, ""), (5, 1.0, None, "at most 4"), (1, 24.5, None, "after 24 h")]
    cases += [(1, 2.0, "dc-gpu-devel", ""), (1, 2.5, "dc-gpu-devel", "after 2 h")]
    for nodes, hours, partition, said in cases:
        found = limits.violations("job", nodes, 4, hours, live, partition)
        assert bool(found) == bool(said) and said in "".join(found), (nodes, hours, partition)
