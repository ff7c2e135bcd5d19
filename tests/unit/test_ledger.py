"""What is said while a workflow runs: core-hours used, where what jobs say of themselves counts and waiting in a queue does
not; core-hours to go; and what will never run."""

import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from parascale.files import write_json
from parascale.plan import budget
from parascale.plan.hours import Job
from parascale.plan.ledger import rule_history
from parascale.plan.planner import Planner
from snakemake_logger_plugin_parascale.collect import members
from snakemake_logger_plugin_parascale.live import Ledger
from tests.made_up.cluster import Thing
from tests.made_up.project import jobs, project
from tests.made_up.results import write_lines

ROOT = Path(__file__).parents[2]
BEGAN = 1_800_000_000.0
HOUR = 3600.0


@pytest.fixture
def ledger(tmp_path):
    """A Ledger of a download, a preparation, and two trainings on nodes of 128 cores."""
    planner = Planner(project(tmp_path))
    return Ledger(budget.make_plan(jobs(), planner), planner)


def attempt(began, seconds):
    """An attempt as a training notes it."""
    return {"start": datetime.fromtimestamp(began, UTC).isoformat(timespec="milliseconds"), "seconds": seconds}


def events(ledger):
    """What was written."""
    return [json.loads(line) for line in ledger.events.read_text().splitlines()]


def test_a_job_without_a_record_counts_from_its_start_to_its_end(ledger):
    ledger.started([1, 2], BEGAN)
    ledger.finished(1, BEGAN + HOUR)
    assert ledger.used == 0, "a local job costs nothing"
    ledger.finished(2, BEGAN + HOUR)
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
    work = ledger.planner.project.paths.under_way / "runs" / "ddp-8"
    write_lines(work / "attempts.jsonl", [attempt(BEGAN + HOUR, 1800.0)])
    before = ledger.line(BEGAN)
    ledger.started([4], BEGAN)
    ledger.failed(4, BEGAN + 2 * HOUR)
    assert ledger.used == pytest.approx(2 * 128 * 0.5)
    assert "0 of 4 jobs done" in before and "128.00 core-h used" in ledger.line(BEGAN + 2 * HOUR)
    assert ledger.waiting.keys() == {1, 2, 3, 4}


@pytest.mark.parametrize(("pace", "steps", "said"), [(40.0, 50, True), (40.0, 30, False), (1.4, 50, False)])
def test_a_training_that_becomes_far_dearer_is_told_once_and_before_it_has(ledger, pace, steps, said):
    """By the pace of its last steps, once these are not its first, which are slow."""
    planner = ledger.planner
    predicted = planner.prediction("ddp-8")
    work = planner.project.paths.under_way / "runs" / "ddp-8"
    write_json(work / "run.json", {"steps": predicted.steps, "prediction": predicted.as_dict()})
    seconds = pace * predicted.seconds / predicted.steps
    lines = ({"step": step, "seconds": {"total": seconds}} for step in range(1, steps + 1))
    write_lines(work / "steps.jsonl", lines)
    assert [*ledger.dearer()] == [], "it has not been started"
    ledger.started([3, 4], BEGAN)
    for started in (BEGAN - HOUR, BEGAN + 60.0):
        assert [*ledger.dearer()] == [], "what is there is an older training's"
        write_lines(work / "attempts.jsonl", [{"started": started}])
    told = [*ledger.dearer()]
    assert len(told) == said
    assert [*ledger.dearer()] == []
    for line in told:
        found = re.search(r"\(ddp-8\) will cost about ([\d.]+) core-h, ([\d.]+) ×", line)
        hours, times = map(float, found.groups())
        assert 1.5 < times < pace and hours == pytest.approx(times * predicted.core_hours, rel=0.05)


def test_history_is_that_of_the_same_site(ledger):
    """A laptop's seconds say nothing about a cluster that shares the folder of results."""
    ledger.started([2], BEGAN)
    ledger.finished(2, BEGAN + HOUR)
    assert rule_history(ledger.events, "jureca") == {"prepare": 1.0}
    assert rule_history(ledger.events, "laptop") == {}


@pytest.fixture
def chain(tmp_path):
    """A Ledger of a download, `convert` with two attempts, `verify` which needs it, `index`, and a local report on all; an hour
    each, as history says."""
    jobs = [
        Job(0, "download", {}, nodes=0),
        Job(1, "convert", {}, attempts=2, after=(0,), benchmark=str(tmp_path / "convert.tsv")),
        Job(2, "verify", {}, after=(1,)),
        Job(3, "index", {}, after=(0,)),
        Job(4, "report", {}, nodes=0, after=(2, 3)),
    ]
    planner = Planner(project(tmp_path))
    plan = budget.make_plan(jobs, planner, history={"convert": 1.0, "verify": 1.0, "index": 1.0})
    return Ledger(plan, planner)


def benchmark(ledger, seconds, when):
    """What Snakemake leaves of `convert`."""
    path = Path(ledger.plan.jobs[1].benchmark)
    path.write_text(f"s\th:m:s\tmax_rss\n{seconds}\t0:30:00\t-\n")
    os.utime(path, (when, when))


def test_what_is_to_go_has_its_range_and_its_end(chain):
    chain.started([0], BEGAN)
    chain.finished(0, BEGAN)
    chain.started([1, 3], BEGAN)
    assert "1 of 5 jobs done, 0.00 core-h used, about 384.00 (229.98 to 641.16) left, 2 h" in chain.line(BEGAN)


def test_what_failed_for_good_is_not_to_go_nor_what_needs_it(chain):
    """After the first of its two attempts it still is."""
    chain.started([0, 1], BEGAN)
    chain.finished(0, BEGAN)
    chain.failed(1, BEGAN + HOUR)
    assert "1 of 5 jobs done, 128.00 core-h used, about 384.00 (229.98 to 641.16) left" in chain.line(BEGAN + HOUR)
    chain.started([1], BEGAN + HOUR)
    chain.failed(1, BEGAN + 2 * HOUR)
    lost = "1 of 5 jobs done, 3 failed or depend on one that did, 256.00 core-h used"
    assert f"{lost}, about 128.00 (76.66 to 213.72) left" in chain.line(BEGAN + 2 * HOUR)
    chain.started([3], BEGAN + 2 * HOUR)
    chain.finished(3, BEGAN + 3 * HOUR)
    assert chain.line(BEGAN + 3 * HOUR).endswith("384.00 core-h used")


def test_a_job_with_a_benchmark_counts_as_long_as_that_says(chain):
    """Half an hour after nine and a half in the queue; what the rule takes next time follows from it."""
    chain.started([1], BEGAN)
    benchmark(chain, HOUR / 2, BEGAN + 10 * HOUR)
    chain.finished(1, BEGAN + 10 * HOUR)
    assert chain.used == pytest.approx(64)
    assert rule_history(chain.events, "jureca") == {"convert": 0.5}


def test_jobs_that_share_one_count_together_as_long_as_that_ran(tmp_path):
    """Of two without a record each counts half of it, also while they run; their turns come one after another."""
    jobs = [Job(number, "verify", {"dataset": f"d{number}"}, together=(2, 1)) for number in (1, 2)]
    planner = Planner(project(tmp_path))
    plan = budget.make_plan(jobs, planner, history={"verify": 1.0})
    assert plan.totals["wall_hours_at_once"] == 2
    ledger = Ledger(plan, planner)
    ledger.started([1, 2], BEGAN)
    assert "128.00 core-h used, about 128.00 (76.66 to 213.72) left, 1 h" in ledger.line(BEGAN + HOUR)
    ledger.failed(1, BEGAN + 2 * HOUR)
    ledger.finished(2, BEGAN + 2 * HOUR)
    assert ledger.used == pytest.approx(256)
    again = Ledger(plan, planner)
    again.started([1], BEGAN)  # tried alone
    again.finished(1, BEGAN + HOUR)
    assert again.used == pytest.approx(128)


def test_of_a_group_snakemake_names_it_and_not_its_jobs():
    """Else nothing that ran in a group would count as used."""
    named = ("b", 4), ("a", 3), ("a", 7)
    jobs = [Thing(rule=Thing(name=name), wildcards_dict={}, number=number) for name, number in named]
    one, other = Thing(jobid="one's", toposorted=[jobs[:1], jobs[1:2]]), Thing(jobid="another's", toposorted=[jobs[2:]])
    dag = Thing(_group=dict(zip(range(3), (one, one, other), strict=True)), jobid=lambda job: job.number)
    assert [members(dag, each) for each in (9, "one's", "another's", "gone")] == [(9,), (4, 3), (7,), ()]


def test_a_benchmark_of_an_earlier_job_says_nothing(chain):
    benchmark(chain, HOUR / 2, BEGAN - HOUR)
    chain.started([1], BEGAN)
    chain.finished(1, BEGAN + HOUR)
    assert chain.used == pytest.approx(128)


def test_every_job_that_costs_something_says_how_long_it_ran():
    """A rule with a command is local (`nodes=0`) or has a benchmark, else its time in the queue would be its price."""
    for path in (ROOT / "rules").glob("*.smk"):
        for rule in re.split(r"^(?=(?:use )?rule )", path.read_text(), flags=re.MULTILINE)[1:]:
            if "shell:" in rule and "nodes=0" not in rule:
                assert "benchmark:" in rule, f"{path.name}: {rule.splitlines()[0]}"
