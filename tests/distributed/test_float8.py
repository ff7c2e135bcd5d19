"""Precision float8: every layout rounds the same numbers to the same 8 bits, and is refused where it does not."""

import pytest

from parascale.train.parity import compare_folders

from .cases import CALM, CASES, FLOAT8, LLAMA, but_slow, ranks_of
from .conftest import COMPARED
from .float8 import train_with_float8_in_fp64, train_with_rounding
from .harness import run_on_ranks
from .rounding import verdict_on

# Of each way to spread that leaves rows whole. Under tensor parallelism each rank has a scale for its part of a row, by which numbers below
# 2⁻¹³ of the largest are rounded otherwise: 4e-7 of a product, and then a few numbers fall to their other neighbour (`test_parity.py`).
EXACT = (
    *("ddp 2 uneven accumulated", "fsdp 2 ZeRO-1", "hsdp 2x2 selective", "pp 2 1F1B", "pp 2 zero bubble", "cp 2 llama"),
    *("dp 2 x pp 2", "fsdp 2 x pp 2 tied", "fsdp 2 x cp 2", "cp 2 x pp 2"),
)


def exactly(settings, folder, ranks=1):
    run_on_ranks(train_with_float8_in_fp64, ranks, folder, settings)
    return settings["output"]


@pytest.mark.parametrize("name", but_slow(EXACT, {*EXACT} - {"cp 2 llama"}))
def test_where_nothing_else_is_rounded_a_layout_is_the_same_to_the_last_digits(name, make_settings, tmp_path):
    case = CASES[name]
    keys = {"model": case.model | FLOAT8, "optim": case.optim, "training": case.training}
    keys |= {"precision": "fp64", "parity": COMPARED}
    alone = exactly(make_settings("single", **keys), tmp_path / "alone")
    ours = exactly(make_settings("case", case.layout, **keys), tmp_path / "ranks", ranks_of(case.layout))
    verdict = compare_folders(ours, alone)
    assert verdict["verdict"] == "same", verdict


FAULTS = {
    "a_scale_forgotten": {"dp": 2},
    "a_scale_of_another_row": {"fsdp": 2},
    "a_scale_of_another_rank": {"tp": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_the_comparison_refuses(fault, make_settings, single, tmp_path):
    """In float8 itself, by its own tolerance."""
    keys = {"model": LLAMA | FLOAT8, "optim": CALM, "training": {}, "precision": "float8", "parity": COMPARED}
    settings = make_settings("case", FAULTS[fault], **keys)
    run_on_ranks(train_with_rounding, 2, tmp_path / "ranks", fault, settings)
    verdict = verdict_on(settings, single(**keys))
    print(fault, verdict["loss_difference"], verdict["grad_norm_difference"], verdict["weight_difference"])
    assert verdict["verdict"] == "different", verdict
