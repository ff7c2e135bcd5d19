"""A restarted workflow watches the jobs of an earlier start, submits none twice, and knows all charges."""

import re
import shutil
from contextlib import contextmanager

import pytest
from workflow import Workflow, assert_resumed_without_loss, assert_same_numbers

from parascale import submissions
from parascale.paths import Paths

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

HELD = r"is being written by process \d+ on jrlogin01, of \w+ since .* workflow on the same root"
PAUSE = 15.0  # seconds per step, so that a training lasts until it is struck
ROWS = [{"run": name, "deterministic": "true", "baseline": name} for name in ("single", "other")]


@pytest.fixture
def workflow(cluster, tmp_path, undisturbed):
    data = undisturbed("single").root / "results/data"
    with Workflow(cluster, tmp_path / "project", ROWS, PAUSE, data=data) as started:
        yield started


def submitted(workflow, run):
    """Ids of the jobs submitted for a run, by any start of the workflow."""
    return [line["job_id"] for line in submissions.noted(Paths(workflow.root).store) if line["run"] == run]


def begun_and_killed(workflow):
    """Start a workflow, and kill Snakemake when the first training has a checkpoint. Returns the run."""
    run = workflow.run("single")
    workflow.start(run.target)
    workflow.when(run.checkpoints, "a checkpoint")
    workflow.kill()
    return run


@contextmanager
def drained(cluster, nodes):
    """Drain nodes until the yielded function is called."""

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
    """A function; until it is called, only the first node accepts jobs."""
    with drained(cluster, list(cluster.nodes)[1:]) as resume:
        yield resume


def test_jobs_that_wait_or_run_are_taken_up_after_kill_9(cluster, workflow, one_node, undisturbed, tmp_path):
    """One job runs and one is pending; after a new start without `--unlock` each training is paid for once.

    Meanwhile two workflows are refused: one on the same root, and one on another root, which must not delete the pending job's log.
    """
    single, other = begun_and_killed(workflow), workflow.run("other")
    workflow.start(single.target, other.target)
    workflow.when(lambda: submitted(workflow, "other"), "the other is submitted")
    (pending,) = submitted(workflow, "other")
    assert cluster.state(pending) == "PENDING"
    for root, account, said in (
        (workflow.root, None, HELD),
        (tmp_path / "mistyped", "trainign", r"you have no account `trainign` here"),
    ):
        refused = workflow.beside(root)
        refused.start(refused.run("single").target, account=account)
        assert refused.process.wait(timeout=120) != 0 and re.search(said, refused.log), refused.log
    workflow.kill()
    workflow.start(single.target, other.target)
    workflow.when(lambda: workflow.log.count("is taken up") == 3, "both are taken up")
    workflow.full_speed()  # only now, so that the first training still runs when Snakemake has started
    one_node()
    workflow.wait(timeout=300)
    assert [len(submitted(workflow, run)) for run in ("single", "other")] == [1, 1]
    assert [len(run.attempts()) for run in (single, other)] == [1, 1]
    for run in (single, other):  # of one recipe
        assert_same_numbers(run, undisturbed("single"))
    workflow.assert_all_is_charged()


def test_a_job_with_other_settings_ends_before_the_new_one_is_submitted(cluster, workflow):
    """Two jobs never write the same work folder. The job with old settings may be stopped, and its state is kept."""
    run = begun_and_killed(workflow)
    (first,) = submitted(workflow, "single")
    path = workflow.folder / "box/workloads/tiny.yaml"
    path.write_text(path.read_text().replace("lr: 0.002", "lr: 0.001"))
    workflow.start(run.target)
    workflow.when(lambda: f"scancel --signal=TERM {first}" in workflow.log, "the log names the job at work")
    assert submitted(workflow, "single") == [first]
    cluster.run(["scancel", "--signal=TERM", first])
    workflow.full_speed()
    workflow.wait(timeout=300)
    assert len(submitted(workflow, "single")) == 2
    assert [attempt["first_step"] for attempt in run.attempts()] == [1]
    workflow.assert_all_is_charged()


def test_a_job_that_ends_while_no_workflow_lives_is_paid_for_once(cluster, workflow, undisturbed):
    """Snakemake does not know that the result is complete; the new job publishes the finished training."""
    run = begun_and_killed(workflow)
    workflow.full_speed()
    (first,) = submitted(workflow, "single")
    workflow.until(lambda: cluster.state(first) == "COMPLETED", "the job has ended", timeout=200)
    workflow.start(run.target)
    workflow.wait(timeout=300)
    assert [attempt["job_id"] for attempt in run.attempts()] == [first]
    assert_same_numbers(run, undisturbed("single"))
    workflow.assert_all_is_charged()


def test_jobs_without_a_record_are_charged_and_lose_nothing(cluster, workflow, undisturbed):
    """The first job dies before its record begins, the record of the second is deleted; the third continues from its checkpoint."""
    run = workflow.run("single")
    workflow.start(run.target, options=["--retries", "2"])
    workflow.when(lambda: submitted(workflow, "single"), "the first job")
    cluster.wait(submitted(workflow, "single")[0], "RUNNING")
    cluster.run(["scancel", submitted(workflow, "single")[0]])
    assert not run.work.exists()
    workflow.when(run.checkpoints, "a checkpoint of the second job")
    cluster.run(["scancel", submitted(workflow, "single")[1]])
    cluster.wait(submitted(workflow, "single")[1])
    for name in ("run.json", "attempts.jsonl"):
        (run.work / name).unlink()
    workflow.full_speed()
    workflow.wait(timeout=300)
    assert len(submitted(workflow, "single")) == 3 and run.attempts()[-1]["first_step"] > 1
    assert_same_numbers(run, undisturbed("single"))
    workflow.assert_all_is_charged()


@pytest.mark.parametrize(("mode", "grace", "jobs"), [("CANCEL", 60, 2), ("REQUEUE", 0, 1)])
def test_a_preempted_training_goes_on_without_a_retry(mode, grace, jobs, cluster, workflow, undisturbed):
    """Slurm either lets the preempted job save its state, or kills and requeues it."""
    run = workflow.run("single")
    workflow.start(run.target, options=["--retries", "0"])
    workflow.when(run.checkpoints, "a checkpoint")
    partitions = {"dc-gpu": [f"PreemptMode={mode}", f"GraceTime={grace}"], "dc-gpu-devel": ["PriorityTier=10"]}
    for name, words in partitions.items():
        cluster.run(["scontrol", "update", f"PartitionName={name}", *words])
    try:
        nodes = len(cluster.nodes)
        urgent = cluster.submit(
            "--partition=dc-gpu-devel", f"--nodes={nodes}", "--time=5", "--wrap=sleep 5", cwd="/tmp"
        )
        workflow.until(lambda: cluster.state(urgent) == "COMPLETED", "the urgent job has ended", timeout=200)
        workflow.full_speed()
        workflow.wait(timeout=300)
    finally:
        cluster.run(["scontrol", "update", "PartitionName=dc-gpu-devel", "PriorityTier=1"])
    assert len(submitted(workflow, "single")) == jobs
    assert_resumed_without_loss(run, undisturbed("single"))
    if grace:
        stopped = run.attempts()[0]
        assert stopped["outcome"] == "stopped" and run.attempts()[1]["first_step"] == stopped["last_step"] + 1
    workflow.assert_all_is_charged()


def test_two_checkouts_of_one_root_train_once(cluster, workflow, undisturbed, tmp_path):
    """The second gets an error with the holder of the root; when the first has died, it continues with the first's job. Changes in
    the second do not lose results of the first."""
    run, second = begun_and_killed(workflow), Workflow(cluster, tmp_path / "second", ROWS, PAUSE, root=workflow.root)
    workflow.start(run.target)
    workflow.when(lambda: "is taken up" in workflow.log, "the first works again")
    with second:
        second.start(run.target)
        assert second.process.wait(timeout=120) != 0 and re.search(HELD, second.log), second.log
        workflow.kill()
        second.start(run.target)
        second.when(lambda: second.log.count("is taken up") == 2, "the second has taken the job up")
        for each in (workflow, second):
            each.full_speed()
        second.wait(timeout=300)
        assert_same_numbers(run, undisturbed("single"))
        path = second.folder / "box/workloads/tiny.yaml"
        path.write_text(path.read_text().replace("lr: 0.002", "lr: 0.001"))
        second.start(run.target).wait(timeout=300)
        assert [line["loss"] for line in run.steps()] != [line["loss"] for line in undisturbed("single").steps()]
    # Snakemake records in each checkout what is up to date: the first does not know that results now show another training.
    workflow.start(run.target, options=["--forcerun", "train_single"]).wait(timeout=300)
    assert_same_numbers(run, undisturbed("single"))
    jobs = submitted(workflow, "single")
    assert len(jobs) == 3 and [attempt["job_id"] for attempt in run.attempts()] == jobs[:1]
    workflow.assert_all_is_charged()


def test_a_pending_job_that_prepares_data_is_taken_up(cluster, workflow):
    """Else a second job would delete the first one's output, and both would be charged."""
    run = workflow.run("single")
    shutil.rmtree(workflow.root / "results/data")
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
    workflow.assert_all_is_charged()


def test_a_job_whose_settings_were_edited_while_it_waited_trains_nothing(cluster, workflow, one_node):
    """It was submitted and recorded with other settings than it would train. It ends at once, without a retry."""
    single, other = begun_and_killed(workflow), workflow.run("other")
    workflow.start(single.target, other.target)
    workflow.when(lambda: submitted(workflow, "other"), "the other is submitted")
    path = workflow.folder / "box/workloads/tiny.yaml"
    path.write_text(path.read_text().replace("lr: 0.002", "lr: 0.001"))
    workflow.full_speed()
    workflow.wait(timeout=300, succeeds=False)
    assert single.target.exists() and not other.work.exists() and len(submitted(workflow, "other")) == 1
    said = (workflow.root / "logs/train/other.log").read_text()
    assert "changed after Slurm job" in said, said
    workflow.assert_all_is_charged()
