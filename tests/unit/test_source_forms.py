"""Texts in each form that people write them in, packed or not; what is wrong in one is named with its place."""

import bz2
import gzip
from types import SimpleNamespace

import pyarrow
import pyarrow.parquet
import pytest

from parascale.data.named_files import SPLIT_NAMES, local_files, missing_data
from parascale.data.sources import download, readers
from parascale.errors import DataError
from parascale.settings import Source
from tests.unit.test_sources import read

GZIP = gzip.compress(b'{"text": "a"}\n', mtime=0)


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
        ("a.jsonl", b'{"text": "a"}\n\n{"text": 1}\n', "line 3: `text` is not text but 1; see"),
        ("a.jsonl", b'{"text": "a"}\n{"text": null}\n', ["a", None]),
        ("a.jsonl", GZIP, r"a\.jsonl: it holds gzip, despite its name: unpack it \(`gunzip`\)"),
        ("a.txt", b"PAR1\x15\x04\xff", r"a\.txt: it holds Parquet.*\.parquet`"),
        ("a.txt", b"PK\x03\x04\x14\x00", "it holds a zip archive"),
        ("a.parquet", GZIP, r"a\.parquet: it holds gzip.*`gunzip`"),
        ("a.parquet.gz", GZIP, r"what `\.parquet\.gz` holds.*\.csv.*texts also with \.gz"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', "line 1: `text` holds an unpaired UTF-16 surrogate"),
        ("a.jsonl", b"[" * 100_000, "line 1: not valid JSON"),
        ("a.jsonl", b'{"text": ' + b"9" * 10_000 + b"}", "line 1: not valid JSON"),
        ("a.jsonl", b'{"body": "a"}\n', r"line 1: no column `text` \(it has body\)"),
        ("a.jsonl", b"[1]\n", "not a mapping"),
        ("a.csv", b"text\none,two\n", r"a\.csv, line 2: .*2 values for the columns text"),
        ("a.csv", b"text,text\na,b\n", "line 2: .*2 values for the columns text, text"),
        ("a.csv", b"text\ncaf\xe9\n", "in UTF-8 .*0xe9"),
        ("a.csv", b'text\n"a\n', "unexpected end of data"),
        ("a.parquet", b"PAR1 or not", "not a complete Parquet file"),
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
    with pytest.raises(DataError, match=r"a\.json: a JSON list of .* GiB.*write lines: `jq -c"):
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
    # Of several parts, as `pigz` writes them.
    ".gz": lambda content: gzip.compress(content[:7]) + gzip.compress(content[7:]),
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
    with pytest.raises(DataError, match="train: 2 train files are not one set"):
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
    found = {split: list(by_name.documents(split)) for split in by_name.splits}
    assert found == {"train": rows["text"], "test": rows["text"]}
    assert read(tmp_path, tmp_path / "one", {"train": "dict/test[:50%]"}) == {"train": rows["text"][:5]}
    path = tmp_path / "dict/train/data-00001-of-00003.arrow"
    content = path.read_bytes()
    for damaged in (content[:-8], content[:-200]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"data-00001-of-00003\.arrow: not a complete Arrow file"):
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
    with pytest.raises(DataError, match="row 0: `number` is not text but 0"):
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


def test_rows_of_parquet_that_were_read_are_not_kept(tmp_path):
    path = tmp_path / "a.parquet"
    with pyarrow.parquet.ParquetWriter(path, pyarrow.schema({"text": "string"}), compression="none") as file:
        for group in range(40):
            file.write_table(pyarrow.table({"text": [f"{group} {row} " + "x" * 1000 for row in range(1000)]}))
    before = pyarrow.total_allocated_bytes()
    largest = max(pyarrow.total_allocated_bytes() - before for _ in readers.documents(path, "text"))
    assert largest < path.stat().st_size / 8
