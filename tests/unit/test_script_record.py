"""The record that the launcher keeps of a training script: what its calls come to, when it has saved, and what is kept of its folder."""

import json
import os
from pathlib import Path

import pytest

from parascale import recording
from parascale.files import read_json, read_json_lines, write_json
from parascale.launch import STOPPED, TERMINATED
from parascale.launch.hang import note_cause
from parascale.report.live import Live
from parascale.submissions import outcome_of
from parascale.train.job import FILES, job_of
from parascale.train.script import train
from tests.made_up.project import load_here, write_script
from tests.made_up.results import write_lines


@pytest.fixture
def start(tmp_path, monkeypatch):
    """A function that starts a script once: a list of (step, figures) that it records, names of files that it saves, its exit code. Gives
    the Job."""
    rows = "run workload precision", "alone own fp16"
    write_script(tmp_path, 'arguments: {precision: "{precision}"}\n', rows)
    monkeypatch.chdir(tmp_path)
    project = load_here(tmp_path)
    job = job_of(project, project.runs["alone"])
    monkeypatch.setenv(recording.FOLDER, str(job.work / FILES))

    def run(steps=(), saved=(), code=0):
        def script(watched):
            recording._lines.cache_clear()
            for step, figures in steps:
                recording.record(step=step, **figures)
            for name in saved:
                (job.work / FILES / name).write_text("weights")
            if isinstance(code, SystemExit):
                raise code
            return code

        train(job, 0, script, STOPPED, TERMINATED)
        return job

    return run


def test_what_a_script_says_of_a_step_in_several_calls_is_joined(start):
    steps = [
        (1, {"loss": 3.0, "samples": 4, "skipped": 0}),  # of its own, whatever ours mean by it
        (2, {"samples": float("nan")}),
        (1, {"validation_loss": 2.0}),
        (2, {"lr": 1}),
    ]
    lines = read_json_lines(start(steps).output / "steps.jsonl")
    found = [line.keys() - {"seconds", "first"} for line in lines]
    assert found == [{"step", "loss", "samples", "skipped", "validation_loss"}, {"step", "lr"}]
    assert json.loads((start().output / "summary.json").read_text())["skipped_steps"] is None


@pytest.mark.parametrize(
    ("steps", "saved", "code", "progress", "numbers"),
    [
        ([(2, {})], ["last.pt"], STOPPED, True, (2, 2)),
        ([(2, {})], ["last.pt"], TERMINATED, True, (2, 2)),
        ([(1, {}), (2, {})], ["last.pt"], STOPPED, False, (1, 2)),  # it does not go on from what it saves
        ([(1, {}), (2, {})], [], STOPPED, False, (1, 2)),  # and would begin anew for ever
        ([], ["last.pt"], STOPPED, False, (None, None)),  # a start as long as its job
    ],
)
def test_a_script_has_moved_on_if_it_made_steps_and_saved(start, monkeypatch, steps, saved, code, progress, numbers):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    work = start([(1, {})], ["first.pt"], STOPPED).work
    assert outcome_of(work, "7") == "stopped"
    os.utime(work / FILES / "first.pt", (1, 1))
    text = (work / "steps.jsonl").read_text()
    (work / "steps.jsonl").write_text(text.replace('"first": ', '"first": 1e-9, "was": '))  # of an earlier process
    start(steps, saved, code)
    last = read_json_lines(work / "attempts.jsonl")[-1]
    assert outcome_of(work, "7") == ("stopped" if progress else "failed")
    assert (last["first_step"], last["last_step"]) == numbers


@pytest.mark.parametrize(("code", "progress"), [(STOPPED, True), (TERMINATED, False)])
def test_a_script_without_a_record_moves_on_by_what_it_saves_when_it_is_asked_to(start, monkeypatch, code, progress):
    """What it saved before may be a log alone, with which it would begin anew for ever."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert outcome_of(start(saved=["last.pt"], code=code).work, "7") == ("stopped" if progress else "failed")


def test_a_script_that_is_stopped_while_its_nodes_meet_has_not_failed(start):
    with pytest.raises(SystemExit):
        start(code=SystemExit(TERMINATED))
    (attempts,) = Path().rglob("attempts.jsonl")
    assert [each["outcome"] for each in read_json_lines(attempts)] == ["stopped"]


def test_links_within_its_folder_are_kept(start, tmp_path):
    job = start(saved=["step-1.pt"], code=STOPPED)
    folder = job.work / FILES
    (folder / "inner").mkdir()
    (folder / "last.pt").symlink_to("step-1.pt")
    (folder / "latest").symlink_to("inner")
    (folder / "gone").symlink_to("nothing")
    (folder / "out.yaml").symlink_to("../../../../config.yaml")
    (folder / "absolute.pt").symlink_to(folder / "step-1.pt")
    kept = start().output / "checkpoint"
    assert {path.name for path in kept.iterdir() if path.is_symlink()} == {"last.pt", "latest"}
    assert (kept / "last.pt").read_text() == "weights"


def test_a_pace_leaves_out_the_start_of_a_script_and_counts_steps_not_lines(tmp_path):
    lines = [{"step": step, "seconds": {"total": 10.0}} for step in range(10, 110, 10)]
    lines[0] |= {"first": 1.0, "seconds": {"total": 1000.0}}
    write_lines(tmp_path / "steps.jsonl", lines)
    prediction = {"wall_seconds": 200.0, "beside": {"start": 20.0}}
    write_json(tmp_path / "run.json", {"steps": 180, "prediction": prediction})
    live = Live("alone", tmp_path)
    live.update()
    assert live.times_planned() == pytest.approx(1.0)
    assert [*live.cells(0.0)][4] == "80.0 s"


@pytest.mark.parametrize(("code", "cause"), [(1, "rank 1 slept"), (0, None)])
def test_what_the_launcher_saw_of_a_hang_stays_in_the_record_of_an_attempt_that_did_not_finish(start, code, cause):
    """The launcher writes it into the file while the script runs."""
    job = start(code=STOPPED)

    def run(watched):
        note_cause(job.work, "rank 1 slept")
        return code

    train(job, 0, run, STOPPED, TERMINATED)
    attempts = read_json_lines(job.work / "attempts.jsonl") if code else read_json(job.output / "run.json")["attempts"]
    assert attempts[-1].get("cause") == cause


def test_what_surrounds_a_script_is_in_the_record_of_its_attempt(start, monkeypatch, capsys):
    monkeypatch.setenv("MALLOC_CHECK_", "3")
    found = json.loads((start().output / "run.json").read_text())["attempts"][-1]["surroundings"]
    assert "MALLOC_CHECK_" in [each["name"] for each in found]
    assert "MALLOC_CHECK_ = 3" in capsys.readouterr().out
