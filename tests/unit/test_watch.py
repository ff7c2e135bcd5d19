"""Runs under way in the terminal: what grows is followed, what is cut short waits, and nothing of the job is touched."""

import json
import os

import pytest

from parascale.files import write_json, write_text
from parascale.report.live import COLUMNS, RECENT, TAIL, Live
from tests.command import parascale
from tests.made_up.devices import START
from tests.made_up.results import CLUSTER, edited, fake, steps_of, write_lines, write_results

RUN = fake("ddp", baseline="ddp", status="running", steps=30, gpus_per_node=4, dp=4, site=CLUSTER)
NOW = START + 1800


def under_way(root, steps=30, **attempt):
    """The work folder of a run that has done some steps."""
    _, work = write_results(root, [RUN])
    folder = work / "runs/ddp"
    edited(folder / "run.json", steps=60, prediction={"core_hours": 99.0})
    write_lines(folder / "steps.jsonl", steps_of(RUN)[:steps])
    write_lines(folder / "attempts.jsonl", [{"started": START, "job_id": "4711", **attempt}])
    write_json(folder / "lease.json", {"host": "node0", "pid": 1, "job_id": "4711", "time": NOW - 3})
    return work


def cells(work, now=NOW):
    """Column → what stands there of the only run."""
    run = Live("ddp", work / "runs/ddp")
    run.update()
    return dict(zip(COLUMNS, run.cells(now), strict=True))


def test_everything_that_is_asked_for_is_shown(tmp_path):
    shown = cells(under_way(tmp_path))
    lines = [json.loads(line) for line in (tmp_path / "work/runs/ddp/steps.jsonl").open()]
    seconds = sum(line["seconds"]["total"] for line in lines[-20:])
    rate, left = sum(line["tokens"] for line in lines[-20:]) / seconds / 1000, seconds / 20 * 30
    expected = {"run": "ddp", "step": "30 of 60", "core-hours": "64.0 of 99.0", "state": "running"}
    expected |= {"loss": f"{lines[-1]['loss']:.4f}", "rate": f"{rate:.1f} k tokens/s", "left": f"{left:.2f} s"}
    assert shown == expected


@pytest.mark.parametrize(
    ("attempt", "now", "state", "hours"),
    [
        ({}, NOW, "running", 64.0),
        ({}, NOW + 3600, "silent", 63.9),  # it is not charged for the time since
        ({"outcome": "stopped", "seconds": 9.0}, NOW, "stopped", 0.32),
        ({"outcome": "failed", "seconds": 9.0}, NOW, "failed", 0.32),
    ],
)
def test_the_state_of_a_run_is_said(tmp_path, attempt, now, state, hours):
    shown = cells(under_way(tmp_path, **attempt), now)
    assert shown["state"] == state and float(shown["core-hours"].split()[0]) == hours


def test_a_growing_file_is_followed_and_a_new_attempt_begins_anew(tmp_path):
    work = under_way(tmp_path, steps=10)
    run, steps = Live("ddp", work / "runs/ddp"), work / "runs/ddp/steps.jsonl"
    run.update()
    assert run.step == 10
    lines = [json.dumps(line) for line in steps_of(RUN)]
    with steps.open("a") as handle:
        handle.write(lines[10] + "\n" + lines[11][:40])
        handle.flush()
        run.update()
        assert run.step == 11, "a line that is being written waits"
        handle.write(lines[11][40:] + "\n")
    run.update()
    assert run.step == 12
    write_text(steps, "".join(line + "\n" for line in lines[:5]))
    run.update()
    assert run.step == 5 and len(run.recent) == 5, "steps after the last checkpoint are done again"
    many = [json.loads(lines[0]) | {"step": step} for step in range(1, TAIL // 100)]
    write_lines(steps, many)
    run.update()
    assert run.recent == many[-RECENT - 1 :], "of a long file the end alone is read"


def test_the_command_shows_running_runs_and_writes_nothing(tmp_path):
    work = under_way(tmp_path)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in work.rglob("*")}
    done = parascale("watch", "--root", tmp_path, check=True)
    assert "ddp" in done.stdout and "30 of 60" in done.stdout and "\x1b" not in done.stdout
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in work.rglob("*")} == before
    empty = parascale("watch", "--root", tmp_path / "none", check=True)
    assert "No run is under way" in empty.stdout


@pytest.mark.parametrize("name", ["run.json", "steps.jsonl", "attempts.jsonl", "lease.json"])
def test_a_file_that_is_missing_or_being_replaced_stops_nothing(tmp_path, name):
    work = under_way(tmp_path)
    path = work / "runs/ddp" / name
    path.write_text("{")
    assert cells(work)["run"] == "ddp"
    os.remove(path)
    assert cells(work)["run"] == "ddp"
