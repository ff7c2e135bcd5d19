"""The gate refuses what it must: each fault goes through the training as it is, and is seen by the comparison."""

import pytest

from .cases import but_slow, ranks_of
from .conftest import COMPARED
from .expected import Expected
from .faults import train_with
from .harness import run_on_ranks
from .jobs import job_from_settings
from .rounding import verdict_on
from .test_parity import whole_shapes

DDP, FSDP, TP, PP = {"dp": 2}, {"fsdp": 2}, {"tp": 2}, {"pp": 2, "micro_batches": 4}
TIED = {"tied": True}
KEYS = {
    "model": {},
    "optim": {},
    "training": {},
    "precision": "fp32",
    "parity": COMPARED,
}  # as the table of cases has them

# name → fault, layout, model
FAULTS = {
    "ddp: another batch": ("another_batch", DDP, {}),
    "tp: another batch": ("another_batch_within_a_tensor_group", TP, {}),
    "ddp: a mean of means": ("mean_of_means", DDP, {}),
    "fsdp: a mean of means": ("mean_of_means", FSDP, {}),
    "pp: tied gradients not summed": ("tied_gradients_not_summed", PP, TIED),
    "pp: clipping by a stage's norm": ("clipping_by_a_stages_norm", PP, {}),
    "fsdp: a block left out": ("a_block_left_out_of_sharding", FSDP, {}),
    "ddp: attention without its mask": ("attention_without_its_mask", DDP, {}),
    "ddp: gradients averaged": ("gradients_averaged", DDP, {}),
    "tp: partial gradients of norms": ("partial_gradients", TP, {}),
    "ddp: one per cent more learning rate": ("another_learning_rate", DDP, {}),
}


# What the losses, the norms of gradients and the weights show.
QUICK = {"ddp: another batch", "tp: partial gradients of norms", "ddp: one per cent more learning rate"}


@pytest.mark.parametrize("name", but_slow(FAULTS, {*FAULTS} - QUICK))
def test_the_comparison_refuses(name, make_settings, single, tmp_path):
    fault, layout, model = FAULTS[name]
    settings = make_settings("case", layout, model, parity=COMPARED)
    run_on_ranks(train_with, ranks_of(layout), tmp_path / "ranks", fault, settings)
    verdict = verdict_on(settings, single(**{**KEYS, "model": model}))
    assert verdict["verdict"] == "different", verdict
    assert verdict["first_step_outside"] is not None or "weights" in verdict["reason"]


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        pytest.param("a_block_kept_whole", r"blocks\.0\.", marks=pytest.mark.slow),
        ("nothing_but_the_root_sharded", "number of sharded units"),
    ],
)
def test_what_is_not_sharded_is_seen_in_what_ranks_hold(fault, seen, make_settings, single, tmp_path):
    """The numbers are right in both, so comparing them alone would not see it."""
    settings = make_settings("case", FSDP, parity=COMPARED)
    facts = run_on_ranks(train_with, 2, tmp_path / "ranks", fault, settings)
    assert verdict_on(settings, single(**KEYS))["verdict"] == "same"
    run = job_from_settings(settings).run
    with pytest.raises(AssertionError, match=seen):
        Expected(run, whole_shapes(run)).check(facts)
