"""A workflow that died is taken up: the jobs that it left are watched, none is submitted twice, and all that is charged is known."""

import re
from contextlib import contextmanager

import pytest
from workflow import Workflow

from parascale import submissions
from parascale.settings.paths import Paths

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]

ROWS = [{"run": name, "deterministic": "true", "baseline": name} for name in ("single", "other")]


@pytest.fixture
def workflow(cluster, tmp_path):
    with Workflow(cluster, tmp_path / "project", ROWS, pause=5.0) as started:
        yield started


def submitted(workflow, run):
    """Ids of the jobs that were submitted for a run, by whatever start of the workflow."""
    return [line["job_id"] for line in submissions.noted(Paths(workflow.root).store) if line["run"] == run]


def begun_and_killed(workflow):
    """Start a workflow, and kill Snakemake when the first training has a checkpoint. Returns that run."""
    run = workflow.run("single")
    workflow.start(run.target)
    workflow.when(run.checkpoints, "a checkpoint")
    workflow.kill()
    return run


def ended(cluster, workflow):
    """Check that what was written down are the jobs that Slurm charges."""
    lines = submissions.noted(Paths(workflow.root).store)
    name = cluster.sacct(lines[-1]["job_id"])["JobName"]
    command = ["sacct", "--allocations", "--noheader", "--parsable2", f"--name={name}", "--format=JobIDRaw"]
    assert {line["job_id"] for line in lines} == set(cluster.run(command).stdout.split())


@contextmanager
def drained(cluster, nodes):
    """These nodes take no jobs, until the function that this gives has been called."""

    def change(*words):
        for node in nodes:
            cluster.run(["scontrol", "update", f"nodename={node}", *words])

    def resume():
        change("state=resume")
        nodes.clear()

    change("state=drain", "reason=test")
    try:
        yield resume
    finally:
        resume()


@pytest.fixture
def one_node(cluster):
    """Only the first node takes jobs, until the function that this is has been called."""
    with drained(cluster, list(cluster.nodes)[1:]) as resume:
        yield resume


def test_jobs_that_wait_or_run_are_taken_up_after_kill_9(cluster, workflow, one_node, tmp_path):
    """One runs and one is pending; after a new start without `--unlock` each training is paid for once.

    Meanwhile others are refused: one on the same root, and one on another root whose end must not take the pending job's log.
    """
    single, other = begun_and_killed(workflow), workflow.run("other")
    workflow.start(single.target, other.target)
    workflow.when(lambda: submitted(workflow, "other"), "the other is submitted")
    (pending,) = submitted(workflow, "other")
    assert cluster.state(pending) == "PENDING"
    for root, options, said in (
        (workflow.root, [], r"is being written by process \d+ on jrlogin01, of \w+ since .* workflow on the same root"),
        (tmp_path / "mistyped", ["--slurm-reservation", "cuorse"], r"there is no reservation `cuorse`"),
    ):
        refused = workflow.beside(root)
        refused.start(refused.run("single").target, options=options)
        assert refused.process.wait(timeout=120) != 0 and re.search(said, refused.log), refused.log
    workflow.kill()
    workflow.start(single.target, other.target)
    workflow.when(lambda: workflow.log.count("is taken up") == 3, "both are taken up")
    workflow.full_speed()  # not before: the first training must still run when Snakemake has started, however long that takes
    one_node()
    workflow.wait(timeout=300)
    assert [len(submitted(workflow, run)) for run in ("single", "other")] == [1, 1]
    assert [len(run.attempts()) for run in (single, other)] == [1, 1]
    ended(cluster, workflow)


@pytest.mark.slow
def test_a_job_with_other_settings_ends_before_the_new_one_is_submitted(cluster, workflow):
    """Two never write the same work. The one with the old settings may be stopped, and its state is kept."""
    run = begun_and_killed(workflow)
    (first,) = submitted(workflow, "single")
    path = workflow.folder / "box/workloads/tiny.yaml"
    path.write_text(path.read_text().replace("lr: 0.002", "lr: 0.001"))
    workflow.start(run.target)
    workflow.when(lambda: f"scancel --signal=TERM {first}" in workflow.log, "who is at work is told")
    assert submitted(workflow, "single") == [first]
    cluster.run(["scancel", "--signal=TERM", first])
    workflow.full_speed()
    workflow.wait(timeout=300)
    assert len(submitted(workflow, "single")) == 2
    assert [attempt["first_step"] for attempt in run.attempts()] == [1]
    ended(cluster, workflow)


@pytest.mark.slow
def test_a_job_that_ends_while_no_workflow_lives_is_paid_for_once(cluster, workflow):
    """Snakemake does not know that its result is whole: what it submits anew publishes the finished training."""
    run = begun_and_killed(workflow)
    workflow.full_speed()
    (first,) = submitted(workflow, "single")
    workflow.until(lambda: cluster.state(first) == "COMPLETED", "the job has ended", timeout=200)
    workflow.start(run.target)
    workflow.wait(timeout=300)
    assert [attempt["job_id"] for attempt in run.attempts()] == [first]
    ended(cluster, workflow)


@pytest.mark.slow
def test_a_pending_job_that_prepares_data_is_taken_up(cluster, workflow):
    """Not only trainings: the second job would delete what the first has written, and both would be charged."""
    run = workflow.run("single")
    workflow.full_speed()
    with drained(cluster, list(cluster.nodes)) as resume:
        workflow.start(run.target)
        workflow.when(workflow.jobs, "the job that prepares data is submitted")
        workflow.kill()
        workflow.start(run.target)
        workflow.when(lambda: "is taken up" in workflow.log, "it is taken up")
        resume()
        workflow.wait(timeout=300)
    rules = [line["rule"] for line in submissions.noted(Paths(workflow.root).store)]
    assert rules == ["prepare", "train_single"]
    ended(cluster, workflow)


@pytest.mark.slow
def test_a_job_whose_settings_were_edited_while_it_waited_trains_nothing(cluster, workflow, one_node):
    """It was submitted, and is written down, for what it would not train. It ends at once, and is not tried again."""
    single, other = begun_and_killed(workflow), workflow.run("other")
    workflow.start(single.target, other.target)
    workflow.when(lambda: submitted(workflow, "other"), "the other is submitted")
    path = workflow.folder / "box/workloads/tiny.yaml"
    path.write_text(path.read_text().replace("lr: 0.002", "lr: 0.001"))
    workflow.full_speed()
    workflow.wait(timeout=300, succeeds=False)
    assert single.target.exists() and not other.work.exists() and len(submitted(workflow, "other")) == 1
    said = (workflow.root / "logs/train/other.log").read_text()
    assert "its configuration or the code was changed after Slurm job" in said, said
    ended(cluster, workflow)
