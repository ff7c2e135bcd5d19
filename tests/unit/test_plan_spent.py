"""What a root was charged when workflows are killed: nothing is forgotten, nothing counts twice, and what nobody knows is named."""

import json
import os
from datetime import UTC, datetime

import pytest

from parascale import slurm, submissions
from parascale.files import append_line, write_json
from parascale.plan import budget, ledger
from parascale.plan.ledger import Spent, spent
from parascale.plan.planner import Planner
from snakemake_logger_plugin_parascale.live import Ledger
from tests.made_up.project import jobs, project
from tests.made_up.results import write_lines
from tests.unit.test_ledger import BEGAN, HOUR, attempt


@pytest.fixture
def planner(tmp_path):
    return Planner(project(tmp_path, core_hours=1000.0))


def workflow(planner):
    """A Ledger of a download (1), a preparation (2) and trainings on one node (3) and on two (4), of 128 cores each."""
    return Ledger(budget.make_plan(jobs(), planner), planner)


def charged(planner, hours=100, accounting=lambda ids: {}):
    """What was Spent so many hours after BEGAN."""
    return spent(planner.project.paths, "jureca", now=BEGAN + hours * HOUR, accounting=accounting)


def lines_of(folder, *attempts):
    write_lines(folder / "attempts.jsonl", attempts)


def test_a_training_whose_workflow_was_killed_counts_as_long_as_it_ran(planner):
    """Its closed attempts and, up to its last sign of life, the open one; what it did before the workflow began was counted then."""
    workflow(planner).started([1, 4], BEGAN)
    work = planner.project.paths.under_way / "runs" / "ddp-8"
    unfinished = {"start": attempt(BEGAN + 2 * HOUR, 0)["start"]}
    lines_of(work, attempt(BEGAN - HOUR, 900.0), attempt(BEGAN + HOUR, 1800.0), unfinished)
    write_json(work / "lease.json", {"time": BEGAN + 3 * HOUR})
    assert charged(planner) == Spent(256 * 1.5)
    assert charged(planner, hours=2.5).core_hours == 256, "so far"


def test_a_job_that_the_next_workflow_took_up_counts_once(planner):
    """It ran for an hour and a half, through the death of one workflow and to the end of the next."""
    workflow(planner).started([3], BEGAN)
    lines_of(planner.project.paths.under_way / "runs" / "single", attempt(BEGAN + HOUR / 2, 1.5 * HOUR))
    second = workflow(planner)
    second.started([3], BEGAN + HOUR)
    second.finished(3, BEGAN + 2 * HOUR)
    assert second.used == pytest.approx(128) and charged(planner).core_hours == pytest.approx(192)


def test_ends_that_were_seen_are_not_counted_again(planner):
    """Of another attempt of the same job neither."""
    seen = workflow(planner)
    for end in (seen.failed, seen.finished):
        seen.started([3], BEGAN)
        end(3, BEGAN + HOUR)
    lines_of(planner.project.paths.under_way / "runs" / "single", attempt(BEGAN, HOUR))
    assert charged(planner).core_hours == pytest.approx(seen.used) == pytest.approx(256)


def test_a_job_that_trains_nothing_counts_by_its_benchmark(planner, tmp_path):
    table = tmp_path / "prepare.tsv"
    killed = workflow(planner)
    killed.started([2], BEGAN)
    assert charged(planner).unknown == ("prepare (d)",)
    events = [json.loads(line) | {"benchmark": str(table)} for line in killed.events.read_text().splitlines()]
    write_lines(killed.events, events)
    table.write_text("s\th:m:s\n1800.0\t0:30:00\n")
    os.utime(table, (BEGAN + 9 * HOUR, BEGAN + 9 * HOUR))
    assert charged(planner).core_hours == pytest.approx(64)


@pytest.fixture
def submitted(planner):
    """A function that notes a Slurm job, submitted so many hours after BEGAN, and which of Snakemake's jobs it does."""

    def note(job, hours, *work):
        moment = datetime.fromtimestamp(BEGAN + hours * HOUR, UTC)
        line = {"job_id": job, "jobs": [list(each) for each in work], "time": moment.isoformat(timespec="seconds")}
        append_line(planner.project.paths.store / submissions.FILE, json.dumps(line))

    return note


def accounting(**hours):
    """Slurm's: how long jobs ran on one node. `_7`: the job 7."""
    charges = {job[1:]: slurm.Charged(1, 128, ran * HOUR) for job, ran in hours.items()}
    return lambda ids: {job: charges[job] for job in ids}


def test_what_left_no_record_counts_by_slurms_accounting(planner, submitted):
    """A training whose node died at once, and a job of two of Snakemake's jobs; not a job that was submitted for them another time."""
    workflow(planner).started([2, 3], BEGAN)
    submitted("7", 0, ("train_single", ["single"]))
    submitted("8", 0.5, ("prepare", ["d"]), ("prepare", ["e"]))
    submitted("6", -1, ("prepare", ["d"]))
    append_line(planner.project.paths.store / submissions.FILE, '{"job_id": "5"}')  # damaged
    assert charged(planner, accounting=accounting(_7=0.5, _8=2, _6=50)) == Spent(pytest.approx(64 + 128))
    assert charged(planner).unknown == ("prepare (d)", "train_single (single)"), "without accounting"


def test_what_slurm_tells_ends_where_the_next_workflow_has_the_job(planner, submitted):
    """The first start ran for half an hour. The second was submitted after it, ran for five hours, of which two before the third workflow
    took it up, and that saw the rest."""
    for hours in (0, 1):
        workflow(planner).started([3], BEGAN + hours * HOUR)
    submitted("7", 0, ("train_single", ["single"]))
    submitted("9", 1.5, ("train_single", ["single"]))
    last = workflow(planner)
    last.started([3], BEGAN + 3 * HOUR)
    last.finished(3, BEGAN + 6.5 * HOUR)
    assert charged(planner, accounting=accounting(_7=0.5, _9=5)) == Spent(pytest.approx(128 * (0.5 + 2 + 3.5)))


@pytest.mark.parametrize("torn", ['{"time": "2026-', '{"time": "2026-01-01T00:0\n'])
def test_a_line_that_a_crash_cut_off_stands_in_no_plans_way(planner, torn):
    """Nor does the next workflow write on behind it."""
    first = workflow(planner)
    first.started([2], BEGAN)
    first.finished(2, BEGAN + HOUR)
    with open(first.events, "a") as file:
        file.write(torn)
    second = workflow(planner)
    second.started([2], BEGAN)
    second.finished(2, BEGAN + HOUR)
    assert charged(planner) == Spent(256) and ledger.rule_history(second.events, "jureca") == {"prepare": 1}


def test_the_cap_names_what_it_cannot_account_for(planner):
    workflow(planner).started([3], BEGAN)
    plan = budget.make_plan(jobs(), planner, history={"prepare": 0.1}, spent=charged(planner))
    (warning,) = budget.warnings(plan)
    assert "what was spent on train_single (single), whose workflow is still running or was killed: no" in warning
    assert plan.as_dict()["spent_unknown"] == ("train_single (single)",)
