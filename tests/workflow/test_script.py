"""The script of docs/own-script.md, run as it stands there: rows, curves, a stop and a continuation, prices, and what is not known."""

import contextlib
import csv
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from parascale.commands.plan import describe
from parascale.plan.planner import Planner
from parascale.settings import load_project_file
from tests.command import COMMAND
from tests.made_up.project import REPOSITORY

from .small_project import SmallProject

BLOCKS = re.findall(r"```(\w+)\n(.*?)```", (REPOSITORY / "docs/own-script.md").read_text("utf-8"), re.DOTALL)
SCRIPT, WORKLOAD, ROWS = (dict(reversed(BLOCKS))[kind] for kind in ("python", "yaml", "tsv"))


HELD = 50  # the step at which a script waits to be stopped, while there is a file `brake`
WAIT = f"""        import time
        while step == {HELD} and not asked and os.path.exists("brake"):
            time.sleep(0.05)
"""


def write(folder):
    """The documented script, which can be held, and the same without a line of ours, in a project."""
    line = "        record(step=step, loss=loss, samples=64)\n"
    bare = re.sub(r"^.*(parascale import|record\().*\n", "", SCRIPT, flags=re.MULTILINE)
    assert "record" not in bare and line in SCRIPT
    for name, text in {"waves": SCRIPT.replace(line, line + WAIT), "bare": bare}.items():
        (folder / f"config/workloads/{name}.py").write_text(text)
        (folder / f"config/workloads/{name}.yaml").write_text(WORKLOAD.replace("waves", name))
    (folder / "config/tiny.tsv").write_text(ROWS + "bare\tbare\t1\t1\n")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A project that has run, after one of its runs was told to stop in the middle."""
    project = SmallProject(tmp_path_factory.mktemp("scripts"))
    write(project.folder)
    assert project.planned() == {
        **{"train_single": 2, "train_ddp": 1, "job_report": 3, "comparison_report": 1, "all": 1}
    }
    stop_in_the_middle(project, "waves-ddp")
    project.snakemake()
    return project


def launch(project, *words):
    environment = os.environ | {"PYTHONPATH": str(project.folder / "scripts")}
    return subprocess.Popen(
        [*COMMAND, "launch", *words], cwd=project.folder, env=environment, text=True, stdout=subprocess.PIPE
    )


@contextlib.contextmanager
def in_the_middle(project, run):
    """The launcher of a run whose script waits at step HELD."""
    brake, steps = project.folder / "brake", project.folder / f"work/runs/{run}/steps.jsonl"
    brake.touch()
    process, deadline = launch(project, "--run", run), time.monotonic() + 240
    while not (steps.is_file() and steps.read_text().count("\n") == HELD):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    yield process
    brake.unlink()


def stop_in_the_middle(project, run):
    with in_the_middle(project, run) as process:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=240)
        assert process.returncode == 75, "stopped with its state saved, although the script ends with 0"
        assert (project.folder / f"work/runs/{run}/files/last.pt").is_file()


def record(project, run):
    """What a run left: its lines of steps, and its summary."""
    folder = project.folder / "results/runs" / run
    lines = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    return lines, json.loads((folder / "summary.json").read_text())


def test_the_rows_have_what_the_script_records(finished):
    rows = {row["run"]: row for row in csv.DictReader((finished.folder / "results/report/summary.csv").open())}
    single, ddp, bare = (rows[name] for name in ("waves-single", "waves-ddp", "bare"))
    for row, parity in ((single, "baseline"), (ddp, "not comparable")):
        assert (row["status"], row["parity"], row["work"], row["work_unit"]) == ("done", parity, "12800", "samples")
        assert float(row["train_loss"]) < 0.1 < float(row["rate"])
    assert float(ddp["speedup"]) > 0 and float(ddp["efficiency"]) == pytest.approx(float(ddp["speedup"]) / 2)
    assert (bare["status"], bare["work"], bare["rate"], bare["train_loss"]) == ("done", "", "", "")
    assert bare["seconds"] == bare["wall_seconds"] and float(bare["core_hours"]) > 0
    assert "records no steps, loss, samples: time of the whole job" in bare["stands_out"]
    page = (finished.folder / "results/report/index.html").read_text()
    assert "waves, 12,800 samples" in page and "time of the whole job" in page


def test_its_record_is_that_of_a_training_that_was_stopped_and_continued(finished):
    lines, summary = record(finished, "waves-ddp")
    assert [line["step"] for line in lines] == list(range(1, 201)) and lines[0]["loss"] > lines[-1]["loss"]
    assert summary["seconds"] < summary["wall_seconds"] - 0.5, "the start is no training"
    folder = finished.folder / "results/runs/waves-ddp"
    described = json.loads((folder / "run.json").read_text())
    attempts = [(each["first_step"], each["outcome"]) for each in described["attempts"]]
    assert set(described["code"]) == {"waves.py"} and summary["attempts"] == 2
    assert attempts == [(1, "stopped"), (HELD + 1, "finished")]
    assert (folder / "checkpoint/last.pt").is_file()
    assert (folder / "events.out.tfevents.parascale").stat().st_size > 1000
    assert (folder / "device.csv").read_text().count("rank") > 1


def test_nothing_is_done_twice_and_an_edit_of_the_script_trains_its_rows_again(finished):
    path = finished.folder / "config/workloads/waves.py"
    text = path.read_text()
    try:
        path.write_text(text + "# the end\n")
        assert not finished.planned()
        path.write_text(text.replace("64), torch.nn.Tanh", "64), torch.nn.ReLU"))
        assert {rule: count for rule, count in finished.planned().items() if "train" in rule} == {
            "train_single": 1,
            "train_ddp": 1,
        }
    finally:
        path.write_text(text)


def prediction(project, run, steps=200):
    """What a plan says of a run, were its script to make so many steps."""
    project.edit("config/workloads/waves.yaml", "steps: 200", f"steps: {steps}")
    try:
        with contextlib.chdir(project.folder):
            return Planner(load_project_file("config/config.yaml")).prediction(run)
    finally:
        project.edit("config/workloads/waves.yaml", f"steps: {steps}", "steps: 200")


def test_a_finished_run_prices_its_repeats(finished, monkeypatch):
    known, summary = prediction(finished, "waves-ddp"), record(finished, "waves-ddp")[1]
    assert known.basis == "history" and known.wall_seconds == pytest.approx(summary["wall_seconds"], rel=0.01)
    whole, summary = prediction(finished, "bare"), record(finished, "bare")[1]
    assert whole.basis == "history" and whole.wall_seconds == pytest.approx(summary["wall_seconds"], rel=0.01)
    assert "run the target `calibrate`" in prediction(finished, "waves-ddp", 4000).unknown
    monkeypatch.chdir(finished.folder)
    told = describe("waves-ddp", Planner(load_project_file("config/config.yaml")))
    assert re.search(r"basis: history\n    200 steps of [\d.]+ ms\n.* core-", told)


@pytest.mark.slow
def test_probes_price_rows_that_never_ran(finished):
    assert finished.planned("calibrate")["probe"] == 3
    finished.snakemake("calibrate")
    short, long = (prediction(finished, "waves-ddp", steps) for steps in (4000, 8000))
    assert (short.basis, short.steps, short.unknown) == ("probe", 4000, None)
    assert long.seconds == pytest.approx(2 * short.seconds) and long.beside == short.beside
    assert short.wall_low < short.wall_seconds < short.limit_seconds and short.core_hours > 0


@pytest.mark.parametrize("body", ["raise ValueError('no data')", "import os, signal; os.kill(os.getpid(), 9)"])
def test_a_script_that_fails_is_a_failed_run(tmp_path, body):
    project = SmallProject(tmp_path)
    write(tmp_path)
    (tmp_path / "config/workloads/waves.py").write_text(body)
    process = launch(project, "--run", "waves-single")
    process.communicate(timeout=120)
    attempt = json.loads((tmp_path / "work/runs/waves-single/attempts.jsonl").read_text())
    assert (process.returncode, attempt["outcome"]) == (1, "failed")
    assert not Path(tmp_path / "work/runs/waves-single/lease.json").exists()
