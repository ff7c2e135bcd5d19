"""Dropout by place: masks are as random as torch's, and whoever holds a part of a sample has that part of its mask."""

import pytest
import torch

from parascale.families.dropout import Draws, Dropout


def mask(samples, shape, *, step=1, seed=1, layer="block.dropout", part=0, probability=0.2):
    """What a layer keeps of the samples at some places of the global batch."""
    model = torch.nn.ModuleDict({layer.partition(".")[0]: torch.nn.ModuleDict({"dropout": Dropout(probability)})})
    Draws([model], seed, [samples], 1, "cpu").begin_part(step, 0)
    dropout = model[layer.partition(".")[0]]["dropout"]
    dropout.part = part
    return dropout(torch.ones(len(samples), *shape)) > 0


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_so_many_are_dropped_and_the_others_weigh_more(probability):
    model = torch.nn.ModuleDict({"a": Dropout(probability)})
    Draws([model], 1, [list(range(64))], 1, "cpu").begin_part(1, 0)
    values = torch.ones(64, 32, 128, requires_grad=True)
    dropped = model["a"](values)
    dropped.sum().backward()
    assert torch.equal(values.grad, dropped)
    assert (dropped == 0).float().mean().item() == pytest.approx(probability, abs=3e-3)
    assert dropped.max().item() == pytest.approx(1 / (1 - probability))
    assert torch.equal(model.eval()["a"](values), values)


def test_masks_of_other_places_are_independent():
    """Of seeds, steps, layers, samples, positions and features: two masks of 0.2 agree in 68 % of places, 3 standard deviations off."""
    first = mask(range(32), (32, 64))
    others = {
        "seed": mask(range(32), (32, 64), seed=2),
        "step": mask(range(32), (32, 64), step=2),
        "layer": mask(range(32), (32, 64), layer="other.dropout"),
        "sample": mask(range(1, 33), (32, 64)),
        "far sample": mask(range(64, 96), (32, 64)),
        "position": first.roll(1, 1),
        "feature": first.roll(1, 2),
        "part": mask(range(32), (32, 64), part=1),
    }
    for name, other in others.items():
        assert (first == other).float().mean().item() == pytest.approx(0.68, abs=6e-3), name


def test_a_part_of_a_batch_or_of_a_sample_has_that_part_of_the_mask():
    whole = mask(range(12), (8, 6))
    assert torch.equal(mask([3, 7, 11], (8, 6)), whole[[3, 7, 11]])
    for part in range(4):
        assert torch.equal(mask(range(12), (2, 6), part=part), whole[:, 2 * part : 2 * part + 2])
