"""The plan of the project's own workflow: it counts the jobs that then run, and is quick for large run tables."""

import json
import re
from collections import Counter

import pytest

from tests.command import call
from tests.pace import seconds_of_children, starts

from .small_project import SmallProject

PARITY = ("parity_run", "parity_verdict")


def planned(project, *arguments):
    """Rule → jobs of the plan that a dry run writes."""
    project.snakemake("-n", *arguments)
    values = json.loads((project.folder / "results/plan/plan.json").read_text())
    return Counter(job["rule"] for job in values["jobs"])


def finished(project):
    """Every job that has ended well in this root, as its ledger says."""
    ledger = project.folder / "results/plan/events.jsonl"
    events = [json.loads(line) for line in ledger.read_text().splitlines()] if ledger.exists() else []
    return [event["rule"] for event in events if event["event"] == "finished"]


def executed(project, *arguments):
    """Rule → jobs that have run."""
    before = len(finished(project))
    project.snakemake(*arguments)
    return Counter(finished(project)[before:])


def timed(project, *arguments):
    """(what a dry run prints, what it takes of the processor in starts of Snakemake)."""
    before = seconds_of_children()
    text = project.program("-n", "-q", "rules", *arguments)
    return text, starts(seconds_of_children() - before)


@pytest.mark.slow
def test_planned_jobs_are_the_executed_ones(tmp_path):
    """Fresh, nothing to do, with a result that is gone, with a setting that changed, and forced."""
    project = SmallProject(tmp_path)
    states = {
        "fresh": (lambda: None, []),
        "nothing": (lambda: None, []),
        # The report alone would not miss it: what is finished is not made again for an input that is gone.
        "partial": (lambda: (tmp_path / "results/runs/ddp/summary.json").unlink(), ["ddp"]),
        "changed": (lambda: project.edit("config/config.yaml", "steps: 5", "steps: 4"), []),
        "forced": (lambda: None, ["-F"]),
    }
    counts = {}
    for name, (prepare, arguments) in states.items():
        prepare()
        counts[name] = planned(project, *arguments)
        assert executed(project, *arguments) == counts[name], name
    assert counts["nothing"] == Counter()
    assert counts["fresh"] == counts["forced"]
    assert counts["partial"]["train_ddp"] == 1 and counts["partial"]["train_single"] == 0
    assert counts["changed"]["parity_run"] == 2 and counts["changed"]["train_ddp"] == 0
    before = finished(project)
    refused = project.snakemake("-F", "--config", "budget={core_hours: 0.000001}", fails=True)
    assert "more than budget.core_hours = 1e-06" in refused and "train_ddp" in refused
    assert finished(project) == before


LAYOUTS = """run	workload	gpus_per_node	dp	baseline	seed	scaling	average_every
one	tiny	1	1	-	-	-	-
two	tiny	2	2	-	-	-	-
repeated	tiny	2	2	-	3	-	-
weak	tiny	2	2	-	-	weak	-
apart	tiny	2	2	-	-	-	3
lone	large	2	2	-	-	-	-
again	large	2	2	again	2	-	-
named	larger	2	2	-	-	-	-
beside	larger	2	2	named	-	-	-
third	larger	2	2	named	7	-	-
like-weak	tiny	2	2	weak	-	weak	-
single	small	1	1	-	-	-	-
first	largest	2	2	-	-	-	-
second	largest	2	2	first	5	-	-
"""
# Also what is not compared itself, but others with it.
COMPARED = {"one", "two", "weak", "like-weak", "named", "beside"}
REASONS = {
    **dict.fromkeys(("one", "named", "single"), "the run that others are compared with"),
    **dict.fromkeys(("lone", "again", "first"), "no other run to compare it with"),
    **{"repeated": "seed 3 against 1", "weak": "global batch", "apart": "ranks train independently"},
    **{"third": "seed 7 against 1", "second": "seed 5 against 1"},
}


def test_what_a_parity_run_cannot_prove_has_none(tmp_path, monkeypatch):
    """Another experiment than the baseline's, or no other row. It is known without one."""
    project = SmallProject(tmp_path)
    for name in ("large", "larger", "largest", "small"):
        (tmp_path / f"config/workloads/{name}.yaml").write_text("extends: tiny\n")
    (tmp_path / "config/tiny.tsv").write_text(LAYOUTS)
    text = project.snakemake("-n", "parity")
    plan = json.loads((tmp_path / "results/plan/plan.json").read_text())
    found = {rule: {job["wildcards"]["run"] for job in plan["jobs"] if job["rule"] == rule} for rule in PARITY}
    rows = {line.split("\t")[0] for line in LAYOUTS.splitlines()[1:]}
    assert found == {"parity_run": COMPARED, "parity_verdict": rows}
    assert plan["alone"] == ["lone", "again", "first"]
    assert [line for line in text.splitlines() if "warning" in line and "lone, again, first" in line]
    monkeypatch.chdir(tmp_path)
    for name, reason in REASONS.items():
        call("parity", "compare", "--run", name)
        verdict = json.loads((tmp_path / f"results/parity/{name}/verdict.json").read_text())
        assert verdict["reason"].startswith(reason)
        assert verdict["verdict"] == ("baseline" if reason.startswith("the run") else "not comparable")


@pytest.mark.slow
def test_plans_rest_on_probes_and_then_on_what_ran(tmp_path):
    """`calibrate` observes the machine; a finished run is no history of other runs, whose probes were fitted."""
    project = SmallProject(tmp_path)
    rests = re.compile(r"Basis: ([^;\n]*)")
    assert rests.search(project.snakemake("-n"))[1] == "formula"
    project.snakemake("calibrate")
    calibration = json.loads((tmp_path / "results/calibration/local.json").read_text())
    assert {entry["source"] for entry in calibration["observations"]} == {"probe"}
    assert "probe" in rests.search(project.snakemake("-n"))[1].split(", ")
    project.snakemake("single_gpu")
    assert json.loads((tmp_path / "results/runs/single/run.json").read_text())["prediction"]["basis"] == "probe"
    project.snakemake("-n", "ddp")
    jobs = json.loads((tmp_path / "results/plan/plan.json").read_text())["jobs"]
    (job,) = (job for job in jobs if job["run"] == "ddp")
    assert job["basis"] == "probe" and job["hours_expected"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(("count", "most"), [(1_000, 8), (10_000, 50)])
def test_a_plan_of_many_runs_is_quick(tmp_path, count, most):
    """A dry run of so many trainings and no other jobs of theirs, from its start to the table."""
    project = SmallProject(tmp_path)
    rows = [f"ddp-{number}\ttiny\t2\t2\t{number}\n" for number in range(1, count)]
    table = "".join(["run\tworkload\tgpus_per_node\tdp\tseed\n", "single\ttiny\t1\t1\t0\n", *rows])
    (tmp_path / "config/tiny.tsv").write_text(table)
    text, took = timed(project, "--", "single_gpu", "ddp")
    assert re.search(rf"train_ddp +ddp +{count - 1:,} ", text[text.index("Plan for") :])
    assert took < most


@pytest.mark.slow
def test_a_plan_of_many_runs_with_all_that_is_made_of_each_is_quick(tmp_path):
    """The default target: training, parity run, verdict and page of 1,000 runs, each with its price."""
    project = SmallProject(tmp_path)
    expected = "data:\n  expected: {vocabulary: 60, train_tokens: 5000}\n"
    project.edit("config/workloads/tiny.yaml", "data:\n", expected)
    rows = [f"ddp-{number}\ttiny\t2\t2\n" for number in range(1, 1000)]
    table = "".join(["run\tworkload\tgpus_per_node\tdp\n", "single\ttiny\t1\t1\n", *rows])
    (tmp_path / "config/tiny.tsv").write_text(table)
    text, took = timed(project)
    assert re.search(r"train_ddp +ddp +999 ", text) and re.search(r"parity_run +several +1,000 ", text)
    assert "unknown: parity_run" not in text and took < 12
