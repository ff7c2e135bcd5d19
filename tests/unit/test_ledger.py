"""Core-hours while a workflow runs: what jobs say of themselves counts, and waiting in a queue does not."""

import json
from datetime import UTC, datetime

import pytest

from parascale.files import write_json
from parascale.plan import budget
from parascale.plan.planner import Planner
from snakemake_logger_plugin_parascale.live import Ledger
from tests.unit.test_plan_budget import jobs, project

BEGAN = 1_800_000_000.0
HOUR = 3600.0


@pytest.fixture
def ledger(tmp_path):
    """A Ledger of a download, a preparation, and two trainings on nodes of 128 cores."""
    planner = Planner(project(tmp_path))
    return Ledger(budget.make_plan(jobs(), planner), tmp_path / "events.jsonl", planner)


def attempt(began, seconds):
    """An attempt as a training notes it."""
    return {"start": datetime.fromtimestamp(began, UTC).isoformat(timespec="milliseconds"), "seconds": seconds}


def events(ledger):
    """What was written."""
    return [json.loads(line) for line in ledger.events.read_text().splitlines()]


def test_a_job_without_a_record_counts_from_its_start_to_its_end(ledger):
    ledger.started([1, 2], BEGAN)
    assert not ledger.finished(1, BEGAN + HOUR), "a local job costs nothing"
    assert ledger.finished(2, BEGAN + HOUR)
    assert ledger.used == pytest.approx(128)
    last = events(ledger)[-1]
    assert (last["event"], last["rule"], last["site"], last["seconds"]) == ("finished", "prepare", "jureca", HOUR)


def test_a_training_counts_as_long_as_it_ran(ledger):
    """It waited two hours in a queue and ran for half an hour; an attempt of an earlier job is not counted again."""
    run = ledger.planner.project.paths.run("single")
    ledger.started([3], BEGAN)
    attempts = [attempt(BEGAN - HOUR, 900.0), attempt(BEGAN + 2 * HOUR, 1800.0)]
    write_json(run / "run.json", {"attempts": attempts})
    ledger.finished(3, BEGAN + 2.6 * HOUR)
    assert ledger.used == pytest.approx(64)


def test_a_failed_attempt_counts_and_the_job_waits_again(ledger):
    work = ledger.planner.project.paths.work("ddp-8")
    work.mkdir(parents=True)
    (work / "attempts.jsonl").write_text(json.dumps(attempt(BEGAN + HOUR, 1800.0)) + "\n")
    before = ledger.line(BEGAN)
    ledger.started([4], BEGAN)
    assert ledger.failed(4, BEGAN + 2 * HOUR)
    assert ledger.used == pytest.approx(2 * 128 * 0.5)
    assert "0 of 4 jobs done" in before and "128.00 core-h used" in ledger.line(BEGAN + 2 * HOUR)
    assert ledger.waiting.keys() == {1, 2, 3, 4}


def test_history_is_that_of_the_same_site(ledger):
    """A laptop's seconds say nothing about a cluster that shares the folder of results."""
    ledger.started([2], BEGAN)
    ledger.finished(2, BEGAN + HOUR)
    assert budget.rule_history(ledger.events, "jureca") == {"prepare": 1.0}
    assert budget.rule_history(ledger.events, "laptop") == {}
