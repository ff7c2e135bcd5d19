"""Every strategy trains the same model to the same numbers as one process: losses, gradient norms, weights, evaluation."""

import os
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from parascale.families.build import build_model
from parascale.families.head import Head
from parascale.files import read_json

from .cases import CALM, CASES, FLOAT8, SUMS, axes_of, comparisons, ranks_of
from .conftest import COMPARED, TOKENS, VOCABULARY
from .examine import train_and_look
from .expected import Expected
from .harness import run_on_ranks
from .jobs import job_from_settings
from .rounding import verdict_on


@pytest.mark.parametrize(("name", "precision"), comparisons(CASES))
def test_a_layout_is_the_same_training_as_one_process(name, precision, make_settings, single, tmp_path):
    case = CASES[name]
    sums = {"reduce_precision": "bf16"} if precision == SUMS else {}
    precision = "fp32" if sums else precision
    # With dropout in the proof: its masks are those of one process. Without it attention takes another way, which fp32 has.
    model = case.model | {"fp64": {"dropout": 0.2}, "float8": FLOAT8}.get(precision, {})
    optim = CALM | case.optim if precision == "float8" else case.optim
    keys = {"model": model, "optim": optim, "training": case.training, "precision": precision, "parity": COMPARED}
    # Compiling takes a minute or two where nothing is cached and cores are shared.
    settings = make_settings("case", case.layout, timeout=200.0, **keys, **sums)
    facts = run_on_ranks(train_and_look, ranks_of(case.layout), tmp_path / "ranks", settings)
    baseline = single(**keys)
    verdict = verdict_on(settings, baseline)
    print(name, precision, verdict)
    assert verdict["verdict"] == "same", verdict["reason"]
    ours, expected = (read_json(Path(place["output"]) / "summary.json") for place in (settings, baseline))
    counts = {split: TOKENS[split] - 1 for split in ("validation", "test")}
    assert ours["evaluated_tokens"] == expected["evaluated_tokens"] == counts
    assert ours["test_loss"] == pytest.approx(expected["test_loss"], abs=verdict["tolerances"]["loss"])
    assert ours["parameters"] == expected["parameters"]
    assert ours["work"] == expected["work"]
    run = job_from_settings(settings).run
    Expected(run, whole_shapes(run)).check(facts)


def test_every_way_to_spread_is_compared_in_bf16_and_float8():
    """As it is in fp64 with dropout, where all cases are."""
    ways = [axes_of(case.layout) for case in CASES.values() if case.bf16]
    assert all(axes_of(case.layout) in ways for case in CASES.values())


def split_loss_and_gradient(vocabulary):
    """(loss, its gradient in the hidden states) of 5 tokens with the output layer split over all ranks, and of it whole."""
    mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
    generator = torch.Generator().manual_seed(0)
    matrix, hidden = (torch.randn(count, 8, generator=generator, dtype=torch.float64) for count in (vocabulary, 5))
    head, results = Head(8, vocabulary), []
    for weight, place in (
        (distribute_tensor(matrix, mesh, [Shard(0)]), lambda states: DTensor.from_local(states, mesh, [Replicate()])),
        (matrix, lambda states: states),
    ):
        head.weight, states = nn.Parameter(weight), hidden.clone().requires_grad_()
        loss = head.summed_loss(place(states), torch.arange(5) % vocabulary, 0.1)
        loss.backward()
        results.append((loss.item(), states.grad.tolist()))
    return results


@pytest.mark.parametrize("vocabulary", [7, 4])
def test_the_loss_of_a_split_output_layer_is_that_of_the_whole(vocabulary, tmp_path):
    """Of 4 entries the third of 3 ranks has none."""
    for split, whole in run_on_ranks(split_loss_and_gradient, 3, tmp_path, vocabulary):
        assert split[0] == pytest.approx(whole[0], abs=1e-12)
        assert torch.tensor(split[1]) == pytest.approx(torch.tensor(whole[1]), abs=1e-12)


def whole_shapes(run):
    """Name → shape of every parameter of the single process, under both names where it is tied."""
    with torch.device("meta"):
        model = build_model(run.workload.model, VOCABULARY, run.workload.training.window)
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters(remove_duplicate=False)}
