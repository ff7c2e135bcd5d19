"""Advice as an expert gives it: what else a batch can be cut into, the simpler of equals, and where more GPUs stop paying."""

import dataclasses
import re
import time

import pytest

from parascale.commands.plan import line
from parascale.plan.advise import NEAR, advise, scaling
from parascale.plan.calibrate import Calibration, Observation
from parascale.plan.facts import DataFacts
from parascale.plan.planner import Planner
from parascale.settings import Layout, Site, load_workload
from tests.unit.test_plan_budget import project
from tests.unit.test_plan_fit import CLUSTER

FACTS = DataFacts(32_000)
LLAMA = load_workload("config/workloads", "llama-1b")
A100_40 = dataclasses.replace(CLUSTER, gpu_memory_gb=42.9)
LAPTOP = Site("laptop", cores_per_node=2, threads_per_process=1, plays_nodes=True)


def best(site, gpus, workload=LLAMA, precision="bf16"):
    return advise(workload, site, gpus, precision, facts=FACTS)[0]


@pytest.mark.parametrize(
    ("gpus", "strategies"),
    [(1, {"single"}), (4, {"ddp"}), (8, {"multi_node", "fsdp"}), (512, {"hybrid", "three_d", "fsdp"})],
)
def test_a_model_of_one_billion_parameters_fits(gpus, strategies):
    """On one GPU with smaller parts; on four DDP with smaller parts stands before a pipeline; on 512 there is a layout."""
    first = best(A100_40, gpus)
    assert first.prediction.fits == "fits" and first.layout.strategy() in strategies
    if gpus == 1:
        assert first.run.workload.training.accumulate > LLAMA.training.accumulate


def test_the_simpler_of_equals_stands_first():
    ranked = [each for each in advise(LLAMA, CLUSTER, 4, "bf16", facts=FACTS) if each.prediction.fits == "fits"]
    fastest = min(each.prediction.wall_seconds for each in ranked)
    assert len(ranked[0].layout.dimensions) == 1 and ranked[0].prediction.wall_seconds <= NEAR * fastest
    assert all("first layout" in each.reason for each in ranked[1:])


def test_on_shared_cores_a_pipeline_is_not_the_fastest():
    """Four processes on two cores: measured 0.139 s a step with DDP, 0.308 with `pp` 4, which was advised before."""
    assert best(LAPTOP, 4, load_workload("config/workloads", "lm-small"), "fp32").layout.strategy() == "ddp"


def test_recomputation_is_for_what_does_not_fit_without_and_selective_where_that_is_enough():
    large = load_workload("config/workloads", "llama-7b")
    small, ample = (best(site, 8, large) for site in (A100_40, CLUSTER))
    assert small.prediction.fits == ample.prediction.fits == "fits"
    assert small.layout.activation_checkpointing == "selective" and not ample.layout.activation_checkpointing


def test_the_ceiling_offers_no_switch_that_the_layout_refuses(tmp_path):
    """A backward pass in two halves allows neither `compile` nor selective recomputation."""
    plain = project(tmp_path)
    layouts = {
        "single": Layout(),
        "halves": Layout(gpus_per_node=2, pp=2, micro_batches=4, schedule="ZBVZeroBubble"),
    }
    single = plain.runs["single"]
    deep = dataclasses.replace(single.workload, model=dataclasses.replace(single.workload.model, layers=4))
    runs = {name: dataclasses.replace(single, workload=deep, layout=layout) for name, layout in layouts.items()}
    planner = Planner(dataclasses.replace(plain, runs=runs))
    refused = {"torch.compile on", "selective recomputation"}
    assert refused <= planner.ceiling("single").keys()
    assert planner.ceiling("halves").keys() == {"now", "recomputation on", "micro-batches of one sample"}


def test_a_share_of_a_step_is_written_as_the_pages_write_it():
    reasons = "; ".join(each.reason for each in advise(LLAMA, CLUSTER, 8, "bf16", facts=FACTS))
    assert re.search(r"; \d+ % of a step is talking to other GPUs", reasons)


def test_scaling_marks_the_knee_and_what_a_node_makes_free():
    began = time.process_time()
    steps = scaling(LLAMA, A100_40, 64, "bf16", facts=FACTS)
    assert time.process_time() - began < 2
    assert [step.gpus for step in steps] == [1, 2, 4, 8, 16, 32, 64]
    assert sum(step.knee for step in steps) == 1 and steps[0].efficiency == 1
    efficiencies = [step.efficiency for step in steps[2:]]
    assert efficiencies == sorted(efficiencies, reverse=True)
    assert {step.gpus: step.free_from for step in steps if step.free_from} == {4: 1}


def test_measured_layouts_stand_among_predicted_ones_and_rank_them_anew():
    """Layouts that were trained have the places of their measured steps, and say so."""
    best, other, *_ = (
        each for each in advise(LLAMA, CLUSTER, 4, "bf16", facts=FACTS) if each.prediction.fits == "fits"
    )
    seen = {best.layout: 3 * best.prediction.step_seconds, other.layout: other.prediction.step_seconds}
    observed = tuple(
        Observation(
            "run", "r", dataclasses.asdict(each.run), FACTS.vocabulary, seen[each.layout], {}, extra_seconds=1.0
        )
        for each in (best, other)
    )
    after = advise(LLAMA, CLUSTER, 4, "bf16", Calibration(CLUSTER.name, observed), FACTS)
    measured = [each for each in after if each.layout in seen]
    assert [each.layout for each in measured] == [other.layout, best.layout]
    assert all(each.prediction.step_seconds == seen[each.layout] and ", measured" in line(each) for each in measured)
    assert sum(", measured" in line(each) for each in after) == 2


def test_advice_is_for_the_rows_that_a_table_would_hold():
    """Compiled where rows are, so that what probes and runs showed refines it; each measured layout stands once."""
    ranked = advise(LLAMA, CLUSTER, 4, "bf16", facts=FACTS)
    assert {each.layout.compile for each in ranked} == {True}
    assert not any(each.layout.compile for each in advise(LLAMA, LAPTOP, 2, facts=FACTS))
    first = ranked[0]
    seen = Observation("run", "r", dataclasses.asdict(first.run), FACTS.vocabulary, 1.0, {}, extra_seconds=1.0)
    after = advise(LLAMA, CLUSTER, 4, "bf16", Calibration(CLUSTER.name, (seen,)), FACTS)
    assert len(after) == len(ranked) and {each.prediction.basis for each in after} <= {"history", "fit", "probe"}


@pytest.mark.parametrize(
    "other",
    [
        {"average_every": 10},
        {"scaling": "weak"},
        {"engine": "lightning"},
        {"deterministic": True},
        {"profile": "5-6"},
        {"layout": {"gpus_per_node": 4, "idle_gpus": 2}},
    ],
)
def test_another_method_is_no_layout(other):
    """A finished run that is no plain training of the workload has no place in the ranking."""
    plain = next(each.run for each in advise(LLAMA, CLUSTER, 2, "bf16", facts=FACTS) if each.layout.dp == 2)
    layout = dataclasses.replace(plain.layout, **other.get("layout", {}))
    run = dataclasses.replace(plain, **other | {"layout": layout})
    seen = Observation("run", "r", dataclasses.asdict(run), FACTS.vocabulary, 1e-3, {}, extra_seconds=1.0)
    after = advise(LLAMA, CLUSTER, 2, "bf16", Calibration(CLUSTER.name, (seen,)), FACTS)
    assert "history" not in {each.prediction.basis for each in after}
