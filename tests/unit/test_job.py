"""What a training is told follows from the project."""

import dataclasses
from pathlib import Path

import pytest

from parascale.checkpoint.manifest import describe_files, write_manifest
from parascale.cli import open_project
from parascale.files import read_json, write_json, write_text
from parascale.lease import Lease
from parascale.store.trainings import Store
from parascale.train.acquire_run import acquire_run, continuation_of
from parascale.train.job import ChangedDataError, job_of, published
from tests.made_up.project import project
from tests.made_up.results import fill

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


@pytest.mark.parametrize("after", ["nothing", "other data", "no data"])
def test_a_training_belongs_to_the_data_that_it_was_started_on(job, after):
    """Snakemake may be killed, and a new one prepare other data while the job runs."""
    key, manifest = job.key, job.data / "manifest.json"
    if after == "other data":
        write_json(manifest, {"vocabulary": 6000})
    elif after == "no data":
        manifest.unlink()
    assert job.key == dataclasses.replace(job, prediction={}).key == key
    if after == "nothing":
        job.check_data()
        return
    with pytest.raises(ChangedDataError, match=r"was rebuilt after it started"):
        job.check_data()


def begun(job, text):
    """As a job that was told to stop; `text` stands for what it did."""
    lease, _, found, _ = acquire_run(job)
    write_json(job.work / "run.json", {"continuation": continuation_of(job)})
    write_text(job.work / "did", text)
    lease.release()
    return found


def test_what_stepped_aside_before_stays_when_more_of_its_kind_does(job):
    """Other code was continued, and then was not: there are two of one continuation, of which the newest comes back."""
    edited = dataclasses.replace(job, code_digest="edited")
    begun(job, "first")
    begun(edited, "edited")
    write_json(job.work / "run.json", {"continuation": continuation_of(job)})  # as `continue_with_other_code` leaves it
    write_text(job.work / "did", "second")
    for aside in job.work.parent.glob("single.superseded-*"):
        assert (aside / "did").read_text() == "first"
    begun(edited, "edited again")
    aside = job.work.parent.glob("single.superseded-*")
    assert sorted((path / "did").read_text() for path in aside) == ["first", "second"]
    lease, *_ = acquire_run(job)
    assert (job.work / "did").read_text() == "second"
    lease.release()


@pytest.mark.parametrize("lost", [True, False])
def test_other_work_stays_when_a_finished_training_is_shown(job, lost):
    """Also where only a checkpoint tells whose it is."""
    step = job.work / "checkpoints/step-000000003"
    write_text(step / "weights", "0")
    write_manifest(step, {"step": 3, "continuation": {"code": "other"}}, describe_files(step, ["weights"]))
    if not lost:
        write_json(job.work / "run.json", {"key": "other"})
    keep(job)
    assert acquire_run(job)[2] is None
    assert step.is_dir() and not (job.work / "lease.json").exists()
