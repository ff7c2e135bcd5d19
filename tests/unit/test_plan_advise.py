"""Advice as an expert gives it: what else a batch can be cut into, the simpler of equals, and where more GPUs stop paying."""

import dataclasses
import itertools
import math
import time
from contextlib import suppress
from typing import get_args

import pytest

from parascale.commands.advise import line
from parascale.errors import ConfigError
from parascale.plan.advise import advise, reason, rule_of_thumb, scaling
from parascale.plan.planner import Planner
from parascale.plan.predict import DataFacts, predict
from parascale.plan.search import NEAR, layouts
from parascale.settings import (
    Layout,
    Model,
    Run,
    Workload,
    compiled_where_it_gains,
    load_workload,
    make,
)
from parascale.settings.layout import AXES, DEGREES, RECOMPUTATION, Schedule
from parascale.settings.workload import LanguageTraining
from tests.distributed.cases import ZERO_1, ranks_of
from tests.made_up.project import CLUSTER, JURECA, LAPTOP, WORKLOAD, changed, project, shipped_site
from tests.pace import starts

FACTS = DataFacts(32_000)
SCHEDULES = get_args(Schedule)
LLAMA = load_workload("config/workloads", "llama-1b")
A100_40 = changed(CLUSTER, gpu_memory_gb=42.9)


def batch_of(samples):
    """LLAMA with a step of so many samples, trained so long that its start does not matter."""
    return changed(LLAMA, training={"global_batch": samples, "steps": 10**6})


def best(site, gpus, workload=LLAMA, precision="bf16"):
    return advise(workload, site, gpus, precision, facts=FACTS)[0]


@pytest.mark.parametrize(
    ("gpus", "strategies"),
    [(1, {"single"}), (4, {"fsdp", "ddp"}), (8, {"fsdp"}), (512, {"hybrid", "three_d", "fsdp"})],
)
def test_a_model_of_one_billion_parameters_fits(gpus, strategies):
    """On one GPU with smaller parts; on four shards and copies of all states are near each other; on 512 there is a layout."""
    first = best(A100_40, gpus)
    assert first.prediction.fits == "fits" and first.layout.strategy() in strategies
    if gpus == 1:
        assert first.run.workload.training.accumulate > LLAMA.training.accumulate


def test_every_axis_is_tried_in_every_degree_and_those_within_a_node_stay_there():
    deep = changed(WORKLOAD, model={"layers": 8, "heads": 8}, training={"window": 8192})
    found = [layout.dimensions for layout in layouts(deep, JURECA, 8)]
    assert {axis for each in found for axis in each} == {*DEGREES}
    for axis in AXES:
        most = 4 if axis.within_node else 8
        assert {each.get(axis.name, 1) for each in found} == {degree for degree in (1, 2, 4, 8) if degree <= most}
    assert len(found) == len({tuple(sorted(each.items())) for each in found})


@pytest.mark.parametrize(("window", "batch", "split"), [(2048, 64, False), (131_072, 4, True)])
def test_positions_are_split_where_windows_are_long(window, batch, split):
    """Nor is it tried where they are short, as that takes time."""
    workload = changed(LLAMA, training={"window": window, "global_batch": batch})
    ranked = advise(workload, A100_40, 8, "bf16", facts=FACTS)
    assert (ranked[0].layout.cp > 1) == any(each.layout.cp > 1 for each in ranked) == split
    assert ranked[0].prediction.fits == "fits"
    assert ("positions are split" in ranked[0].reason) == split


def test_the_simpler_of_equals_stands_first():
    ranked = [each for each in advise(LLAMA, CLUSTER, 4, "bf16", facts=FACTS) if each.prediction.fits == "fits"]
    fastest = min(each.prediction.step_seconds for each in ranked)
    assert len(ranked[0].layout.dimensions) == 1 and ranked[0].prediction.step_seconds <= NEAR * fastest
    for each in ranked:
        times = f"{each.prediction.step_seconds / fastest:.2f} × the fastest"
        assert (times in each.reason) == (each.prediction.step_seconds > 1.005 * fastest)
    slower = [s for each in ranked if (s := each.prediction.step_seconds) > NEAR * fastest]
    assert slower == sorted(slower) and len(slower) > 1, "what is slower stands by time alone"


def test_a_batch_is_cut_as_it_pays_not_as_the_workload_has_it():
    """But for images, of whose batch norms each part sees its own samples."""

    def advised(workload, facts=FACTS):
        return [each.run for each in advise(workload, CLUSTER, 4, "bf16", facts=facts)]

    cut = {"training": {"accumulate": 2}}
    assert advised(changed(LLAMA, **cut)) == advised(LLAMA)
    images = changed(load_workload("config/workloads", "images-small"), **cut)
    parts = {run.workload.training.accumulate % 2 for run in advised(images, DataFacts(10))}
    assert parts == {0}


def test_what_is_paid_once_changes_no_order():
    """A start of ten hours makes all layouts of a short job equally long; their steps are not."""
    slow = changed(CLUSTER, assumed={"startup_seconds": 36_000.0})
    found, slowly = (advise(LLAMA, site, 4, "bf16", facts=FACTS) for site in (CLUSTER, slow))
    assert [each.layout for each in found] == [each.layout for each in slowly]


def test_on_shared_cores_a_pipeline_is_not_the_fastest():
    """Four processes on two cores: measured 0.139 s a step with DDP, 0.308 with `pp` 4, which was advised before."""
    assert best(LAPTOP, 4, load_workload("config/workloads", "lm-small"), "fp32").layout.strategy() == "ddp"


def of_degrees(ranked, **degrees):
    """The advice with these degrees."""
    return next(each for each in ranked if each.layout.dimensions == degrees)


@pytest.mark.parametrize(
    ("batch", "schedules"),
    [(4, {"GPipe"}), (8, {"1F1B"}), (16, {"Interleaved1F1B", "InterleavedZeroBubble"}), (512, {"1F1B"})],
)
def test_a_pipeline_gets_the_simplest_schedule_that_is_about_as_fast(batch, schedules):
    """Of eight stages. With few micro-batches they wait for each other, and two pieces a rank gain; with many nothing is to be gained.
    A batch of four samples fills no other schedule than GPipe, which is faster than one micro-batch after the other."""
    found = of_degrees(advise(batch_of(batch), CLUSTER, 8, "bf16", facts=FACTS), pp=8)
    assert found.layout.pipeline_schedule in schedules
    assert ("schedule=" in line(found)) == (found.layout.pipeline_schedule != "1F1B")
    if batch < 8:
        assert found.layout.micro_batches == batch


@pytest.mark.parametrize("batch", [8, 12, 32])
def test_no_schedule_or_number_of_micro_batches_is_better_than_what_is_advised(batch):
    """Every schedule that exists, with every cut: none is faster by more than what formulas can tell apart. A batch of 12 has cuts that
    are no powers of two."""
    workload = batch_of(batch)
    ranked = advise(workload, CLUSTER, 8, "bf16", facts=FACTS)
    for degrees in ({"pp": 4, "dp": 2}, {"pp": 8}, {"pp": 2, "fsdp": 4}):
        found, fastest = of_degrees(ranked, **degrees), math.inf
        assert found.prediction.fits == "fits"
        for schedule, count, saving in itertools.product(SCHEDULES, range(1, batch + 1), RECOMPUTATION[:2]):
            tried = {"schedule": schedule, "micro_batches": count, "activation_checkpointing": saving}
            layout = changed(found.layout, **tried, compile=None)
            run = compiled_where_it_gains(Run("r", workload, layout, "bf16"), CLUSTER)
            with suppress(ConfigError):
                run.check()
                predicted = predict(run, CLUSTER, facts=FACTS, remedy=False)
                fastest = min(fastest, predicted.step_seconds if predicted.fits == "fits" else math.inf)
        assert found.prediction.step_seconds <= NEAR * fastest


def test_less_memory_recomputes_more():
    large = load_workload("config/workloads", "llama-7b")
    small, ample = (best(site, 8, large) for site in (A100_40, CLUSTER))
    assert small.prediction.fits == ample.prediction.fits == "fits"
    recomputed = [False, "selective", True]
    more, less = (recomputed.index(each.layout.activation_checkpointing) for each in (small, ample))
    assert more > less


def test_whole_weights_and_gradients_stay_where_they_fit():
    """ZeRO-1, or shards of the gradients alone: no way and cut is faster than what is advised. With less memory weights are freed."""
    large = load_workload("config/workloads", "llama-7b")
    small, ample = (of_degrees(advise(large, s, 16, "bf16", facts=FACTS), fsdp=16) for s in (A100_40, CLUSTER))
    assert small.layout.reshard_after_forward and small.prediction.fits == ample.prediction.fits == "fits"
    assert "ZeRO-1" in ample.reason
    fastest = math.inf
    for kept, reduce, parts in itertools.product((True, False), ("part", "step"), (1, 2, 4, 8)):
        layout = changed(ample.layout, reshard_after_forward=not kept, reduce=reduce)
        run = Run("r", changed(large, training={"accumulate": parts}), layout, "bf16")
        predicted = predict(run, CLUSTER, facts=FACTS, remedy=False)
        fastest = min(fastest, predicted.step_seconds if predicted.fits == "fits" else math.inf)
    assert ample.prediction.step_seconds <= fastest < math.inf


def test_the_ceiling_offers_no_switch_that_the_layout_refuses(tmp_path):
    """A backward pass in two halves allows neither `compile` nor selective recomputation."""
    plain = project(tmp_path)
    single = changed(plain.runs["single"], workload={"model": {"layers": 4}})
    halves = changed(single, layout=Layout(gpus_per_node=2, pp=2, micro_batches=4, schedule="ZBVZeroBubble"))
    planner = Planner(changed(plain, runs={"single": single, "halves": halves}))
    refused = {"torch.compile on", "selective recomputation"}
    assert refused <= planner.ceiling("single").keys()
    assert planner.ceiling("halves").keys() == {"now", "recomputation on", "micro-batches of one sample"}


@pytest.mark.parametrize(
    ("degrees", "said"),
    [
        ({}, "one process does all the work"),
        ({"dp": 2}, "every process holds the full model"),
        ({"fsdp": 2}, "sharded over 2 processes"),
        ({"fsdp": 2, **ZERO_1}, "sharded over 2 processes, which gather all weights once a step (ZeRO-1)"),
        ({"dp": 2, "fsdp": 2}, "2 such groups train"),
        ({"tp": 2}, "each matrix is split over 2 processes"),
        ({"pp": 2, "micro_batches": 4}, "stages on 2 processes"),
    ],
)
def test_the_reason_says_how_a_layout_spreads_the_model(degrees, said):
    layout = Layout(gpus_per_node=ranks_of(degrees), **degrees)
    run = Run("a", WORKLOAD, layout)
    assert said in reason(run, LAPTOP, predict(run, LAPTOP, facts=FACTS))


@pytest.mark.parametrize(("gigabytes", "gains"), [(12.5, True), (12_500.0, False)])
def test_sums_in_bf16_are_proposed_of_the_best_where_they_gain_and_never_chosen(gigabytes, gains):
    link = dataclasses.replace(CLUSTER.network_link, gigabytes_per_second=gigabytes)
    found = advise(LLAMA, dataclasses.replace(CLUSTER, network_link=link), 32, "bf16", facts=FACTS)
    assert {each.run.reduce_precision for each in found} == {"fp32"}
    said = ["with reduce_precision = bf16 a step takes 0." in each.reason for each in found]
    assert said == [gains] + [False] * (len(found) - 1)


def test_the_knee_is_never_where_more_gpus_are_faster_and_cost_less():
    """Of a small model on whole nodes of four: 2 GPUs are slower than 4 and cost more, though they are used better."""
    workload = load_workload("config/workloads", "wikitext2")
    steps = scaling(workload, shipped_site("jureca"), 16, facts=DataFacts(8_000, 10_000))
    (knee,) = (step for step in steps if step.knee)
    assert knee.gpus >= 4 and steps[2].efficiency < 0.75

    def worth(step):
        return step.advice.prediction.seconds**2 * step.advice.layout.nodes

    assert worth(knee) == min(map(worth, steps))


def test_what_is_paid_once_changes_no_efficiency():
    """Neither start-up nor evaluation is a matter of how a training scales."""
    slow = changed(CLUSTER, assumed={"startup_seconds": 36_000.0})
    found, slowly = (scaling(LLAMA, site, 16, "bf16", facts=FACTS) for site in (CLUSTER, slow))
    assert [(each.efficiency, each.knee) for each in found] == [(each.efficiency, each.knee) for each in slowly]
    assert slowly[0].advice.prediction.wall_seconds > found[0].advice.prediction.wall_seconds + 30_000


def test_a_share_that_is_no_power_of_two_is_cut_down_to_single_samples():
    """Of seven samples one at a time fits with selective recomputation, two do not: cut by powers of two alone, all blocks would be computed
    twice. Where two at a time fit as well, the last of four parts has one sample, and seven parts are no slower."""
    seven = changed(batch_of(7), training={"window": 4096})
    for memory in (29.0, 32.0):
        found = best(changed(CLUSTER, gpu_memory_gb=memory), 1, seven)
        assert found.prediction.fits == "fits"
        assert found.run.workload.training.accumulate == 7
        assert found.layout.activation_checkpointing == "selective"


def test_advice_is_whole_and_ranked():
    """Every layout stands once, those that fit come first, each with its reason."""
    ranked = advise(WORKLOAD, JURECA, 8, facts=DataFacts(5000))
    degrees = [(a.layout.dp, a.layout.fsdp, a.layout.tp, a.layout.pp) for a in ranked]
    assert len(set(degrees)) == len(degrees) and (8, 1, 1, 1) in degrees and (1, 8, 1, 1) in degrees
    assert all(dp * fsdp * tp * pp == 8 for dp, fsdp, tp, pp in degrees)
    order = ["fits", "unknown", "risky", "does not fit"]
    places = [order.index(advice.prediction.fits) for advice in ranked]
    assert places == sorted(places) and all(advice.reason for advice in ranked)
    assert ranked[0].layout.strategy() in ("multi_node", "fsdp", "hsdp")


def test_more_gpus_than_the_usual_partition_has_are_refused():
    with pytest.raises(ConfigError, match="100 GPUs: asks for 25 nodes; partition dc-gpu of jureca takes at most 24"):
        advise(LLAMA, JURECA, 100, "bf16", facts=FACTS)


def test_advice_for_512_gpus_is_quick():
    """A batch of 20,160 samples has 84 divisors."""
    model = make(Model, dim=4096, heads=32, layers=32, hidden=11008, activation="swiglu")
    training = LanguageTraining(steps=1, window=2048, global_batch=20_160)
    workload = make(Workload, name="w", model=model, training=training)
    began = time.process_time()
    ranked = advise(workload, changed(JURECA, partitions=[]), 512, "bf16", facts=FACTS)
    assert starts(time.process_time() - began) < 1.7
    assert len(ranked) > 50
    assert ranked[0].prediction.fits == "fits"


def test_where_a_shard_would_fit_more_gpus_it_is_said_how_many():
    """Of 7 billion parameters one GPU holds some layers, if not all."""
    said = rule_of_thumb(load_workload("config/workloads", "llama-7b"), A100_40, 1, "bf16", 32_000)
    assert "a shard of them does from 4 GPUs on" in said and "one layer" not in said


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (make(Model), "DDP"),
        (make(Model, dim=4096, heads=32, layers=32, hidden=11008, activation="swiglu"), "FSDP"),
        (make(Model, dim=32768, heads=256, layers=2, hidden=131072), "TP"),
        (make(Model, dim=8192, heads=64, layers=200, hidden=32768), "PP"),
    ],
)
def test_rule_of_thumb(model, said):
    workload = make(Workload, name="w", model=model, training=LanguageTraining(steps=1, window=2048, global_batch=64))
    assert said in rule_of_thumb(workload, JURECA, 8, "bf16", 32000)
