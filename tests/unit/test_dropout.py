"""Dropout by place: masks are as random as torch's, and whoever holds a part of a sample has that part of its mask."""

import itertools
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F

from parascale.families.build import build_model
from parascale.families.dropout import Dropout, DropoutKeys
from parascale.settings import Layout, Model, Run, Workload, identity, make
from parascale.train.step import torch_seed


def mask(samples, shape, *, step=1, seed=1, layer="block.dropout", part=0, probability=0.2, device="cpu"):
    """What a layer keeps of the samples at some places of the global batch."""
    model = torch.nn.ModuleDict({layer.partition(".")[0]: torch.nn.ModuleDict({"dropout": Dropout(probability)})})
    DropoutKeys([model], seed, [samples], 1, device).begin_part(step, 0)
    dropout = model[layer.partition(".")[0]]["dropout"]
    dropout.part = part
    return (dropout(torch.ones(len(samples), *shape, device=device)) > 0).cpu()


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_so_many_are_dropped_and_the_others_weigh_more(probability):
    model = torch.nn.ModuleDict({"a": Dropout(probability)})
    DropoutKeys([model], 1, [list(range(64))], 1, "cpu").begin_part(1, 0)
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
    ways = {"seed": 2, "step": 2, "layer": "other.dropout", "part": 1}
    others = {name: mask(range(32), (32, 64), **{name: other}) for name, other in ways.items()}
    others |= {"sample": mask(range(1, 33), (32, 64)), "far sample": mask(range(64, 96), (32, 64))}
    others |= {"position": first.roll(1, 1), "feature": first.roll(1, 2)}
    for name, other in others.items():
        assert (first == other).float().mean().item() == pytest.approx(0.68, abs=6e-3), name


def test_a_part_of_a_batch_or_of_a_sample_has_that_part_of_the_mask(device):
    """On a GPU as on a CPU."""
    whole = mask(range(12), (8, 6))
    assert torch.equal(mask([3, 7, 11], (8, 6), device=device), whole[[3, 7, 11]])
    for part in range(4):
        assert torch.equal(mask(range(12), (2, 6), part=part, device=device), whole[:, 2 * part : 2 * part + 2])


@pytest.mark.parametrize(
    ("masks", "training", "probability"), [("per-rank", True, 0.2), ("per-rank", False, 0.0), ("same", True, None)]
)
def test_only_masks_of_a_rank_are_left_to_the_fused_kernel(masks, training, probability):
    """None: attention is written out. What lies outside of attention draws by place all the same."""
    settings = make(Model, dim=16, heads=2, layers=1, dropout=0.2, dropout_masks=masks)
    model = build_model(settings, 50, 8).train(training)
    DropoutKeys([model], 1, [[0, 1]], 1, "cpu").begin_part(1, 0)
    assert model.embedding.dropout.key is not None
    with patch.object(F, "scaled_dot_product_attention", wraps=F.scaled_dot_product_attention) as fused:
        model(torch.zeros(2, 8, dtype=torch.int64)).sum().backward()
    assert [call.args[4] for call in fused.call_args_list] == ([] if probability is None else [probability])


@pytest.mark.parametrize("axis", ["tp", "cp"])
@pytest.mark.parametrize(("masks", "seeds"), [("per-rank", 16), ("same", 8)])
def test_every_rank_and_step_has_a_seed_of_its_own(masks, seeds, axis):
    """Ranks of a tp or cp group with masks of their own, since they hold other heads of the same samples; else they agree."""
    workload = make(Workload, name="lm", model=make(Model, dropout=0.1, dropout_masks=masks))
    run = Run("a", workload, Layout(gpus_per_node=8, dp=2, pp=2, micro_batches=2, **{axis: 2}))
    meshes = [
        SimpleNamespace(data_rank=data, coordinate={"tp": 0, "cp": 0, "pp": pp, axis: place}.get)
        for data, place, pp in itertools.product(range(2), repeat=3)
    ]
    assert len({torch_seed(run, step, mesh) for mesh in meshes for step in (1, 2)}) == seeds
    groups = [[torch_seed(run, 1, mesh) for mesh in meshes[first : first + 3 : 2]] for first in (0, 1, 4, 5)]
    assert all((one == other) == (masks == "same") for one, other in groups)


def test_runs_with_masks_of_ranks_are_compared_with_nothing_else():
    """Neither other layouts nor runs with masks by place. Those have the keys that they had before there was a choice."""

    def run(masks="same", dropout=0.1, **layout):
        model = make(Model, dropout=dropout, dropout_masks=masks)
        return Run("a", make(Workload, name="lm", model=model), Layout(gpus_per_node=layout.get("dp", 1), **layout))

    def reason(run):
        return identity.no_comparison(run, run)

    assert "each rank's own" in reason(run("per-rank", dp=2))
    # One process may accumulate, or be compared with several.
    assert reason(run("per-rank", compile=True)) and reason(run("per-rank"))
    assert reason(run(dp=2)) is reason(run("per-rank", 0.0, dp=2)) is None
    assert "dropout_masks" in identity.difference(run("per-rank"), run())
    assert not any("masks" in key for key in identity.recipe(run()))


def test_a_layer_that_drops_nothing_costs_no_keys():
    layers = {"some": Dropout(0.1), "none": Dropout(0.0)}
    assert DropoutKeys([torch.nn.ModuleDict(layers)], 1, [[0]], 1, "cpu").modules == [layers["some"]]
