"""Images are found wherever people keep them, labelled right, and split once and for all."""

import io
import os
import re
import unicodedata

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import ExifTags, Image

from parascale.data.convert import convert
from parascale.data.formats import open_images
from parascale.errors import DataError
from parascale.settings.formats import Formats
from tests.unit.image_sets import image_folder, index_of
from tests.unit.image_sets import jpeg as make_jpeg
from tests.unit.trees import encoded, write_tree


def test_a_folder_of_classes(tmp_path):
    index = index_of(image_folder(tmp_path / "raw"), tmp_path / "index")
    train = index.split("train")
    assert index.classes == ["cat", "dog"] and index.splits == ["train", "validation"]
    assert (len(train), len(index.split("validation"))) == (12, 4)
    assert [train.name(i).split("/")[:2] for i in (0, 11)] == [["train", "cat"], ["train", "dog"]]
    assert train.labels.tolist() == [0] * 6 + [1] * 6
    assert all(len(train.read(i)) == train.lengths[i] for i in range(12))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("labels", [["dog", "cat", "dog"], ["10", "9", "10"]])
def test_a_table_of_paths_and_labels(kind, labels, tmp_path):
    names = ["a/one.jpg", "two.jpg", "a/b/three.jpg"]
    write_tree(tmp_path / "raw", {name: make_jpeg(seed) for seed, name in enumerate(names)})
    write_table(tmp_path / f"raw/train.{kind}", names, labels)
    index = index_of(tmp_path / "raw", tmp_path / "index", validation_fraction=0.0)
    train = index.split("train")
    assert [train.name(i) for i in range(3)] == names
    assert [index.classes[label] for label in train.labels] == labels
    assert index.classes == sorted(set(labels), key=lambda label: (len(label), label)), "numbers in order of size"


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_rows_without_label_and_files_that_are_not_there_are_listed(kind, tmp_path):
    (tmp_path / "raw").mkdir()
    write_table(tmp_path / f"raw/train.{kind}", ["a.jpg", "b.jpg", "c.jpg"], ["x", "", None])
    with pytest.raises(DataError, match="2 rows have no label: 2, 3"):
        index_of(tmp_path / "raw", tmp_path / "index")
    write_table(tmp_path / f"raw/train.{kind}", ["a.jpg", "b.jpg"], ["x", "y"])
    with pytest.raises(DataError, match=r"2 files .* missing: a\.jpg, b\.jpg"):
        index_of(tmp_path / "raw", tmp_path / "index")
    write_table(tmp_path / f"raw/train.{kind}", ["a.jpg"], ["x"], columns=("file", "label"))
    with pytest.raises(DataError, match=r"no column `path` .it has file, label.; set .*path: …, label: …"):
        index_of(tmp_path / "raw", tmp_path / "index")


def test_parquet_that_holds_the_images_as_the_hub_has_it(tmp_path):
    """Struct of bytes and path, whole numbers as labels, names in Hugging Face's metadata, several files."""
    (tmp_path / "raw").mkdir()
    images = [make_jpeg(seed) for seed in range(6)]
    rows = [{"bytes": image, "path": f"{seed}.jpg"} for seed, image in enumerate(images)]
    for number in range(2):
        table = pa.table({"image": rows[number * 3 : number * 3 + 3], "label": pa.array([1, 0, 1], pa.int64())})
        metadata = {"huggingface": '{"info": {"features": {"label": {"names": ["beagle", "dingo"]}}}}'}
        pq.write_table(table.replace_schema_metadata(metadata), tmp_path / f"raw/train-{number:05d}-of-00002.parquet")
    index = index_of(tmp_path / "raw", tmp_path / "index", validation_fraction=0.0)
    train = index.split("train")
    assert index.classes == ["beagle", "dingo"]
    assert [train.read(i) for i in range(6)] == images and train.labels.tolist() == [1, 0, 1] * 2


def test_images_held_out_of_packed_parquet_can_be_read(tmp_path):
    (tmp_path / "raw").mkdir()
    images = [make_jpeg(seed) for seed in range(6)]
    pq.write_table(pa.table({"image": images, "label": ["a", "b"] * 3}), tmp_path / "raw/train.parquet")
    index = index_of(tmp_path / "raw", tmp_path / "index", validation_fraction=0.3)
    read = {split: [part.read(i) for i in range(len(part))] for split in index.splits for part in [index.split(split)]}
    assert len(read["validation"]) == 2 and sorted(read["train"] + read["validation"]) == sorted(images)


def test_a_name_that_is_not_utf8_is_read_and_shown(tmp_path):
    """The filesystem's bytes are kept, whatever they are; messages show them escaped."""
    root = image_folder(tmp_path / "raw")
    odd = os.fsencode(root) + b"/train/cat/\xff\xfe.jpg"
    with open(odd, "wb") as file:
        file.write(b"")
    index = index_of(root, tmp_path / "index")
    with pytest.raises(DataError, match=r"cat/\\xff\\xfe\.jpg: the file is empty"):
        convert(index, "set", "hdf5", Formats(threads=2), tmp_path / "hdf5")
    with open(odd, "wb") as file:
        file.write(make_jpeg(99))
    index = index_of(root, tmp_path / "index")
    convert(index, "set", "files", Formats(threads=2), tmp_path / "files")
    reader = open_images(tmp_path / "files", "train")
    assert odd in [reader.path(i) for i in range(len(reader))]
    assert make_jpeg(99) in list(reader.iterate(0))


def test_a_class_without_images_and_one_that_training_lacks_are_errors(tmp_path):
    root = image_folder(tmp_path / "raw")
    (root / "val/bird").mkdir()
    (root / "val/bird/a.jpg").write_bytes(make_jpeg(1))
    with pytest.raises(DataError, match="classes that the train split does not have: bird"):
        index_of(root, tmp_path / "index")
    (root / "train/bird").mkdir()
    with pytest.raises(DataError, match="train/bird: a class without images"):
        index_of(root, tmp_path / "index")
    with pytest.raises(DataError, match="no folders of classes here"):
        index_of(root / "val/bird", tmp_path / "index")
    with pytest.raises(DataError, match="no such folder"):
        index_of(tmp_path / "nothing", tmp_path / "index")


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["set/{}/a/0.jpg", "set/{}/b/0.jpg", "more/0.jpg"], "raw/set: holds splits .*set `data.source.location` to"),
        (["cat/{}/0.jpg", "dog/{}/0.jpg"], "raw/cat: holds splits"),
        (["set/Train/0.jpg", "set/TEST/0.jpg", "more/0.jpg"], "raw/set: holds splits"),
        (["set/{}-00000-of-00001.parquet", "set/0.jpg", "more/0.jpg"], "raw/set: holds splits"),
        (["set/{}.csv", "set/x/0.jpg", "more/0.jpg"], "raw/set: holds splits"),
        (["train/a/{}/0.jpg", "train/b/0.jpg"], "train/a: holds splits"),
        (["flowers/rose/0.jpg", "flowers/tulip/0.jpg"], "only one class, `flowers`.*the folder that holds the classes"),
        (["{}/images/0.jpg"], "only one class, `images`"),
        (["train/cat/0.tiff", "train/dog/0.jfif"], r"train/cat: a class without images.*\.jfif.*LMDB"),
        (["train/caf\u00e9/0.jpg", "train/b/0.jpg", "val/cafe\u0301/0.jpg"], "two classes look alike"),
        (["images-{}/0.jpg"], "images-train, images-val look like train and validation"),
        (["data.mdb", "lock.mdb"], "no folders of classes here.*LMDB"),
    ],
)
def test_what_nearly_is_a_known_arrangement_is_refused(paths, message, tmp_path):
    places = {path.format(split) for path in paths for split in ("train", "val")}
    write_tree(tmp_path / "raw", dict.fromkeys(places, make_jpeg()))
    with pytest.raises(DataError, match=message):
        index_of(tmp_path / "raw", tmp_path / "index")


def test_a_part_is_held_out_where_there_is_no_validation(tmp_path):
    """From each class, the same for the same seed, nothing lost; a class with one image stays in training and is noted."""
    counts = {"many": 20, "few": 2, "single": 1}
    images = {f"{name}/{n}.jpg": make_jpeg(n) for name, count in counts.items() for n in range(count)}
    write_tree(tmp_path / "raw", images)
    index = index_of(tmp_path / "raw", tmp_path / "index", validation_fraction=0.2, seed=3)
    per_class = [index.manifest["splits"][split]["per_class"] for split in ("train", "validation")]
    assert per_class == [[1, 16, 1], [1, 4, 0]]
    assert any("have one image" in note and "single. Add images, or" in note for note in index.manifest["notes"])
    names = [index.split(split).name(i) for split in index.splits for i in range(len(index.split(split)))]
    assert len(set(names)) == 23
    again = index_of(tmp_path / "raw", tmp_path / "again", validation_fraction=0.2, seed=3)
    other = index_of(tmp_path / "raw", tmp_path / "other", validation_fraction=0.2, seed=4)
    assert again.split("validation").digest == index.split("validation").digest != other.split("validation").digest


def write_table(path, names, labels, columns=("path", "label")):
    """A CSV or Parquet table of two columns."""
    if path.suffix == ".csv":
        rows = [",".join(columns), *(f"{name},{label or ''}" for name, label in zip(names, labels, strict=True))]
        path.write_text("\n".join(rows) + "\n")
    else:
        pq.write_table(pa.table(dict(zip(columns, (names, labels), strict=True))), path)


@pytest.mark.parametrize("packed", [False, True])
def test_images_that_a_camera_turned_are_counted(packed, tmp_path):
    """Orientation is applied by no decoder, as torchvision applies none; the index says how many images have one."""
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    kinds = [(name, {"exif": turned}) for name in ("JPEG", "PNG", "WEBP")] + [("JPEG", {}), ("PNG", {})]
    images = [encoded(Image.open(io.BytesIO(make_jpeg(seed))), name, **how) for seed, (name, how) in enumerate(kinds)]
    (tmp_path / "raw").mkdir()
    if packed:
        table = pa.table({"image": images * 2, "label": ["a"] * 5 + ["b"] * 5})
        pq.write_table(table, tmp_path / "raw/train.parquet")
    else:
        names = [f"{seed}.{name.lower()}" for seed, (name, _) in enumerate(kinds)]
        for label in "ab":
            write_tree(tmp_path / "raw/train" / label, dict(zip(names, images, strict=True)))
    notes = index_of(tmp_path / "raw", tmp_path / "index", validation_fraction=0.0).manifest["notes"]
    assert [note[:51] for note in notes] == ["train: 6 of 10 images looked at have an orientation"]


@pytest.mark.parametrize(("bits", "levels"), [(10, 4), (12, 16), (16, None)])
def test_pngs_of_16_bits_that_hold_fewer_are_noted(bits, levels, tmp_path):
    ramp = encoded(np.linspace(0, 2**bits - 1, 4096).astype(np.uint16).reshape(64, 64))
    write_tree(tmp_path / "raw/train", dict.fromkeys(("a/0.png", "a/1.png", "b/0.png", "b/1.png"), ramp))
    notes = index_of(tmp_path / "raw", tmp_path / "index", validation_fraction=0.0).manifest["notes"]
    said = f"train: 4 of 4 images checked are 16-bit PNGs .* {levels} of 256 levels"
    assert (not notes) if levels is None else re.match(said, *notes)


@pytest.mark.parametrize(("named", "there"), [("NFD", "NFC"), ("NFC", "NFD")])
def test_a_table_finds_files_whose_names_compose_letters_otherwise(named, there, tmp_path):
    names = ["é/ö.jpg", "é/ü.jpg"]
    write_tree(tmp_path / "raw", {unicodedata.normalize(there, name): make_jpeg() for name in names})
    write_table(tmp_path / "raw/train.csv", [unicodedata.normalize(named, name) for name in names], ["x", "y"])
    train = index_of(tmp_path / "raw", tmp_path / "index", validation_fraction=0.0).split("train")
    assert [train.read(i) for i in range(2)] == [make_jpeg()] * 2


def test_splits_in_capitals_are_no_classes(tmp_path):
    root = image_folder(tmp_path / "raw")
    (root / "train").rename(root / "Train")
    (root / "val").rename(root / "VAL")
    index = index_of(root, tmp_path / "index")
    assert (index.classes, index.splits) == (["cat", "dog"], ["train", "validation"])
    write_table(root / "test.csv", ["Train/cat/0.jpg"], ["cat"])
    with pytest.raises(DataError, match="a folder for train, validation, but a table for test"):
        index_of(root, tmp_path / "index")
