"""What single trainings are charged, those under way too; energy; and what probes would narrow."""

import dataclasses
import itertools
import json
import random
import re
import time
from pathlib import Path

import pytest

from parascale.checkpoint.manifest import MANIFEST
from parascale.data.text import check_expected
from parascale.errors import DataError
from parascale.families import model_sizes
from parascale.files import write_json
from parascale.paths import Paths
from parascale.plan import budget, calibrate, tables
from parascale.plan.calibrate import Calibration
from parascale.plan.hours import Job
from parascale.plan.planner import Planner
from parascale.plan.predict import predict
from parascale.plan.price import price
from parascale.settings import load_project_file
from parascale.settings.data import ExpectedText
from parascale.store.reasons import KEPT, Reason, Reasons
from tests.made_up.project import JURECA, changed, jobs, project, shipped_site, write_files
from tests.made_up.results import observed
from tests.pace import starts


@pytest.mark.parametrize(
    "name", ["jureca", "juwels-booster", "jupiter", "slurm", "strategies", "wikitext2-files", "jureca-xsum-t5"]
)
def test_every_training_of_every_shipped_configuration_has_a_price_or_says_what_is_missing(tmp_path, name):
    planner = Planner(load_project_file("config/config.yaml", f"config/{name}.yaml", overrides={"root": str(tmp_path)}))
    for run in planner.project.runs:
        for kind in ("run", "parity"):
            predicted = planner.prediction(run, kind)
            assert predicted.wall_seconds or predicted.unknown, run
            if name in ("jureca", "juwels-booster", "jupiter"):
                assert predicted.wall_seconds, f"{run}: {predicted.unknown}"


def test_evaluations_and_saves_are_counted_as_a_training_makes_them(jureca):
    """Of 988 steps: four evaluations and one at the end, of which each but the last may save its weights as the best; saves after so
    many steps, or minutes where they come more often, and at the end."""
    run = jureca.run("imagewoof-course-1")

    def beside(**training):
        training = {"evaluate_every": None, "checkpoint_every": None, "checkpoint_minutes": None} | training
        return predict(changed(run, workload={"training": training}), jureca.site, facts=jureca.facts(run))

    once = beside(evaluate=False)
    state, steps = once.beside["saving"], once.steps
    assert steps == 988 and once.beside["evaluation"] == 0 and state > 0
    weights = state / 3  # AdamW keeps two copies beside them
    assert beside(checkpoint_every=200, evaluate=False).beside["saving"] == pytest.approx(5 * state)
    minutes = once.seconds / 60 / 3.5
    assert beside(checkpoint_minutes=minutes, evaluate=False).beside["saving"] == pytest.approx(4 * state)
    one, five = beside(), beside(evaluate_every=200)
    assert five.beside["evaluation"] == pytest.approx(5 / 2 * one.beside["evaluation"]) and one.beside["evaluation"] > 0
    assert one.beside["saving"] == pytest.approx(state + weights)
    assert five.beside["saving"] == pytest.approx(state + 4 * weights)


def test_images_are_decoded_beside_the_step_and_the_evaluation(jureca):
    """64 images of 100 kB at 32 MB/s a core take 0.2 s. By many workers that costs nothing, by few what a step does not hide; without any the
    process that starts a GPU's work decodes meanwhile, so that a step takes as long as both of its jobs."""
    run = jureca.run("imagewoof-course-1")

    def predicted(workers):
        by = changed(run, workload={"training": {"workers": workers}})
        return predict(by, jureca.site, facts=changed(jureca.facts(run), validation_samples=640))

    assumed, alone, few, many = jureca.site.assumed, *map(predicted, (0, 2, 32))
    decoding = 64 * (1e5 / (assumed.decode_megabytes_per_second * 1e6) + assumed.sample_microseconds / 1e6)
    assert many.phases["data"] == 0 and few.phases["data"] == pytest.approx(decoding / 2 - many.step_seconds)
    assert decoding < alone.step_seconds < decoding + many.step_seconds
    evaluations = alone.beside["evaluation"] / (10 * decoding)
    assert evaluations == pytest.approx(round(evaluations))
    assert few.beside["evaluation"] == pytest.approx(alone.beside["evaluation"] / 2) and few.steps == alone.steps
    assert 0 < many.beside["evaluation"] < few.beside["evaluation"] / 2


def test_what_readers_were_measured_to_take_is_what_plans_reckon_with(jureca, tmp_path):
    """Of a dataset on the site itself, read in the same way: another site's cores say nothing of it."""
    run = jureca.run("imagewoof-course-1")
    seconds = {"site": jureca.site.name, "dataset": run.workload.data.dataset, "core_seconds": 0.25}
    seconds |= {"read": [run.workload.training.decoder, run.workload.training.image_size]}
    others = {"others": {"site": "other"}, "texts": {"dataset": "wikitext2"}, "large": {"read": ["pillow", 9999]}}
    for name, other in others.items():
        write_json(tmp_path / f"results/loaders/{name}.json", seconds | {"core_seconds": 9.0} | other)
    write_files(tmp_path, {"results/loaders/dogs.json": json.dumps(seconds), "results/loaders/damaged.json": "{"})
    known = calibrate.known(Paths(tmp_path), jureca.site.name)
    assert known.basis(run) == "formula"
    assert known.rates(jureca.site, run, 1e5)[0].samples == 0.25
    assert known.rates(jureca.site, jureca.run("single"))[0].samples == jureca.site.assumed.sample_microseconds / 1e6


def test_batch_norm_tells_all_ranks_its_statistics(jureca):
    """Two small collectives a norm, there and back: latencies, which nothing hides, of each of xresnet50's norms."""
    run = jureca.run("imagewoof-course-4")

    def communication(**layout):
        return predict(changed(run, layout=layout), jureca.site, facts=jureca.facts(run)).phases["communication"]

    norms = model_sizes(run.workload.model, 10, *run.workload.sizes).norms
    more = communication(sync_batch_norm=True) - communication(sync_batch_norm=False)
    ring = 6 * jureca.site.node_link.microseconds / 1e6  # an all-reduce of four ranks
    assert norms > 50 and 2 * norms * ring < more < 4 * norms * ring
    hybrid = {"nodes": 4, "gpus_per_node": 4, "dp": 4, "fsdp": 4}  # replicas tell each other too
    over_all = communication(**hybrid, sync_batch_norm=True) - communication(**hybrid, sync_batch_norm=False)
    assert over_all == pytest.approx(2 * norms * (ring + 4 * jureca.site.network_link.microseconds / 1e6), rel=0.1)


def test_nodes_save_side_by_side_and_start_more_slowly(jureca):
    """Up to what the file system takes. A job of one node is no other than before."""
    run, site = jureca.run("imagewoof-course-4"), jureca.site
    layouts = (changed(run.layout, nodes=nodes, dp=4 * nodes) for nodes in (1, 10, 1000))
    one, ten, many = (site.save_bytes_per_second(layout) for layout in layouts)
    assert (ten, many) == (10 * one, 1e9 * site.assumed.most_save_gigabytes_per_second)
    factors = [site.startup_factor(changed(run.layout, nodes=nodes)) for nodes in (1, 81, 500)]
    assert factors[0] == 1.0 and factors[1] == pytest.approx(2.0) and 25 < factors[2] < 35


@pytest.mark.parametrize("name", ["alps", "isambard-ai", "leonardo", "lumi", "marenostrum5", "perlmutter"])
def test_a_machine_of_which_facts_alone_are_known_has_prices(jureca, name):
    run = jureca.run("ddp-4")
    predicted = predict(run, shipped_site(name), facts=jureca.facts(run))
    assert predicted.core_hours
    assert predicted.fits == "fits"


def test_a_prediction_is_quick(jureca):
    """About a millisecond of the processor at most, in the mean over the shipped run table."""
    facts = {name: jureca.facts(run) for name, run in jureca.project.runs.items()}
    began = time.process_time()
    for name, run in jureca.project.runs.items():
        predict(run, jureca.site, facts=facts[name])
    assert starts(time.process_time() - began) < len(facts) / 1000 and len(facts) > 40


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
    whole = price(job, planner, {})
    monkeypatch.setattr(planner, "reason", lambda *_: Reason("continues an unfinished run", step=750))
    left, predicted = price(job, planner, {}), planner.prediction("single")
    assert left.expected == pytest.approx((predicted.wall_seconds - 0.75 * predicted.seconds) / 3600)
    assert left.expected < left.worst < whole.worst
    assert left.assumed["steps"] == pytest.approx(0.25 * whole.assumed["steps"])
    assert sum(left.assumed.values()) <= left.expected
    monkeypatch.setattr(planner, "reason", lambda *_: KEPT)
    assert price(job, planner, {}).core_hours == 0
    monkeypatch.setattr(planner, "reason", lambda *_: Reason("continues an unfinished run", step=5000))
    assert price(job, planner, {}).expected == pytest.approx(sum(predicted.beside.values()) / 3600)


def test_the_step_that_a_training_continues_from_is_the_last_whole_one(tmp_path, monkeypatch):
    made = project(tmp_path)
    reasons, run, work = Reasons(made), made.runs["single"], made.paths.under_way / "runs/single"
    for name in ("step-000000100", "step-000000250", "step-000000400.partial", "step-old"):
        write_json(work / "checkpoints" / name / MANIFEST, {})
    (work / "checkpoints/step-000000300").mkdir()
    write_json(work / "run.json", {"settings": dataclasses.asdict(run), "site": dataclasses.asdict(JURECA)})
    monkeypatch.setattr(reasons, "_changes", lambda *_, **__: "")
    assert reasons.of(run, "run").step == 250


def test_energy_is_that_of_the_gpus_at_full_power(tmp_path):
    planner = Planner(project(tmp_path))
    unknown = budget.make_plan(jobs(), planner)
    plan = budget.make_plan(jobs(), planner, site=changed(JURECA, gpu_watts=400.0))
    assert unknown.totals["gpu_kwh_expected"] is None
    assert plan.totals["gpu_kwh_expected"] == pytest.approx(0.4 * plan.totals["gpu_hours_expected"])
    assert " kWh" in tables.text(plan) and " kWh" not in tables.text(unknown)
    assert plan.totals["co2_kg_expected"] is None and "CO₂" not in tables.text(plan)
    german = budget.make_plan(jobs(), planner, site=changed(JURECA, gpu_watts=400.0, co2_grams_per_kwh=363.0))
    assert german.totals["co2_kg_expected"] == pytest.approx(0.363 * german.totals["gpu_kwh_expected"])
    assert " kg of CO₂" in tables.text(german)


def test_a_plan_says_how_much_narrower_probes_would_make_it(jureca):
    """Every training and parity run of the shipped table, before its probes and with them, off from the formulas as probes would be."""
    planned = [
        Job(number, "train", {"run": name}, run.layout.nodes, run.layout.nodes * run.layout.gpus_per_node, kind=kind)
        for number, (kind, (name, run)) in enumerate(itertools.product(("run", "parity"), jureca.project.runs.items()))
    ]
    plan, measured, noise = budget.make_plan(planned, jureca), Planner(jureca.project), random.Random(1)
    hours = sum(each.core_hours for each in jureca.probing.values())
    told = re.search(
        r"(\d+) probes for ([\d.]+) core-h .* narrow the range of the price by about (\d+) %", tables.text(plan)
    )
    assert (int(told[1]), float(told[2])) == (len(jureca.probes), pytest.approx(hours, abs=0.006))
    seen = []
    for name, run in jureca.probes.items():
        seconds = jureca.probing[name].step_seconds * noise.lognormvariate(0, 0.05)
        seen.append(observed(run, seconds, jureca.facts(run).vocabulary, source="probe"))
    measured.__dict__["calibration"] = Calibration(jureca.site.name, tuple(seen))
    after = budget.make_plan(planned, measured)
    before, now = (each.totals["core_hours_high"] - each.totals["core_hours_low"] for each in (plan, after))
    assert int(told[3]) - 2 < 100 * (1 - now / before) < int(told[3]) + 10 and not after.calibrating
