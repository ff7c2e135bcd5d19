"""What a training is told follows from the project."""

from pathlib import Path

import pytest

from parascale.cli import open_project
from parascale.files import read_json, write_json
from parascale.lease import Lease
from parascale.store.trainings import Store
from parascale.train.job import job_of, published

from .test_plan_budget import project
from .test_store import fill

RUNS = "run\tworkload\tinit_from\nfirst\tlm-small\t-\nsecond\tlm-small\tfirst\n"


@pytest.mark.parametrize(("name", "start"), [("first", None), ("second", "there/results/runs/first/checkpoint")])
def test_a_run_that_begins_from_another_is_told_its_checkpoint(tmp_path, monkeypatch, name, start):
    monkeypatch.chdir(".")  # and back again
    (tmp_path / "runs.tsv").write_text(RUNS)
    project = open_project(overrides=[("runs", str(tmp_path / "runs.tsv")), ("root", "there")])
    job = job_of(project, project.runs[name])
    assert (job.start, job.output) == (start and Path(start), Path(f"there/results/runs/{name}"))


@pytest.fixture
def job(tmp_path):
    """A job whose data is there."""
    made = project(tmp_path)
    run = made.runs["single"]
    write_json(made.paths.data_of(run) / "manifest.json", {"vocabulary": 5000})
    return job_of(made, run)


def keep(job):
    """As a training that ended whole; returns its folder."""
    with Store(job.store).keeping(job.key, "runs/single") as folder:
        fill(folder, job.run, job.key)
    return Store(job.store).folder / job.key


@pytest.mark.parametrize("begun", ["nothing", "the same", "another"])
def test_a_start_publishes_what_is_finished_and_drops_only_its_own_work(job, capsys, begun):
    """The end of a training may be cut off between keeping and showing it."""
    assert not published(job)
    keep(job)
    if begun != "nothing":
        write_json(job.work / "run.json", {"key": job.key if begun == "the same" else "other"})
    assert published(job) and published(job)
    assert read_json(job.output / "summary.json")["run"] == "single"
    assert "published in" in capsys.readouterr().out
    assert job.work.exists() == (begun == "another")


def test_the_work_of_a_job_that_is_just_ending_is_left_to_it(job, monkeypatch):
    keep(job)
    write_json(job.work / "run.json", {"key": job.key})
    monkeypatch.setattr("parascale.lease.LOOK_SECONDS", 0.01)
    monkeypatch.setattr("parascale.lease.RENEW_SECONDS", 0.02)
    holder = Lease(job.work)
    holder.acquire()
    try:
        assert published(job)
        assert job.work.exists()
    finally:
        holder.release()


def test_a_damaged_training_is_set_aside_and_trains_again(job, capsys):
    folder = keep(job)
    (folder / "best/weights").write_bytes(b"0" * 100)
    assert not published(job) and not job.output.exists()
    said = capsys.readouterr().out
    assert "weights is damaged" in said and f"set aside as {folder}.damaged" in said
    keep(job)
    assert published(job)
