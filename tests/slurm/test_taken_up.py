"""A workflow that died is taken up: the jobs that it left are watched, none is submitted twice, and all that is charged is known."""

import pytest
from workflow import Workflow

from parascale import submissions
from parascale.settings.paths import Paths

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]

ROWS = [{"run": name, "deterministic": "true", "baseline": name} for name in ("single", "other")]


@pytest.fixture
def workflow(cluster, tmp_path):
    with Workflow(cluster, tmp_path / "project", ROWS, pause=2.0) as started:
        yield started


def submitted(workflow, run):
    """Ids of the jobs that were submitted for a run, by whatever start of the workflow."""
    return [line["job_id"] for line in submissions.noted(Paths(workflow.root).store) if line["run"] == run]


def test_jobs_that_wait_or_run_are_taken_up_after_kill_9(cluster, workflow):
    """One runs and one is pending; after a new start without `--unlock` each training is paid for once."""
    single, other = workflow.run("single"), workflow.run("other")
    workflow.start(single.target)
    workflow.when(single.checkpoints, "a checkpoint")
    for node in list(cluster.nodes)[1:]:
        cluster.run(["scontrol", "update", f"nodename={node}", "state=drain", "reason=test"])
    try:
        workflow.kill()
        workflow.start(single.target, other.target)
        workflow.when(lambda: submitted(workflow, "other"), "the other is submitted")
        (pending,) = submitted(workflow, "other")
        assert cluster.state(pending) == "PENDING"
        workflow.kill()
        workflow.full_speed()
        workflow.start(single.target, other.target)
        workflow.when(lambda: workflow.log.count("is taken up") == 3, "both are taken up")
    finally:
        for node in list(cluster.nodes)[1:]:
            cluster.run(["scontrol", "update", f"nodename={node}", "state=resume"])
    workflow.wait(timeout=300)
    assert [len(submitted(workflow, run)) for run in ("single", "other")] == [1, 1]
    assert [len(run.attempts()) for run in (single, other)] == [1, 1]
    assert "--unlock" not in workflow.log
    every = {line["job_id"] for line in submissions.noted(Paths(workflow.root).store)}
    everything = cluster.run(
        ["sacct", "--allocations", "--noheader", "--parsable2", "--format=JobIDRaw,JobName"]
    ).stdout
    name = cluster.sacct(pending)["JobName"]
    assert every == {line.split("|")[0] for line in everything.splitlines() if line.split("|")[1] == name}
