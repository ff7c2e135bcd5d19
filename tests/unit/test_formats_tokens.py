"""Tokens are the same numbers in every format, and are read without a copy where the format allows it."""

import os
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parascale.data import measure as measuring
from parascale.data.benchmark import cases_of
from parascale.data.convert import convert_tokens
from parascale.data.formats import open_tokens, token_format, tokens_are_mapped
from parascale.data.measure import measure
from parascale.data.text import Windows
from parascale.data.verify import verify_tokens
from parascale.errors import DataError
from parascale.files import sha256
from parascale.settings.formats import TOKEN_FORMATS, Loaders

SPLITS = {"train": 5000, "validation": 300, "test": 300}


class FlatTokens:
    """What conversion needs of parascale.data.text.Tokens."""

    def __init__(self, folder, seed=0):
        self.folder = folder
        self.manifest = {"dtype": "<u2", "splits": dict.fromkeys(SPLITS), "files": {}}
        random = np.random.default_rng(seed)
        folder.mkdir()
        for split, count in SPLITS.items():
            random.integers(0, 900, count, dtype=np.uint16).tofile(folder / f"{split}.bin")
            self.manifest["files"][f"{split}.bin"] = {"sha256": sha256(folder / f"{split}.bin")}

    def split(self, name):
        return np.memmap(self.folder / f"{name}.bin", np.uint16, "r")


@pytest.fixture
def flat(tmp_path):
    return FlatTokens(tmp_path / "flat")


@pytest.mark.parametrize("name", TOKEN_FORMATS)
def test_tokens_and_windows_are_the_same_in_every_format(name, flat, tmp_path):
    manifest = convert_tokens(flat, "text", name, tmp_path / name)
    assert manifest["inodes"] == 1 + len(list((tmp_path / name).iterdir()))
    convert_tokens(flat, "text", name, tmp_path / "again")
    for path in (tmp_path / name).iterdir():
        assert path.name == "cost.json" or sha256(path) == sha256(tmp_path / "again" / path.name)
    expected = {"format": name, "dataset": "text", "tokens": 5600, "identical": True}
    assert verify_tokens(tmp_path / name, flat, "text") == expected
    ours, theirs = Windows(open_tokens(tmp_path / name, "train"), 64), Windows(flat.split("train"), 64)
    for one, other in zip(ours.batch(range(len(ours))), theirs.batch(range(len(theirs))), strict=True):
        np.testing.assert_array_equal(one, other)


@settings(max_examples=20)
@given(st.sampled_from(TOKEN_FORMATS), st.sampled_from([np.uint16, np.uint32]), st.integers(1, 3000), st.integers(0, 9))
def test_any_array_comes_back_exactly(tmp_path_factory, name, dtype, count, seed):
    path = tmp_path_factory.mktemp("tokens") / "a"
    tokens = np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, count, dtype=dtype)
    token_format(name).write_tokens(path, tokens)
    found = token_format(name).read_tokens(path)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, tokens)


@pytest.mark.parametrize("name", [*filter(tokens_are_mapped, TOKEN_FORMATS)])
def test_reading_maps_the_file_instead_of_copying_it(name, tmp_path):
    """Changing a byte of the file shows in the array that was opened before: it is the file."""
    path = tmp_path / "a"
    token_format(name).write_tokens(path, np.zeros(1000, np.uint16))
    tokens = token_format(name).read_tokens(path)
    with open(path, "r+b") as file:
        content = file.read()
        file.seek(content.rindex(bytes(1000)) + 500)
        file.write(b"\x07")
    assert 7 in (tokens & 0xFF) or 7 in (tokens >> 8)


def test_changed_tokens_or_another_dataset_are_found(flat, tmp_path):
    convert_tokens(flat, "text", "hdf5", tmp_path / "hdf5")
    with pytest.raises(DataError, match="converted from another source"):
        verify_tokens(tmp_path / "hdf5", FlatTokens(tmp_path / "other", seed=1), "other")
    path = tmp_path / "hdf5/train.h5"
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"train\.h5: the tokens differ") as caught:
        verify_tokens(tmp_path / "hdf5", flat, "text")
    assert "sha256 differs" in str(caught.value)
    with pytest.raises(DataError, match="no split `more`"):
        open_tokens(tmp_path / "hdf5", "more")


def test_what_is_decoded_as_it_is_opened_is_not_measured_as_if_it_were_read(flat, tmp_path, monkeypatch):
    """Parquet's windows come from memory: never cold, no bytes known, and the first batch waits for the decoding."""
    convert_tokens(flat, "text", "parquet", tmp_path / "parquet")

    def slow(*arguments):
        time.sleep(0.2)
        return open_tokens(*arguments)

    monkeypatch.setattr(measuring, "open_tokens", slow)
    found = list(cases_of(tmp_path / "parquet", Loaders(seconds=0.01, repeats=1), SimpleNamespace(window=64)))
    assert [(case.cache, case.io) for case in found] == [("warm", "memory")] * 2
    figures = measure(found[0])
    assert figures["bytes_read_per_byte"] is None and figures["first_batch_seconds"] >= 0.2


def test_mapped_tokens_are_read_cold_too_and_the_files_that_they_open_are_counted(flat, tmp_path, monkeypatch):
    convert_tokens(flat, "text", "hdf5", tmp_path / "hdf5")
    found = list(cases_of(tmp_path / "hdf5", Loaders(seconds=0.01, repeats=1), SimpleNamespace(window=64)))
    assert [(case.cache, case.io) for case in found] == [(cache, "mmap") for cache in ("warm", "warm", "cold", "cold")]
    assert measure(found[1])["opens_per_sample"] == 0
    batch = Windows.batch

    def opening(windows, indices):
        with open(os.devnull):
            return batch(windows, indices)

    monkeypatch.setattr(Windows, "batch", opening)
    # A batch has 64 windows, but for the last one of a round.
    assert 1 / 64 <= measure(found[0])["opens_per_sample"] < 1 / 32
