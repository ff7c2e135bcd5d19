"""What an edit makes stale, and what it does not: a table of edits, each a real dry run over results that are all there."""

import contextlib
import json
import os
import subprocess
import sys

import pytest

from parascale import numerics, provenance
from tests.made_up.project import REPOSITORY

from .dry_runs import Edit, FinishedProject, cell, setting, text
from .edits import CODE, DECIDES, DECIDES_NOTHING, LM, NEW_SETTINGS, RUNS, row, version
from .finished import FILES, RESULTS, TARGETS


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The finished project. The code whose digests are taken is its own, all else that runs here is the repository's."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provenance, "PACKAGE", folder / CODE)
        project = FinishedProject(folder, TARGETS)
        project.jobs = project.make(FILES, RESULTS)
        yield project
    numerics.training_modules.cache_clear()


def trains(job):
    return job.startswith(("train_", "parity_run", "probe"))


def named(project, expected):
    """Names of jobs, where a rule stands for all its jobs."""
    return {job for job in project.jobs if job.split()[0] in expected} | {each for each in expected if " " in each}


def test_a_label_a_price_or_conduct_makes_nothing_stale(project):
    assert rows_that_rerun(project, DECIDES_NOTHING) == {}


def rows_that_rerun(project, rows):
    """Name of each row whose edit makes jobs run again → the jobs. One dry run tells where there is none; if there is, bisect."""
    with contextlib.ExitStack() as edits:
        for _, edit in rows:
            edits.enter_context(edit.in_place(project))
        _, jobs = project.again()
    if not jobs or len(rows) == 1:
        return {name: jobs for name, _ in rows if jobs}
    half = len(rows) // 2
    found = rows_that_rerun(project, rows[:half]) | rows_that_rerun(project, rows[half:])
    return found or {" + ".join(name for name, _ in rows): jobs}


# One of each kind of job and of each way to depend; all others are slow.
QUICK = {
    *("title of the configuration", "shards", "bad samples", "another format of tokens", "forms of conversions"),
    *("beams", "steps of parity runs", "cores of a process", "learning rate", "window", "a user's text"),
    *("drawn images", "seed of the row that another begins with", "switch of a row's layout", "engine of a row"),
    *("new row", "baseline of a row", "numerics of images", "numerics of Lightning", "verdicts", "export"),
    *("calibration", "style of the report", "reader of a format", "measurement of communication"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in DECIDES]
)
def test_what_decides_makes_exactly_its_jobs_stale(project, name):
    edit, expected, *following = DECIDES[name]
    with edit.in_place(project):
        own, every = project.again()
    assert own == named(project, expected)
    assert set(filter(trains, every - own)) == set().union(*following)


def test_repeats_take_turns_with_what_they_are_compared_with(project):
    """All first runs go before all second ones: baseline, layout, baseline, layout, whatever their place in the table."""
    with row("lm-2", "1").in_place(project):
        first = project.priorities()
    assert first["train_single lm"] == first["train_ddp lm-ddp"] > first["train_single lm-2"] > 0


def test_what_is_taken_back_leaves_nothing_stale(project):
    edits = [setting(LM, "optim.lr", 2e-3), cell(RUNS, "lm", "seed", "2"), version("training")]
    for edit in edits:
        with edit.in_place(project):
            assert project.again()[0]
    assert project.again() == (set(), set())


@pytest.mark.parametrize("name", ["run.json", "steps.jsonl", "device.csv", "checkpoint", "checkpoint/checkpoint.json"])
def test_a_result_that_is_half_deleted_is_made_again(project, name, tmp_path):
    """Its summary, which stands for it elsewhere, is still there."""
    (gone,) = project.folder.glob(f"results/runs/lm-ddp/{name}")
    gone.rename(tmp_path / "gone")
    try:
        assert project.again()[0] >= {"train_ddp lm-ddp"}
    finally:
        (tmp_path / "gone").rename(gone)


GONE = {"files": {"gone": {"bytes": 1, "xxh3": "0"}}}


@pytest.mark.parametrize(
    ("name", "held", "expected"),
    [
        ("runs/lm-ddp/checkpoint/checkpoint.json", GONE, {"train_ddp lm-ddp"}),
        ("runs/lm-ddp/summary.json", {"best_step": 5}, {"train_ddp lm-ddp"}),
        ("parity/lm/checkpoint/checkpoint.json", GONE, set()),  # its verdict stands, and nothing else reads it
        ("checkpoints/lm/checkpoint.json", GONE, {"convert_checkpoint lm", "verify_checkpoint lm"}),
        ("data/words/flat/manifest.json", GONE, {"prepare words flat"}),
        ("data/shapes/arrow/manifest.json", GONE, {"gather_shards shapes arrow", "verify_format shapes arrow"}),
        ("data/shapes/arrow/00000-of-00001/record.json", GONE, set()),  # as its manifest says
    ],
)
def test_what_a_manifest_names_and_is_not_there_is_made_again(project, name, held, expected):
    edit = Edit(f"results/{name}", lambda content: json.dumps(json.loads(content or "{}") | held))
    project.targets.append("data")
    try:
        with edit.in_place(project):
            assert project.again()[0] == expected
        assert project.again()[1] == set()
    finally:
        project.targets.remove("data")


def test_a_checkout_that_moves_takes_its_results_along(project, monkeypatch):
    moved = project.folder.with_name("moved")
    monkeypatch.setattr(provenance, "PACKAGE", moved / CODE)
    project.folder.rename(moved)
    try:
        assert FinishedProject(moved, TARGETS).again() == (set(), set())
    finally:
        moved.rename(project.folder)


def test_a_new_setting_that_says_what_was_before_it_makes_nothing_stale(project):
    """In a process of its own, whose package is that of the project."""
    program = (
        "import sys; from tests.workflow import dry_runs, finished; "
        "own, every = dry_runs.FinishedProject(dry_runs.Path(sys.argv[1]), finished.TARGETS).again(); print(sorted(every))"
    )
    with contextlib.ExitStack() as edits:
        for file, place in NEW_SETTINGS:
            line = '    novelty: int = option("what was not there", default=0, before=0)\n'
            edits.enter_context(text(f"{CODE}/settings/{file}.py", place, line + place).in_place(project))
        command = [sys.executable, "-c", program, project.folder]
        environment = {**os.environ, "PYTHONPATH": str(project.folder / "scripts")}
        done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stdout + done.stderr[-2000:]
