"""What single jobs are charged: those that train nothing, those of a training under way; energy; and what changed since the last plan."""

import dataclasses
import json
from pathlib import Path

import pytest

from parascale.checkpoint.manifest import MANIFEST
from parascale.data.text import check_expected
from parascale.errors import DataError
from parascale.plan import budget, earlier, tables
from parascale.plan.planner import Planner
from parascale.plan.predict import predict
from parascale.settings import load_project_file
from parascale.settings.data import ExpectedText
from parascale.store.reasons import Reason, Reasons
from tests.unit.test_plan_budget import JURECA, jobs, project


@pytest.fixture(scope="module")
def jureca(tmp_path_factory):
    """The Planner of the shipped configuration, before anything has run."""
    root = str(tmp_path_factory.mktemp("root"))
    return Planner(load_project_file("config/config.yaml", "config/jureca.yaml", overrides={"root": root}))


def other(stage, **wildcards):
    """A job of the stage whose benchmarks lie in that folder, under a name that another workflow may have given it."""
    return budget.PlannedJob(1, f"theirs_{stage}", wildcards, benchmark=f"results/benchmarks/{stage}/x.tsv")


@pytest.mark.parametrize(
    ("stage", "wildcards"),
    [
        ("prepare", {"dataset": "wikitext2"}),
        ("index", {"dataset": "imagewoof"}),
        ("convert", {"dataset": "imagewoof", "format": "hdf5"}),
        ("verify", {"dataset": "wikitext103-50k", "format": "arrow"}),
        ("loaders", {"dataset": "imagewoof"}),
        ("convert_checkpoint", {"run": "fsdp-4"}),
        ("verify_checkpoint", {"run": "fsdp-4"}),
        ("summarise", {"run": "xsum-course-1"}),
    ],
)
def test_jobs_that_train_nothing_have_a_price(jureca, stage, wildcards):
    """Between its start and an hour, by formula; the ledger's own experience stands above that."""
    job = other(stage, **wildcards)
    priced = budget.price(job, jureca, {})
    assert jureca.site.assumed.startup_seconds / 3600 < priced.hours_expected < 1 and priced.basis == "formula"
    assert priced.core_hours_expected == pytest.approx(128 * priced.hours_expected)
    assert budget.price(job, jureca, {job.rule: 0.25}).hours_expected == 0.25


def test_more_data_costs_more(jureca):
    small, large = (
        budget.price(other("prepare", dataset=name), jureca, {}).hours_expected
        for name in ("wikitext2", "wikitext103-50k")
    )
    assert large > 2 * small


@pytest.mark.parametrize(
    "name", ["jureca", "juwels-booster", "jupiter", "slurm", "strategies", "wikitext2-files", "jureca-xsum-t5"]
)
def test_every_training_of_every_shipped_configuration_has_a_price_or_says_what_is_missing(tmp_path, name):
    planner = Planner(load_project_file("config/config.yaml", f"config/{name}.yaml", overrides={"root": str(tmp_path)}))
    for run in planner.project.runs:
        for kind in ("run", "parity"):
            foretold = planner.prediction(run, kind)
            assert foretold.wall_seconds or foretold.unknown, run
            if name in ("jureca", "juwels-booster", "jupiter"):
                assert foretold.wall_seconds, f"{run}: {foretold.unknown}"


@pytest.mark.parametrize(
    ("part", "training", "layout"),
    [
        ("data", {"workers": 0}, {}),
        ("communication", {}, {"sync_batch_norm": True}),
        ("evaluation", {"evaluate_every": 20}, {}),
        ("saving", {"evaluate_every": 20}, {}),  # each may be the best so far
        ("saving", {"checkpoint_minutes": 0.1}, {}),
        ("saving", {"checkpoint_every": 100}, {}),
    ],
)
def test_what_a_run_does_beside_computing_is_in_its_price(jureca, part, training, layout):
    """Decoding without workers, statistics of batch norm, evaluation before the data is there, saves by steps, minutes and `best`."""
    run = jureca.run("imagewoof-course-4")
    bare = {"workers": 8, "evaluate_every": None, "checkpoint_minutes": None, "checkpoint_every": None}

    def seconds(training, layout):
        changed = dataclasses.replace(run.workload, training=dataclasses.replace(run.workload.training, **training))
        layout = dataclasses.replace(run.layout, **layout)
        foretold = predict(
            dataclasses.replace(run, workload=changed, layout=layout), jureca.site, facts=jureca.facts(run)
        )
        return (foretold.phases | foretold.beside)[part]

    assert seconds(bare | training, {"sync_batch_norm": False} | layout) > 1.01 * seconds(
        bare, {"sync_batch_norm": False}
    )


def test_what_is_only_about_right_is_not_checked():
    """A plan may rest on an estimate; a figure that is given as exact is checked against the data."""
    found = {"train_tokens": (90, "tokens")}
    with pytest.raises(DataError, match=r"train_tokens` is 100"):
        check_expected(ExpectedText(train_tokens=100), found, Path("data"))
    check_expected(ExpectedText(train_tokens=100, approximate=True), found, Path("data"))


def test_a_training_under_way_is_charged_for_what_is_left(tmp_path, monkeypatch):
    """Steps after which its state is saved are done; its start, evaluation and last save are not."""
    planner = Planner(project(tmp_path))
    job = jobs()[2]
    whole = budget.price(job, planner, {})
    monkeypatch.setattr(planner, "reason", lambda *_: Reason("continues what was begun", step=750))
    left, foretold = budget.price(job, planner, {}), planner.prediction("single")
    assert left.hours_expected == pytest.approx((foretold.wall_seconds - 0.75 * foretold.seconds) / 3600)
    assert left.hours_expected < left.hours_worst < whole.hours_worst
    monkeypatch.setattr(planner, "reason", lambda *_: Reason("continues what was begun", step=5000))
    assert budget.price(job, planner, {}).hours_expected == pytest.approx(sum(foretold.beside.values()) / 3600)


def test_the_step_that_a_training_continues_from_is_the_last_whole_one(tmp_path, monkeypatch):
    reasons = Reasons(project(tmp_path))
    run = reasons_run = project(tmp_path).runs["single"]
    work = project(tmp_path).paths.work(run.run)
    for name, whole in (("step-000000100", True), ("step-000000250", True), ("step-000000300", False)):
        (work / "checkpoints" / name).mkdir(parents=True)
        if whole:
            (work / "checkpoints" / name / MANIFEST).write_text("{}")
    (work / "checkpoints/step-000000400.partial").mkdir()
    (work / "checkpoints/step-000000400.partial" / MANIFEST).write_text("{}")
    (work / "run.json").write_text(
        json.dumps({"settings": dataclasses.asdict(reasons_run), "site": dataclasses.asdict(JURECA)})
    )
    monkeypatch.setattr(reasons, "_changes", lambda *_, **__: "")
    assert reasons.of(run, "run").step == 250


def test_energy_is_that_of_the_gpus_at_full_power(tmp_path):
    planner = Planner(project(tmp_path))
    unknown = budget.make_plan(jobs(), planner)
    plan = budget.make_plan(jobs(), planner, site=dataclasses.replace(JURECA, gpu_watts=400.0))
    assert unknown.totals["gpu_kwh_expected"] is None
    assert plan.totals["gpu_kwh_expected"] == pytest.approx(0.4 * plan.totals["gpu_hours_expected"])
    assert " kWh" in tables.text(plan) and " kWh" not in tables.text(unknown)


def test_what_changed_since_the_last_plan(tmp_path):
    """Jobs that are done, new ones, and prices that moved, the largest by name; nothing where nothing changed."""
    planner = Planner(project(tmp_path))
    first = budget.make_plan(jobs(), planner)
    (tmp_path / "plan.json").write_text(json.dumps(first.as_dict()))
    before = earlier.last_plan(tmp_path / "plan.json", ())
    assert budget.make_plan(jobs(), planner, before=before).since is None
    less = budget.make_plan(jobs()[1:], planner, before=before)
    assert less.since == "1 job fewer" and "Since the last plan: 1 job fewer" in tables.text(less)
    assert budget.make_plan(jobs()[2:], planner, before=before).since == "2 jobs fewer"
    assert budget.make_plan(jobs()[:1], planner, before={}).since == "1 more", (
        "after a plan in which nothing had to run"
    )
    dearer = budget.make_plan(jobs(), planner, history={"prepare": 0.5}, before=before)
    assert dearer.since == "1 with another price, most of all prepare d (+64.00 core-h)"


@pytest.mark.parametrize("damage", [{"schema_version": 2}, {"jobs": [{}]}, {"jobs": None}, {"targets": ["fsdp"]}])
def test_only_a_plan_of_the_same_targets_is_compared(damage, tmp_path):
    """Nor one that is damaged, or of another version."""
    path = tmp_path / "plan.json"
    assert earlier.last_plan(path, ()) is None
    values = budget.make_plan(jobs(), Planner(project(tmp_path)), targets=["report"]).as_dict()
    path.write_text(json.dumps(values))
    assert len(earlier.last_plan(path, ["report"])) == len(jobs()) and earlier.last_plan(path, ()) is None
    for text in (json.dumps(values | damage), json.dumps([values]), '{"jo'):
        path.write_text(text)
        assert earlier.last_plan(path, ["report"]) is None
