"""The commands by hand: convert, look into, load and compare what runs left."""

import math

import pytest
import torch
from click.testing import CliRunner

from parascale.checkpoint.compare import as_text, compare
from parascale.checkpoint.convert import convert
from parascale.checkpoint.load import load_run
from parascale.cli import parascale
from parascale.errors import CheckpointError
from parascale.evaluation.generate import continue_tokens
from parascale.files import read_json, write_json
from parascale.settings.config import Checkpoints

from .checkpoints import WINDOW, not_evaluated, save_run, seal


def command(*words):
    """(exit code, output, errors) of a verb."""
    done = CliRunner().invoke(parascale, ["checkpoint", *map(str, words)])
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def run(tmp_path):
    """(folder, model) of a finished run that was not evaluated."""
    _, model, _ = save_run(tmp_path / "run")
    not_evaluated(tmp_path / "run")
    return tmp_path / "run", model


def test_a_checkpoint_is_converted_and_looked_into(run, tmp_path):
    """Progress and throughput are shown; what is not whole has exit code 1 and a reason, and is not converted."""
    code, told, progress = command("convert", run[0] / "checkpoint", tmp_path / "out", "--to", "pt")
    assert code == 0 and "GB/s" in told and "MiB of memory" in told
    assert " B done, " in progress
    code, told, _ = command("inspect", tmp_path / "out", "--tensors")
    assert code == 0 and "complete, all checksums match" in told and "embedding.tokens.weight  101×32  float32" in told
    with open(tmp_path / "out/model.pt", "r+b") as handle:
        handle.truncate(1000)
    code, told, _ = command("inspect", tmp_path / "out")
    assert code == 1 and "INCOMPLETE OR DAMAGED" in told and "model.pt is damaged (1,000 bytes instead of" in told
    code, _, error = command("convert", tmp_path / "out", tmp_path / "back", "--to", "sharded")
    assert code == 1 and "model.pt is damaged" in error and "Traceback" not in error
    assert not (tmp_path / "back").exists()
    for place in ("/sys/x", "/proc/x", "/dev/full/x"):
        code, _, error = command("convert", run[0] / "checkpoint", place)
        assert (code, error.count("\n")) == (1, 1) and error.startswith(f"error: {place[:-1]}"), error


def test_every_form_continues_texts_in_the_same_way(run, tmp_path):
    """With the same weights, in batches of texts of different lengths, beyond the window; a folder of `transformers` too."""
    folder, model = run
    for form in ("sharded", "safetensors", "pt", "transformers"):
        convert(folder / "checkpoint", tmp_path / form, Checkpoints(), [form])
    ours = [load_run(folder, "best"), load_run(folder, "last")]
    ours += [load_run(folder, converted=tmp_path / form) for form in ("sharded", "safetensors", "pt")]
    for _, loaded in ours:
        assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in loaded.state_dict().items())
    models = [model, ours[-1][1], load_run(folder, converted=tmp_path / "transformers/transformers")[1]]
    prompts = [[1], [5, 6, 7], list(range(WINDOW + 2))]
    for temperature in (0, 0.8):
        expected, *found = (
            continue_tokens(each, prompts, 9, WINDOW, temperature, [torch.Generator().manual_seed(3) for _ in prompts])
            for each in models
        )
        assert found == [expected] * 2 and len(set(map(tuple, expected))) > 1, temperature


def test_weights_of_another_model_are_named(run):
    folder, _ = run
    record = read_json(folder / "run.json")
    record["settings"]["workload"]["model"]["layers"] = 3
    write_json(folder / "run.json", record)
    with pytest.raises(CheckpointError, match=r"does not fit the model: missing tensors: blocks\.2\."):
        load_run(folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs of the same start that were not evaluated, so that their last weights count; one was trained a step longer."""
    root = tmp_path_factory.mktemp("runs")
    for name, steps in (("short", 2), ("long", 3)):
        save_run(root / name, steps=steps)
        not_evaluated(root / name)
    return root / "short", root / "long"


def test_the_command_prints_the_table(runs, tmp_path):
    words = [*runs, "--rows", 3, "--json", tmp_path / "all.json"]
    _, told, _ = command("compare", *words)
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
    whole = sum(row["mean"] * size for row, size in zip(rows, sizes, strict=True))
    assert layer["mean"] == pytest.approx(whole / sum(sizes))


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
