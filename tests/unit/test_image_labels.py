"""Labels of images: in tables and packed ones, with names of classes that fit together."""

import json
import math
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parascale.data.image_tables import class_names
from parascale.errors import DataError
from tests.unit.image_sets import index_of
from tests.unit.image_sets import jpeg as make_jpeg


def write_packed(path, labels, names=None, image=None, **columns):
    """Parquet with images, numbered on from the file's name, their labels and Hugging Face's metadata."""
    rows = [make_jpeg(number + len(path.name)) for number in range(len(labels))]
    path.parent.mkdir(exist_ok=True)
    table = pa.table({"image": pa.array(rows, image), "label": labels, **columns})
    told = names if isinstance(names, str) else json.dumps({"info": {"features": {"label": {"names": names}}}})
    pq.write_table(table.replace_schema_metadata({"huggingface": told} if names else None), path)
    return rows


@pytest.mark.parametrize(
    ("files", "classes"),
    [
        ({"train": ["red", "green"], "validation": ["green", "red"]}, ["red", "green"]),
        ({"train": ["red", "green"], "validation": None}, ["red", "green"]),
        ({"train": None, "validation": ["red", "green"]}, ["red", "green"]),
        ({"train-0-of-2": ["b", "a"], "train-1-of-2": ["a", "c", "b"], "validation": ["c"]}, ["b", "a", "c"]),
    ],
)
@pytest.mark.parametrize("kind", [None, pa.binary_view()])
def test_each_file_has_its_own_names_of_classes(files, classes, kind, tmp_path):
    wanted = {}
    for name, names in files.items():
        own = names or classes
        labels = [number % len(own) for number in range(5)]
        images = write_packed(tmp_path / f"raw/{name}.parquet", labels, names, kind)
        wanted[name] = [(image, own[label]) for image, label in zip(images, labels, strict=True)]
    index = index_of(tmp_path / "raw", tmp_path / "index")
    assert index.classes == classes
    for split in index.splits:
        part = index.split(split)
        found = [(part.read(i), classes[part.labels[i]]) for i in range(len(part))]
        assert found == [row for name, rows in wanted.items() if name.startswith(split) for row in rows]


LATIN = pa.Array.from_buffers(pa.string(), 2, [None, *pa.array([b"caf\xe9", b"bar"]).buffers()[1:]])


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (([0, 1], ["a", "b"]), ([0, 1], ["b", "a"]), None),
        (([0, 1],), ([0, 1], "no JSON"), "validation.parquet: the metadata `huggingface` on column `label` cannot be"),
        (([0, 1],), ([0, 1], "[1]"), "validation.parquet: the metadata `huggingface`"),
        (([0, 1], ["a", "a"]), ([0, 1],), "train.parquet: the metadata .*twice"),
        (([[0, 1], [1]],), ([0, 1],), "train.parquet: column `label` holds list.*several labels per image"),
        ((LATIN,), (["a", "b"],), "train.parquet, in the .* not UTF-8 .*Latin-1"),
        ((["caf\u00e9", "cafe\u0301"],), (["a", "b"],), "two classes look alike, 'cafe.u0301' and 'caf.xe9'"),
        ((["None", "b"],), (["b", None],), "validation.parquet: rows with a missing"),
        ((["a", " "],), (["a", "a"],), "only one class|rows with a missing"),
        ((["a", "b"],), "no image", "validation.parquet: no column `image` with images"),
        ((["a", "b"],), "twice", "validation.parquet: 2 columns are called `label`"),
        ((["a", "b"],), "cut", "validation.parquet: not a complete Parquet file"),
        ((["a", "b"],), "zeros", "validation.parquet, after row 0: damaged Parquet"),
    ],
)
def test_packed_tables_that_are_not_as_they_should_be_are_named(first, second, message, tmp_path):
    write_packed(tmp_path / "raw/train.parquet", *first)
    other = tmp_path / "raw/validation.parquet"
    if not isinstance(second, str):
        write_packed(other, *second)
    else:
        write_packed(other, ["a", "b"])
        table, whole = pq.read_table(other), other.read_bytes()
        if second == "no image":
            pq.write_table(table.drop(["image"]), other)
        elif second == "twice":
            pq.write_table(table.append_column("label", table["label"]), other)
        else:
            other.write_bytes(whole[:-100] if second == "cut" else whole[:40] + bytes(400) + whole[440:])
    if message is None:
        assert index_of(tmp_path / "raw", tmp_path / "index").classes == ["a", "b"]
    else:
        with pytest.raises(DataError, match=message):
            index_of(tmp_path / "raw", tmp_path / "index")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("path,label,label\na.jpg,x,y\n", "line 2: .*3 values for the columns path, label, label"),
        ("path,label\na,b.jpg,x\n", "line 2: .*3 values for the columns path, label"),
    ],
)
def test_a_table_whose_cells_can_be_read_in_two_ways_is_refused(content, message, tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/train.csv").write_text(content)
    with pytest.raises(DataError, match=message):
        index_of(tmp_path / "raw", tmp_path / "index")


def test_the_order_of_labels_is_the_same_in_every_process():
    """Sets of texts have another order in each: what has the same value needs an order of its own."""
    assert class_names(["10", "1", "9", "01", "\u0661"]) == ["01", "1", "\u0661", "9", "10"]
    assert class_names(["10", "9", "\u00b2"]) == ["10", "9", "\u00b2"], "no number"


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([0, 1, 10], [10.0, 1.0, 0.0], ["0", "1", "10"]),
        ([0, 1, 10], ["1", "0", "10"], ["0", "1", "10"]),
        ([1, 2], [Decimal("1.0"), Decimal("2.0")], ["1", "2"]),
        ([0.5, 1.0], [1, 0.5], ["0.5", "1"]),
        (["1.0", "1.1"], ["1.1", "1.0"], ["1.0", "1.1"]),
        (["1", "2"], ["1.0", "2.0"], "two classes look alike, '1' and '1.0'"),
        ([1.0, 2.0], [1.0, math.nan], "validation.parquet: .*(missing or unknown|no) label"),
    ],
)
def test_equal_numbers_are_one_class_whatever_their_type(first, second, expected, packed, tmp_path):
    (tmp_path / "raw").mkdir()
    for split, labels in (("train", first), ("validation", second)):
        names = [f"{split}-{number}.jpg" for number in range(len(labels))]
        for name in names:
            (tmp_path / "raw" / name).write_bytes(make_jpeg(1))
        images = {"image": [make_jpeg(1) for _ in names]} if packed else {"path": names}
        pq.write_table(pa.table(images | {"label": labels}), tmp_path / f"raw/{split}.parquet")
    if isinstance(expected, str):
        with pytest.raises(DataError, match=expected):
            index_of(tmp_path / "raw", tmp_path / "index")
        return
    index = index_of(tmp_path / "raw", tmp_path / "index")
    assert index.classes == expected
    for split, labels in (("train", first), ("validation", second)):
        shown = [index.classes[label] for label in index.split(split).labels]
        assert shown == [str(label) if isinstance(label, str) else f"{float(label):g}" for label in labels]


def test_a_label_that_is_no_class_is_listed(tmp_path):
    (tmp_path / "raw").mkdir()
    table = pa.table({"image": [make_jpeg(0), make_jpeg(1)], "label": pa.array([0, -1])})
    metadata = {"huggingface": '{"info": {"features": {"label": {"names": ["beagle", "dingo"]}}}}'}
    pq.write_table(table.replace_schema_metadata(metadata), tmp_path / "raw/train.parquet")
    with pytest.raises(DataError, match=r"missing or unknown label: 1\. The classes are 0, 1: give each row one"):
        index_of(tmp_path / "raw", tmp_path / "index")
