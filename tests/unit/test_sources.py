"""Sources without a network: files on this machine are read in place."""

import os
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parascale.data.named_files import local_files, local_folders
from parascale.data.sources import download
from parascale.data.sources.local import paths_by_split
from parascale.data.sources.raw import Raw
from parascale.errors import ConfigError, DataError
from parascale.settings import Source, make

unhurried = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def data(tmp_path):
    """A user's folder."""
    folder = tmp_path / "data"
    (folder / "more").mkdir(parents=True)
    (folder / "lines.txt").write_bytes("eins\r\nzwei\n\ndrei ü".encode())
    (folder / "blank.jsonl").write_text('{"text": "a"}\n\n\n{"text": "b"}\n\n\n')
    (folder / "rows.jsonl").write_text('{"text": "a"}\n{"text": "b\\nc", "id": 1}\n')
    pyarrow.parquet.write_table(pyarrow.table({"text": ["p", "q"], "other": [1, 2]}), folder / "table.parquet")
    for number in range(3):
        (folder / "more" / f"{number}.txt").write_text(f"file {number}\n")
    return folder


def read(folder, output, files, **source):
    raw = download(make(Source, kind="files", location=str(folder), files=files, **source), output)
    return {split: list(raw.documents(split)) for split in raw.splits}


@pytest.mark.parametrize(
    ("path", "texts"),
    [
        ("lines.txt", ["eins", "zwei", "", "drei ü"]),
        ("lines.txt[:50%]", ["eins", "zwei"]),
        ("lines.txt[50%:]", ["", "drei ü"]),
        ("lines.txt[1:2]", ["zwei"]),
        ("lines.txt[3:]", ["drei ü"]),
        ("lines.txt[:1000]", ["eins", "zwei", "", "drei ü"]),
        ("lines.txt[1:75%]", ["zwei", ""]),
        ("rows.jsonl", ["a", "b\nc"]),
        ("rows.jsonl[1:]", ["b\nc"]),
        ("blank.jsonl[:50%]", ["a"]),
        ("blank.jsonl[50%:]", ["b"]),
        ("table.parquet", ["p", "q"]),
        ("table.parquet[:1]", ["p"]),
        ("more/*.txt", ["file 0", "file 1", "file 2"]),
        ("**/[01].txt", ["file 0", "file 1"]),
        ("more/*.txt[:0]", []),
        (["more/2.txt", "more/0.txt"], ["file 2", "file 0"]),
    ],
)
def test_files_slices_and_globs(data, tmp_path, path, texts):
    assert read(data, tmp_path / "raw", {"train": path}) == {"train": texts}


@unhurried
@given(rows=st.integers(1, 60), percent=st.integers(0, 100) | st.decimals(0, 100, places=2))
def test_two_slices_that_meet_share_no_line_and_miss_none(tmp_path, rows, percent):
    (tmp_path / "all.txt").write_text("".join(f"{row}\n" for row in range(rows)))
    files = {"train": f"all.txt[:{percent}%]", "test": f"all.txt[{percent}%:]"}
    splits = read(tmp_path, tmp_path / "raw", files)
    assert splits["train"] + splits["test"] == [str(row) for row in range(rows)]


def test_nothing_is_copied_or_touched(data, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in data.rglob("*")}
    raw = download(Source(kind="files", location=str(data), files={"train": "lines.txt"}), tmp_path / "raw")
    assert [path.name for path in (tmp_path / "raw").iterdir()] == ["manifest.json"]
    entry = raw.files("train")[0]
    assert (entry["path"], entry["bytes"]) == (str(data / "lines.txt"), 19)
    assert {path: path.stat().st_mtime_ns for path in data.rglob("*")} == before


def test_variables_in_a_location_are_filled_in(data, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_DATA", str(data))
    assert read("$MY_DATA/more", tmp_path / "raw", {"train": "0.txt"}) == {"train": ["file 0"]}
    monkeypatch.delenv("MY_DATA")
    with pytest.raises(ConfigError, match=r"\$MY_DATA/more.*not set"):
        read("$MY_DATA/more", tmp_path / "other", {"train": "0.txt"})


def test_files_without_a_location_start_at_the_current_folder(data, tmp_path, monkeypatch):
    monkeypatch.chdir(data)
    source = Source(kind="files", files={"train": ["lines.txt[:1]", "more/*.txt"], "test": "gone.txt"})
    assert local_files(source) == ["lines.txt", "more/0.txt", "more/1.txt", "more/2.txt"]
    raw = download(Source(kind="files", files={"train": "lines.txt"}), tmp_path / "raw")
    assert Path(raw.files("train")[0]["path"]).is_absolute()


def test_a_rule_watches_files_that_are_named_there_and_few(data, tmp_path):
    """More than a few would be looked at before every job; what is not there yet, or cannot be told, is for the download to say."""
    source = Source(kind="files", location=str(data), files={"train": "more/*.txt", "test": "gone.txt"})
    assert local_files(source, most=3) == [str(data / f"more/{number}.txt") for number in range(3)]
    assert local_files(source, most=2) == []
    assert local_files(Source(kind="files", location="$NOT_SET/here", files={"train": "lines.txt"})) == []
    assert local_files(Source()) == local_files(Source(kind="files", location=str(data))) == []
    download(Source(kind="files", location=str(data), files={"train": "lines.txt"}), tmp_path / "theirs")
    copied = Source(kind="hub", location=str(tmp_path / "theirs"))
    assert local_files(copied) == [str(tmp_path / "theirs/manifest.json")]


def test_a_location_stands_for_any_kind_of_source(data, tmp_path):
    """A colleague's raw folder, or a copy of a published set, is used where it lies."""
    first = download(Source(kind="files", location=str(data), files={"train": "lines.txt[:1]"}), tmp_path / "theirs")
    again = download(Source(kind="hub", location=str(tmp_path / "theirs")), tmp_path / "mine")
    assert list(again.documents("train")) == list(first.documents("train"))
    (data / "train-0.txt").write_text("t\n")
    (data / "valid.jsonl").write_text('{"text": "v"}\n')
    found = download(Source(kind="hub", location=str(data)), tmp_path / "named")
    assert {split: list(found.documents(split)) for split in found.splits} == {"train": ["t"], "validation": ["v"]}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"train": "gone.txt"}, r"gone\.txt: no such file"),
        ({"train": "gone/*.txt"}, "no file matches"),
        ({"train": ["lines.txt", "more/9.txt"]}, r"9\.txt: no such file"),
        ({"train": "more"}, "no such file"),
        ({"train": "picture.jpg"}, r"cannot tell what `\.jpg` holds"),
        ({"train": "texts.zip"}, r"cannot tell what `\.zip` holds\. Understood: \.txt"),
        ({}, "may both be the train split"),
        ({"valid": "lines.txt"}, "unknown key `files.valid`; did you mean `validation`"),
        ({"train": "lines.txt[:101%]"}, "from 0% to 100%"),
        ({"train": ["lines.txt", 3]}, "must be text"),
        (
            {"train": "lines.txt[:75%]", "test": "lines.txt[50%:]"},
            r"train and test both have rows 2 to 3 of .*lines\.txt",
        ),
        ({"train": "more/*.txt[:1]", "validation": "more/2.txt[:100%]"}, r"both have rows 0 to 1 of .*2\.txt"),
    ],
)
def test_files_that_cannot_be_meant_are_named(data, tmp_path, files, message):
    for name in ("picture.jpg", "texts.zip", "train.txt", "training.txt"):
        (data / name).write_bytes(b"x")
    with pytest.raises((DataError, ConfigError), match=message):
        read(data, tmp_path / "raw", files)
    assert not (tmp_path / "raw").exists()


def test_sources_that_name_nothing(tmp_path):
    with pytest.raises(ConfigError, match=r"needs `data.source.files`"):
        download(Source(kind="files"), tmp_path / "raw")
    with pytest.raises(DataError, match="no such folder"):
        download(Source(kind="files", location=str(tmp_path / "gone")), tmp_path / "raw")
    with pytest.raises(ConfigError, match="is not built in; did you mean `documentation`"):
        download(Source(kind="builtin", name="documents"), tmp_path / "raw")


def test_a_file_that_changed_after_it_was_recorded(data, tmp_path):
    raw = download(Source(kind="files", location=str(data), files={"train": "lines.txt"}), tmp_path / "raw")
    raw.verify()
    content = (data / "lines.txt").read_bytes()
    (data / "lines.txt").write_bytes(content.replace(b"eins", b"EINS"))
    with pytest.raises(DataError, match="its sha256 differs"):
        raw.verify()
    (data / "lines.txt").write_bytes(content + b"more")
    with pytest.raises(DataError, match="was changed: 23 bytes instead of 19"):
        Raw(tmp_path / "raw")
    source = Source(kind="files", location=str(data), files={"train": "lines.txt"})
    assert list(download(source, tmp_path / "raw").documents("train"))[-1] == "drei ümore"


def test_names_that_say_their_split():
    paths = ["data/train-00000-of-00001.parquet", "val/0.jsonl", "x_test.txt", "latest.txt", "a.txt"]
    assert paths_by_split(paths, []) == {
        "train": ["data/train-00000-of-00001.parquet"],
        "validation": ["val/0.jsonl"],
        "test": ["x_test.txt"],
    }


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["train.txt", "dev.txt", "train/test.txt"], r"train/test\.txt: its name says train and test"),
        (
            ["train-00000-of-00003.txt", "train-00002-of-00003.txt"],
            "train: 2 train files are not one set of 3",
        ),
        (["a/test.jsonl", "a/test-0-of-1.jsonl"], "a/test: 2 test files are not one set"),
        (["wiki.train.raw", "wiki.train.tokens"], "wiki.train: 2 train files are not one set"),
        (["val-0-of-1-1ab.parquet", "val-0-of-1-2cd.parquet"], "val: 2 validation files are not one set"),
    ],
)
def test_a_file_of_two_splits_and_a_split_that_is_there_twice_or_in_part_are_errors(paths, message):
    with pytest.raises(DataError, match=message):
        paths_by_split(paths, [])


def test_a_name_that_cannot_be_recorded_is_an_error(tmp_path):
    (tmp_path / "\udcfftrain.txt").write_text("a\n")
    with pytest.raises(DataError, match=r"\\udcfftrain\.txt': a name that is not UTF-8"):
        read(tmp_path, tmp_path / "raw", {})


def test_folders_of_images_are_watched_down_to_their_classes_which_are_not_listed(tmp_path, monkeypatch):
    """They may hold a million images, on a filesystem that many share, and a plan asks for them again and again."""
    for name in ("train/cat/deep", "train/dog", "val/cat", "val/dog"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "train.csv").touch()
    source = Source(kind="files", location=str(tmp_path))
    splits = ["", "train", "val"]
    classes = ["train/cat", "train/dog", "val/cat", "val/dog"]
    watched = lambda names: sorted([str(tmp_path / name).rstrip("/") for name in names])  # noqa: E731
    listed, scandir = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(path) or scandir(path))
    assert local_folders(source) == watched(splits + classes + ["train.csv"])
    assert sorted(listed) == watched(splits), "each once"
    assert local_folders(source, most=5) == watched([*splits, "train.csv"])
    assert local_folders(Source(kind="files", location=str(tmp_path / "none"))) == local_folders(Source()) == []
