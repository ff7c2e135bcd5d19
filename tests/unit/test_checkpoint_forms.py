"""Conversion: every tensor to the bit, in any form, at any block size, and readable by the libraries that it is for."""

import json
import shutil
import subprocess
import sys
import zipfile

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from parascale.checkpoint import metadata
from parascale.checkpoint.convert import convert
from parascale.checkpoint.inspect import as_text, inspect
from parascale.checkpoint.manifest import MANIFEST, write_manifest
from parascale.checkpoint.source import open_source, read_header
from parascale.checkpoint.tensors import Rows, Streaming
from parascale.checkpoint.verify import load_form, same_bits
from parascale.checkpoint.writers import ALIGNMENT, write_pt, write_safetensors, write_sharded
from parascale.data.progress import Progress
from parascale.errors import CheckpointError, RequirementError
from parascale.files import read_json, write_json
from parascale.settings.config import Checkpoints

from .checkpoints import save_run, seal

SMALL = Checkpoints(memory_mb=1)
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
FORMS = ["sharded", "safetensors", "pt"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run's folder, with a checkpoint that holds weights and optimizer state."""
    folder = tmp_path_factory.mktemp("run")
    save_run(folder, {"tied": True})
    return folder


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not same_bits(ours[name], theirs[name])] == []


def rows_of(tensor):
    flat = tensor if tensor.ndim else tensor[None]
    return Rows(tuple(tensor.shape), tensor.dtype, lambda first, last: flat[first:last].clone())


def row_by_row(tensor):
    rows = [tensor.rows(number, number + 1) for number in range(tensor.count)]
    return torch.cat(rows).reshape(tensor.shape) if rows else tensor.whole()


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


@settings(max_examples=25)
@given(tensor_sets(), st.integers(1, 300), st.integers(1, 3), st.integers(1, 400))
def test_writers_keep_every_bit_at_any_block_size(tmp_path_factory, tensors, memory, threads, limit):
    """Whatever the shapes, dtypes, memory bound and file limit: by the form's own library and by ours; any zip reader opens `pt`."""
    folder = tmp_path_factory.mktemp("forms")
    rows = {name: rows_of(tensor) for name, tensor in tensors.items()}
    with Progress("test", "B") as progress:
        streaming = Streaming(memory, threads, progress)
        write_safetensors(folder, "model", rows, streaming, limit, {"note": "kept"})
        write_pt(folder, "model", rows, streaming)
        write_sharded(folder, {f"model.{name}": entry for name, entry in rows.items()}, streaming)
    expected = {f"model.{name}": tensor for name, tensor in tensors.items()}
    write_manifest(folder, {}, {})
    for form in FORMS:
        assert_same(load_form(folder, form), expected)
        held = open_source(folder, form).tensors
        assert_same({name: tensor.whole() for name, tensor in held.items()}, expected)
        assert_same({name: row_by_row(tensor) for name, tensor in held.items()}, expected)
    assert_same(dict(torch.load(folder / "model.pt", weights_only=True, mmap=True)), tensors)
    headers = [read_header(path) for path in folder.glob("*.safetensors")]
    assert not any(place % dtype.itemsize for header in headers for dtype, _, place in header.values())
    places = torch.load(folder / "model.pt", weights_only=True, map_location="meta").values()
    assert not any(tensor.untyped_storage()._checkpoint_offset % ALIGNMENT for tensor in places)
    with zipfile.ZipFile(folder / "model.pt") as archive:
        assert archive.testzip() is None


LITTLE_MEMORY = """
import resource, sys
from pathlib import Path
import torch
from parascale.checkpoint.tensors import Rows, Streaming
from parascale.checkpoint.writers import write_pt
from parascale.data.progress import Progress
base = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (base + (128 << 20),) * 2)
rows = Rows((256, 1 << 18), torch.float32, lambda first, last: torch.full((last - first, 1 << 18), 0.5))
with Progress("test", "B") as progress:
    write_pt(Path(sys.argv[1]), "model", {"weight": rows}, Streaming(1 << 20, 1, progress))
"""


def test_a_model_larger_than_the_address_space_is_written(tmp_path):
    """256 MiB in a process that may map half as much besides what it has mapped."""
    subprocess.run([sys.executable, "-c", LITTLE_MEMORY, tmp_path], check=True)
    (written,) = torch.load(tmp_path / "model.pt", weights_only=True, mmap=True).values()
    assert written.shape == (256, 1 << 18) and written[::100].eq(0.5).all()


def test_forms_carry_names_optimizer_facts_and_the_run(saved, tmp_path):
    """What stands in the sharded checkpoint stands in each form, weights under the model's own names; and so all the way back."""
    record = convert(saved / "checkpoint", tmp_path / "out", SMALL, ["safetensors", "pt"])
    expected = metadata.read(saved / "checkpoint")
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
        assert_same(metadata.read(tmp_path / form), expected)
        assert read_json(tmp_path / form / MANIFEST)["facts"]["step"] == 2
        assert record[form]["bytes"] == sum((tmp_path / "out" / name).stat().st_size for name in record[form]["files"])
        assert record[form]["seconds"] > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "pt", "safetensors"]


def test_another_dtype_rounds_weights_and_the_optimizer_stays_behind_where_it_is_not_wanted(saved, tmp_path):
    for optimizer in (True, False):
        convert(saved / "checkpoint", tmp_path / "out", Checkpoints(dtype="bfloat16", optimizer=optimizer), ["pt"])
        expected = metadata.read(saved / "checkpoint")
        weights = {name: tensor.bfloat16() for name, tensor in expected.items() if name.startswith("model.")}
        assert_same(load_form(tmp_path / "out", "pt"), (expected if optimizer else {}) | weights)


def test_shards_are_named_as_transformers_names_them(tmp_path):
    """Beyond the limit (in megabytes of 10⁶ bytes, headers apart) there are smaller files, and an index that finds every tensor."""
    _, _, checkpoint = save_run(tmp_path, {"dim": 128, "hidden": 1024})
    (record,) = convert(checkpoint, tmp_path / "out", Checkpoints(file_mb=1, optimizer=False), ["safetensors"]).values()
    *names, index = record["files"]
    assert names == [f"model-{number:05d}-of-{len(names):05d}.safetensors" for number in range(1, len(names) + 1)]
    assert index == "model.safetensors.index.json" and len(names) >= 3
    assert max((tmp_path / "out" / name).stat().st_size for name in names) <= 1e6 + 10_000
    weights = {name: tensor for name, tensor in metadata.read(checkpoint).items() if name.startswith("model.")}
    assert_same(load_form(tmp_path / "out", "safetensors"), weights)
    lie = read_json(tmp_path / "out" / index)
    assert lie["metadata"]["total_size"] == sum(entry.nbytes for entry in weights.values())
    lie["weight_map"] = dict.fromkeys(lie["weight_map"], names[0])
    write_json(tmp_path / "out" / index, lie)
    seal(tmp_path / "out")
    with pytest.raises(CheckpointError, match="and its shards disagree on"):
        open_source(tmp_path / "out")


@pytest.mark.parametrize("form", FORMS)
def test_a_spoilt_file_is_named_and_nothing_is_written(form, saved, tmp_path):
    """Each file in turn, in every form, is cut, altered or removed."""
    folder = saved / "checkpoint"
    if form != "sharded":
        convert(saved / "checkpoint", folder := tmp_path / "good", SMALL, [form])
    for name in read_json(folder / MANIFEST)["files"]:
        raw = (folder / name).read_bytes()
        middle = len(raw) // 2
        for content in (raw[:-1], raw[:middle] + bytes([raw[middle] ^ 1]) + raw[middle + 1 :], None):
            bad = shutil.copytree(folder, tmp_path / "bad")
            (bad / name).unlink() if content is None else (bad / name).write_bytes(content)
            with pytest.raises(CheckpointError, match=r"missing|damaged|none of|no checkpoint") as caught:
                convert(bad, tmp_path / "target", SMALL, ["pt"])
            assert name in str(caught.value)
            assert not (tmp_path / "target").exists()
            shutil.rmtree(bad)


def test_a_conversion_is_replaced_without_its_manifest_too_but_no_folder_of_another_kind(saved, tmp_path):
    """Snakemake deletes the manifest, which stands for the folder, before a stale conversion is made again."""
    convert(saved / "checkpoint", tmp_path / "converted", SMALL, ["safetensors"])
    (tmp_path / "converted" / MANIFEST).unlink()
    with pytest.raises(CheckpointError, match=r"not a complete checkpoint \(checkpoint\.json is missing\)"):
        convert(tmp_path / "converted", tmp_path / "target", SMALL, ["pt"])
    assert not inspect(tmp_path / "converted")["whole"]
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
    weights = [tensor for name, tensor in metadata.read(saved / "checkpoint").items() if name.startswith("model.")]
    assert held["parameters"] == sum(tensor.numel() for tensor in weights)
    assert held["training_state"] == 3 * held["weights"] == 3 * len(weights)
    assert "complete, all checksums match" in as_text(found, tensors=True)
