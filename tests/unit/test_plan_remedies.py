"""The one change that is advised for a run that does not fit."""

import bisect

from parascale.plan.memory import memory_moments, verdict
from parascale.plan.search import find_remedy
from parascale.settings import Layout, Model, Run, Workload, load_workload, make
from parascale.settings.workload import LanguageTraining
from tests.made_up.project import JURECA, changed


def remedy_where_it_just_fits(run, other):
    """What is advised for `run` where a device has just the memory for `other`."""
    moments = memory_moments(other, JURECA, 5000)
    capacity = bisect.bisect_left(range(10**12), True, key=lambda size: verdict(moments, size) == "fits")
    assert verdict(memory_moments(run, JURECA, 5000), capacity) != "fits"
    return find_remedy(run, JURECA, 5000, capacity)


def test_the_smallest_change_that_helps_is_advised():
    """Parts of a batch by powers of two, or micro-batches where there is a pipeline; weights that are freed after their use."""
    training = LanguageTraining(steps=9, window=1024, global_batch=64)
    workload = make(Workload, name="w", model=make(Model, dim=512, heads=8, layers=8), training=training)
    single = Run("r", workload, Layout(activation_checkpointing=True))
    for parts in (2, 4, 8, 16, 32):
        cut = changed(single, workload={"training": {"accumulate": parts}})
        assert remedy_where_it_just_fits(single, cut) == f"accumulate = {parts}"
    stages = Layout(gpus_per_node=2, pp=2, micro_batches=4, activation_checkpointing=True)
    deep, finer = (Run("r", workload, changed(stages, micro_batches=count)) for count in (4, 8))
    assert remedy_where_it_just_fits(deep, finer) == "micro_batches = 8"
    sharded = Layout(gpus_per_node=4, fsdp=4, activation_checkpointing=True)
    kept, freed = (Run("r", workload, changed(sharded, reshard_after_forward=each)) for each in (False, True))
    assert remedy_where_it_just_fits(kept, freed) == "reshard_after_forward = true"


def test_a_batch_is_cut_before_values_are_made_again():
    """Where memory is without end, the first change of all is advised."""
    run = Run("r", load_workload("config/workloads", "gpt2-124m"), Layout())
    parts = 2 * run.workload.training.accumulate
    assert find_remedy(run, JURECA, 1000, 10**15) == f"accumulate = {parts}"
