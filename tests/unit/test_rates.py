"""Learning rate, momentum and smoothed labels are what the published recipes say, step by step."""

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parascale.settings import Optim, load_workload
from parascale.settings.optim import Cycle
from parascale.train.loss import GlobalLoss
from parascale.train.optim import learning_rate, make_optimizers, momentum, set_rates

SHIPPED = Path(__file__).parents[2] / "config/workloads"


def rates_of(optim, steps, peak=1.0):
    """(learning rate, momentum) of every step."""
    return [(learning_rate(step, steps, peak, optim), momentum(step, steps, optim)) for step in range(1, steps + 1)]


def test_one_cycle_rises_for_a_quarter_and_falls_nearly_to_nothing():
    rates = [rate for rate, _ in rates_of(Optim(schedule="one_cycle"), 40)]
    assert rates[0] == pytest.approx(1 / 25)
    assert max(rates) == rates[10] == pytest.approx(1.0)
    assert rates[:11] == sorted(rates[:11]) and rates[10:] == sorted(rates[10:], reverse=True)
    assert 1e-5 < rates[-1] < 0.01


# fastai's `fine_tune` of 1 + 6 epochs of 100 steps at 2e-3: `fit_one_cycle(1, 2e-3, pct_start=0.99)`, then
# `fit_one_cycle(6, 1e-3, div=5, pct_start=0.3)`; momentum from 0.95 to 0.85 and back. Step → (rate, momentum), by hand.
FINE_TUNE = {
    1: (8e-5, 0.95),
    100: (2e-3, 0.85),
    101: (0.2e-3, 0.95),
    191: (0.6e-3, 0.9),  # half the way up from 0.2e-3 to 1e-3, after 90 of 180 steps
    281: (1e-3, 0.85),
    491: (0.5e-3, 0.9),  # half the way down
    700: (2.4e-8, 0.95),  # 1e-8 is one step further
}
CYCLES = [Cycle(length=1, rise=0.99), Cycle(length=6, peak=0.5, start=0.2, rise=0.3)]
ADAM = {"betas": [0.9, 0.99], "eps": 1e-5, "weight_decay": 0.01, "clip_norm": None}
COURSE = Optim(lr=2e-3, schedule="one_cycle", cycles=CYCLES, swing=0.05, **ADAM)


def test_one_and_six_epochs_are_two_cycles():
    rates = rates_of(COURSE, 700, 2e-3)
    for step, (rate, beta) in FINE_TUNE.items():
        assert rates[step - 1][0] == pytest.approx(rate, rel=1e-3), step
        assert rates[step - 1][1] == pytest.approx(beta, rel=1e-5), step


def test_the_recipes_of_imagewoof_are_the_published_ones():
    """The course's, and `fit_one_cycle(5, 3e-3 × 128 / 256, div_factor=10, pct_start=0.3)` with epsilon 1e-6 of the leaderboard."""
    course, leaderboard = (load_workload(SHIPPED, name) for name in ("imagewoof-course", "imagewoof"))
    assert course.optim == COURSE
    assert (course.training.epochs, course.training.label_smoothing) == (7, 0)
    assert leaderboard.optim == dataclasses.replace(COURSE, lr=1.5e-3, eps=1e-6, cycles=[Cycle(start=0.1, rise=0.3)])
    training = leaderboard.training
    assert (training.epochs, training.global_batch, training.label_smoothing) == (5, 128, 0.1)
    assert (training.image_size, training.smallest_crop) == (192, 0.35)


@given(st.lists(st.builds(Cycle, *[st.floats(0.01, 1)] * 4), min_size=1, max_size=4), st.integers(1, 60))
def test_rates_and_momentum_stay_between_their_ends(cycles, steps):
    """Whatever the cycles; the first step has the rate that the first cycle starts with."""
    rates = rates_of(Optim(schedule="one_cycle", cycles=cycles, swing=0.05), steps)
    assert rates[0][0] == pytest.approx(cycles[0].peak * cycles[0].start)
    assert all(0 < rate <= max(cycle.peak for cycle in cycles) * (1 + 1e-9) for rate, _ in rates)
    assert all(0.85 - 1e-9 <= beta <= 0.95 + 1e-9 for _, beta in rates)


@pytest.mark.parametrize(("lengths", "steps"), [([0.1, 0.2], 100), ([0.1], 3), ([1, 6], 988)])
def test_a_cycle_may_rise_to_its_end(lengths, steps):
    """Then it never falls, and rounding of the lengths leaves its last step in it."""
    optim = Optim(schedule="one_cycle", cycles=[Cycle(length=length, rise=1.0) for length in lengths])
    rates = [rate for rate, _ in rates_of(optim, steps)]
    begin = math.ceil(round(steps * (1 - lengths[-1] / sum(lengths)), 6))
    assert rates[begin:] == sorted(rates[begin:]) and 0.5 < rates[-1] < 1


@pytest.mark.parametrize(("name", "expected"), [("adamw", {"betas": (0.85, 0.99)}), ("sgd", {"momentum": 0.75})])
def test_optimizers_get_the_rates_of_their_step(name, expected):
    optim = dataclasses.replace(COURSE, name=name, momentum=0.8)
    model = SimpleNamespace(parts=[torch.nn.Linear(2, 2)])
    optimizers = make_optimizers(model, optim)
    set_rates(optimizers, *rates_of(optim, 700, 2e-3)[280])
    for group in optimizers[0].param_groups:
        assert group["lr"] == pytest.approx(1e-3)
        assert {key: group[key] for key in expected} == {key: pytest.approx(value) for key, value in expected.items()}


def test_a_smoothed_label_is_spread_over_all_classes():
    """A tenth of it, evenly: the mean of -log p over all classes counts a tenth, that of the label nine tenths."""
    logits, labels = torch.randn(4, 5, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 3, -100, 4])
    loss = GlobalLoss(0.1)
    loss.targets = 3
    nats = -logits.log_softmax(1)[[0, 1, 3]]
    expected = 0.9 * nats[range(3), [0, 3, 4]] + 0.1 * nats.mean(1)
    assert loss(logits, labels).item() == pytest.approx(expected.mean().item())
