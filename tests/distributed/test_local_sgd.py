"""Ranks that train apart: whom they average with, what that costs, and that they are never taken for another layout of the same."""

from pathlib import Path

import pytest

from parascale.train import loop
from parascale.train.parity import compare_folders

from .examine import Collectives, train_settings
from .harness import run_on_ranks
from .test_resume import assert_same_bits, numbers, stop_at, train

EVERY = 5
STEPS = 20


def watch_averaging(settings):
    """Train; by step, calls of all_reduce and checksums of this rank's parameters: `trained`, then `weights` to go on from."""
    seen = []

    class Watched(loop.Stepper):
        def step(self, *arguments):
            with Collectives() as counter:
                result = super().step(*arguments)
            seen.append({"calls": counter.calls["all_reduce"], "trained": self.checksum()})
            return result

        def average_ranks(self, step, last):
            with Collectives() as counter:
                super().average_ranks(step, last)
            seen[-1] |= {"averaging": counter.calls["all_reduce"], "weights": self.checksum()}

        def checksum(self):
            return self.averager.parameters().double().sum().item()

    loop.Stepper = Watched
    train_settings(settings)
    return seen


def test_ranks_differ_until_they_average(make_settings, tmp_path):
    settings = make_settings("local", {"dp": 2}, average_every=EVERY)
    one, two = run_on_ranks(watch_averaging, 2, tmp_path / "ranks", settings)
    for step, (first, second) in enumerate(zip(one, two, strict=True), 1):
        averaged = step % EVERY == 0
        assert (first["weights"] == second["weights"]) == averaged, step
        assert (first["averaging"] > 0) == averaged
        assert first["calls"] <= 2  # counts, and the loss for the record: no gradients


def test_gossip_is_with_one_neighbour_in_turn(make_settings, tmp_path):
    settings = make_settings("gossip", {"dp": 4}, average_every=EVERY, averaging="neighbour")
    steps = zip(*run_on_ranks(watch_averaging, 4, tmp_path / "ranks", settings), strict=True)
    weights = [[rank["weights"] for rank in ranks] for ranks in steps]
    pairs = {5: [(0, 1), (2, 3)], 10: [(1, 2), (3, 0)], 15: [(0, 1), (2, 3)]}
    for step, ranks in enumerate(weights, 1):
        together = {(a, b) for a in range(4) for b in range(4) if a != b and ranks[a] == ranks[b]}
        wanted = {pair for a, b in pairs.get(step, []) for pair in ((a, b), (b, a))}
        assert together == wanted or step == STEPS, step
    assert len(set(weights[-1])) == 1  # the end is one model


def test_ranks_visit_the_parameter_server_in_turn(make_settings, tmp_path):
    """Who visits goes on from other parameters than those it trained; the others do not notice."""
    settings = make_settings("server", {"dp": 2}, average_every=EVERY, averaging="server")
    moved = [
        [step for step, each in enumerate(seen, 1) if each["trained"] != each["weights"]]
        for seen in run_on_ranks(watch_averaging, 2, tmp_path / "ranks", settings)
    ]
    assert moved == [[5, 15, 20], [10, 20]]


# One rounding of a gradient is off by 2⁻¹² of it; PowerSGD follows it with what it could not send.
@pytest.mark.parametrize(
    ("ranks", "keys", "said", "differs"),
    [
        (2, {"average_every": EVERY}, "local SGD", (1e-4, 0.5)),
        pytest.param(4, {"average_every": 2, "averaging": "neighbour"}, "gossip", (1e-4, 0.5), marks=pytest.mark.slow),
        pytest.param(
            4, {"average_every": 2, "averaging": "server"}, "parameter server", (1e-4, 0.5), marks=pytest.mark.slow
        ),
        (2, {"compression": "fp16"}, "gradients are sent", (0, 1e-3)),
        (2, {"compression": "powersgd"}, "gradients are sent", (0, 0.2)),
    ],
)
def test_other_methods_learn_and_are_not_comparable(ranks, keys, said, differs, make_settings, single, tmp_path):
    settings, baseline = make_settings("way", {"dp": ranks}, parity=20, **keys), single(parity=20)
    train(settings, tmp_path / "ranks")
    verdict = compare_folders(settings["output"], baseline["output"])
    assert verdict["verdict"] == "not comparable" and said in verdict["reason"]
    assert differs[0] < verdict["loss_difference"] < differs[1]
    ours, exact = ([line["loss"] for line in numbers(each["output"])] for each in (settings, baseline))
    assert ours[-1] < ours[0] - 0.5 * (exact[0] - exact[-1])


@pytest.mark.parametrize(
    ("averaging", "ranks", "step"),
    [
        ("all", 2, EVERY + 2),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("server", 2, EVERY + 2), ("all", 2, EVERY), ("neighbour", 4, EVERY + 2))
        ),
    ],
)
def test_ranks_that_differ_go_on_to_the_same_bits(averaging, ranks, step, make_settings, tmp_path):
    """Also where the stop falls between two averages, so that every rank has weights of its own."""
    keys = {"average_every": EVERY, "averaging": averaging}
    whole, stopped = (make_settings(name, {"dp": ranks}, **keys) for name in ("whole", "stopped"))
    train(whole, tmp_path / "whole")
    stop_at(step, stopped, tmp_path / "stopped")
    assert len(numbers(Path(stopped["work"]))) == step
    train(stopped, tmp_path / "again")
    assert_same_bits(stopped, whole)
