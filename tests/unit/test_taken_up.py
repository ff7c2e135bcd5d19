"""What the layer over Slurm's executor decides: which job is taken up, which is submitted, which is refused."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from snakemake_executor_plugin_slurm import Executor
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from parascale import slurm, submissions
from parascale.cli import parascale
from parascale.commands.launch import refuse_other_settings
from parascale.errors import ConfigError, NoAnswerError, RequirementError, TrainingError
from parascale.launch.preflight import belong, take_root
from parascale.lease import Lease
from parascale.paths import Paths
from parascale_slurm_executor import refuse_shared_jobs
from parascale_slurm_executor.jobs import comment_of
from tests.made_up import failing
from tests.made_up.cluster import Thing, data_job, job_of


def note_watching(self, info):
    self.did.append(f"{'watches' if info.aux['ours'] else 'waits for'} {info.external_jobid}")


COMMENT = "rule_train_ddp_wildcards_ddp"


@pytest.mark.parametrize(
    ("queue", "written", "expected"),
    [
        ({}, [("7", "ddp", "key")], "submitted"),
        ({"7": COMMENT}, [("7", "ddp", "key")], "watches 7"),
        ({"7": COMMENT}, [("7", "ddp", "other")], "waits for 7"),
        ({"7": COMMENT, "8": COMMENT}, [("7", "ddp", "other"), ("8", "ddp", "key")], "watches 8"),
        ({"7": f"{COMMENT} key"}, [], "watches 7"),  # Snakemake was killed between sbatch and its line
        ({"7": f"{COMMENT} old", "8": f"{COMMENT} key"}, [], "watches 8"),
        ({"7": f"{COMMENT} old"}, [], "waits for 7"),
        ({"7": COMMENT}, [], "waits for 7"),  # by a version that put no key into the queue
        ({"7": "rule_train_ddp_wildcards_ddp-2"}, [("7", "ddp-2", "key")], "submitted"),
        ({"7": "rule_train_ddp_wildcards_ddp-2"}, [], "submitted"),
    ],
)
def test_a_training_in_the_queue_is_not_submitted_again(executor, queue, written, expected, monkeypatch):
    """And it is written down, once, with the settings that it was submitted for, so that it is charged."""
    executor.queue = queue
    monkeypatch.setattr(Executor, "_report_job_submission_threadsafe", note_watching)
    for identity, run, key in written:
        submissions.note(executor.paths.store, identity, "train_ddp", "run", run, key)
    executor.run_job(job_of("ddp"))
    assert executor.did == [expected]
    if expected == "submitted":
        return
    said = queue[identity := expected.split()[-1]].partition(" ")[2]
    noted = [(line["job_id"], line["run"], line["key"]) for line in submissions.noted(executor.paths.store)]
    assert noted == (written or ([(identity, "ddp", said)] if said else []))


def group_of(*jobs):
    return Thing(name="prepare", jobid=2, jobs=frozenset(jobs), is_group=lambda: True)


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        (group_of(data_job("a"), data_job("b")), "watches 7"),
        (group_of(data_job("a"), data_job("b", tokens=10)), "waits for 7"),
        (data_job("b"), "waits for 7"),  # one of them is made already: the rest is a group of its own
        (group_of(data_job("c"), data_job("d")), "submitted"),
    ],
)
def test_a_group_in_the_queue_is_not_submitted_again(executor, left, expected, monkeypatch):
    executor.queue = {"7": "rule_prepare"}
    executor.queued.note(left, "7")
    monkeypatch.setattr(Executor, "_report_job_submission_threadsafe", note_watching)
    executor.run_job(group_of(data_job("a"), data_job("b")))
    assert executor.did == [expected]


@pytest.mark.parametrize("submitted", [["a", "b"], ["b"]])
def test_of_an_array_those_are_submitted_that_are_not_in_the_queue(executor, submitted, monkeypatch):
    executor.queue = {"7_1": "rule_prepare_wildcards_c_tokens"}
    executor.queued.note(data_job("c"), "7_1")
    arrays = lambda self, jobs: self.did.append([job.wildcards.dataset for job in jobs])  # noqa: E731
    monkeypatch.setattr(Executor, "run_array_jobs", arrays)
    monkeypatch.setattr(Executor, "_report_job_submission_threadsafe", note_watching)
    executor.run_array_jobs([data_job(name) for name in (*submitted, "c")])
    assert executor.did == ["watches 7_1", submitted if len(submitted) > 1 else "submitted"]


def test_slurm_is_asked_once_for_what_an_earlier_start_left_and_again_for_a_retry(executor, monkeypatch):
    """60 questions at once would be felt by others. A job that Slurm put back into the queue after it was given up is taken up."""
    asked = []
    monkeypatch.setattr(slurm, "waiting_or_running", lambda name, noted: asked.append(name) or dict(executor.queue))
    executor.queue = {"5": "rule_train_ddp_wildcards_gone"}
    jobs = [job_of(f"run-{number}") for number in range(60)]
    for job in jobs:
        executor.run_job(job)
    assert executor.did == ["submitted"] * 60 and len(asked) == 1
    executor.queue["7"] = "rule_train_ddp_wildcards_run-3"
    executor.run_job(jobs[3])
    assert executor.did[60:] == ["watches 7"] and len(asked) == 2


@pytest.mark.parametrize(
    ("said", "left", "expected"),
    [
        ("rule_prepare_wildcards_text_tokens", data_job(), "watches 7"),
        ("rule_prepare_wildcards_text_tokens", data_job(tokens=10), "waits for 7"),  # of other settings
        ("rule_prepare_wildcards_text_tokens", None, "waits for 7"),  # not written down: of whatever settings
        (comment_of(data_job()), None, "watches 7"),
        (comment_of(data_job(tokens=10)), None, "waits for 7"),
        ("rule_prepare_wildcards_text_tokens", data_job("te", "xt_tokens"), "submitted"),
        ("rule_prepare_wildcards_other_tokens", None, "submitted"),
    ],
)
def test_a_job_that_trains_nothing_is_not_submitted_again(executor, said, left, expected, monkeypatch):
    executor.queue = {"7": said}
    if left:
        executor.queued.note(left, "7")
    monkeypatch.setattr(Executor, "_report_job_submission_threadsafe", note_watching)
    executor.run_job(data_job())
    assert executor.did == [expected]


def test_without_an_answer_of_slurm_nothing_is_submitted_and_no_retry_is_spent(executor, monkeypatch):
    waits = []
    timer = lambda seconds, function, words: waits.append(seconds) or Thing(start=lambda: function(*words))  # noqa: E731
    monkeypatch.setattr(slurm, "waiting_or_running", failing(NoAnswerError("slurmctld is away")))
    monkeypatch.setattr("threading.Timer", timer)
    job = job_of("ddp")
    for _ in range(7):
        executor.run_job(job)
    assert executor.did == ["again"] * 7 and waits == [10, 20, 40, 80, 160, 300, 300] and job.attempt == 1
    monkeypatch.setattr(slurm, "waiting_or_running", lambda name, noted: {})
    late = lambda self, job: self._report_job_error_threadsafe(SubmittedJobInfo(job), TIMED_OUT)  # noqa: E731
    monkeypatch.setattr(Executor, "run_job", late)
    waits.clear()
    other = job_of("tp")
    for each in (other, job, other, job):
        executor.run_job(each)
    assert waits == [10, 300, 20, 300], "squeue answers, sbatch does not: it is not asked more often for that"
    assert [text.partition(":")[0] for text in executor.warned] == ["slurmctld is away", "Batch job submission failed"]


FAILED = "SLURM sbatch failed. The error message was 'sbatch: error: {}'.\n  sbatch call: --job-name 'try again'"
REFUSED = FAILED.format("Batch job submission failed: Invalid qos")
TIMED_OUT = FAILED.format("Batch job submission failed: Socket timed out on send/recv operation")
VIOLATES = "{}\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, …)"
LIMIT = FAILED.format(VIOLATES)
ARRAY = "Part of failed array sbatch submission (tasks 1-2); see log for details."  # alone, it says why


@pytest.mark.parametrize(
    ("message", "queue", "expected"),
    [
        (REFUSED, {}, [REFUSED]),
        (REFUSED, {"7": f"{COMMENT} key"}, ["watches 7"]),  # killed after it had submitted
        (REFUSED, None, ["again"]),  # and now Slurm does not answer
        (TIMED_OUT, {}, ["again"]),  # it may be in the queue soon
        (LIMIT.format("AssocMaxSubmitJobLimit"), {}, ["again"]),
        (LIMIT.format("QOSMaxSubmitJobPerUserLimit"), {}, ["again"]),
        (LIMIT.format("QOSMaxWallDurationPerJobLimit"), {}, [LIMIT.format("QOSMaxWallDurationPerJobLimit")]),
        ("Job submission failed with exception: [Errno 11] Resource temporarily unavailable", {}, ["again"]),
        (ARRAY, {}, ["again"]),
        ("stale file handle", {}, ["stale file handle"]),
    ],
)
def test_a_submission_without_an_answer_leaves_no_job_behind_and_spends_no_retry(
    executor, message, queue, expected, monkeypatch
):
    def fails(self, job):
        executor.queue = queue
        self._report_job_error_threadsafe(SubmittedJobInfo(job), message)

    def asked(name, noted):
        if executor.queue is None:
            raise NoAnswerError("slurmctld is away")
        return executor.queue

    timer = lambda seconds, function, words: Thing(start=lambda: function(*words))  # noqa: E731
    monkeypatch.setattr("threading.Timer", timer)
    monkeypatch.setattr(Executor, "run_job", fails)
    monkeypatch.setattr(slurm, "waiting_or_running", asked)
    monkeypatch.setattr(Executor, "_report_job_submission_threadsafe", note_watching)
    executor.run_job(job_of("ddp"))
    assert executor.did == expected
    noted = [(line["job_id"], line["run"], line["key"]) for line in submissions.noted(executor.paths.store)]
    assert noted == ([("7", "ddp", "key")] if expected == ["watches 7"] else []), "what Slurm charges is written down"


def test_two_threads_that_submit_look_once_at_what_an_earlier_start_left(executor, monkeypatch):
    """Else both write it down, and it is charged twice."""

    def slowly(name, since):
        time.sleep(0.3)
        return {"7": (1e9, f"{COMMENT} key")}

    monkeypatch.setattr(slurm, "submitted", slowly)
    executor.workflow.dag.jobs = [job_of("ddp")]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(executor.run_job, [job_of("tp"), data_job()]))
    assert [line["job_id"] for line in submissions.noted(executor.paths.store)] == ["7"]
    assert executor.did == ["submitted"] * 2


def test_where_a_program_is_missing_the_workflow_ends_at_once(executor, monkeypatch):
    """Waiting would help nobody, and a retry would miss it too."""
    monkeypatch.setattr(slurm, "waiting_or_running", failing(RequirementError("`squeue` is not installed")))
    monkeypatch.setattr("threading.Timer", lambda *_: pytest.fail("waits"))
    executor.run_job(job_of("ddp"))
    assert executor.did == ["ends: `squeue` is not installed"] and not executor.warned


@pytest.mark.parametrize("queued", [False, True])
def test_a_job_that_ended_before_anybody_had_written_it_down_is_written_down_for_its_run(executor, queued, monkeypatch):
    """Snakemake was killed between sbatch and its line, and no workflow lived while the job was in the queue."""
    sent = {"6": (1e9, f"{COMMENT} key"), "7": (1e9 + 9, f"{COMMENT} old")}
    sent |= {"8": (1e9, "rule_train_tp_wildcards_tp key")}
    monkeypatch.setattr(slurm, "submitted", lambda name, since: sent)
    submissions.note(executor.paths.store, "6", "train_ddp", "run", "ddp", "key")
    executor.workflow.dag.jobs = [job_of("ddp"), data_job()]
    executor.queue = {"7": "rule_prepare"} if queued else {}
    executor.run_job(data_job())
    first, *more = submissions.noted(executor.paths.store)
    found = [(line["job_id"], line["kind"], line["run"], line["key"], line["time"]) for line in more]
    assert first["job_id"] == "6" and executor.did == ["submitted"]
    assert found == ([] if queued else [("7", "run", "ddp", "old", "2001-09-09T01:46:49+00:00")])


def test_in_a_root_that_says_not_whose_it_is_jobs_are_submitted(executor):
    """As when `Snakefile` is a module: `onstart`, which writes that, is not the module's."""
    executor.paths.site.unlink()
    executor.run_job(job_of("ddp"))
    assert executor.did == ["submitted"] and not executor.warned


@pytest.mark.parametrize(
    ("key", "finished", "needed", "watched"),
    [("key", True, False, True), ("old", True, False, False), ("key", False, False, False), ("key", True, True, False)],
)
def test_a_job_that_runs_on_although_its_training_is_published_is_watched_to_its_end(
    executor, key, finished, needed, watched, monkeypatch
):
    """Snakemake needs nothing of it after a new start, and would end before it: it would be charged until its limit."""
    executor.is_finished, executor._publish = lambda training: finished, lambda training: executor.did.append("shown")
    executor.workflow.dag = SimpleNamespace(jobs=[job_of("ddp"), data_job()], needrun=lambda job: needed)
    executor.queue = {"7": COMMENT}
    submissions.note(executor.paths.store, "7", "train_ddp", "run", "ddp", key)
    executor.run_job(data_job())
    assert executor.left == ({"7"} if watched else set()) and len(executor.active_jobs) == watched
    monkeypatch.setattr(Executor, "cancel_jobs", lambda self, jobs: self.did.extend(jobs))
    for info in executor.active_jobs:
        executor.cancel_jobs([info])  # the workflow is interrupted
        assert not executor.left, "it does not wait then"
        executor.left = {"7"}
        executor.report_job_error(info)
        assert executor.did == ["submitted", "shown"] and not executor.left
        executor.left = {"7"}
        executor.report_job_success(info)
        assert executor.did == ["submitted", "shown", "shown"] and not executor.left


def test_whatever_goes_wrong_at_a_submission_is_a_failure_of_that_job(executor, monkeypatch):
    """Nobody sees an exception in the thread that submits: the run would neither be submitted nor fail."""
    executor.queue = {"7": COMMENT}
    (executor.paths.store / submissions.FILE).write_text('1\n{"job_id": "7"}\n[]\nnull\n')
    executor.run_job(job_of("ddp"))
    monkeypatch.setattr(submissions, "noted", lambda store: os.stat(store / "stale"))
    executor.run_job(job_of("ddp"))
    assert executor.did[0] == "watches 7" and "stale" in executor.did[1]


@pytest.mark.parametrize(("key", "refused"), [("submitted", False), (None, False), ("other", True)])
def test_a_job_whose_configuration_was_changed_while_it_waited_ends_at_once(tmp_path, monkeypatch, key, refused):
    """What it would train is not what it was written down for; a job that somebody started by hand may train anything."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr("parascale.commands.launch.key_of_run", lambda run, site: "submitted")
    submissions.note(tmp_path, "7", "train_ddp", "parity", "ddp", "another kind's")
    if key:
        submissions.note(tmp_path, "7", "train_ddp", "run", "ddp", key)
    with pytest.raises(ConfigError, match="changed after Slurm job 7") if refused else nullcontext():
        refuse_other_settings(tmp_path, SimpleNamespace(run="ddp"), "run", None)


@pytest.mark.parametrize(("group", "arrays"), [("all_trainings", None), (None, "all"), (None, "prepare, train_ddp")])
def test_arrays_and_groups_hold_no_trainings(group, arrays):
    job = job_of("ddp")
    job.rule.group = group
    other = SimpleNamespace(rule=Thing(name="prepare", wildcard_names=set(), group="data"))
    dag, settings = SimpleNamespace(needrun_jobs=lambda: [job, other]), SimpleNamespace(array_jobs=arrays)
    with pytest.raises(ConfigError, match="take train_ddp out of its"):
        refuse_shared_jobs(SimpleNamespace(dag=dag, executor_settings=settings))
    job.rule.group = None
    refuse_shared_jobs(SimpleNamespace(dag=dag, executor_settings=SimpleNamespace(array_jobs="prepare")))


@pytest.mark.parametrize("verb", ["launch", "train"])
def test_a_root_is_for_one_site_by_hand_too(verb, tmp_path, monkeypatch):
    """Otherwise one machine's result would be published as another's."""
    monkeypatch.chdir(".")  # and back again
    belong(Paths(tmp_path), SimpleNamespace(name="jureca"))
    done = CliRunner().invoke(parascale, [verb, "--run", "single", "--root", str(tmp_path)])
    assert done.exit_code == 1 and "holds results of the site `jureca`" in done.output


def test_a_root_is_for_one_site_and_one_workflow(tmp_path, monkeypatch):
    paths, here, elsewhere = Paths(tmp_path), SimpleNamespace(name="jureca"), SimpleNamespace(name="jupiter")
    kept = []
    monkeypatch.setattr("atexit.register", kept.append)
    monkeypatch.setattr("parascale.lease.RENEW_SECONDS", 0.05)
    monkeypatch.setattr("parascale.lease.LOOK_SECONDS", 0.05)
    take_root(paths, here)
    with pytest.raises(TrainingError, match=r"is being written by process \d+ on .* It is a workflow on the same root"):
        take_root(paths, here)
    kept.pop()()
    with pytest.raises(RequirementError, match=r"holds results of the site `jureca`, not `jupiter`"):
        take_root(paths, elsewhere)
    kept.pop()()
    assert not Lease(paths.store).path.exists()
