"""What the layer over Slurm's executor decides: which job is taken up, which goes on, which is not tried again."""

import asyncio
import json
import os
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import snakemake_executor_plugin_slurm as plugin
from click.testing import CliRunner
from snakemake_executor_plugin_slurm import Executor
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from parascale import slurm, submissions
from parascale.cli import parascale
from parascale.commands.launch import refuse_other_settings
from parascale.errors import ConfigError, RequirementError, TrainingError
from parascale.launch.root import belong, take_root
from parascale.lease import Lease
from parascale.settings.paths import Paths
from snakemake_slurm_parascale import RootExecutor, refuse_shared_jobs


class Names(SimpleNamespace):
    """Names with values, as Snakemake has them."""

    def get(self, name):
        return vars(self).get(name)

    def items(self):
        return vars(self).items()

    def __iter__(self):
        return iter(vars(self).values())


class Thing(SimpleNamespace):
    """A rule or a job, which Snakemake has in sets."""

    __hash__ = object.__hash__


def made(name, wildcards, params):
    rule = Thing(name=name, wildcard_names=set(wildcards), params=Names(**params), group=None)
    job = {"rule": rule, "name": name, "jobid": 1, "wildcards": Names(**wildcards), "params": rule.params}
    return Thing(**job, attempt=1, restart_times=3, is_group=lambda: False)


def job_of(run, key="key", kind="run"):
    return made("train_ddp", {"run": run}, {"kind": kind, "key": key})


def data_job(dataset="text", prepared="tokens", tokens=9):
    return made("prepare", {"dataset": dataset, "prepared": prepared}, {"settings": tokens})


@pytest.fixture
def executor(tmp_path, monkeypatch):
    """A RootExecutor that notes what it would do, and the queue that it sees."""
    made = object.__new__(type("Executor", (RootExecutor,), {"paths": Paths(tmp_path)}))
    made.run_uuid, made.slurm_logdir, made.did, made.queue = "parascale_0", tmp_path / "slurm_logs", [], {}
    made.undecided, made.away, made.signs, made.found, made.tried = Counter(), {}, {}, None, set()
    made.told, made.warned, made.ended = set(), [], []
    made.logger = SimpleNamespace(info=lambda text: None, warning=made.warned.append)
    made._job_submission_executor = SimpleNamespace(submit=lambda function, job: made.did.append("again"))
    monkeypatch.setattr(slurm, "waiting_or_running", lambda name: made.queue)
    monkeypatch.setattr(slurm, "described", lambda identity: made.queue.get(identity, {}))
    monkeypatch.setattr(Executor, "run_job", lambda self, job: made.did.append("submitted"))
    reported = lambda self, info: made.did.append(f"watches {info.external_jobid}")  # noqa: E731
    monkeypatch.setattr(Executor, "_report_job_submission_threadsafe", reported)
    monkeypatch.setattr(Executor, "_report_job_error_threadsafe", lambda self, info, msg: self.did.append(msg))
    monkeypatch.setattr(Executor, "report_job_success", lambda self, info: made.did.append("done"))
    monkeypatch.setattr(Executor, "report_job_error", lambda self, info, msg, **more: made.did.append("failed"))
    return made


def note_watching(self, info):
    self.did.append(f"{'watches' if info.aux['ours'] else 'waits for'} {info.external_jobid}")


COMMENT = "rule_train_ddp_wildcards_ddp"


@pytest.mark.parametrize(
    ("queue", "written", "expected"),
    [
        ({}, [("7", "ddp", "key")], "submitted"),
        ({"7": COMMENT}, [("7", "ddp", "key")], "watches 7"),
        ({"7": COMMENT}, [("7", "ddp", "other")], "watches 7"),
        ({"7": COMMENT, "8": COMMENT}, [("7", "ddp", "other"), ("8", "ddp", "key")], "watches 8"),
        ({"7": COMMENT}, [], "watches 7"),  # Snakemake was killed between sbatch and its line
        ({"7": "rule_train_ddp_wildcards_ddp-2"}, [("7", "ddp-2", "key")], "submitted"),
        ({"7": "rule_train_ddp_wildcards_ddp-2"}, [], "submitted"),
    ],
)
def test_a_training_in_the_queue_is_not_submitted_again(executor, queue, written, expected):
    executor.queue = queue
    for identity, run, key in written:
        submissions.note(executor.paths.store, identity, "train_ddp", "run", run, key)
    executor.run_job(job_of("ddp"))
    assert executor.did == [expected]
    if expected == "submitted":
        return
    before = len(submissions.noted(executor.paths.store))
    assert before == len(written), "who takes a job up has not submitted it"


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
    executor._note(SubmittedJobInfo(left, external_jobid="7"))
    monkeypatch.setattr(Executor, "_report_job_submission_threadsafe", note_watching)
    executor.run_job(group_of(data_job("a"), data_job("b")))
    assert executor.did == [expected]


@pytest.mark.parametrize("submitted", [["a", "b"], ["b"]])
def test_of_an_array_those_are_submitted_that_are_not_in_the_queue(executor, submitted, monkeypatch):
    executor.queue = {"7_1": "rule_prepare_wildcards_c_tokens"}
    executor._note(SubmittedJobInfo(data_job("c"), external_jobid="7_1"))
    arrays = lambda self, jobs: self.did.append([job.wildcards.dataset for job in jobs])  # noqa: E731
    monkeypatch.setattr(Executor, "run_array_jobs", arrays)
    monkeypatch.setattr(Executor, "_report_job_submission_threadsafe", note_watching)
    executor.run_array_jobs([data_job(name) for name in (*submitted, "c")])
    assert executor.did == ["watches 7_1", submitted if len(submitted) > 1 else "submitted"]


def test_slurm_is_asked_once_for_what_an_earlier_start_left_and_again_for_a_retry(executor, monkeypatch):
    """60 questions at once would be felt by others. A job that Slurm put back into the queue after it was given up is taken up."""
    asked = []
    monkeypatch.setattr(slurm, "waiting_or_running", lambda name: asked.append(name) or dict(executor.queue))
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
        ("rule_prepare_wildcards_text_tokens", data_job("te", "xt_tokens"), "submitted"),
        ("rule_prepare_wildcards_other_tokens", None, "submitted"),
    ],
)
def test_a_job_that_trains_nothing_is_not_submitted_again(executor, said, left, expected, monkeypatch):
    executor.queue = {"7": said}
    if left:
        executor._note(SubmittedJobInfo(left, external_jobid="7"))
    monkeypatch.setattr(Executor, "_report_job_submission_threadsafe", note_watching)
    executor.run_job(data_job())
    assert executor.did == [expected]


def test_without_an_answer_of_slurm_nothing_is_submitted_and_no_retry_is_spent(executor, monkeypatch):
    def away(name):
        raise RequirementError("slurmctld is away")

    waits = []
    timer = lambda seconds, function, words: waits.append(seconds) or Thing(start=lambda: function(*words))  # noqa: E731
    monkeypatch.setattr(slurm, "waiting_or_running", away)
    monkeypatch.setattr("threading.Timer", timer)
    job = job_of("ddp")
    for _ in range(7):
        executor.run_job(job)
    assert executor.did == ["again"] * 7 and waits == [10, 20, 40, 80, 160, 300, 300] and job.attempt == 1
    monkeypatch.setattr(slurm, "waiting_or_running", lambda name: {})
    monkeypatch.setattr(
        Executor, "run_job", lambda self, job: self._report_job_error_threadsafe(SubmittedJobInfo(job), TIMED_OUT)
    )
    waits.clear()
    other = job_of("tp")
    for each in (other, job, other, job):
        executor.run_job(each)
    assert waits == [10, 300, 20, 300], "squeue answers, sbatch does not: it is not asked more often for that"


REFUSED = "SLURM sbatch failed. The error message was 'sbatch: error: Batch job submission failed: Invalid qos'.\n  sbatch call:"
TIMED_OUT = REFUSED.replace("Invalid qos", "Socket timed out on send/recv operation")


@pytest.mark.parametrize(
    ("message", "queue", "expected"),
    [
        (REFUSED, {}, [REFUSED]),
        (REFUSED, {"7": COMMENT}, ["watches 7"]),  # killed after it had submitted
        (REFUSED, None, ["again"]),  # and now Slurm does not answer
        (TIMED_OUT, {}, ["again"]),  # it may be in the queue soon
        ("stale file handle", {}, ["stale file handle"]),
    ],
)
def test_a_submission_without_an_answer_leaves_no_job_behind_and_spends_no_retry(
    executor, message, queue, expected, monkeypatch
):
    def fails(self, job):
        executor.queue = queue
        self._report_job_error_threadsafe(SubmittedJobInfo(job), message)

    def asked(name):
        if executor.queue is None:
            raise RequirementError("slurmctld is away")
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


MAINTENANCE = {
    "upkeep": {"StartTime": "2026-11-24T08:00:00", "EndTime": "2026-11-24T18:00:00", "Flags": "MAINT,IGNORE_JOBS"}
}


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("None", None),
        ("Priority", None),
        ("Resources", None),
        ("BeginTime", None),  # put back into the queue
        (
            "ReqNodeNotAvail, Reserved for maintenance",
            "(02:00:00) reaches into the reservation `upkeep` (2026-11-24T08:00:00 to",
        ),
        ("ReqNodeNotAvail, UnavailableNodes:jrc0007", "(`scontrol show job 7`)"),
        ("JobHeldUser", "`scontrol release 7`"),
        ("AssocGrpCPUMinutesLimit", "a limit of the account, such as its budget"),
        ("QOSMaxJobsPerUserLimit", "a limit of the quality of service"),
    ],
)
def test_why_a_job_waits_is_said_once_unless_it_is_its_turn(executor, reason, said, monkeypatch):
    monkeypatch.setattr(slurm, "described", lambda job: {"TimeLimit": "02:00:00"})
    monkeypatch.setattr(slurm, "records", lambda kind: MAINTENANCE)
    monkeypatch.setattr(slurm, "states", lambda name: {"7": ("PENDING", reason)})
    for _ in range(5):
        assert executor._still_there([SubmittedJobInfo(job_of("ddp"), external_jobid="7", aux={})])
    told = [text for text in executor.warned if said and said in text]
    assert executor.warned == told and len(told) == bool(said), executor.warned
    assert all(text.startswith(f"Slurm job 7 of train_ddp waits: {reason}") for text in told)


def test_whatever_goes_wrong_at_a_submission_is_a_failure_of_that_job(executor, monkeypatch):
    """Nobody sees an exception in the thread that submits: the run would neither be submitted nor fail."""
    executor.queue = {"7": COMMENT}
    executor.paths.store.mkdir(parents=True)
    (executor.paths.store / submissions.FILE).write_text('1\n{"job_id": "7"}\n[]\nnull\n')
    executor.run_job(job_of("ddp"))
    monkeypatch.setattr(submissions, "noted", lambda store: os.stat(store / "stale"))
    executor.run_job(job_of("ddp"))
    assert executor.did[0] == "watches 7" and "stale" in executor.did[1]


@pytest.mark.parametrize(
    ("states", "accounted", "expected"),
    [
        ([{"7": "RUNNING"}] * 9, "RUNNING", []),
        ([{"7": "PREEMPTED"}, {"7": "PREEMPTED"}, {"7": "PENDING"}] * 3, "PENDING", []),  # put back into the queue
        ([{"7": "PREEMPTED"}] * 3, "PREEMPTED", ["failed"]),
        ([{"7": "NODE_FAIL"}] * 3, "NODE_FAIL", ["failed"]),
        ([{}] * 2, "COMPLETED", []),
        ([{}] * 3, "COMPLETED", ["done"]),  # forgotten while the workflow was stopped
        ([{}] * 3, "FAILED", ["failed"]),
        ([{}] * 3, None, ["failed"]),  # without accounting
        ([{}] * 9, "PENDING", []),  # of another cluster's
        ([None] * 9, None, []),  # no answer
    ],
)
def test_no_job_is_waited_for_that_slurm_has_given_up_or_forgotten(executor, monkeypatch, states, accounted, expected):
    async def watches(self, jobs):
        for job in jobs:
            yield job

    def answer(name):
        said = states.pop(0)
        if said is None:
            raise RequirementError("slurmctld is away")
        return {identity: (state, "None") for identity, state in said.items()}

    monkeypatch.setattr(Executor, "check_active_jobs", watches)
    monkeypatch.setattr(slurm, "states", answer)
    monkeypatch.setattr(slurm, "last_state", lambda job: accounted)
    active = [SubmittedJobInfo(data_job(), external_jobid="7", aux={})]

    async def look():
        return [info async for info in executor.check_active_jobs(active)]

    while states:
        active = asyncio.run(look())
    assert executor.did == expected and bool(active) != bool(expected)


@pytest.mark.parametrize("answered", [[], [0, 1]])
def test_jobs_are_watched_on_when_slurm_answered_no_question(executor, monkeypatch, answered):
    """The plugin's own method: without an answer it neither yields jobs nor reports them. With one, it does either."""
    settings = SimpleNamespace(init_seconds_before_status_checks=1, status_attempts=2, keep_successful_logs=True)
    executor.workflow = SimpleNamespace(executor_settings=settings)
    executor.status_rate_limiter, executor._preemption_warning = nullcontext(), False
    executor._status_query_calls = executor._status_query_failures = executor._status_query_total_seconds = 0
    executor._status_query_min_seconds, executor._status_query_max_seconds = 0, 0
    executor._status_query_cycle_rows, executor.next_seconds_between_status_checks = [], 1
    executor.get_status_command, executor.logger.debug = lambda: "squeue", lambda text: None
    answers = iter([({"7": "COMPLETED", "8": "RUNNING"}, 0.1)] if answered else [(None, None)] * 2)

    async def query(command, logger):
        return next(answers)

    monkeypatch.setattr(plugin, "query_job_status", query)
    monkeypatch.setattr(plugin, "get_min_job_age", lambda: 300)
    monkeypatch.setattr(slurm, "states", lambda name: {"8": ("RUNNING", "None")} if answered else {})
    monkeypatch.setattr(slurm, "last_state", lambda job: "RUNNING")
    active = [SubmittedJobInfo(data_job(), external_jobid=identity, aux={}) for identity in "78"]

    async def look():
        return [info.external_jobid async for info in executor.check_active_jobs(active)]

    assert asyncio.run(look()) == (["8"] if answered else ["7", "8"])
    assert executor.did == (["done"] if answered else [])


def test_who_ends_a_workflow_cancels_its_own_jobs_alone(executor, monkeypatch):
    monkeypatch.setattr(
        Executor, "cancel_jobs", lambda self, jobs: self.did.extend(info.external_jobid for info in jobs)
    )
    aux = {"5": None, "6": {"ours": True}, "7": {"ours": False}, "8": {}}
    executor.cancel_jobs([SubmittedJobInfo(None, identity, each) for identity, each in aux.items()])
    assert executor.did == ["5", "6", "8"]


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


ATTEMPT = {"job_id": "7", "outcome": "stopped", "first_step": 5, "last_step": 9}


@pytest.mark.parametrize(
    ("attempt", "said", "ours", "expected", "attempts_left"),
    [
        (ATTEMPT, {"JobState": "FAILED"}, True, "again", True),
        (ATTEMPT, {"JobState": "CANCELLED"}, True, "failed", True),  # by its user
        ({**ATTEMPT, "last_step": 4}, {"JobState": "FAILED"}, True, "failed", True),  # no step since its start
        ({**ATTEMPT, "outcome": "failed"}, {"JobState": "FAILED"}, True, "failed", True),
        ({**ATTEMPT, "job_id": "6"}, {"JobState": "FAILED"}, True, "failed", True),  # this one died before its record
        (None, {"JobState": "FAILED"}, True, "failed", True),
        ("{damaged", {"JobState": "FAILED"}, True, "failed", True),
        ("{damaged\n" + json.dumps(ATTEMPT), {"JobState": "FAILED"}, True, "again", True),
        ("[]", {"JobState": "FAILED"}, True, "failed", True),
        (None, {"JobState": "FAILED", "Comment": slurm.HOPELESS_COMMENT}, True, "failed", False),
        (None, {"JobState": "FAILED"}, False, "again", True),  # of other settings: now it is ours' turn
    ],
)
def test_what_becomes_of_a_job_that_ended_badly(executor, attempt, said, ours, expected, attempts_left):
    work = executor.paths.work("ddp")
    work.mkdir(parents=True)
    if attempt:
        (work / "attempts.jsonl").write_text((attempt if isinstance(attempt, str) else json.dumps(attempt)) + "\n")
    executor.queue = {"7": said}
    job = job_of("ddp")
    executor.report_job_error(SimpleNamespace(job=job, external_jobid="7", aux={"ours": ours}))
    assert executor.did == [expected]
    assert (job.attempt <= job.restart_times) == attempts_left


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
    with pytest.raises(RequirementError, match=r"holds results of the site `jureca`, and this .* is for `jupiter`"):
        take_root(paths, elsewhere)
    assert not Lease(paths.store).path.exists()
