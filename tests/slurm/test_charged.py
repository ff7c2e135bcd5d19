"""No job is charged unnoticed: the workflow finds jobs that still run after their training has ended, and keeps published results."""

import pytest
from strikes import kill_daemons
from workflow import Workflow, assert_same_numbers

from parascale import submissions
from parascale.paths import Paths

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

ROWS = [{"run": name, "deterministic": "true", "baseline": name} for name in ("single", "other")]


@pytest.fixture
def workflow(cluster, tmp_path, undisturbed):
    data = undisturbed("single").root / "results/data"
    with Workflow(cluster, tmp_path / "project", ROWS, pause=5.0, data=data) as started:
        yield started


@pytest.fixture
def published(workflow):
    """A function that starts the training, and returns (run, job) when it is published and its process hangs at exit."""

    def start(**choices):
        run = workflow.run("single")
        workflow.lingers("single").touch()
        workflow.full_speed()
        workflow.start(run.target, **choices)
        workflow.when(run.target.exists, "the training is published")
        return run, trained_by(workflow)[0]

    return start


def trained_by(workflow):
    """Ids of the jobs submitted for the run."""
    return [line["job_id"] for line in submissions.noted(Paths(workflow.root).store) if line["run"] == "single"]


def assert_paid_for_once(workflow, run, job, undisturbed):
    assert trained_by(workflow) == [job] and len(run.attempts()) == 1
    assert_same_numbers(run, undisturbed("single"))
    workflow.assert_all_is_charged()


def test_a_warning_after_publishing_fails_nothing(cluster, workflow, published, undisturbed):
    """SIGTERM also reaches Snakemake's own process in the job, which would count the job as failed and delete the result."""
    run, job = published()
    shown = run.target.stat().st_ino
    cluster.run(["scancel", "--signal=TERM", job])
    workflow.lingers("single").unlink()
    workflow.wait(timeout=300)
    assert (cluster.state(job), run.target.stat().st_ino) == ("COMPLETED", shown)
    assert_paid_for_once(workflow, run, job, undisturbed)


def test_a_job_that_is_cancelled_after_publishing_has_done_its_work(cluster, workflow, published, undisturbed):
    run, job = published(options=["--retries", "0"])
    cluster.run(["scancel", job])
    workflow.wait(timeout=300)
    assert cluster.state(job) == "CANCELLED"
    assert_paid_for_once(workflow, run, job, undisturbed)


@pytest.mark.parametrize("hangs", [True, False])
def test_a_job_that_runs_on_after_its_training_has_ended_is_cancelled_and_said(
    hangs, cluster, workflow, published, undisturbed
):
    """Either only the training's process hangs at exit, or Slurm does not learn of the end, because the step's `slurmstepd` was killed."""
    run, job = published(options=["--retries", "0"], settings=["timeout_seconds=20"])
    node = cluster.sacct(job)["NodeList"]
    if hangs:
        workflow.when(lambda: "has hung at exit for 20 s" in workflow.story(), "it is cut off", timeout=120)
    else:
        kill_daemons(cluster, node, f"{job}.0")
        workflow.lingers("single").unlink()
        workflow.when(
            lambda: "after its training was published: cancelled" in workflow.log, "it is cancelled", timeout=300
        )
    workflow.wait(timeout=300)
    assert_paid_for_once(workflow, run, job, undisturbed)


def test_a_job_that_runs_on_after_publishing_is_ended_by_a_start_that_needs_another(
    cluster, workflow, published, undisturbed
):
    """Snakemake was killed, too. Its next start finds the results, and would end while Slurm reports the job as running."""
    run, job = published()
    kill_daemons(cluster, cluster.sacct(job)["NodeList"], f"{job}.0")
    workflow.lingers("single").unlink()
    workflow.kill()

    def lives(words):
        return [line for line in cluster.job_processes(job).values() if words in line and line.startswith("/")]

    steps = "-m parascale", "--mode subprocess", "--mode 1"
    workflow.until(lambda: not any(map(lives, steps)), "the step has ended", timeout=120)
    workflow.start(run.target, workflow.run("other").target, settings=["timeout_seconds=20"])
    workflow.wait(timeout=400)
    assert f"job {job} of train_single has published its training" in workflow.log
    assert cluster.state(job) == "CANCELLED"
    assert_paid_for_once(workflow, run, job, undisturbed)
