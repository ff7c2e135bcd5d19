"""PyTorch Lightning's loop trains the same model to the same numbers, on the same data, with the same record."""

from pathlib import Path

import pytest

from parascale.files import read_json, read_json_lines

from .cases import LLAMA, UNEVEN, but_slow, ranks_of
from .examine import train_settings
from .harness import run_on_ranks
from .rounding import verdict_on
from .test_resume import assert_same_bits, stop_at, train

CASES = {
    "single": ({}, {}, {}, {}),
    "single, sgd": ({}, {}, {}, {"name": "sgd", "lr": 0.1}),
    "ddp 2": ({"dp": 2}, {}, UNEVEN, {}),
    "ddp 2 accumulated": ({"dp": 2}, LLAMA, {"accumulate": 3}, {}),
}


@pytest.mark.parametrize("precision", but_slow(["fp64", "fp32", "bf16"], {"fp32", "bf16"}))
@pytest.mark.parametrize("name", but_slow(CASES, {*CASES} - {"ddp 2 accumulated"}))
def test_lightning_is_the_same_training(name, precision, make_settings, single, tmp_path):
    layout, model, training, optim = CASES[name]
    keys = {"model": model, "optim": optim, "training": training, "precision": precision, "parity": 20}
    settings = make_settings("lightning", layout, engine="lightning", **keys)
    run_on_ranks(train_settings, ranks_of(layout), tmp_path / "ranks", settings)
    expected = single(**keys)
    verdict = verdict_on(settings, expected)
    assert verdict["verdict"] == "same", verdict
    ours, theirs = (read_json(Path(place["output"]) / "summary.json") for place in (settings, expected))
    assert ours.keys() == theirs.keys()
    assert ours["engine"] == "lightning"
    for figure in ("work", "steps", "parameters", "evaluated_tokens"):
        assert ours[figure] == theirs[figure]
    lines = [read_json_lines(Path(place["output"]) / "steps.jsonl") for place in (settings, expected)]
    assert [line.keys() for line in lines[0]] == [line.keys() for line in lines[1]]
    assert all(line["seconds"]["optimizer"] > 0 < line["seconds"]["backward"] for line in lines[0])


@pytest.mark.slow
@pytest.mark.parametrize("layout", [{}, {"dp": 2}], ids=["single", "ddp"])
def test_a_stopped_lightning_run_goes_on_to_the_same_bits(layout, make_settings, tmp_path):
    keys = {"engine": "lightning", "model": {"dropout": 0.2}}
    whole, stopped = (make_settings(name, layout, **keys) for name in ("whole", "stopped"))
    train(whole, tmp_path / "whole")
    messages = stop_at(7, stopped, tmp_path / "stopped")
    assert all("asked to stop after step 7 of 20" in message for message in messages)
    train(stopped, tmp_path / "again")
    assert_same_bits(stopped, whole)
