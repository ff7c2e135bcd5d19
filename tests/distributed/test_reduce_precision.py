"""Gradients that ranks sum in bf16: rounded where they travel, by each rank and in each sum, and nowhere else."""

import math

import pytest

from .cases import LAYOUTS, ONCE, ZERO_1, but_slow
from .test_precision import ONE_STEP, gradient

UNIT, PARTS = 2**-8, 8
TRAINING = {"training": ONE_STEP["training"] | {"global_batch": 32}}
# Name → layout, parts of a step, roundings: of what ranks add, and of the sums of 2 ranks; a ring of 4 makes sums of 2, 3 and 4.
ROUNDED = {
    "ddp": (LAYOUTS["ddp"], PARTS, 2),
    "fsdp": (LAYOUTS["fsdp"], 1, 2),
    "fsdp, once": (LAYOUTS["fsdp"] | ONCE, PARTS, 2),
    "hsdp": (LAYOUTS["hsdp"], 1, 3),
    "hsdp, parts": (LAYOUTS["hsdp"], PARTS, 4),  # scattered ones are added in fp32, and rounded again
    "hsdp, ZeRO-1": (LAYOUTS["hsdp"] | ZERO_1, PARTS, 3),
    "dp x tp": (LAYOUTS["dp x tp"], PARTS, 2),
    "fsdp x tp": (LAYOUTS["fsdp x tp"], 1, 2),
    "dp x pp": (LAYOUTS["dp x pp"], PARTS // 2, 2),
    "fsdp x pp": (LAYOUTS["fsdp x pp"], PARTS // 2, 2),
    "cp": (LAYOUTS["cp"], PARTS, 2),
    "fsdp x cp": (LAYOUTS["fsdp x cp"], 1, 1 + (2 + 3 + 4) / 4),
}


@pytest.fixture(scope="module")
def exact(settings_below, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exact")
    return gradient(folder / "ranks", settings_below(folder, "exact", **ONE_STEP | TRAINING))


def error(name, exact, make_settings, folder, fault=None):
    """Of the first step's gradient, relative to one process's in fp32, over that of so many independent roundings."""
    layout, parts, roundings = ROUNDED[name]
    training = {"training": TRAINING["training"] | {"accumulate": parts}}
    settings = make_settings("case", layout, reduce_precision="bf16", **ONE_STEP | training)
    found = gradient(folder / "ranks", settings, fault)
    difference = sum((found[name] - exact[name]).square().sum() for name in exact)
    part = (difference / sum(tensor.square().sum() for tensor in exact.values())).sqrt().item()
    print(name, fault, f"{part / UNIT:.3f} u")
    return part / (UNIT * math.sqrt(roundings / 6))


@pytest.mark.parametrize("name", but_slow(ROUNDED, {*ROUNDED} - {"ddp", "fsdp, once"}))
def test_gradients_are_rounded_where_they_travel_alone(name, exact, make_settings, tmp_path):
    """Numbers are not spread as evenly as `sums_tolerance` has it: 2 to 8 % more."""
    assert error(name, exact, make_settings, tmp_path) == pytest.approx(1.05, abs=0.06)


FAULTS = {
    "summed_in_fp32": ("ddp", "hsdp"),
    "parts_added_in_bf16": ("fsdp, once", "hsdp, ZeRO-1", "dp x pp"),
    "scattered_parts_added_in_bf16": ("hsdp, parts",),
}


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        pytest.param(fault, name, marks=[pytest.mark.slow] * (name != "fsdp, once"))
        for fault, names in FAULTS.items()
        for name in names
    ],
)
def test_another_place_of_rounding_is_seen(fault, name, exact, make_settings, tmp_path):
    """The comparison of two trainings lets pass fewer roundings, and some more."""
    assert error(name, exact, make_settings, tmp_path, fault) != pytest.approx(1.05, abs=0.2)
