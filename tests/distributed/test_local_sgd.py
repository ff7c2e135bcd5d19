"""Local SGD: ranks train apart, average their parameters now and then, and are never taken for another layout of the same."""

from pathlib import Path

import pytest
import torch

from parascale.files import read_json_lines
from parascale.train import loop
from parascale.train.parity import compare_folders

from .examine import Collectives, train_settings
from .harness import run_on_ranks
from .test_resume import assert_same_bits, numbers, stop_at, train

EVERY = 5
STEPS = 20


def watch_averaging(settings):
    """Train; returns, by step, the calls of all_reduce and a checksum of this rank's parameters after the step."""
    seen = []

    class Watched(loop.Stepper):
        def step(self, *arguments):
            seen.append({"calls": 0})
            with Collectives() as counter:
                result = super().step(*arguments)
            seen[-1]["calls"] = counter.calls["all_reduce"]
            self.note()
            return result

        def average_parameters(self):
            with Collectives() as counter:
                super().average_parameters()
            seen[-1]["averaging"] = counter.calls["all_reduce"]
            self.note()

        def note(self):
            values = torch.cat(
                [parameter.detach().flatten().double() for _, parameter in self.model.named_parameters()]
            )
            seen[-1]["weights"] = values.sum().item()

    loop.Stepper = Watched
    train_settings(settings)
    return seen


def test_ranks_differ_until_they_average(make_settings, tmp_path):
    settings = make_settings("local", {"dp": 2}, average_every=EVERY)
    one, two = run_on_ranks(watch_averaging, 2, tmp_path / "ranks", settings)
    for step, (first, second) in enumerate(zip(one, two, strict=True), 1):
        averaged = step % EVERY == 0
        assert (first["weights"] == second["weights"]) == averaged, step
        assert ("averaging" in first) == averaged
        assert first["calls"] <= 2  # counts, and the loss for the record: no gradients


def test_communication_is_as_much_less_as_averages_are_rare(make_settings, tmp_path):
    calls = {}
    for every in (1, EVERY):
        settings = make_settings(f"every-{every}", {"dp": 2}, average_every=every)
        seen = run_on_ranks(watch_averaging, 2, tmp_path / f"ranks-{every}", settings)[0]
        calls[every] = sum(step.get("averaging", 0) for step in seen)
    assert calls[1] == EVERY * calls[EVERY] > 0


def test_it_is_not_comparable_and_says_why(make_settings, single, tmp_path):
    settings = make_settings("local", {"dp": 2}, average_every=EVERY, parity=True)
    train(settings, tmp_path / "ranks")
    verdict = compare_folders(settings["output"], single(parity=True)["output"])
    assert verdict["verdict"] == "not comparable"
    assert "local SGD" in verdict["reason"]
    assert verdict["loss_difference"] > 1e-4
    losses = [line["loss"] for line in read_json_lines(Path(settings["output"]) / "steps.jsonl")]
    assert losses[-1] < losses[0] - 0.3


@pytest.mark.parametrize("step", [EVERY, EVERY + 2])
def test_ranks_that_differ_go_on_to_the_same_bits(step, make_settings, tmp_path):
    """Also where the stop falls between two averages, so that every rank has weights of its own."""
    whole, stopped = (make_settings(name, {"dp": 2}, average_every=EVERY) for name in ("whole", "stopped"))
    train(whole, tmp_path / "whole")
    stop_at(step, stopped, tmp_path / "stopped")
    assert len(numbers(Path(stopped["work"]))) == step
    train(stopped, tmp_path / "again")
    assert_same_bits(stopped, whole)
