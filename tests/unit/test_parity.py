"""The verdict of parity, from the records and checkpoints of two runs: what is outside is named, and only what is."""

import dataclasses
import json
import math

import pytest
import torch

from parascale.files import write_text
from parascale.train.parity import Tolerance, compare

from .checkpoints import save_run

WIDE = Tolerance(loss=1e-3, grad_norm=1e-3, weights=1e-3)


def recorded(folder, steps=2, losses=(3.0, 2.0, 1.0), norm=1.0, **saved):
    """A run that trained `steps` steps before its checkpoint, with a record of three. saved: see `save_run`."""
    run, _, _ = save_run(folder, steps=steps, **saved)
    lines = [{"step": n, "loss": loss, "grad_norm": norm, run.workload.unit: 48} for n, loss in enumerate(losses, 1)]
    write_text(folder / "steps.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    return run, folder


@pytest.fixture(scope="module")
def baseline(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("baseline"))


def verdict_of(recorded, baseline, **changed):
    """What is said of a run, beside its baseline."""
    run, folder = recorded
    return compare(dataclasses.replace(run, run="other", **changed), baseline[0], folder, baseline[1], tolerance=WIDE)


def test_the_same_numbers_are_the_same(tmp_path, baseline):
    found = verdict_of(recorded(tmp_path), baseline)
    assert (found["verdict"], found["reason"]) == ("same", "within tolerance at every step")
    assert found["loss_difference"] == found["weight_difference"] == 0 and found["first_step_outside"] is None


@pytest.mark.parametrize("record", [{"losses": (3.0, 2.1, 1.1)}, {"losses": (3.0, float("nan"), 1.0)}])
def test_losses_outside_are_named_by_their_first_step(tmp_path, baseline, record):
    found = verdict_of(recorded(tmp_path, **record), baseline)
    assert (found["verdict"], found["reason"]) == ("different", "leaves the tolerance at step 2")
    assert found["first_step_outside"] == 2


def test_weights_outside_are_named_by_their_worst_tensor(tmp_path, baseline):
    found = verdict_of(recorded(tmp_path, steps=3), baseline)
    assert found["verdict"] == "different" and found["worst_tensor"]
    assert found["reason"] == f"weights of {found['worst_tensor']} differ by {found['weight_difference']:.1e}"


def test_gradients_outside_and_other_weights_are_both_said(tmp_path, baseline):
    found = verdict_of(recorded(tmp_path, steps=3, norm=1.1), baseline)
    assert found["reason"].startswith("leaves the tolerance at step 1; weights of ")


def moved_by_noise(way, gradient):
    """What moves the first two numbers of the last norm, whose gradients were as large as said."""

    def change(module, optimizer):
        weight = module.norm.weight
        with torch.no_grad():
            weight[:2] += way
            optimizer.state[weight]["exp_avg_sq"][:2] = gradient**2

    return change


@pytest.mark.parametrize(
    ("way", "gradient", "verdict"),
    [
        (0.1, 1e-9, "same"),
        (0.1, 1e-7, "different"),
        (0.1, 0.0, "different"),
        (math.nan, 1e-9, "different"),
        (math.inf, 1e-9, "different"),
    ],
)
def test_elements_whose_gradients_are_rounding_are_judged_only_for_being_numbers(way, gradient, verdict, tmp_path):
    """The whole gradient's norm is 1, so a rounding in fp32 is 6e-8 of it."""
    baseline = recorded(tmp_path / "baseline", change=moved_by_noise(0.0, gradient))
    found = verdict_of(recorded(tmp_path / "run", change=moved_by_noise(way, gradient)), baseline)
    assert (found["verdict"], found["worst_tensor"] == "norm.weight") == (verdict, verdict == "different")


def test_another_recipe_is_no_comparison(tmp_path, baseline):
    own = recorded(tmp_path)
    workload = own[0].workload
    slower = dataclasses.replace(workload, optim=dataclasses.replace(workload.optim, lr=workload.optim.lr / 2))
    found = verdict_of(own, baseline, workload=slower)
    assert found["verdict"] == "not comparable" and found["reason"].startswith("another recipe: ")
    assert "optim.lr" in found["reason"]
    assert verdict_of(own, baseline, seed=5)["reason"] == "seed 5 against 1: another start"
