"""Jobs that die lose nothing: each fault strikes a real training in a real Slurm job after a verified checkpoint.

Each run ends with the same weights as an undisturbed one, bit for bit (fp32, deterministic, same layout).
"""

import os
import shutil
import signal
import time
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from schedule import rows, struck
from workflow import Workflow, assert_resumed_without_loss, assert_same_numbers
from workloads import STEPS

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(3000)]

RUNS = ("single", "nodes", "fsdp")
PAUSE = 2.0  # seconds per step until the fault has struck, so that it strikes before the end


@pytest.fixture
def disturbed(cluster, tmp_path, undisturbed):
    """A function that starts a run with a pause in each step, and returns workflow and run once it has checkpoints."""
    with ExitStack() as started:

        def start(name, pause=PAUSE, checkpoints=1, root=None, **choices):
            data = undisturbed(name).root / "results/data"
            workflow = started.enter_context(Workflow(cluster, tmp_path / "project", rows(RUNS), pause, data, root))
            run = workflow.run(name)
            workflow.start(run.target, **choices)
            workflow.when(lambda: len(run.checkpoints()) >= checkpoints, f"{checkpoints} checkpoints")
            return workflow, run

        yield start


def ranks(cluster, job):
    """(node, outer pid) of every training process of a job."""
    return [
        (name, number)
        for name, node in cluster.nodes.items()
        for number, line in node.processes(f"SLURM_JOB_ID={job}").items()
        if "-m parascale train" in line and line.startswith("/")
    ]


def test_sigterm_saves_and_the_next_job_continues(cluster, disturbed, undisturbed):
    """Slurm sends SIGTERM before a time limit, at a preemption, and for `scancel --signal=TERM`. It does not use a retry."""
    workflow, run = disturbed("nodes", options=["--retries", "0"])
    cluster.run(["scancel", "--signal=TERM", workflow.jobs()[0]])
    saved = run.checkpoints()[-1]
    workflow.when(lambda: run.begun() == 2 and run.checkpoints()[-1] > saved, "a checkpoint of the second attempt")
    cluster.run(["scancel", "--signal=TERM", workflow.jobs()[1]])
    workflow.full_speed()
    workflow.wait(timeout=600)
    assert_resumed_without_loss(run, undisturbed("nodes"))
    assert [attempt["outcome"] for attempt in run.attempts()] == ["stopped", "stopped", "finished"]


def test_kill_9_of_a_rank(cluster, disturbed, undisturbed):
    workflow, run = disturbed("fsdp")
    victims = ranks(cluster, workflow.jobs()[0])
    assert len(victims) == 2, victims
    os.kill(victims[1][1], signal.SIGKILL)
    workflow.full_speed()
    workflow.wait(timeout=600)
    assert_resumed_without_loss(run, undisturbed("fsdp"))


def test_the_time_limit_is_hit(cluster, disturbed, undisturbed):
    """Slurm's signal, which the profile requests two minutes before the time limit, reaches a running training."""
    # Slurm checks once a minute, so the signal may come up to a minute early: 60 to 120 s after the start.
    options = ["--set-resources", "train_single:runtime=4"]
    workflow, run = disturbed("single", pause=180 / STEPS, options=options)
    workflow.when(lambda: len(workflow.jobs()) == 2, "the retry", timeout=600)
    workflow.full_speed()
    workflow.wait(timeout=600)
    assert_resumed_without_loss(run, undisturbed("single"))
    assert run.attempts()[0]["outcome"] == "stopped"
    assert cluster.sacct(workflow.jobs()[0])["TimelimitRaw"] == "4"


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(cluster, disturbed, undisturbed):
    workflow, run = disturbed("fsdp", checkpoints=2)
    processes = [number for _, number in ranks(cluster, workflow.jobs()[0])]
    for number in processes:
        os.kill(number, signal.SIGSTOP)  # so that no newer checkpoint appears
    before, newest = run.checkpoints()[-2:]
    shard = max(newest.glob("*.distcp"), key=lambda path: path.stat().st_size)
    os.truncate(shard, shard.stat().st_size // 2)
    for number in processes:
        os.kill(number, signal.SIGKILL)
    workflow.full_speed()
    workflow.wait(timeout=600)
    assert_resumed_without_loss(run, undisturbed("fsdp"))
    assert run.attempts()[1]["first_step"] == int(before.name[5:]) + 1
    assert f"{shard.name} is damaged" in workflow.story()


def test_a_suspended_job_goes_on(cluster, disturbed, undisturbed):
    """No timeout counts while all its processes are suspended."""
    workflow, run = disturbed("nodes", options=["--retries", "0"], settings=["timeout_seconds=15"])
    for command, seconds in (("suspend", 35), ("resume", 0)):
        cluster.run(["scontrol", command, workflow.jobs()[0]])
        time.sleep(seconds)
    workflow.full_speed()
    workflow.wait(timeout=600)
    assert [attempt["outcome"] for attempt in run.attempts()] == ["finished"]
    assert_same_numbers(run, undisturbed("nodes"))


@pytest.mark.parametrize("name", ["single", "nodes"])
def test_a_lost_node(name, cluster, disturbed, undisturbed):
    """Its slurmd is killed, Slurm requeues the job to other nodes, and processes on the old ones do no harm.

    With one node, nothing ends the earlier start, which could train to its end; the later start replaces it.
    """
    workflow, run = disturbed(name, pause=10.0)
    lost = ranks(cluster, workflow.jobs()[0])[0][0]
    cluster.kill_slurmd(lost)
    try:
        workflow.when(lambda: run.begun() == 2, "the job has begun again", timeout=600)
        workflow.full_speed()
        workflow.wait(timeout=600)
    finally:
        cluster.kill_node(lost)
        cluster.restart_node(lost)
    assert len(workflow.jobs()) == 1
    assert_resumed_without_loss(run, undisturbed(name))


def test_a_plain_scancel_is_a_failed_attempt(cluster, disturbed):
    """It is retried while attempts are left, and then fails; it never hangs."""
    workflow, run = disturbed("nodes", pause=10.0, options=["--retries", "1"])
    (first,) = workflow.jobs()
    cluster.run(["scancel", first])
    workflow.when(lambda: f"SLURM-job '{first}' failed" in workflow.log, "the failed attempt", timeout=60)
    workflow.when(lambda: len(workflow.jobs()) == 2, "the retry")
    second = workflow.jobs()[1]
    cluster.wait(second, "RUNNING")
    cluster.run(["scancel", second])
    workflow.until(lambda: f"SLURM-job '{second}' failed" in workflow.log, "the last failed attempt", timeout=60)
    workflow.wait(timeout=300, succeeds=False)
    assert len(run.checkpoints()) > 0


def test_a_schedule_of_faults(cluster, undisturbed, small_disk, tmp_path):
    """A short schedule of random faults; `schedule.py` runs longer ones."""
    roots = {undisturbed(name).root for name in RUNS}
    whole = SimpleNamespace(root=roots.pop(), run=undisturbed)
    injections = struck(5, cluster, tmp_path, small_disk, whole, names=RUNS, count=3)
    assert sum(injection.seconds is not None for injection in injections) >= 2, injections


def test_a_disk_that_fills_while_saving(disturbed, undisturbed, small_disk):
    """There is space for the tensors, so the save begins, but not for everything else that is written."""
    workflow, run = disturbed("single", checkpoints=2, root=small_disk / "project")
    tensors = undisturbed("single").tensors()
    weights = sum(tensor.nbytes for name, tensor in tensors.items() if name.startswith("model."))
    written = sum(path.stat().st_size for path in run.checkpoints()[-1].iterdir())
    room = (3 * weights + written) // 2
    assert 3 * weights < room < written
    with open(small_disk / "filler", "wb", buffering=0) as filler:

        def is_refused():
            if (free := shutil.disk_usage(small_disk).free) > room:
                os.posix_fallocate(filler.fileno(), filler.seek(0, os.SEEK_END), free - room)
            return "No space left on device" in workflow.log

        workflow.when(is_refused, "a save that fails")
        workflow.wait(timeout=120, succeeds=False)
    assert "would fail again" in workflow.log and len(workflow.jobs("train")) == 1
    (small_disk / "filler").unlink()
    workflow.full_speed()
    workflow.start(run.target)
    workflow.wait(timeout=600)
    assert_resumed_without_loss(run, undisturbed("single"))
