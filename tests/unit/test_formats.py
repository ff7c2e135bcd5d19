"""Every format gives back what went in: all samples, exactly, in every way of reading."""

import json
import os
import shutil
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from parascale.data.classes import ClassImages
from parascale.data.convert import RECORD, convert, convert_shard, shard_samples
from parascale.data.formats import image_format, open_images
from parascale.data.formats.base import BlockWriter
from parascale.data.image_sources import index_images
from parascale.data.images import ImageIndex
from parascale.data.verify import verify_images
from parascale.errors import ConfigError
from parascale.files import read_json, sha256
from parascale.settings.formats import Formats, Images
from tests.unit.image_sets import FORMATS, image_folder, jpeg, packed_index
from tests.unit.trees import encoded, write_tree

ANY_BYTES = Formats(check="none", threads=4)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """70 training and 7 validation images, packed."""
    train, validation = ([(jpeg(first + n), n % 3) for n in range(count)] for first, count in ((0, 70), (100, 7)))
    return packed_index(tmp_path_factory.mktemp("source") / "index", {"train": train, "validation": validation})


@pytest.fixture(scope="module")
def converted(source, tmp_path_factory):
    """format → folder, converted once for the whole module in three shards."""
    root, made = tmp_path_factory.mktemp("converted"), {}

    def get(name):
        if name not in made:
            convert(source, "set", name, Formats(shards=3, threads=4), root / name)
            made[name] = root / name
        return made[name]

    return get


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_proven_identical_to_its_source(name, source, converted):
    result = verify_images(converted(name), source, "set", Formats())
    assert result == {"format": name, "dataset": "set", "samples": 77, "bad": 0, "identical": True}
    assert read_json(converted(name) / "manifest.json")["inodes"] == inodes_of(converted(name))


def test_files_that_stay_where_they_lie_are_counted_with_their_folders(tmp_path):
    root = image_folder(tmp_path / "raw")
    index_images(root, Images(), tmp_path / "index")
    manifest = convert(ImageIndex(tmp_path / "index"), "set", "files", Formats(shards=2, threads=2), tmp_path / "files")
    assert manifest["inodes"] == inodes_of(tmp_path / "files") + inodes_of(root)


def inodes_of(folder):
    """Files and folders of a tree, its own folder among them."""
    return 1 + sum(1 for _ in folder.rglob("*"))


@pytest.mark.filterwarnings("ignore:.*read at random")
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("io", ["pread", "mmap"])
def test_every_way_of_reading_gives_the_same_bytes(name, io, source, converted):
    reader, images = open_images(converted(name), "train", io, check=True), source.split("train")
    numbers = reader.samples["source"].tolist()
    assert numbers == [i for shard in range(3) for i in shard_samples(images, shard, 3, Formats().seed)]
    expected = [images.read(number) for number in numbers]
    order = np.random.default_rng(0).permutation(len(reader)).tolist()
    assert [reader[i] for i in order] == [expected[i] for i in order]
    views = [reader.view(i) for i in order]
    assert [bytes(data) for data in reader.read_batch(order)] == [expected[i] for i in order]
    assert [bytes(data) for shard in range(3) for data in reader.iterate(shard)] == expected
    assert reader.labels.tolist() == images.labels[numbers].tolist()
    assert [len(rows) for rows in reader.shards()] == [23, 23, 24]
    kept = [len(value) for value in vars(reader).values() if isinstance(value, (list, tuple, dict, set))]
    assert max(kept) < 20, "no objects a sample"
    for read in (reader.__getitem__, reader.view):
        reader.close()
        again = bytes(read(3))
        assert again == expected[3], "a closed reader opens again"
    reader.close()
    seen = list(map(bytes, views))
    assert seen == [expected[i] for i in order], "what was seen stays"
    views.clear()
    assert not held_in(converted(name)), "a process may open only so many files"


@pytest.mark.parametrize("name", FORMATS)
def test_a_rebuild_gives_the_same_bytes_whatever_the_threads(name, source, converted, tmp_path):
    convert(source, "set", name, Formats(shards=3, threads=1), tmp_path / name)
    files = [path for path in (tmp_path / name).rglob("*") if path.is_file() and path.name != "cost.json"]
    assert len(files) >= 3 * 5 + 3
    for file in files:
        assert sha256(file) == sha256(converted(name) / file.relative_to(tmp_path / name)), file


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=3000), st.integers(0, 2)), min_size=1, max_size=40),
    st.integers(1, 5),
)
@pytest.mark.parametrize("name", FORMATS)
def test_any_bytes_come_back_exactly(name, tmp_path, samples, shards):
    """Any content, any lengths, shards that are empty: all of it comes back, with its label, exactly once."""
    shutil.rmtree(tmp_path)
    index = packed_index(tmp_path / "index", {"train": samples})
    choice = Formats(check="none", threads=2, shards=shards)
    convert(index, "any", name, choice, tmp_path / name)
    assert verify_images(tmp_path / name, index, "any", choice)["samples"] == len(samples)


@given(st.integers(1, 400), st.integers(1, 20), st.integers(0, 5))
def test_shards_hold_every_sample_once_and_differ_by_one_at_most(samples, shards, seed):
    parts = [shard_samples(range(samples), number, shards, seed) for number in range(shards)]
    assert np.concatenate(parts).tolist() == np.random.default_rng([seed, samples]).permutation(samples).tolist()
    assert sorted(np.concatenate(parts).tolist()) == list(range(samples))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_samples_are_shuffled_so_that_batches_mix_classes(tmp_path):
    """A set sorted by class, as folders are, must not be read class by class."""
    samples = [(b"x", label) for label in range(10) for _ in range(100)]
    index = packed_index(tmp_path / "index", {"train": samples}, classes="abcdefghij")
    convert(index, "sorted", "binary", ANY_BYTES, tmp_path / "binary")
    labels = open_images(tmp_path / "binary", "train").labels
    assert min(len(set(labels[first : first + 64].tolist())) for first in range(0, 900, 64)) >= 8


def test_conversion_goes_on_shard_by_shard(source, tmp_path):
    """After an interruption, only what is missing is written again; after a change of settings, all of it."""
    choice, folder = Formats(shards=3, threads=2), tmp_path / "hdf5"
    convert_shard(source, "set", "hdf5", 1, choice, folder)
    record = folder / choice.shard(1) / RECORD
    written = record.stat().st_mtime_ns
    convert(source, "set", "hdf5", choice, folder)
    assert record.stat().st_mtime_ns == written
    (folder / choice.shard(1) / "train.h5").write_bytes(b"cut")
    convert(source, "set", "hdf5", choice, folder)
    assert record.stat().st_mtime_ns != written
    again = record.stat().st_mtime_ns
    convert(source, "set", "hdf5", Formats(shards=3, threads=2, seed=7), folder)
    assert record.stat().st_mtime_ns != again
    verify_images(folder, source, "set", choice)


def test_a_training_on_parquet_is_warned_of_random_access(tmp_path):
    index = packed_index(tmp_path / "index", {"train": [(jpeg(number), number % 3) for number in range(6)]})
    convert(index, "many", "parquet", ANY_BYTES, tmp_path / "parquet")
    with pytest.warns(UserWarning, match="read at random"):
        ClassImages(open_images(tmp_path / "parquet", "train"), 16).batch([4, 0])


def test_an_unknown_format_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean `hdf5`"):
        image_format("hfd5")


def test_tables_say_what_hugging_face_shows_and_members_of_a_tar_are_named_as_their_sources(tmp_path):
    """`datasets` takes features from the schema where its types are theirs; WebDataset takes what follows the first dot as extension."""
    root, long = tmp_path / "raw", "n" * 120
    names = ("cat/a.b.jpg", "cat/a.b.png", "cat/a_b.jpeg", f"dog/{long}.JPEG", f"dog/{long}1.jpg")
    image = Image.new("RGB", (8, 8))
    write_tree(root / "train", {name: encoded(image, "PNG" if "png" in name else "JPEG") for name in names})
    shutil.copytree(root / "train", root / "val")
    index_images(root, Images(), tmp_path / "index")
    for name in ("arrow", "parquet", "webdataset"):
        convert(ImageIndex(tmp_path / "index"), "set", name, Formats(threads=2), tmp_path / name)
    schemas = [pa.ipc.open_file(next((tmp_path / "arrow").rglob("train*.arrow"))).schema]
    schemas.append(pq.read_schema(next((tmp_path / "parquet").rglob("train*.parquet"))))
    for schema in schemas:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        assert features["label"] == {"names": ["cat", "dog"], "_type": "ClassLabel"}
        assert schema.field("label").type == pa.int64()
        assert features["image"] == {"_type": "Image"} and list(features) == schema.names
        assert schema.field("image").type == pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    with tarfile.open(next((tmp_path / "webdataset").rglob("train*.tar"))) as archive:
        names = archive.getnames()
    keys, extensions = zip(*(os.path.splitext(name) for name in names), strict=True)
    assert sorted(extensions) == [".cls"] * 5 + [".jpg"] * 4 + [".png"]
    assert keys[::2] == keys[1::2] and len({*keys}) == 5 and all("." not in key for key in keys)
    assert f"train/dog/{long}" in keys and "train/cat/a_b" in keys


def test_a_write_that_takes_only_a_part_is_continued(tmp_path, monkeypatch):
    """As a filesystem may at any size, and Linux does above 2 GiB."""
    whole = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda file, parts, place: whole(file, [b"".join(parts)[:5]], place))
    with BlockWriter(tmp_path / "block", None, 0) as writer:
        places = [writer.put(data) for data in (b"abc", b"defgh", b"ij")]
        writer.finish()
    assert places == [0, 3, 8] and (tmp_path / "block").read_bytes() == b"abcdefghij"


def held_in(folder):
    """Files of samples in a folder that this process holds open; their table stays mapped."""
    held = (os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))
    return [path for path in held if path.startswith(f"{folder.resolve()}/") and not path.endswith(".npy")]
