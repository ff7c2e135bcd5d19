"""What trains is what was proven: changed files, clashing archives and broken inputs end in typed errors or are counted."""

import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from parascale.data.convert import convert, convert_shard
from parascale.data.formats import open_images
from parascale.data.image_sources import index_images
from parascale.data.images import ImageIndex
from parascale.data.sources import readers
from parascale.data.sources.archives import unpack
from parascale.errors import DataError, ParascaleError
from parascale.settings.formats import Formats, Images
from tests.unit.image_sets import image_folder, jpeg, packed_index
from tests.unit.trees import encoded, write_tree, zip_of


def test_archives_that_hold_the_same_name_do_not_overwrite_each_other(tmp_path):
    for number, text in enumerate(("one\n", "two\n")):
        (tmp_path / f"{number}.zip").write_bytes(zip_of({"train.txt": text, "same.txt": "license\n"}))
    (tmp_path / "out").mkdir()
    unpack(tmp_path / "0.zip", "0.zip", tmp_path / "out")
    unpack(tmp_path / "0.zip", "again.zip", tmp_path / "out")
    with pytest.raises(DataError, match=r"1\.zip: its `train\.txt` would replace another"):
        unpack(tmp_path / "1.zip", "1.zip", tmp_path / "out")
    assert (tmp_path / "out/train.txt").read_text() == "one\n"


def loop(root):
    (root / "elsewhere").mkdir()
    (root / "elsewhere/back").symlink_to(root / "train")
    (root / "train/cat/again").symlink_to(root / "elsewhere")


def only_test(root):
    (root / "val").rename(root / "test")
    (root / "train").rename(root / "other")


def two_names(root):
    (root / "dev").mkdir()


def one_image_a_class(root):
    for name in ("cat", "dog"):
        for number in range(1, 6):
            (root / f"train/{name}/{number}.jpg").unlink()
    (root / "val").rename(root / "other")


def nul_in_csv(root):
    (root / "train").rename(root / "images")
    (root / "val").rename(root / "other")
    (root / "train.csv").write_bytes(b"path,label\nimages/cat/0\x00.jpg,cat\n")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (loop, "link leads back to a folder above it"),
        (only_test, "no train split, only test"),
        (two_names, "may both be the validation split"),
        (one_image_a_class, "no class has two images"),
        (nul_in_csv, r"1 files .* are missing: images/cat/0.\.jpg"),
    ],
)
def test_folders_that_cannot_be_meant_are_named(tmp_path, change, message):
    root = image_folder(tmp_path / "raw")
    change(root)
    with pytest.raises(DataError, match=message):
        index_images(root, Images(), tmp_path / "index")


def test_an_excel_table_and_a_dangling_link_are_handled(tmp_path):
    root = image_folder(tmp_path / "raw")
    (root / "train/cat/gone.jpg").symlink_to(root / "nowhere.jpg")
    (root / "train/cat/round").symlink_to(root / "train/cat/round")
    index_images(root, Images(), tmp_path / "index")
    manifest = convert(ImageIndex(tmp_path / "index"), "set", "hdf5", Formats(bad_samples="skip"), tmp_path / "hdf5")
    assert [sample["name"] for sample in manifest["bad"]] == ["train/cat/gone.jpg"]
    table = tmp_path / "table"
    table.mkdir()
    (table / "a.jpg").write_bytes(jpeg(1))
    (table / "train.csv").write_bytes(b"\xef\xbb\xbfpath,label\r\na.jpg,x\r\na.jpg,y\r\n")
    assert index_images(table, Images(validation_fraction=0.0), tmp_path / "other")["classes"] == ["x", "y"]


def test_images_that_training_would_die_of_are_bad_samples_by_default_and_records_are_the_same_again(
    tmp_path, monkeypatch
):
    """A bomb, a picture whose tables are damaged, and what is no image at all; messages hold no address in memory."""
    good = jpeg(1)
    place = good.index(b"\xff\xc4")
    damaged = good[: place + 5] + bytes(12) + good[place + 17 :]
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    samples = [(good, 0), (damaged, 0), (encoded(np.zeros((64, 64), np.uint8)), 1), (b"no image", 1), (jpeg(2), 2)]
    index = packed_index(tmp_path / "index", {"train": samples})
    records = [convert_shard(index, "set", "binary", 0, Formats(threads=2), tmp_path / name) for name in "ab"]
    assert sorted(sample["source"] for sample in records[0]["bad"]) == [1, 2, 3]
    assert records[0] == records[1]


def test_what_a_killed_conversion_left_is_removed_and_a_living_one_is_not(tmp_path):
    code = "import sys, time; from parascale.files import atomic_folder\nwith atomic_folder(sys.argv[1]): print(1, flush=True); time.sleep(60)"
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "shard")], stdout=subprocess.PIPE)
    other.stdout.readline()
    index = packed_index(tmp_path / "index", {"train": [(jpeg(1), 0)]})
    settings = Formats(threads=1)

    def left():
        return list(tmp_path.glob(".shard.*.partial"))

    from parascale.files import atomic_folder

    with atomic_folder(tmp_path / "shard"):
        assert len(left()) == 2
    assert len(left()) == 1
    other.kill()
    other.wait()
    with atomic_folder(tmp_path / "shard"):
        assert len(left()) == 1
    assert not left()
    assert convert(index, "set", "binary", settings, tmp_path / "out")["bad"] == []


def broken(data, random):
    """Bytes with a few of them changed, cut, doubled or filled with others."""
    data = bytearray(data)
    for _ in range(random.integers(1, 4)):
        first, last = sorted(random.integers(0, len(data) + 1, 2))
        kind = random.integers(4)
        if kind == 0 and len(data):
            data[random.integers(len(data))] = random.integers(256)
        elif kind == 1:
            del data[first : min(last, first + 40)]
        elif kind == 2:
            data[first:first] = random.integers(0, 256, 12, np.uint8).tobytes()
        else:
            del data[last:]
    return bytes(data)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_broken_files_end_in_typed_errors_or_counted_exclusions(tmp_path, seed):
    """2,000 of them: texts, rows, tables, archives; and images, of which each is converted or counted, and then decodes."""
    from parascale.data.classes import ClassImages

    random = np.random.default_rng(seed)
    rows = "".join(json.dumps({"text": f"é {n}"}) + "\n" for n in range(5)).encode()
    sources = {"a.txt": "some text\nété\n".encode(), "a.jsonl": rows}
    sources |= {"a.zip": zip_of({"train.txt": "one\n", "a/b.txt": "two\n"})}
    sources |= {"train.csv": b"path,label\nx/0.jpg,a\nx/1.jpg,b\n"}
    for number in range(300):
        name = list(sources)[number % 4]
        folder = tmp_path / str(number)
        write_tree(folder, {name: broken(sources[name], random)})
        try:
            if name == "a.zip":
                (folder / "out").mkdir()
                unpack(folder / name, name, folder / "out")
            elif name == "train.csv":
                index_images(folder, Images(), folder / "index")
            else:
                list(readers.documents(folder / name, "text"))
        except ParascaleError as error:
            assert name in str(error) or str(folder) in str(error)
    png = encoded(np.arange(3 * 256, dtype=np.uint8).reshape(16, 16, 3))
    samples = [(broken(png if n % 3 == 0 else jpeg(n), random), 0) for n in range(200)]
    index = packed_index(tmp_path / "index", {"train": samples}, ("a",))
    manifest = convert(index, "set", "binary", Formats(bad_samples="skip", threads=2), tmp_path / "binary")
    reader = open_images(tmp_path / "binary", "train", check=True)
    assert len(reader) + len(manifest["bad"]) == 200 and len(reader)
    ClassImages(reader, 16).batch(range(len(reader)))
