"""What the layer over Slurm's executor makes of a job that it watches: why it waits, whether it ended, whether it is tried again."""

import asyncio
import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import snakemake_executor_plugin_slurm as plugin
from snakemake_executor_plugin_slurm import Executor
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from parascale import slurm
from parascale.errors import NoAnswerError, RequirementError
from parascale.files import write_json, write_text
from parascale_slurm_executor import executor as executor_module
from parascale_slurm_executor.endings import NOTHING
from parascale_slurm_executor.jobs import TURN
from tests.made_up import failing
from tests.made_up.cluster import data_job, job_of


async def watches(self, jobs):
    """The plugin's own look, of jobs that all go on."""
    for job in jobs:
        yield job


def looked(executor, active):
    """The jobs that are watched on after a look at these."""

    async def look():
        return [info async for info in executor.check_active_jobs(active)]

    return asyncio.run(look())


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        *((reason, None) for reason in TURN),
        ("PartitionDown", "`scontrol show partition`"),
        ("DependencyNeverSatisfied", "(`scontrol show job 7`)"),  # no turn: it never passes
        ("ReqNodeNotAvail, Reserved for maintenance", "`scontrol update jobid=7 timelimit=MINUTES`"),
        ("ReqNodeNotAvail, UnavailableNodes:jrc0007", "(`scontrol show job 7`)"),
        ("JobHeldUser", "`scontrol release 7`"),
        ("AssocGrpCPUMinutesLimit", "a limit of the account, such as its budget"),
        ("QOSMaxJobsPerUserLimit", "a limit of the quality of service"),
    ],
)
def test_why_a_job_waits_is_said_once_unless_it_is_its_turn(executor, reason, said, monkeypatch):
    for _ in range(5):
        watched = [SubmittedJobInfo(job_of("ddp"), external_jobid="7", aux={})]
        assert executor._still_there(watched, {"7": ("PENDING", reason)})
    told = [text for text in executor.warned if said and said in text]
    assert executor.warned == told and len(told) == bool(said), executor.warned
    assert all(text.startswith(f"Slurm job 7 of train_ddp waits: {reason}") for text in told)


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
    ],
)
def test_no_job_is_waited_for_that_slurm_has_given_up_or_forgotten(executor, monkeypatch, states, accounted, expected):
    """And the next look follows the first one's pace, however long the plugin would wait."""

    async def slower(self, jobs):
        async for job in watches(self, jobs):
            yield job
        self.next_seconds_between_status_checks += 10

    def answer(name):
        return {identity: (state, "None") for identity, state in states.pop(0).items()}

    monkeypatch.setattr(Executor, "check_active_jobs", slower)
    monkeypatch.setattr(slurm, "states", answer)
    monkeypatch.setattr(slurm, "last_state", lambda job: accounted)
    active = [SubmittedJobInfo(data_job(), external_jobid="7", aux={})]

    while states:
        active = looked(executor, active)
    assert executor.did == expected and bool(active) != bool(expected)
    assert executor.next_seconds_between_status_checks == 5


@pytest.mark.parametrize("silent", ["states", "last_state"])
def test_while_slurm_does_not_answer_jobs_are_watched_on_and_it_is_asked_less_and_less_often(
    executor, silent, monkeypatch
):
    """The queue, or the accounting on a job that the queue has forgotten. It is said once, and nothing is cancelled or given up."""
    monkeypatch.setattr(Executor, "check_active_jobs", watches if silent == "last_state" else None)
    monkeypatch.setattr(slurm, "states", lambda name: {})
    monkeypatch.setattr(slurm, silent, failing(NoAnswerError("slurmctld is away")))
    executor.undecided.update({"7": 9, "8": 9})
    active, waits = [SubmittedJobInfo(data_job(), external_jobid=each, aux={}) for each in "78"], []
    executor.most, most = 100, executor.most
    for _ in range(6):
        assert looked(executor, active) == active
        waits.append(executor.next_seconds_between_status_checks)
    assert waits == [10, 20, 40, 80, 100, 100] and not executor.did
    (said,) = executor.warned
    assert said.startswith("slurmctld is away: ")
    executor.most = most
    answer = dict.fromkeys("78", ("RUNNING", "None")) if silent == "states" else "RUNNING"
    monkeypatch.setattr(slurm, silent, lambda name: answer)
    monkeypatch.setattr(Executor, "check_active_jobs", watches)
    assert looked(executor, active)[0] == active[0]
    assert executor.next_seconds_between_status_checks == 5


def test_the_thread_that_looks_may_begin_before_its_executor_is_made(executor):
    """Snakemake starts it first."""
    new = object.__new__(type(executor))
    new.workflow = SimpleNamespace(executor_settings=SimpleNamespace(init_seconds_before_status_checks=1))
    assert looked(new, []) == []
    assert new.next_seconds_between_status_checks == 1


def test_where_no_job_can_be_watched_any_more_the_workflow_ends(executor, monkeypatch):
    """The next start takes up what is in the queue."""
    monkeypatch.setattr(slurm, "states", failing(RequirementError("`squeue` is not installed")))
    active = [SubmittedJobInfo(data_job(), external_jobid="7", aux={})]
    assert looked(executor, active) == active
    assert executor.did == ["ends: `squeue` is not installed"]


@pytest.mark.parametrize("answered", [False, True])
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
    assert looked(executor, active) == (active[1:] if answered else active)
    assert executor.did == (["done"] if answered else [])


def test_who_ends_a_workflow_cancels_its_own_jobs_alone(executor, monkeypatch):
    cancel = lambda self, jobs: self.did.extend(info.external_jobid for info in jobs)  # noqa: E731
    monkeypatch.setattr(Executor, "cancel_jobs", cancel)
    aux = {"5": None, "6": {"ours": True}, "7": {"ours": False}, "8": {}}
    executor.cancel_jobs([SubmittedJobInfo(None, identity, each) for identity, each in aux.items()])
    assert executor.did == ["5", "6", "8"]


ATTEMPT = {"job_id": "7", "outcome": "stopped", "first_step": 5, "last_step": 9}


@pytest.mark.parametrize(
    ("attempt", "said", "ours", "expected", "attempts_left"),
    [
        (ATTEMPT, {"JobState": "FAILED"}, True, "again", True),
        (ATTEMPT, {"JobState": "CANCELLED"}, True, "failed", True),  # by its user
        ({**ATTEMPT, "last_step": 4}, {"JobState": "FAILED"}, True, "failed", True),  # no step since its start
        ({**ATTEMPT, "saved": False}, {"JobState": "FAILED"}, True, "failed", True),  # a script's, which begins anew
        ({**ATTEMPT, "last_step": None, "saved": True}, {"JobState": "FAILED"}, True, "again", True),
        ({**ATTEMPT, "outcome": "failed"}, {"JobState": "FAILED"}, True, "failed", True),
        ({**ATTEMPT, "job_id": "6"}, {"JobState": "FAILED"}, True, "failed", True),  # this one died before its record
        (None, {"JobState": "FAILED"}, True, "failed", True),
        (None, {"JobState": "PREEMPTED"}, True, "again", True),
        ("{damaged", {"JobState": "FAILED"}, True, "failed", True),
        ("{damaged\n" + json.dumps(ATTEMPT), {"JobState": "FAILED"}, True, "again", True),
        ("[]", {"JobState": "FAILED"}, True, "failed", True),
        (None, {"JobState": "FAILED", "Comment": slurm.PERMANENT_FAILURE_COMMENT}, True, "failed", False),
        (None, {"JobState": "FAILED"}, False, "again", True),  # of other settings: now it is ours' turn
        ({**ATTEMPT, "job_id": None}, None, True, "failed", True),  # it was refused; somebody trained by hand before
    ],
)
def test_what_becomes_of_a_job_that_ended_badly(executor, attempt, said, ours, expected, attempts_left):
    if attempt:
        text = attempt if isinstance(attempt, str) else json.dumps(attempt)
        write_text(executor.paths.under_way / "runs/ddp/attempts.jsonl", f"{text}\n")
    executor.queue = {"7": said}
    job = job_of("ddp")
    executor.report_job_error(SimpleNamespace(job=job, external_jobid=said and "7", aux={"ours": ours}))
    assert executor.did == [expected]
    assert (job.attempt <= job.restart_times) == attempts_left


FACTS = {"JobState": "FAILED", "RunTime": "00:00:20", "TimeLimit": "01:00:00", "NodeList": "jrc[0001-0002]"}
FACTS |= {"BatchHost": "jrc0001", "ExitCode": "1:0", "NumNodes": "1"}
STEP, NONE = "slurmstepd-jrc0002: error:", "No such file or directory"
OF_SRUN = "error: {here}/7.log: no such file (a YAML file)\nsrun: error: jrc0002: task 1: Exited with exit code 78"
TOO_SHORT = "shorter than its start: `--set-resources train_ddp:runtime=MINUTES`"


@pytest.mark.parametrize(
    ("facts", "log", "expected", "excluded"),
    [
        ({}, "", "status is: 'X'. It ran 00:00:20 of 01:00:00 on jrc[0001-0002], exit code 1:0.", []),
        ({"JobState": "TIMEOUT", "TimeLimit": "00:00:00"}, "", TOO_SHORT, []),
        ({"TimeLimit": "00:02:00"}, "", TOO_SHORT, []),  # it got the warning, and died of that
        ({"ExitCode": "0:53", "StdOut": "{here}/7.log"}, None, "node jrc0001 has no {here}: later jobs", ["jrc0001"]),
        ({"ExitCode": "0:53", "StdOut": "/none/7.log"}, None, "exit code 0:53", []),  # it is nowhere
        ({}, f"{STEP} couldn't chdir to `{{here}}': {NONE}: going to", "jrc0002 has no {here}:", ["jrc0002"]),
        ({}, f"{STEP} execve(): {{here}}/7.log: {NONE}", "jrc0002 has no {here}/7", ["jrc0002"]),
        ({}, "    affected files:\n        {here}/7.log\n", "node jrc0001 has no {here}/7.log", ["jrc0001"]),
        ({}, "    affected files:\n        {here}/8.log\n", "exit code 1:0", []),  # nor is it here
        ({"NumNodes": "2"}, OF_SRUN, "node jrc0002 has no {here}/7.log", ["jrc0002"]),
        ({"NumNodes": "2"}, "    affected files:\n        {here}/7.log\n", "exit code 1:0", []),  # on which node?
    ],
)
def test_why_a_job_ended_is_said_and_a_node_that_lacks_what_it_needs_gets_no_other(
    executor, facts, log, expected, excluded, tmp_path
):
    """The plugin has no reason, and Snakemake would submit the job to the same node."""
    (tmp_path / "7.log").write_text((log or "").replace("{here}", str(tmp_path)))
    said = {name: value.replace("{here}", str(tmp_path)) for name, value in (FACTS | facts).items()}
    executor.queue, job = {"7": said | {"Comment": slurm.PERMANENT_FAILURE_COMMENT * bool(excluded)}}, job_of("ddp")
    message = f"SLURM-job '7' failed, SLURM status is: 'X'. {NOTHING}"
    executor.report_job_error(SubmittedJobInfo(job, "7", {"slurm_logfile": tmp_path / "7.log"}), message)
    assert executor.did == ["failed"] and expected.replace("{here}", str(tmp_path)) in executor.told
    assert executor._failed_nodes == set(excluded) and job.attempt == 1


@pytest.mark.parametrize(
    ("finished", "shown", "expected"), [(True, "key", "done"), (True, None, "shown again"), (False, "key", "failed")]
)
def test_a_job_that_ended_badly_after_its_training_was_published_is_done(
    executor, finished, shown, expected, tmp_path, monkeypatch
):
    """It was cancelled because a process did not end, or at its limit; Snakemake in the job may have removed what was published."""
    job, submitted = SimpleNamespace(output=tmp_path / "shown", store=tmp_path, key="key"), job_of("ddp")
    monkeypatch.setattr(executor_module.Store, "finished", lambda store, key: finished)
    monkeypatch.setattr(executor_module, "show_kept", lambda job: executor.did.append("shown again") or True)
    executor.job_of, submitted.benchmark = lambda training: job, str(tmp_path / "benchmarks/ddp.tsv")
    if shown:
        write_json(job.output / "run.json", {"key": shown})
        write_json(job.output / "summary.json", {})
    executor.queue = {"7": {"JobState": "CANCELLED"}}
    executor.report_job_error(SimpleNamespace(job=submitted, external_jobid="7", aux={}))
    assert executor.did == [expected] + ["done"] * (expected == "shown again")
    assert (tmp_path / "benchmarks/ddp.tsv").exists() == finished
