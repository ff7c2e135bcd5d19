"""Comparing two checkpoints or runs: what differs, where and by how much, as table and command."""

import math

import pytest
import torch
from click.testing import CliRunner

from parascale.checkpoint.compare import as_text, compare
from parascale.checkpoint.convert import convert
from parascale.cli import parascale
from parascale.errors import CheckpointError
from parascale.files import read_json
from parascale.settings.config import Checkpoints

from .checkpoints import not_evaluated, save_run, seal


def make_run(folder, steps):
    """A finished run; it is not evaluated, so its last weights count."""
    save_run(folder, steps=steps)
    not_evaluated(folder)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs of the same start, one of them trained a step longer."""
    root = tmp_path_factory.mktemp("runs")
    return make_run(root / "short", 2), make_run(root / "long", 3)


def test_the_command_prints_the_table(runs, tmp_path):
    words = [*runs, "--rows", 3, "--json", tmp_path / "all.json"]
    told = CliRunner().invoke(parascale, ["checkpoint", "compare", *map(str, words)], catch_exceptions=False).stdout
    found = read_json(tmp_path / "all.json")
    assert len(told.splitlines()) == 1 + 3 + 1 + 1 + 1, told
    assert found["tensors"][0]["tensor"] in told
    (layers,) = (line for line in told.splitlines() if line.startswith("layers that differ most: "))
    assert layers.count(" (") == 3 and max(found["layers"], key=lambda row: row["relative"])["layer"] in layers
    assert f"and {len(found['tensors']) - 3} more\n" in told
    assert "not identical" in told
    assert {row["layer"] for row in found["layers"]} == {"embedding", "blocks.0", "blocks.1", "norm", "head"}
    assert all(row["relative"] > 0 for row in found["layers"])


def test_a_layer_is_the_sum_of_its_tensors(runs):
    """Norms add in squares, means by the number of elements."""
    found = compare(*runs, Checkpoints())
    rows = [row for row in found["tensors"] if row["tensor"].startswith("blocks.1.")]
    (layer,) = [row for row in found["layers"] if row["layer"] == "blocks.1"]
    sizes = [math.prod(row["shape"]) for row in rows]
    assert layer["largest"] == max(row["largest"] for row in rows)
    assert layer["mean"] == pytest.approx(
        sum(row["mean"] * size for row, size in zip(rows, sizes, strict=True)) / sum(sizes)
    )


def test_a_run_is_the_same_as_its_checkpoint_in_another_form(runs, tmp_path):
    convert(runs[0] / "checkpoint", tmp_path / "out", Checkpoints(), ["safetensors"])
    found = compare(runs[0], tmp_path / "out", Checkpoints())
    assert found["identical"]
    assert "identical: every weight is the same number" in as_text(found)
    with pytest.raises(CheckpointError, match=r"tensor .* has shape"):
        save_run(tmp_path / "wide", {"hidden": 96})
        compare(runs[0], tmp_path / "wide/checkpoint", Checkpoints())


def test_the_tensor_that_differs_comes_first(runs, tmp_path):
    """One number is moved by 0.5."""
    convert(runs[0] / "checkpoint", tmp_path / "out", Checkpoints(), ["pt"])
    held = torch.load(tmp_path / "out/model.pt", weights_only=True)
    held["blocks.1.feed_forward.up.weight"][3, 4] += 0.5
    torch.save(held, tmp_path / "out/model.pt")
    seal(tmp_path / "out")
    found = compare(runs[0], tmp_path / "out", Checkpoints())
    worst, *others = found["tensors"]
    assert worst["tensor"] == "blocks.1.feed_forward.up.weight" and not found["identical"]
    assert (worst["largest"], worst["mean"]) == pytest.approx((0.5, 0.5 / (64 * 32)), rel=1e-5)
    assert max(found["layers"], key=lambda row: row["relative"])["layer"] == "blocks.1"
    assert all(row["largest"] == 0 for row in others)
