"""Sources without a network: files on this machine are read in place."""

import bz2
import gzip
import os
from pathlib import Path
from types import SimpleNamespace

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parascale.data.named_files import SPLIT_NAMES, local_files, local_folders, missing_data
from parascale.data.sources import download, readers
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
@given(rows=st.integers(1, 60), percent=st.integers(0, 100))
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
    for name in ("picture.jpg", "train.txt", "training.txt"):
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


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"good\nal\xff so\n", r"a\.txt: byte 7 \(0xff\) is not UTF-8.*latin1"),
        ("a.txt", b"\xef\xbb\xbfone\ntwo\n", ["one", "two"]),
        ("a.txt", "one\ntwo\n".encode("utf-16"), r"byte 0 \(0xff\).*-f utf-16"),
        ("a.txt", "one\ntwo\n".encode("utf-16-le"), r"byte 1 \(0x00\).*-f utf-16"),
        ("a.txt", "é\n".encode("utf-16-be"), r"byte 1 \(0xe9\).*-f utf-16"),
        ("a.jsonl", b'{"text": "a"}\n{"text"\n', r"a\.jsonl, line 2: not valid JSON"),
        ("a.jsonl", b'{"text": "a"}\n\n{"text": "b"}\n\n', ["a", "b"]),
        (
            "a.jsonl",
            b'{"text": "a"}\n\n{"text": 1}\n',
            "line 3: `text` holds no text but 1; correct it, or name the column",
        ),
        ("a.jsonl", b'{"text": "a"}\n{"text": null}\n', ["a", None]),
        (
            "a.jsonl",
            gzip.compress(b'{"text": "a"}\n', mtime=0),
            r"a\.jsonl: it holds gzip, whatever its name says: unpack it \(`gunzip`\)",
        ),
        ("a.txt", b"PAR1\x15\x04\xff", r"a\.txt: it holds Parquet.*`\.parquet`"),
        ("a.txt", b"PK\x03\x04\x14\x00", "it holds a zip archive"),
        ("a.parquet", gzip.compress(b"x", mtime=0), r"a\.parquet: it holds gzip.*`gunzip`"),
        (
            "a.parquet.gz",
            gzip.compress(b"x", mtime=0),
            r"cannot tell what `\.parquet\.gz` holds.*\.csv.*those of text also with \.gz",
        ),
        ("a.jsonl", b'{"text": "\\ud800"}\n', "line 1: `text` holds half of a UTF-16 pair"),
        ("a.jsonl", b"[" * 100_000, "line 1: not valid JSON"),
        ("a.jsonl", b'{"text": ' + b"9" * 10_000 + b"}", "line 1: not valid JSON"),
        ("a.jsonl", b'{"body": "a"}\n', r"line 1: no column `text` \(it has body\)"),
        ("a.jsonl", b"[1]\n", "it is not a mapping"),
        ("a.parquet", b"PAR1 or not", "not a whole Parquet file"),
    ],
)
def test_texts_as_people_write_them_are_read_or_said_to_be_wrong_where(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    if isinstance(message, list):
        assert read(tmp_path, tmp_path / "raw", {"train": name}) == {"train": message}
    else:
        with pytest.raises(DataError, match=message):
            read(tmp_path, tmp_path / "raw", {"train": name})


def test_a_list_of_json_that_memory_may_not_hold_is_refused_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "LARGEST_LIST", 20, raising=False)
    for name, content in (("a.json", '[{"text": "a"}, {"text": "b"}]'), ("b.json", '{"text": "a"}\n{"text": "b"}')):
        (tmp_path / name).write_text(content)
    assert read(tmp_path, tmp_path / "raw", {"train": "b.json"}) == {"train": ["a", "b"]}
    with pytest.raises(DataError, match=r"a\.json: a JSON list of .* GiB.*make lines of it: `jq -c"):
        read(tmp_path, tmp_path / "raw", {"train": "a.json"})


FORMS = {
    "a.jsonl": b'{"text": "one"}\n{"text": "NA"}\n\n{"text": "007"}\n',
    "a.json": b'\xef\xbb\xbf [{"text": "one"}, {"text": "NA"},\n{"text": "007"}]',
    "b.json": b'{"text": "one"}\n{"text": "NA", "n": 1}\n{"text": "007"}',
    "a.csv": b'\xef\xbb\xbfn,text\n1,one\n\n2,NA\n"3\n4",007\n',
    "a.txt": b"\xef\xbb\xbfone\nNA\n007",
}
PACKED = {
    "": bytes,
    ".gz": lambda content: (
        gzip.compress(content[:7]) + gzip.compress(content[7:])
    ),  # of several parts, as `pigz` writes them
    ".bz2": bz2.compress,
    ".zst": lambda content: pyarrow.compress(content, "zstd", asbytes=True),
}


@pytest.mark.parametrize("packing", PACKED)
@pytest.mark.parametrize("name", FORMS)
def test_a_text_is_read_in_each_form_packed_or_not_and_a_slice_of_it(name, packing, tmp_path):
    packed = PACKED[packing](FORMS[name])
    (tmp_path / f"{name}{packing}").write_bytes(packed)
    files = {"train": name + packing, "test": f"{name}{packing}[1:]", "validation": f"{name}{packing}[:34%]"}
    found = {split: read(tmp_path, tmp_path / split, {split: path}) for split, path in files.items()}
    assert found["train"] == {"train": ["one", "NA", "007"]}
    assert found["test"] == {"test": ["NA", "007"]} and found["validation"] == {"validation": ["one"]}
    if packing:
        (tmp_path / f"{name}{packing}").write_bytes(packed[:-2])
        with pytest.raises(DataError, match=rf"{name}{packing}: cannot be read \(.+\)"):
            read(tmp_path, tmp_path / "cut", {"train": name + packing})


def test_packed_and_unpacked_files_of_one_name_are_no_two_parts(tmp_path):
    (tmp_path / "train.jsonl").write_bytes(FORMS["a.jsonl"])
    (tmp_path / "train.jsonl.gz").write_bytes(gzip.compress(FORMS["a.jsonl"]))
    with pytest.raises(DataError, match="train: the train split has 2 files of this name"):
        read(tmp_path, tmp_path / "raw", {})


def test_what_datasets_saved_is_read_and_its_caches_are_not(tmp_path):
    """A `Dataset` and a `DatasetDict` of several files, beside which lies what `map` leaves there."""
    import datasets

    rows = {"text": [f"row {number}" for number in range(10)]}
    saved = datasets.DatasetDict({"train": datasets.Dataset.from_dict(rows), "test": datasets.Dataset.from_dict(rows)})
    saved.save_to_disk(tmp_path / "dict", num_shards={"train": 3, "test": 1})
    datasets.load_from_disk(tmp_path / "dict")["train"].map(lambda row: {"text": "changed"})
    assert len(list((tmp_path / "dict/train").glob("*.arrow"))) == 4
    by_name = download(Source(kind="files", location=str(tmp_path / "dict")), tmp_path / "raw")
    assert {split: list(by_name.documents(split)) for split in by_name.splits} == {
        "train": rows["text"],
        "test": rows["text"],
    }
    assert read(tmp_path, tmp_path / "one", {"train": "dict/test[:50%]"}) == {"train": rows["text"][:5]}
    path = tmp_path / "dict/train/data-00001-of-00003.arrow"
    content = path.read_bytes()
    for damaged in (content[:-8], content[:-200]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"data-00001-of-00003\.arrow: not a whole Arrow file"):
            read(tmp_path, tmp_path / "cut", {"train": "dict/train"})
    path.unlink()
    with pytest.raises(DataError, match=r"00001-of-00003\.arrow: missing, but named in .*state\.json"):
        read(tmp_path, tmp_path / "gone", {"train": "dict/train"})
    source = Source(kind="files", location=str(tmp_path), files=dict.fromkeys(SPLIT_NAMES, "dict/train"))
    (said,) = missing_data({"x": SimpleNamespace(source=source)})
    assert "missing, but named in" in said and local_files(source) == []


def test_damaged_parquet_and_other_columns_are_named(tmp_path):
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["word"] * 5, "number": range(5)}), path, compression="none")
    with pytest.raises(DataError, match=r"no column `body` .it has text, number"):
        read(tmp_path, tmp_path / "raw", {"train": path.name}, columns={"text": "body"})
    with pytest.raises(DataError, match="row 0: `number` holds no text but 0"):
        read(tmp_path, tmp_path / "raw", {"train": path.name}, columns={"text": "number"})
    content = path.read_bytes()
    twice = pyarrow.Table.from_arrays([["a"], ["b"]], ["text", "text"])
    latin = pyarrow.array([b"ok", b"caf\xe9"]).cast(pyarrow.binary()).view(pyarrow.string())
    wrong = {
        "2 columns are called `text`": twice,
        r"a text is not UTF-8 \(0xe9\).*Latin-1": pyarrow.table({"text": latin}),
    }
    for number, (message, table) in enumerate(wrong.items()):
        pyarrow.parquet.write_table(table, tmp_path / f"{number}.parquet")
        with pytest.raises(DataError, match=message):
            read(tmp_path, tmp_path / f"raw{number}", {"train": f"{number}.parquet"})
    with pytest.raises(DataError, match=r"gone\.parquet: cannot be read \(No such file or directory\)"):
        readers.count_rows(tmp_path / "gone.parquet")
    path.write_bytes(content[:4] + b"\xff" * 40 + content[44:])
    with pytest.raises(DataError, match="damaged Parquet"):
        read(tmp_path, tmp_path / "other", {"train": path.name})


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
            "train: the train split has 2 files .* one set of 3",
        ),
        (["a/test.jsonl", "a/test-0-of-1.jsonl"], "a/test: the test split has 2 files of this name"),
        (["wiki.train.raw", "wiki.train.tokens"], "wiki.train: the train split has 2 files of this name"),
        (["val-0-of-1-1ab.parquet", "val-0-of-1-2cd.parquet"], "val: the validation split has 2 files of this name"),
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


def test_rows_of_parquet_that_were_read_are_not_kept(tmp_path):
    path = tmp_path / "a.parquet"
    with pyarrow.parquet.ParquetWriter(path, pyarrow.schema({"text": "string"}), compression="none") as file:
        for group in range(40):
            file.write_table(pyarrow.table({"text": [f"{group} {row} " + "x" * 1000 for row in range(1000)]}))
    before = pyarrow.total_allocated_bytes()
    largest = max(pyarrow.total_allocated_bytes() - before for _ in readers.documents(path, "text"))
    assert largest < path.stat().st_size / 8
