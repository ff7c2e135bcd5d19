"""Advice as an expert gives it: what else a batch can be cut into, the simpler of equals, and where more GPUs stop paying."""

import dataclasses
import time

import pytest

from parascale.plan.advise import NEAR, advise, scaling
from parascale.plan.predict import DataFacts
from parascale.settings import Site, load_workload
from tests.unit.test_plan_fit import CLUSTER

FACTS = DataFacts(32_000)
LLAMA = load_workload("config/workloads", "llama-1b")
A100_40 = dataclasses.replace(CLUSTER, gpu_memory_gb=42.9)
LAPTOP = Site("laptop", cores_per_node=2, threads_per_process=1)


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


def test_recomputation_is_for_what_does_not_fit_without():
    large = load_workload("config/workloads", "llama-7b")
    small, ample = (best(site, 8, large) for site in (A100_40, CLUSTER))
    assert small.prediction.fits == ample.prediction.fits == "fits"
    assert small.layout.activation_checkpointing and not ample.layout.activation_checkpointing


def test_scaling_marks_the_knee_and_what_a_node_makes_free():
    began = time.process_time()
    steps = scaling(LLAMA, A100_40, 64, "bf16", facts=FACTS)
    assert time.process_time() - began < 2
    assert [step.gpus for step in steps] == [1, 2, 4, 8, 16, 32, 64]
    assert sum(step.knee for step in steps) == 1 and steps[0].efficiency == 1
    efficiencies = [step.efficiency for step in steps[2:]]
    assert efficiencies == sorted(efficiencies, reverse=True)
    assert {step.gpus: step.free_from for step in steps if step.free_from} == {4: 1}
