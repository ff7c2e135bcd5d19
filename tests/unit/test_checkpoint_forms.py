"""Conversion: every tensor to the bit, in any form, at any block size, and readable by the libraries that it is for."""

import json
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from parascale.checkpoint import read
from parascale.checkpoint.compare import compare
from parascale.checkpoint.convert import convert
from parascale.checkpoint.inspect import as_text, inspect
from parascale.checkpoint.manifest import MANIFEST, write_manifest
from parascale.checkpoint.source import open_source
from parascale.checkpoint.tensors import Rows, Streaming
from parascale.checkpoint.verify import load_form, same_bits
from parascale.checkpoint.writers import write_pt, write_safetensors, write_sharded
from parascale.data.progress import Progress
from parascale.errors import CheckpointError, ConfigError, RequirementError
from parascale.files import read_json
from parascale.settings import make
from parascale.settings.config import Checkpoints

from .checkpoints import save_run

SMALL = Checkpoints(memory_mb=1)
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run's folder, with a checkpoint that holds weights and optimizer state."""
    folder = tmp_path_factory.mktemp("run")
    save_run(folder, {"tied": True})
    return folder


@pytest.fixture
def checkpoint(saved, tmp_path):
    """A copy to spoil."""
    shutil.copytree(saved, tmp_path / "run")
    return tmp_path / "run/checkpoint"


def contents(folder):
    return read.read(folder, list(read.tensors(folder)))


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not same_bits(ours[name], theirs[name])] == []


def held(tensors):
    """Tensors in memory as if they were on disk."""
    return {
        name: Rows(
            tuple(tensor.shape),
            tensor.dtype,
            lambda first, last, flat=tensor: (flat if flat.ndim else flat[None])[first:last].clone(),
        )
        for name, tensor in tensors.items()
    }


@st.composite
def tensor_sets(draw):
    """Up to six tensors of any dtype and up to three dimensions, some empty, some a single number."""
    found = {}
    for number in range(draw(st.integers(1, 6))):
        shape = draw(st.lists(st.integers(0, 7), max_size=3))
        size = torch.Size(shape).numel()
        raw = torch.tensor(draw(st.lists(st.integers(-9, 9), min_size=size, max_size=size)), dtype=torch.float32)
        found[f"layer.{number}"] = raw.reshape(shape).to(draw(st.sampled_from(DTYPES)))
    return found


@settings(max_examples=40)
@given(tensor_sets(), st.integers(1, 300), st.integers(1, 3), st.integers(1, 400))
def test_writers_keep_every_bit_at_any_block_size(tmp_path_factory, tensors, memory, threads, limit):
    """Whatever the shapes, dtypes, memory bound and file limit, each form gives back what went in."""
    folder = tmp_path_factory.mktemp("forms")
    rows = held(tensors)
    with Progress("test", "B") as progress:
        streaming = Streaming(memory, threads, progress)
        write_safetensors(folder, "model", rows, streaming, limit, {"note": "kept"})
        write_pt(folder, "model", rows, streaming)
        write_sharded(folder, {f"model.{name}": entry for name, entry in rows.items()}, streaming)
    expected = {f"model.{name}": tensor for name, tensor in tensors.items()}
    for form in ("safetensors", "pt"):
        assert_same(load_form(folder, form), expected)
    assert_same(contents(folder), expected)
    assert_same(dict(torch.load(folder / "model.pt", weights_only=True, mmap=True)), tensors)
    write_manifest(folder, {}, {})
    for form in ("safetensors", "pt", "sharded"):
        with open_source(folder, form) as source:
            assert_same({name: tensor.whole() for name, tensor in source.tensors.items()}, expected)


def test_forms_carry_names_optimizer_facts_and_the_run(saved, tmp_path):
    """What stands in the sharded checkpoint stands in each form, weights under the model's own names."""
    record = convert(saved / "checkpoint", tmp_path / "out", SMALL, ["safetensors", "pt"])
    expected = contents(saved / "checkpoint")
    weights = {name.removeprefix("model.") for name in expected if name.startswith("model.")}
    with safe_open(tmp_path / "out/model.safetensors", "pt") as opened:
        assert set(opened.keys()) == weights
        assert json.loads(opened.metadata()["run"]) == read_json(saved / "run.json")
        assert json.loads(opened.metadata()["facts"])["step"] == 2
    assert torch.load(tmp_path / "out/model.pt", weights_only=True).keys() == weights
    assert read_json(tmp_path / "out/run.json") == read_json(saved / "run.json")
    for form in ("safetensors", "pt"):
        assert_same(load_form(tmp_path / "out", form), expected)
        convert(tmp_path / "out", tmp_path / form, SMALL, ["sharded"], form)
        assert_same(contents(tmp_path / form), expected)
        assert read_json(tmp_path / form / MANIFEST)["facts"]["step"] == 2
        assert record[form]["bytes"] == sum((tmp_path / "out" / name).stat().st_size for name in record[form]["files"])
        assert record[form]["seconds"] > 0
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".partial")]


def test_another_dtype_rounds_weights_and_leaves_the_optimizer(saved, tmp_path):
    convert(saved / "checkpoint", tmp_path / "out", Checkpoints(dtype="bfloat16"), ["safetensors"])
    expected = {
        name: tensor.bfloat16() if name.startswith("model.") else tensor
        for name, tensor in contents(saved / "checkpoint").items()
    }
    assert_same(load_form(tmp_path / "out", "safetensors"), expected)


@pytest.mark.parametrize(("forms", "message"), [(["safetensor"], "`safetensor` is not known"), ([], "is empty")])
def test_a_form_that_there_is_not_is_refused(forms, message):
    with pytest.raises(ConfigError, match=message):
        make(Checkpoints, forms=forms)


def test_optimizer_state_stays_behind_where_it_is_not_wanted(saved, tmp_path):
    convert(saved / "checkpoint", tmp_path / "out", Checkpoints(optimizer=False), ["pt"])
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [MANIFEST, "model.pt", "run.json"]


def test_shards_are_named_as_transformers_names_them(saved, tmp_path):
    """Beyond the limit there are shards of at most that size and an index that finds every tensor."""
    expected = contents(saved / "checkpoint")
    with Progress("test", "B") as progress, open_source(saved / "checkpoint") as source:
        names = write_safetensors(tmp_path, "model", source.weights, Streaming(1 << 20, 2, progress), 20_000, {})
    total = len(names) - 1
    assert names[:-1] == [f"model-{number:05d}-of-{total:05d}.safetensors" for number in range(1, total + 1)]
    assert total > 2
    index = read_json(tmp_path / "model.safetensors.index.json")
    found = {key: load_file(tmp_path / name)[key] for key, name in index["weight_map"].items()}
    weights = {name.removeprefix("model."): entry for name, entry in expected.items() if name.startswith("model.")}
    assert_same(found, weights)
    assert index["metadata"]["total_size"] == sum(entry.numel() * entry.element_size() for entry in weights.values())


@pytest.mark.parametrize("form", ["safetensors", "pt"])
@pytest.mark.parametrize("spoil", ["cut", "alter", "remove"])
def test_a_spoilt_file_is_named_and_nothing_is_written(form, spoil, saved, tmp_path):
    """Each file of a checkpoint in turn, in every form; an older target stays as it was."""
    convert(saved / "checkpoint", tmp_path / "good", SMALL, [form])
    for folder, to in ((saved / "checkpoint", form), (tmp_path / "good", "sharded")):
        for name in read_json(folder / MANIFEST)["files"]:
            bad = tmp_path / "bad"
            shutil.copytree(folder, bad)
            raw = (bad / name).read_bytes()
            middle = len(raw) // 2
            altered = raw[:middle] + bytes([raw[middle] ^ 1]) + raw[middle + 1 :]
            (bad / name).unlink()
            if spoil != "remove":
                (bad / name).write_bytes(raw[:-1] if spoil == "cut" else altered)
            with pytest.raises(CheckpointError, match=r"missing|damaged|none of|no checkpoint") as caught:
                convert(bad, tmp_path / "target", SMALL, [to])
            assert name in str(caught.value)
            assert not (tmp_path / "target").exists()
            shutil.rmtree(bad)


def test_a_shard_of_another_run_is_not_taken(checkpoint, tmp_path):
    """Same names, same shapes, same size: only the checksum tells."""
    _, _, other = save_run(tmp_path / "other", {"tied": True}, steps=3)
    shutil.copy(other / "__0_0.distcp", checkpoint)
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp is damaged"):
        convert(checkpoint, tmp_path / "target", SMALL, ["pt"])
    assert not (tmp_path / "target").exists()


def test_an_unfinished_folder_is_none(checkpoint, tmp_path):
    (checkpoint / MANIFEST).unlink()
    with pytest.raises(CheckpointError, match=r"not a whole checkpoint \(checkpoint\.json is missing\)"):
        convert(checkpoint, tmp_path / "target", SMALL, ["pt"])
    assert not inspect(checkpoint)["whole"]


def test_a_conversion_is_replaced_without_its_manifest_too_but_no_folder_of_another_kind(saved, tmp_path):
    """Snakemake deletes the manifest, which stands for the folder, before a stale conversion is made again."""
    convert(saved / "checkpoint", tmp_path / "converted", SMALL, ["safetensors"])
    (tmp_path / "converted" / MANIFEST).unlink()
    convert(saved / "checkpoint", tmp_path / "converted", SMALL, ["safetensors"])
    assert (tmp_path / "converted" / MANIFEST).is_file()
    (tmp_path / "downloaded").mkdir()
    shutil.copy(tmp_path / "converted/model.safetensors", tmp_path / "downloaded")
    with pytest.raises(CheckpointError, match="would be replaced, but is not a checkpoint"):
        convert(saved / "checkpoint", tmp_path / "downloaded", SMALL, ["safetensors"])


def test_too_little_room_is_said_before_anything_is_written(saved, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    with pytest.raises(RequirementError, match="not enough room"):
        convert(saved / "checkpoint", tmp_path / "target", SMALL, ["pt"])
    assert list(tmp_path.iterdir()) == []


def test_inspection_tells_origin_and_contents(saved):
    found = inspect(saved / "checkpoint")
    held = found["forms"]["sharded"]
    assert (found["whole"], found["run"], found["step"], found["workload"]) == (True, "small", 2, "tiny")
    assert held["parameters"] == sum(
        tensor.numel() for name, tensor in contents(saved / "checkpoint").items() if name.startswith("model.")
    )
    assert held["training_state"] == 3 * held["weights"]
    assert "whole, every checksum holds" in as_text(found, tensors=True)


def test_comparison_finds_the_tensor_that_differs(saved, tmp_path):
    """One number is moved by 0.5: its tensor and layer come first, with exactly that difference."""
    with Progress("test", "B") as progress, open_source(saved / "checkpoint") as source:
        tensors = {name: tensor.whole() for name, tensor in source.weights.items()}
        tensors["blocks.1.feed_forward.up.weight"][3, 4] += 0.5
        write_safetensors(tmp_path, "model", held(tensors), Streaming(1 << 20, 1, progress), 10**9, {})
    write_manifest(tmp_path, {}, {})
    found = compare(saved / "checkpoint", tmp_path, SMALL)
    worst = found["tensors"][0]
    assert worst["tensor"] == "blocks.1.feed_forward.up.weight"
    assert worst["largest"] == pytest.approx(0.5)
    assert worst["mean"] == pytest.approx(0.5 / (64 * 32))
    assert not found["identical"]
    assert max(found["layers"], key=lambda row: row["relative"])["layer"] == "blocks.1"
    assert all(row["largest"] == 0 for row in found["tensors"][1:])
    assert compare(saved / "checkpoint", saved / "checkpoint", SMALL)["identical"]


def test_no_file_is_larger_than_asked_for(tmp_path):
    """In megabytes of 10⁶ bytes, headers apart."""
    _, _, checkpoint = save_run(tmp_path, {"dim": 128, "hidden": 1024})
    convert(checkpoint, tmp_path / "out", Checkpoints(file_mb=1), ["safetensors"])
    sizes = [path.stat().st_size for path in (tmp_path / "out").glob("model*.safetensors")]
    assert sum(sizes) > 2e6 and len(sizes) >= 3 and max(sizes) <= 1e6 + 10_000
