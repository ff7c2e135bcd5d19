"""What the layer over Slurm's executor decides: which job is taken up, which goes on, which is not tried again."""

import json
from types import SimpleNamespace

import pytest
from snakemake_executor_plugin_slurm import Executor

from parascale import slurm, submissions
from parascale.errors import ConfigError, RequirementError, TrainingError
from parascale.launch.root import take_root
from parascale.lease import Lease
from parascale.settings.paths import Paths
from snakemake_slurm_parascale import RootExecutor, refuse_shared_jobs


class Names(SimpleNamespace):
    """Names with values, as Snakemake has them."""

    def get(self, name):
        return vars(self).get(name)


class Rule(SimpleNamespace):
    """A rule, which Snakemake has in sets."""

    __hash__ = object.__hash__


def job_of(run, key="key", kind="run"):
    rule = Rule(name="train_ddp", wildcard_names={"run"}, params=Names(kind=kind), group=None)
    wildcards = Names(run=run)
    wildcards.__class__ = type("Wildcards", (Names,), {"__iter__": lambda self: iter([self.run])})
    job = {"rule": rule, "name": rule.name, "jobid": 1, "wildcards": wildcards, "params": Names(kind=kind, key=key)}
    return SimpleNamespace(**job, attempt=1, restart_times=3, is_group=lambda: False)


@pytest.fixture
def executor(tmp_path, monkeypatch):
    """A RootExecutor that notes what it would do, and the queue that it sees."""
    made = object.__new__(type("Executor", (RootExecutor,), {"paths": Paths(tmp_path)}))
    made.run_uuid, made.slurm_logdir, made.did, made.queue = "parascale_0", tmp_path / "slurm_logs", [], {}
    made.logger = SimpleNamespace(info=lambda text: None, warning=lambda text: None)
    made._job_submission_executor = SimpleNamespace(submit=lambda function, job: made.did.append("again"))
    monkeypatch.setattr(slurm, "waiting_or_running", lambda name: made.queue)
    monkeypatch.setattr(slurm, "described", lambda identity: made.queue.get(identity, {}))
    monkeypatch.setattr(Executor, "run_job", lambda self, job: made.did.append("submitted"))
    reported = lambda self, info: made.did.append(f"watches {info.external_jobid}")  # noqa: E731
    monkeypatch.setattr(Executor, "_report_job_submission_threadsafe", reported)
    monkeypatch.setattr(Executor, "report_job_success", lambda self, info: made.did.append("done"))
    monkeypatch.setattr(Executor, "report_job_error", lambda self, info, msg, **more: made.did.append("failed"))
    return made


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


def test_without_an_answer_of_slurm_nothing_is_submitted(executor, monkeypatch):
    def away(name):
        raise RequirementError("slurmctld is away")

    monkeypatch.setattr(slurm, "waiting_or_running", away)
    monkeypatch.setattr(RootExecutor, "_report_job_error_threadsafe", lambda self, info, msg: self.did.append(msg))
    executor.run_job(job_of("ddp"))
    assert executor.did == ["slurmctld is away "]


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
        (None, {"JobState": "FAILED", "Comment": slurm.HOPELESS_COMMENT}, True, "failed", False),
        (None, {"JobState": "FAILED"}, False, "again", True),  # of other settings: now it is ours' turn
    ],
)
def test_what_becomes_of_a_job_that_ended_badly(executor, attempt, said, ours, expected, attempts_left):
    work = executor.paths.work("ddp")
    work.mkdir(parents=True)
    if attempt:
        (work / "attempts.jsonl").write_text(json.dumps(attempt) + "\n")
    executor.queue = {"7": said}
    job = job_of("ddp")
    executor.report_job_error(SimpleNamespace(job=job, external_jobid="7", aux={"ours": ours}))
    assert executor.did == [expected]
    assert (job.attempt <= job.restart_times) == attempts_left


@pytest.mark.parametrize(("group", "arrays"), [("all_trainings", None), (None, "all"), (None, "prepare, train_ddp")])
def test_arrays_and_groups_hold_no_trainings(group, arrays):
    job = job_of("ddp")
    job.rule.group = group
    other = SimpleNamespace(rule=Rule(name="prepare", wildcard_names=set(), group="data"))
    dag, settings = SimpleNamespace(needrun_jobs=lambda: [job, other]), SimpleNamespace(array_jobs=arrays)
    with pytest.raises(ConfigError, match="take train_ddp out of its"):
        refuse_shared_jobs(SimpleNamespace(dag=dag, executor_settings=settings))
    job.rule.group = None
    refuse_shared_jobs(SimpleNamespace(dag=dag, executor_settings=SimpleNamespace(array_jobs="prepare")))


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
