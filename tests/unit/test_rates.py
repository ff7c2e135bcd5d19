"""Learning rate, momentum and smoothed labels are what the published recipes say, step by step."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parascale.config import Optim, load_workload
from parascale.config.workload import Cycle
from parascale.train.loss import GlobalLoss
from parascale.train.optim import learning_rate, make_optimizers, momentum, set_rates

SHIPPED = Path(__file__).parents[2] / "config/workloads"


def test_one_cycle_rises_for_a_quarter_and_falls_to_nothing():
    optim = Optim(schedule="one_cycle")
    rates = [learning_rate(step, 40, 1.0, optim) for step in range(1, 41)]
    assert max(rates) == rates[9] == pytest.approx(1.0)
    assert rates[:10] == sorted(rates[:10]) and rates[9:] == sorted(rates[9:], reverse=True)
    assert 1 / 25 < rates[0] < 0.1 and rates[-1] == pytest.approx(1e-5)
    assert learning_rate(1, 1, 1.0, optim) == pytest.approx(1e-5)


# fastai's `fine_tune` of 1 + 6 epochs of 100 steps at 2e-3: `fit_one_cycle(1, 2e-3, pct_start=0.99)`, then
# `fit_one_cycle(6, 1e-3, div=5, pct_start=0.3)`; momentum from 0.95 to 0.85 and back. Step → (rate, momentum), by hand.
FINE_TUNE = {
    99: (2e-3, 0.85),
    100: (2e-8, 0.95),
    190: (0.6e-3, 0.9),  # half the way up from 0.2e-3 to 1e-3, after 90 of 180 steps
    280: (1e-3, 0.85),
    490: (0.5e-3, 0.9),  # half the way down
    700: (1e-8, 0.95),
}


def two_cycles():
    cycles = [Cycle(length=1, rise=0.99), Cycle(length=6, peak=0.5, start=0.2, rise=0.3)]
    return Optim(schedule="one_cycle", cycles=cycles, swing=0.05, betas=[0.9, 0.99])


def test_one_and_six_epochs_are_two_cycles():
    optim = two_cycles()
    assert load_workload(SHIPPED, "imagewoof-course").optim.cycles == optim.cycles
    for step, (rate, beta) in FINE_TUNE.items():
        assert learning_rate(step, 700, 2e-3, optim) == pytest.approx(rate, rel=1e-5), step
        assert momentum(step, 700, optim) == pytest.approx(beta), step


@given(st.lists(st.builds(Cycle, *[st.floats(0.01, 1)] * 4), min_size=1, max_size=4), st.integers(1, 60))
def test_rates_and_momentum_stay_between_their_ends(cycles, steps):
    """Whatever the cycles; momentum is low where the rate is high, and every training ends at nearly nothing."""
    optim = Optim(schedule="one_cycle", cycles=cycles, swing=0.05)
    rates = [learning_rate(step, steps, 1.0, optim) for step in range(1, steps + 1)]
    assert all(0 < rate <= max(cycle.peak for cycle in cycles) * (1 + 1e-9) for rate in rates)
    if cycles[-1].rise < 1:
        assert rates[-1] == pytest.approx(1e-5 * cycles[-1].peak)
    assert all(0.85 - 1e-9 <= momentum(step, steps, optim) <= 0.95 + 1e-9 for step in range(1, steps + 1))


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_optimizers_get_the_rates_of_their_step(name):
    optim = dataclasses.replace(two_cycles(), name=name)
    model = SimpleNamespace(parts=[torch.nn.Linear(2, 2)])
    optimizers = make_optimizers(model, optim)
    set_rates(optimizers, learning_rate(280, 700, 2e-3, optim), momentum(280, 700, optim))
    for group in optimizers[0].param_groups:
        assert group["lr"] == pytest.approx(1e-3)
        assert (group["momentum"] if name == "sgd" else group["betas"]) == pytest.approx(
            0.85 if name == "sgd" else (0.85, 0.99)
        )


def test_a_smoothed_label_is_spread_over_all_classes():
    """A tenth of it, evenly: the mean of -log p over all classes counts a tenth, that of the label nine tenths."""
    logits, labels = torch.randn(4, 5, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 3, -100, 4])
    loss = GlobalLoss(0.1)
    loss.targets = 3
    nats = -logits.log_softmax(1)[[0, 1, 3]]
    expected = 0.9 * nats[range(3), [0, 3, 4]] + 0.1 * nats.mean(1)
    assert loss(logits, labels).item() == pytest.approx(expected.mean().item())
