"""`parascale parity explain`: a fault in one of our layouts is named where it is, and a right layout is called the same."""

import re
from pathlib import Path

import pytest

from parascale import proof
from parascale.train.explain import record

from . import faults
from .cases import LAYOUTS, but_slow, ranks_of
from .harness import run_on_ranks
from .jobs import job_from_settings

STEPS = 2


def record_with(fault, settings, folder):
    """Record the first steps of a parity run with a fault, a function of `faults`, or none, in every rank."""
    if fault:
        getattr(faults, fault)()
    record(job_from_settings(settings), Path(folder), STEPS)


@pytest.fixture
def explained(make_settings, tmp_path):
    """A function that gives the card of a layout with a fault, or none."""

    def explain(fault, layout, **keys):
        for name, spread, planted in (("single", {}, ""), ("case", layout, fault)):
            settings = make_settings(name, spread, parity=20, **keys)
            place = str(tmp_path / name)
            run_on_ranks(record_with, ranks_of(spread), tmp_path / f"ranks-{name}", planted, settings, place)
        return proof.compare(tmp_path / "single", tmp_path / "case")

    return explain


PP = LAYOUTS["pp"]
# name → fault, layout, model, pass, module
FAULTS = {
    "ddp: another batch": ("another_batch", {"dp": 2}, {}, "samples", "the samples"),
    "ddp: a mean of means": ("mean_of_means", {"dp": 2}, {}, "forward", "the loss"),
    "ddp: gradients averaged": ("gradients_averaged", {"dp": 2}, {}, "backward", "head"),
    "ddp: attention without its mask": (
        "attention_without_its_mask",
        {"dp": 2},
        {},
        "forward",
        r"blocks\.0\.attention",
    ),
    "ddp: learning rate": ("another_learning_rate", {"dp": 2}, {}, "weights", ""),
    "fsdp: a mean of means": ("mean_of_means", {"fsdp": 2}, {}, "forward", "the loss"),
    "fsdp: a block left out": ("a_block_left_out_of_sharding", {"fsdp": 2}, {}, "backward", r"blocks\.0\."),
    "tp: another batch": ("another_batch_within_a_tensor_group", {"tp": 2}, {}, "samples", "the samples"),
    "tp: partial gradients of norms": ("partial_gradients", {"tp": 2}, {}, "backward", r"norm"),
    "pp: tied gradients not summed": ("tied_gradients_not_summed", PP, {"tied": True}, "backward", r"head|embedding"),
    "pp: clipping by a stage's norm": ("clipping_by_a_stages_norm", PP, {}, "weights", ""),
}


@pytest.mark.parametrize("name", but_slow(FAULTS, {*FAULTS} - {"ddp: attention without its mask"}))
def test_a_fault_is_named_where_it_is(name, explained):
    fault, layout, model, stage, module = FAULTS[name]
    first = explained(fault, layout, model=model)["first"]
    assert first["pass"] == stage and re.match(module, first["module"]), first


@pytest.mark.parametrize("name", but_slow(sorted({*LAYOUTS} - {"single"}), {*LAYOUTS} - {"fsdp"}))
def test_a_right_layout_is_the_same(name, explained):
    card = explained("", LAYOUTS[name])
    assert card["first"] is None and card["steps"] == STEPS, card["first"]
