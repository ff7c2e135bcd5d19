"""When Slurm makes a workflow wait, it waits, says why, and leaves no job unwatched."""

import os
import shutil
import signal
import subprocess
import sys

import daemons
import pytest
from strikes import signal_all
from workflow import Workflow

from parascale import submissions
from parascale.paths import Paths

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

RUNS = ("single", "other")
# A wrapper of sbatch that interferes with the first training's submission.
SBATCH = """#!{python}
import os, pathlib, subprocess, sys, time
folder = pathlib.Path({folder!r})
first = "rule_train" in " ".join(sys.argv) and not (folder / "struck").exists()
if first:
    (folder / "struck").touch()
    while not (folder / "go").exists():
        time.sleep(0.1)
done = subprocess.run([{sbatch!r}, *sys.argv[1:]], stdout=subprocess.PIPE if first else None, text=True)
if first and done.returncode == 0:
    (folder / "taken").touch()
    time.sleep({pause})
    sys.exit("sbatch: error: Batch job submission failed: {error}")
sys.exit(done.returncode)
"""


@pytest.fixture
def workflow(cluster, tmp_path, undisturbed):
    data = undisturbed("single").root / "results/data"
    with Workflow(
        cluster, tmp_path / "project", [{"run": name, "deterministic": "true"} for name in RUNS], data=data
    ) as started:
        yield started


@pytest.fixture
def answers(tmp_path, monkeypatch):
    """A function that wraps the real sbatch: it submits the first training once the file `go` exists, then prints `error`."""

    def put(error="", pause=0):
        folder = tmp_path / "tools"
        folder.mkdir()
        text = SBATCH.format(
            python=sys.executable, folder=str(folder), sbatch=shutil.which("sbatch"), error=error, pause=pause
        )
        (folder / "sbatch").write_text(text)
        (folder / "sbatch").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        return folder

    return put


def submitted(workflow):
    """Ids of the recorded jobs."""
    return [line["job_id"] for line in submissions.noted(Paths(workflow.root).store)]


def test_a_job_that_would_reach_into_a_maintenance_waits_and_the_workflow_says_so(cluster, workflow):
    target = workflow.run("single").target
    words = "reservation=upkeep starttime=now+3minutes duration=30 users=root flags=maint,ignore_jobs nodes=ALL"
    cluster.run(["scontrol", "create", *words.split()])
    try:
        workflow.start(target, options=["--set-resources", "train_single:runtime=30"])
        workflow.when(lambda: "for maintenance (its time limit reaches into" in workflow.log, "why it waits")
        (job,) = submitted(workflow)
        assert cluster.state(job) == "PENDING"
        assert workflow.log.count(f"Slurm job {job} of train_single waits: ReqNodeNotAvail") == 1
    finally:
        cluster.run(["scontrol", "delete", "reservation=upkeep"])
    workflow.wait(timeout=300)
    assert target.exists() and submitted(workflow) == [job]


def test_a_submission_that_fails_after_slurm_has_taken_it_is_watched(cluster, workflow, answers):
    """Despite sbatch's error, the job is not submitted twice, and is charged."""
    (answers("Unexpected message received") / "go").touch()
    workflow.start(workflow.run("single").target, options=["--retries", "0"]).wait(timeout=300)
    assert "is taken up" in workflow.log and len(submitted(workflow)) == 1
    assert [attempt["job_id"] for attempt in workflow.run("single").attempts()] == submitted(workflow)
    workflow.assert_all_is_charged()


def test_a_controller_that_is_away_while_a_job_is_submitted_spends_no_retry(cluster, workflow, answers):
    folder, login = answers(), cluster.login
    workflow.start(workflow.run("single").target, options=["--retries", "0"])
    workflow.when((folder / "struck").exists, "the submission")
    controllers = [(login, number) for number, line in login.processes().items() if line.startswith("slurmctld")]
    signal_all(controllers, signal.SIGKILL)
    try:
        (folder / "go").touch()
        workflow.when(lambda: "is submitted when Slurm takes it" in workflow.log, "the workflow waits")
    finally:
        daemons.start(login, cluster.directory, ["slurmctld", "-D"])
    workflow.wait(timeout=300)
    assert len(submitted(workflow)) == 1 and "Unable to contact slurm controller" in workflow.log
    workflow.assert_all_is_charged()


def test_a_job_of_which_nobody_has_written_is_taken_up(cluster, workflow, answers):
    """Snakemake is killed after Slurm has accepted the job, before it gets the job's id."""
    folder, target = answers(pause=30), workflow.run("single").target
    (folder / "go").touch()
    workflow.start(target)
    workflow.when((folder / "taken").exists, "Slurm has taken the job")
    workflow.kill()
    assert not submitted(workflow)
    workflow.start(target).wait(timeout=300)
    assert "is taken up" in workflow.log and len(submitted(workflow)) == 1
    assert [attempt["job_id"] for attempt in workflow.run("single").attempts()] == submitted(workflow)
    workflow.assert_all_is_charged()


def test_a_node_that_lacks_the_projects_folder_gets_no_other_job(cluster, workflow):
    """Only the node's own log shows this; a retry on the same node would fail again."""
    node = next(iter(cluster.nodes))

    def on_node(*command):
        subprocess.run(cluster.on_node(node, [*command, str(workflow.folder)], cwd="/"), check=True)

    on_node("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs")
    try:
        workflow.start(workflow.run("single").target, options=["--retries", "1"]).wait(timeout=300)
    finally:
        on_node("umount")
    assert f"node {node} has no {workflow.folder}" in workflow.log and len(submitted(workflow)) == 2
    workflow.assert_all_is_charged()


def test_a_submit_limit_that_is_reached_spends_no_retry(cluster, workflow):
    def limit(jobs):
        cluster.run(["sacctmgr", "-i", "modify", "user", "where", "name=root", "set", f"MaxSubmitJobs={jobs}"])

    limit(1)
    try:
        workflow.start(*(workflow.run(name).target for name in RUNS), options=["--retries", "0"])
        workflow.when(lambda: "AssocMaxSubmitJobLimit: " in workflow.log, "the workflow waits")
    finally:
        limit(-1)
    workflow.wait(timeout=300)
    assert workflow.log.count("AssocMaxSubmitJobLimit: ") == 1 and len(submitted(workflow)) == len(RUNS)
    workflow.assert_all_is_charged()
