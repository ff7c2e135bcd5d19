"""A job that Slurm calls running while nothing of its training lives is cancelled, and no other."""

import os
import time
from types import SimpleNamespace

import pytest

from parascale import slurm
from parascale.files import write_json
from tests.made_up.cluster import data_job, job_of

LEASE = {"host": "jrc0001", "pid": 1, "restarts": 0}
RUNS = {"JobState": "RUNNING", "Restarts": "0", "RunTime": "1-00:00:00"}


# lease: job, seconds between its renewals; what Slurm says; seconds that we look on → whether the job is dead
@pytest.mark.parametrize(
    ("holder", "renewed", "said", "watched", "dead"),
    [
        ("17", None, RUNS, 312, True),
        ("17", None, RUNS, 299, False),
        ("17", 5, RUNS, 3000, False),
        ("16", None, RUNS, 900, False),  # of a job before
        (None, None, RUNS, 3000, True),  # the training does not begin
        (None, None, RUNS, 900, False),
        (None, None, {**RUNS, "RunTime": "00:15:00"}, 3000, False),  # it was in the queue until now
        ("finished", None, RUNS, 312, True),  # and its lease is gone
        ("finished", None, RUNS, 299, False),
        ("finished", None, {**RUNS, "RunTime": "00:05:00"}, 3000, False),  # by another job: this one has just begun
        ("unreadable", None, RUNS, 3000, False),
        ("away", None, RUNS, 3000, False),  # the file system
        ("17", None, {**RUNS, "JobState": "PENDING"}, 3000, False),  # its node was lost: it waits in the queue anew
        (
            "17",
            None,
            {**RUNS, "Restarts": "1", "RunTime": "00:10:00"},
            3000,
            False,
        ),  # and has begun anew, its training not yet
        ("17", None, {**RUNS, "Restarts": "1"}, 3000, True),  # nor will it
        ("17", None, {**RUNS, "JobState": "SUSPENDED"}, 3000, False),
        ("17", None, {}, 3000, False),  # no answer
    ],
)
def test_only_a_training_that_has_begun_and_gives_no_sign_is_dead(
    holder, renewed, said, watched, dead, executor, tmp_path, monkeypatch
):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(slurm, "described", lambda identity: said)
    executor.is_finished = lambda training: holder == "finished"
    if holder == "unreadable":
        (tmp_path / "lease.json").mkdir()
    executor.silence = 300
    store = tmp_path / "gone" if holder == "away" else tmp_path
    executor.paths = SimpleNamespace(places=lambda kind: (None, lambda run: tmp_path), store=store)
    submitted = SimpleNamespace(job=job_of("ddp"), external_jobid="17")
    silent = []
    for second in range(0, watched + 1, 20 if watched > 500 else 1):
        now[0] = second
        if holder and holder.isdigit() and (second == 0 or renewed):
            write_json(tmp_path / "lease.json", {**LEASE, "job_id": holder, "time": second})
        silent.append(executor.signs.what_is_wrong(submitted))
    assert any(silent) == dead


def test_a_job_that_was_suspended_until_now_has_a_moment_to_give_a_sign(executor, tmp_path, monkeypatch):
    now, state = [0.0], ["SUSPENDED"]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(slurm, "described", lambda identity: RUNS | {"JobState": state[0]})
    executor.silence = 300
    executor.paths = SimpleNamespace(places=lambda kind: (None, lambda run: tmp_path), store=tmp_path)
    submitted = SimpleNamespace(job=job_of("ddp"), external_jobid="17")
    for second in range(0, 2001, 20):
        now[0] = second
        if second == 1900:
            state[0] = "RUNNING"
        if second in (0, 1920):
            write_json(tmp_path / "lease.json", {**LEASE, "job_id": "17", "time": second})
        assert not executor.signs.what_is_wrong(submitted), second


@pytest.mark.parametrize(
    ("made", "said", "dead"),
    [
        (["a", "b"], RUNS, True),  # and nobody is left who would tell Slurm of the end
        (["a"], RUNS, False),
        ([], RUNS, False),
        (["a", "b"], {**RUNS, "RunTime": "00:10:00"}, False),  # by an earlier job: this one removes them when it begins
        (["a", "b"], {**RUNS, "JobState": "PENDING"}, False),
        (["a", "b", "again"], RUNS, False),
    ],
)
def test_a_job_whose_work_is_all_there_has_ended(made, said, dead, executor, tmp_path, monkeypatch):
    """Of a job that trains nothing. Snakemake in it removes what it made when it is cancelled: it is submitted again."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(slurm, "described", lambda identity: said)
    executor.silence = 300
    output = [str(tmp_path / name) for name in "ab"]
    submitted = SimpleNamespace(job=data_job(output=output), external_jobid="17", aux={})
    for name in set(made) & {"a", "b"}:
        (tmp_path / name).touch()
    found = []
    for second in range(0, 3001, 20):
        now[0] = second
        if "again" in made:
            os.utime(tmp_path / "b", (second, second))
        found.append(executor.signs.what_is_wrong(submitted))
    assert any(found) == dead
