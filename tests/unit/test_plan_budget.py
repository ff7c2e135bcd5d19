"""The plan's sums, limits, cap and calendar: what is charged, what is refused, what is unknown."""

import dataclasses
import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parascale.commands.report import planned_page
from parascale.errors import ConfigError
from parascale.plan import budget, tables
from parascale.plan.hours import Job, Part, wall_hours
from parascale.plan.ledger import Spent, spent
from parascale.plan.memory import memory_moments, peak, verdict
from parascale.plan.planner import Planner
from parascale.plan.predict import DataFacts, predict, time_limit, worst_seconds
from parascale.settings import Layout, Model, Run, Site, make
from parascale.settings.runtable import Rows
from tests.made_up.project import FACTS, JURECA, WORKLOAD, changed, jobs, project
from tests.unit.page_cells import Cells


def test_sums_are_those_by_hand(tmp_path):
    """Whole nodes × cores × hours; local jobs cost nothing; a rule without history is unknown, never 0 in silence."""
    planner = Planner(project(tmp_path))
    plan = budget.make_plan(jobs(), planner)
    hours = {name: planner.prediction(name).wall_seconds / 3600 for name in ("single", "ddp-8")}
    assert plan.totals["core_hours_expected"] == pytest.approx(128 * hours["single"] + 256 * hours["ddp-8"])
    worst = {name: worst_seconds(planner.prediction(name), planner.run(name), JURECA) / 3600 for name in hours}
    assert plan.totals["core_hours_worst"] == pytest.approx(128 * 1 + 128 * worst["single"] + 256 * worst["ddp-8"])
    assert all(hours[name] < worst[name] < 3 * hours[name] for name in hours)
    assert plan.totals["gpu_hours_expected"] == pytest.approx(hours["single"] + 8 * hours["ddp-8"])
    assert plan.totals["node_hours_expected"] == pytest.approx(hours["single"] + 2 * hours["ddp-8"])
    assert plan.totals["wall_hours_at_once"] == pytest.approx(max(hours.values()))
    assert plan.totals["jobs_unknown"] == 1 and "prepare (d)" in plan.unknown[0]
    known = budget.make_plan(jobs(), planner, history={"prepare": 0.25})
    assert known.totals["core_hours_expected"] == pytest.approx(plan.totals["core_hours_expected"] + 32)
    assert known.unknown == ()
    json.dumps(known.as_dict(), allow_nan=False)


def test_the_worst_grows_with_failures():
    """At worst costs what failures at the site's rate do, not every attempt's limit."""
    run = Run("r", changed(WORKLOAD, training={"steps": 10_000_000}), Layout(nodes=2, gpus_per_node=4, dp=8))
    predicted = predict(run, JURECA, facts=FACTS)
    sites = (changed(JURECA, assumed={"failures_per_node_day": rate}) for rate in (0.0, 1.0))
    calm, stormy = (worst_seconds(predicted, run, site) for site in sites)
    days = predicted.limit_seconds / 86400
    assert calm == predicted.limit_seconds and days > 0.3
    lost = (stormy - calm) / (15 * 60 + JURECA.assumed.startup_seconds)
    assert 2 * days <= lost < 2 * days + 4 * (2 * days) ** 0.5 + 1


def test_columns_that_others_read(tmp_path):
    """The contract of `plan.json`."""
    values = budget.make_plan(jobs(), Planner(project(tmp_path))).as_dict()
    wanted = {"rule", "run", "wildcards", "nodes", "gpus", "hours_expected", "hours_worst", "core_hours_expected"}
    assert wanted | {"core_hours_worst", "fits", "basis"} <= set(values["jobs"][0])
    assert {"schema_version", "site", "jobs", "totals", "unknown"} <= set(values)
    assert values["quota"] is None
    values = budget.make_plan(jobs(), Planner(project(tmp_path, quota=5.0))).as_dict()
    assert (values["quota"], values["quota_words"]) == (5, "the quota of 5 core-h")


def test_a_plan_names_its_largest_assumptions(tmp_path):
    """Three at most, the largest first, with their shares of the price; what was measured is none."""
    planner = Planner(project(tmp_path))
    plan = budget.make_plan(jobs(), planner)
    shares = [int(line.split("%")[0]) for line in plan.assumptions]
    assert 1 <= len(shares) <= 3 and shares == sorted(shares, reverse=True) and sum(shares) <= 100
    assert any(line.split("% ")[1].startswith("steps") for line in plan.assumptions)
    planner = Planner(changed(planner.project, site={"assumed": {"startup_seconds": 1e6}}))
    assert "starts" in budget.make_plan(jobs(), planner).assumptions[0]
    planner = Planner(planner.project)
    planner.predicted = lambda run, predict=planner.predicted: changed(predict(run), basis="history")
    assert not any("steps" in line or "starts" in line for line in budget.make_plan(jobs(), planner).assumptions)


def test_the_cap_refuses_and_says_so(tmp_path):
    plan = budget.make_plan(jobs(), Planner(project(tmp_path, core_hours=0.5)))
    (refusal,) = budget.refusals(plan)
    assert "more than budget.core_hours = 0.5" in refusal
    affordable = budget.make_plan(jobs(), Planner(project(tmp_path, core_hours=5000.0)))
    assert not budget.refusals(affordable)
    (warning,) = budget.warnings(affordable)
    assert "unknown cost: prepare (d): no earlier job" in warning


def test_without_a_cap_nothing_is_said_of_what_it_cannot_account_for(tmp_path):
    plan = budget.make_plan(jobs(), Planner(project(tmp_path)), spent=Spent(1.0, ("convert (d)",)))
    assert plan.totals["jobs_unknown"] and plan.spent_unknown and budget.warnings(plan) == []


def test_the_cap_counts_what_was_spent(tmp_path):
    """Jobs of this root and site, failed ones included; those of another site are another budget's."""
    planner = Planner(project(tmp_path, core_hours=17.0))
    paths = planner.project.paths
    paths.events.parent.mkdir(parents=True)
    charged = [("jureca", "finished", 8.0), ("jureca", "failed", 8.0), ("elsewhere", "finished", 50.0)]
    common = {"rule": "prepare", "wildcards": {}}
    lines = (common | {"event": kind, "site": site, "core_hours": hours} for site, kind, hours in charged)
    assert spent(paths, "jureca").core_hours == 0
    paths.events.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert spent(paths, "jureca") == Spent(16.0)
    fresh = budget.make_plan(jobs(), planner)
    assert not budget.refusals(fresh)
    assert 1 < fresh.totals["core_hours_expected"] < 17
    (refusal,) = budget.refusals(budget.make_plan(jobs(), planner, spent=spent(paths, "jureca")))
    assert "beside 16.00 core-h spent before" in refusal


def test_the_chance_to_exceed_the_cap_is_that_of_the_range(tmp_path):
    """In 10 of 100 cases a plan costs more than the upper end of its range, in 90 more than the lower one."""
    free = budget.make_plan(jobs()[2:], Planner(project(tmp_path))).totals
    assert free["chance_over_budget"] is None
    for end, chance in (("high", 0.1), ("low", 0.9)):
        planner = Planner(project(tmp_path, core_hours=free[f"core_hours_{end}"]))
        plan = budget.make_plan(jobs()[2:], planner)
        assert plan.totals["chance_over_budget"] == pytest.approx(chance, abs=0.001)
        assert f"exceeded in {100 * chance:.0f} of 100 cases" in tables.text(plan)
        assert ("it would not start" in tables.text(plan)) == bool(budget.refusals(plan)) == (end == "low")
    everything = budget.make_plan(jobs()[2:], planner, spent=Spent(1e6))
    assert everything.totals["chance_over_budget"] == 1
    assert budget.make_plan([], planner).totals["chance_over_budget"] < 0.001


def test_more_than_the_cap_at_worst_is_a_warning_that_names_what_may_take_longer(tmp_path):
    plan = budget.make_plan(jobs(), Planner(project(tmp_path, core_hours=100.0)), history={"prepare": 0.1})
    assert not budget.refusals(plan)
    (warning,) = budget.warnings(plan)
    assert re.match(r"at worst 1[34]\d\.\d core-h are more than budget\.core_hours = 100$", warning)
    assert "furthest above the expected price: prepare +115.2, " in tables.text(plan)


def test_a_plan_says_what_parity_costs_and_which_jobs_are_dearest(tmp_path):
    """Its sums by what jobs do; that of trainings is the one of `parascale plan --check`."""
    parity = [dataclasses.replace(job, id=job.id + 2, rule="parity_run", kind="parity") for job in jobs()[2:]]
    plan = budget.make_plan([*jobs()[2:], *parity], Planner(project(tmp_path)))
    trainings, checks = (sum(job.core_hours for job in plan.jobs if job.kind == kind) for kind in ("run", "parity"))
    ends, said = r" \([\d.]+ to [\d.]+\)", tables.text(plan)
    assert re.search(rf"Of that: trainings {trainings:,.2f}{ends}, parity runs {checks:,.2f}{ends}; targets", said)
    rows = {name: sum(job.core_hours for job in plan.jobs if job.run == name) for name in ("single", "ddp-8")}
    dearest = max(rows, key=rows.get)
    assert re.search(rf"Dearest rows, .*: {dearest} {rows[dearest]:,.2f}{ends}; ", said)
    assert re.search(rf" single {rows['single']:,.2f}{ends}, {sum(rows.values()):,.2f} with the 1 that need it", said)
    assert re.search(rf" ddp-8 {rows['ddp-8']:,.2f}{ends};", said)
    assert f"{trainings:,.2f} core-h" in tables.cost(budget.make_plan(jobs()[2:], Planner(project(tmp_path))))


def test_a_plan_says_what_idle_gpus_cost_where_whole_nodes_are_charged(tmp_path):
    """One of four is used: three quarters of the price. Other jobs idle none, also where a partition makes them ask for a GPU, and where
    cores are charged nothing is said."""
    plain = project(tmp_path)
    asked = [dataclasses.replace(job, gpus=max(job.gpus, 1)) for job in jobs()]
    plan = budget.make_plan(asked, Planner(plain), history={"prepare": 0.1})
    single = next(job for job in plan.jobs if job.run == "single")
    assert plan.totals["core_hours_idle"] == pytest.approx(0.75 * single.core_hours)
    assert "Idle GPUs: " in tables.text(plan)
    by_cores = changed(plain, site={"charges": "cores"})
    assert "Idle GPUs" not in tables.text(budget.make_plan(jobs(), Planner(by_cores)))


def test_the_page_has_no_speedup_against_a_wrong_row(tmp_path):
    whole = project(tmp_path)
    rows = Rows({"ddp-8": whole.runs["ddp-8"]}, {"single": ConfigError("line 2: wrong")})
    planner = Planner(dataclasses.replace(whole, runs=rows))
    some = [job for job in jobs() if job.wildcards.get("run") == "ddp-8"]
    cells = Cells(planned_page(budget.make_plan(some, planner), planner)).found
    assert not [column for _, _, column in cells if column == "speedup"] and cells


def test_nothing_to_run_says_so(tmp_path):
    planner = Planner(project(tmp_path))
    plan = budget.make_plan([], planner)
    assert plan.totals["core_hours_expected"] == 0 and "Nothing has to run" in tables.text(plan)
    assert "Nothing has to run" in planned_page(plan, planner)


def test_the_page_has_the_plan_of_each_training_and_the_jobs_of_each_rule(tmp_path):
    """As the report shows what was measured; a fastest plan stands first."""
    planner = Planner(project(tmp_path))
    plan = budget.make_plan(jobs(), planner)
    page = planned_page(plan, planner)
    cells = Cells(page).found
    trainings = [job for job in plan.jobs if job.kind == "run"]
    (table,) = {table for table, run, _ in cells if run == trainings[0].run}
    planned = {job.run: planner.prediction(job.run) for job in trainings}
    for job in trainings:
        assert float(cells[table, job.run, "training_seconds"]) == pytest.approx(planned[job.run].seconds)
        assert float(cells[table, job.run, "core_hours"]) == pytest.approx(job.core_hours)
        assert float(cells[table, job.run, "peak_memory_bytes"]) == planned[job.run].memory_bytes
    shown = [run for run in re.findall('<tr data-run="(.*?)"', page) if run in planned]
    assert shown == sorted(planned, key=lambda name: planned[name].seconds)
    assert f"{plan.totals['core_hours_expected']:,.2f} core-h" in page and "jobs-table" in page


@given(
    st.lists(st.tuples(st.floats(0, 10), st.integers(1, 3), st.sets(st.integers(0, 20), max_size=3)), max_size=20),
    st.integers(1, 6),
)
def test_calendar_bounds(drawn, capacity):
    """No schedule beats the longest chain or the work divided by the capacity; none exceeds one job after the other."""
    planned = [
        Job(number, "r", {}, parts=(Part(hours),), slots=slots, after=tuple(i for i in after if i < number))
        for number, (hours, slots, after) in enumerate(drawn)
    ]
    chain, limited = wall_hours(planned), wall_hours(planned, capacity)
    total = sum(job.expected for job in planned)
    work = sum(job.expected * min(job.slots, capacity) for job in planned) / capacity
    assert max(chain, work) <= limited + 1e-9 and limited <= total + 1e-9


def test_charges():
    """One GPU of a node costs what four cost."""
    assert JURECA.cores_charged(2) == 256
    by_cores = dataclasses.replace(JURECA, charges="cores")
    assert by_cores.cores_charged(1, 32) == 32


@pytest.mark.parametrize(
    ("moments", "said"),
    [
        ([(89, 0)], "fits"),
        ([(90, 0)], "risky"),
        ([(100, 0)], "risky"),
        ([(101, 0)], "does not fit"),
        ([(74, 15)], "fits"),
        ([(74, 16)], "risky"),
        ([(20, 80)], "risky"),
        ([(80, 5), (75, 16)], "risky"),
        ([(101, 5), (95, 50)], "does not fit"),
    ],
)
def test_verdicts(moments, said):
    """Each moment wants its room, not the largest alone. By that room nothing is said not to fit."""
    moments = [({"activations": used}, room) for used, room in moments]
    assert verdict(moments, 100) == said and verdict(moments, None) == "unknown"


def test_time_limits_grow_and_are_cut():
    run = Run("r", changed(WORKLOAD, training={"steps": 300_000}))
    first, second, last = (time_limit(predict(run, JURECA, facts=FACTS), JURECA, attempt) for attempt in (1, 2, 99))
    assert first < second <= last == 24 * 60 and first % 5 == 0
    assert time_limit(predict(run, JURECA, facts=FACTS), JURECA, 99, "dc-gpu-devel") == 120


def test_time_limits_come_from_what_95_of_100_runs_take():
    """Rounded up to 5 minutes; neither from what is expected nor from the range of 80 of 100."""
    run = Run("r", changed(WORKLOAD, training={"steps": 3_000_000}))
    predicted = predict(run, JURECA, facts=FACTS)
    assert predicted.wall_seconds < predicted.wall_high < predicted.limit_seconds - 300
    assert time_limit(predicted, JURECA) == 5 * math.ceil(predicted.limit_seconds / 300)
    assert time_limit(dataclasses.replace(predicted, limit_seconds=3601.0), JURECA) == 65


def test_unknown_stays_unknown():
    """No vocabulary, no steps, no rate, no formula, no folder of the model: each is said, none is 0."""
    assert "vocabulary" in predict(Run("r", WORKLOAD), JURECA, facts=DataFacts(None)).unknown
    epochs = changed(WORKLOAD, training={"steps": None, "epochs": 1.0})
    predicted = predict(Run("r", epochs), JURECA, facts=FACTS)
    assert "steps" in predicted.unknown and predicted.core_hours is None and predicted.memory_bytes
    assert "peak_tflops.fp64" in predict(Run("r", WORKLOAD, precision="fp64"), JURECA, facts=FACTS).unknown
    own = dataclasses.replace(WORKLOAD, model=make(Model, kind="mine.py:Mine"))
    assert predict(Run("r", own), JURECA, facts=FACTS).memory_bytes is None
    elsewhere = dataclasses.replace(WORKLOAD, model=make(Model, kind="pretrained", pretrained="/nowhere/t5"))
    assert "/nowhere/t5/config.json: no such file" in predict(Run("r", elsewhere), JURECA, facts=FACTS).unknown


def test_the_table_has_a_row_for_each_rule_that_costs_something(tmp_path):
    """With the least and the most nodes and GPUs that its jobs ask for; what runs here is no row."""
    planned = [dataclasses.replace(job, rule="train") if job.kind == "run" else job for job in jobs()]
    rows = tables.cells(budget.make_plan(planned, Planner(project(tmp_path))), by_strategy=False)
    assert [(row[0], *row[2:5]) for row in rows] == [
        ("prepare", "1", "1", "0"),
        ("train", "2", "1–2", "1–8"),
        ("local jobs", "1", "", ""),
        ("total", "4", "", ""),
    ]


def test_communicators_take_memory_of_gpus_for_each_degree():
    laptop = Site("laptop", cores_per_node=2, assumed=JURECA.assumed)
    run = Run("r", WORKLOAD, Layout(gpus_per_node=4, dp=2, fsdp=2))
    each = JURECA.assumed.communicator_gigabytes * 1e9
    communicators = [peak(memory_moments(run, site, 5000))["communicators"] for site in (JURECA, laptop)]
    assert communicators == [int(2 * each), 0] != [0, 0]


@pytest.mark.parametrize(
    ("hours", "said"),
    [(0.0, "0 s"), (29 / 3600, "29 s"), (1 / 60, "1 min"), (0.99, "59 min"), (1.0, "1 h 00 min"), (3.09, "3 h 05 min")],
)
def test_a_duration_of_the_plan_is_written_in_the_unit_that_fits(hours, said):
    assert tables.duration(hours) == said
