"""Which layout is the best, and which run is not ranked: each verdict in a planted case."""

import dataclasses
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parascale.report import load_records
from parascale.report.findings import findings
from parascale.report.job import facts, load_job
from parascale.report.records import Curve, Summary
from parascale.report.summary import runs_table
from parascale.report.timing import timing_of, unranked
from parascale.report.verdict import verdicts
from tests.made_up.results import BASE, CLUSTER, SITE, ddp, edited, fake, report_of, write_results


def slow_part(lines):
    """Makes some steps twice as slow."""
    for line in lines[20:26]:
        line["seconds"]["total"] *= 2


def even(seconds):
    """A function of lines that makes all steps take the same time."""
    return lambda lines: [line["seconds"].update(total=seconds) for line in lines]


def fsdp(**options):
    return fake("fsdp", fsdp=2, gpus_per_node=2, **options)


def repeats(name, seconds, **options):
    """Runs of one configuration: their times of 100 steps, and their memory in 100 MB."""
    return [
        fake(f"{name}-{n}" if n else name, step_seconds=each / 100, memory=int(each * 1e8), **options)
        for n, each in enumerate(seconds)
    ]


TWO = {"gpus_per_node": 2}
LOADED = {"cores_busy": 4.0, "other_cores_busy": 4.0}


@dataclass(frozen=True)
class Case:
    """Runs beside the baseline `single`, and what must come of them in training time, and so in core-hours of whole nodes.

    alike: no measured difference tells these from the best; worse: how many are measurably worse. No best: nothing is ranked.
    """

    runs: tuple
    best: str | None
    alike: tuple = ()
    worse: int = 0
    unranked: tuple = ()
    single: tuple = (fake("single", **BASE),)
    steps: dict = field(default_factory=dict)
    summaries: dict = field(default_factory=dict)


CASES = {
    "faster": Case((ddp(step_seconds=0.09),), "ddp", worse=1),
    "slower": Case((ddp(step_seconds=0.2),), "single", worse=1),
    "blocks of one run overlap": Case((ddp(step_seconds=0.08),), "single", ("ddp",), steps={"ddp": slow_part}),
    "two are alike": Case((ddp(step_seconds=0.05), fsdp(step_seconds=0.0502)), "ddp", ("fsdp",), 1),
    "others are counted": Case(
        (ddp("two", 2, step_seconds=0.1), ddp("four", 4, step_seconds=0.1), fsdp(step_seconds=0.2)),
        "single",
        ("two", "four"),
        1,
    ),
    "less than two percent": Case((ddp(step_seconds=0.0985),), "single", ("ddp",)),
    "more than two percent": Case((ddp(step_seconds=0.0975),), "ddp", worse=1),
    "ranges apart by less than two percent": Case(
        (ddp(),), "single", ("ddp",), steps={"single": even(0.1), "ddp": even(0.1015)}
    ),
    "the lowest mean is a disturbed run": Case(
        (*repeats("wild", (5, 5.5, 10.5), fsdp=2, **TWO), *repeats("steady", (7.4, 7.6), dp=2, **TWO)),
        "steady (2 runs)",
        ("wild (3 runs)",),
        1,
        single=tuple(repeats("single", (9.9, 10.1), verdict="baseline")),
    ),
    "uneven runs that repeat each other": Case(
        (ddp(step_seconds=0.07), ddp("ddp-2", step_seconds=0.071)),
        "ddp (2 runs)",
        worse=1,
        single=(fake("single", **BASE), fake("single-2", **BASE)),
        steps=dict.fromkeys(("ddp", "ddp-2"), slow_part),
    ),
    "runs that do not repeat each other": Case(
        (ddp(step_seconds=0.05), ddp("ddp-2", step_seconds=0.12)),
        "single (2 runs)",
        ("ddp (2 runs)",),
        single=(fake("single", **BASE), fake("single-2", **BASE)),
    ),
    "seeds overlap with the baseline": Case(
        (ddp("ddp-1", step_seconds=0.06), ddp("ddp-2", seed=2, step_seconds=0.12)), "single", ("ddp-1 (2 seeds)",)
    ),
    "the result is different": Case((ddp("twin"), ddp(step_seconds=0.01, verdict="different")), "single", ("twin",)),
    "more processes than cores": Case(
        (ddp(step_seconds=0.06), ddp("wide", 16, step_seconds=0.01)), "ddp", worse=1, unranked=("wide",)
    ),
    "other programs beside a run": Case((ddp(step_seconds=0.06),), None, unranked=("ddp",), summaries={"ddp": LOADED}),
    "other programs beside the baseline": Case(
        (ddp(step_seconds=0.06),), None, unranked=("single",), summaries={"single": LOADED}
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_verdict_is_what_was_planted(case, tmp_path):
    planted = CASES[case]
    report = report_of(tmp_path, *planted.single, *planted.runs, steps=planted.steps, summaries=planted.summaries)
    (verdict,) = verdicts(report)
    winners = ((each.aim.badge, each.best.label, each.alike) for each in verdict.winners)
    found = {badge: (best, {member.label for member in alike}) for badge, best, alike in winners}
    expected = (planted.best, set(planted.alike)) if planted.best else None
    assert found.get("fastest") == found.get("cheapest") == expected
    assert {member.label for member in report.members if member.unranked} == set(planted.unranked)
    rows = verdict.table.frame.set_index("run")
    fastest = {run for run, badges in rows["badge"].items() if "fastest" in badges}
    assert fastest == ({planted.best, *planted.alike} if planted.worse else set())
    assert {run for run, notes in rows["notes"].items() if "not ranked" in notes} == set(planted.unranked)
    ranked = [run for run, faded in rows["faded"].items() if not faded]
    assert list(rows.index)[: len(ranked)] == ranked == sorted(ranked, key=rows["training_seconds"].get), (
        "the fastest first"
    )
    compared = report.comparisons.get("ddp")  # what is called slower beside its row is measurably slower here
    if compared and compared.speedup and len(planted.runs) == 1:
        (record,) = (record for record in report.records if record.name == "ddp")
        slower = any("slower" in finding.short for finding in findings(record, (), compared))
        assert slower == (planted.best == "single" and planted.worse == 1)


def test_each_aim_has_a_winner_of_its_own(tmp_path):
    """Other programs that took its cores say nothing of a run's memory."""
    runs = ddp(step_seconds=0.06, memory=450 << 20), fake("tp", tp=2, step_seconds=0.05, memory=100 << 20, **TWO)
    report = report_of(tmp_path, fake("single", memory=400 << 20, **BASE), *runs, summaries={"tp": LOADED})
    (verdict,) = verdicts(report)
    badges = verdict.table.frame.set_index("run")["badge"].to_dict()
    assert badges == {"ddp": "fastest, cheapest", "tp": "leanest", "single": ""}


def test_who_pays_for_idle_cores_is_known(tmp_path):
    """Otherwise fewer core-hours at less than full efficiency are a riddle."""
    site = dataclasses.replace(SITE, threads_per_process=1)
    (verdict,) = verdicts(report_of(tmp_path, fake("single", site=site, **BASE), ddp(site=site, step_seconds=0.06)))
    assert "`single` computes on 1 of 8 cores, but whole nodes are charged" in " ".join(verdict.basis)


def test_start_up_and_compilation_are_no_training(tmp_path):
    """Both take 30 s in a run of 6 s: its speed-up does not change by them, its core-hours do."""
    compiling = {"ddp": lambda lines: lines[0]["seconds"].update(total=30.0)}
    runs = fake("single", **BASE), ddp(step_seconds=0.06)
    plain = report_of(tmp_path / "plain", *runs)
    wall = {"ddp": {"wall_seconds": 80.0, "core_hours": 80.0 * 8 / 3600}}
    report = report_of(tmp_path / "slow", *runs, steps=compiling, summaries=wall)
    assert report.comparisons["ddp"].speedup == pytest.approx(plain.comparisons["ddp"].speedup, rel=0.01)
    row = runs_table(report).frame.set_index("run").loc["ddp"]
    assert row["compilation_seconds"] == pytest.approx(30, abs=0.1) and row["evaluation_seconds"] == 1.5
    assert row["startup_seconds"] == pytest.approx(80 - row["seconds"] - 1.5)
    assert row["training_core_hours"] == pytest.approx(row["training_seconds"] * 8 / 3600)
    assert row["core_hours"] > 5 * row["training_core_hours"]
    told = facts(load_job(tmp_path / "slow/results", tmp_path / "slow/work", "ddp"))
    known = {fact["case"]: fact.get("value") for fact in told}
    assert known["training_seconds"] == row["training_seconds"], "a job's own page says the same"


@pytest.mark.parametrize(
    ("hosts", "reason"), [(["box"] * 16, "16 processes on 8 cores"), (["n1"] * 8 + ["n2"] * 8, ""), ([], "")]
)
def test_nodes_on_one_machine_share_its_cores(hosts, reason, tmp_path):
    """Two nodes of 8 processes each: a machine has 8 cores, and as many of them are free as it has machines."""
    results, work = write_results(tmp_path, [fake("nodes", nodes=2, dp=16, gpus_per_node=8)])
    edited(results / "runs/nodes/run.json", hosts=hosts)
    (record,) = load_records(results, work)
    assert unranked(record) == reason


@pytest.mark.parametrize(
    ("options", "others", "taken"),
    [
        ({}, 0.5, False),  # a shell beside it
        ({}, 3.0, True),
        ({"site": CLUSTER}, 60.0, False),  # GPUs compute there
    ],
)
def test_cores_are_shared_where_others_took_more_than_a_trifle(options, others, taken, tmp_path):
    report = report_of(tmp_path, fake("single", **BASE, **options), summaries={"single": {"other_cores_busy": others}})
    assert bool(unranked(report.records[0])) == taken


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=300), st.floats(0.0, 5.0))
def test_a_range_holds_its_run_and_grows_with_its_time(seconds, beside):
    """Whatever the steps: low ≤ training ≤ high, nothing is lost between the parts, and even steps have no range."""
    total = sum(seconds)
    elapsed, steps = [], range(1, len(seconds) + 1)
    for each in seconds:
        elapsed.append((elapsed[-1] if elapsed else 0.0) + each)
    summary = Summary(1, "tokens", len(seconds), total, 1.0, wall_seconds=total + beside)
    timing = timing_of(summary, Curve(steps, elapsed, elapsed, ()), [{"first_step": 1}])
    assert timing.low <= timing.training * (1 + 1e-9) and timing.high >= timing.training * (1 - 1e-9)
    assert timing.training + timing.compilation + timing.startup == pytest.approx(total + beside)
