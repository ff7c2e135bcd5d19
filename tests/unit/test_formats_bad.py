"""What can be wrong with data is found, named, and answered with what to do; nothing half-right is handed on."""

import dataclasses
import shutil
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from parascale.data.benchmark import benchmark
from parascale.data.convert import convert, convert_shard
from parascale.data.formats import open_images, squashfs, storage
from parascale.data.image_sources import index_images
from parascale.data.images import ImageIndex
from parascale.data.verify import verify_images
from parascale.errors import PERMANENT_FAILURE, ConfigError, DataError, RequirementError
from parascale.files import read_json
from parascale.settings.formats import Formats, Images, Loaders
from parascale.settings.workload import ImageTraining
from tests.command import parascale
from tests.made_up.project import write_one
from tests.unit.image_sets import FORMATS, image_folder, jpeg, packed_index

GOOD = jpeg(1)
BAD_SAMPLES = [
    pytest.param(b"", "the file is empty", id="empty"),
    pytest.param(GOOD[:-40], "no end-of-image marker", id="truncated in its pixels"),
    pytest.param(GOOD[:100], "within its header", id="truncated in its header"),
    pytest.param(b"<html>not found</html>", "not a readable image", id="another file under an image's name"),
]
SKIP = Formats(bad_samples="skip", threads=2)


@pytest.fixture
def mixed(tmp_path):
    """Builds an index of good samples with the given bytes as number 3."""

    def build(data):
        samples = [(jpeg(seed), seed % 3) for seed in range(12)]
        samples[3] = (data, 0)
        return packed_index(tmp_path / "index", {"train": samples})

    return build


@pytest.fixture
def made(tmp_path):
    """A good set in HDF5, its index, and its folder."""
    index = packed_index(tmp_path / "index", {"train": [(jpeg(seed), seed % 3) for seed in range(12)]})
    convert(index, "set", "hdf5", Formats(threads=2), tmp_path / "hdf5")
    return index, tmp_path / "hdf5"


@pytest.mark.parametrize(("data", "reason"), BAD_SAMPLES)
@pytest.mark.parametrize("name", FORMATS)
def test_a_bad_sample_can_be_left_out_and_is_listed(data, reason, name, mixed, tmp_path):
    index = mixed(data)
    manifest = convert(index, "set", name, SKIP, tmp_path / name)
    assert [(sample["name"], sample["source"]) for sample in manifest["bad"]] == [("train/3", 3)]
    assert reason in manifest["bad"][0]["reason"]
    assert verify_images(tmp_path / name, index, "set", SKIP) == {
        "format": name, "dataset": "set", "samples": 11, "bad": 1, "identical": True,
    }  # fmt: skip


@pytest.mark.parametrize("shards", [1, 4])
def test_one_bad_sample_loses_no_work(shards, mixed, tmp_path):
    """The list comes at the end, and whatever is answered to it, no shard is converted again."""
    index, choice = mixed(b""), Formats(shards=shards, threads=2)
    said = r"1 bad samples:\n  train, train/3(.|\n)*bad_samples: skip.*remove the folder of"
    with pytest.raises(DataError, match=said):
        convert(index, "set", "hdf5", choice, tmp_path / "hdf5")
    assert not (tmp_path / "hdf5/manifest.json").exists()
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "hdf5").glob("*/*")}
    assert len(written) == 4 * shards
    assert not list((tmp_path / "hdf5").glob(".*")), "nothing half-written is left"
    manifest = convert(index, "set", "hdf5", dataclasses.replace(choice, bad_samples="skip"), tmp_path / "hdf5")
    assert [sample["name"] for sample in manifest["bad"]] == ["train/3"]
    with pytest.raises(DataError, match="train/3"):
        convert(index, "set", "hdf5", choice, tmp_path / "hdf5")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "hdf5").glob("*/*")} == written


def test_a_job_of_a_shard_succeeds_and_says_what_was_bad(mixed, tmp_path):
    """Snakemake removes the record of a job that fails, and with it the proof that the shard is there."""
    folder = tmp_path / "results/data/set"
    shutil.copytree(mixed(b"").folder, folder / "index")
    text = "task: classification\nmodel: {kind: xresnet, norm: batch}\ntraining: {steps: 1}\n"
    project = [*write_one(tmp_path, "set", text), "--config", "formats={shards: 2, threads: 2}"]

    def run(*more):
        done = parascale("data", "convert", "--dataset", "set", "--format", "hdf5", *project, *more)
        return done.returncode, done.stdout, done.stderr

    shards = [run("--shard", str(number)) for number in range(2)]
    assert [code for code, _, _ in shards] == [0, 0]
    bad = "dataset `set`: 1 bad samples:\n  train, train/3: the file is empty\n"
    assert sorted(out for _, out, _ in shards) == ["", bad]
    for part in (["--gather"], []):
        code, _, complaint = run(*part)
        assert code == PERMANENT_FAILURE and "train, train/3: the file is empty" in complaint
    assert run("--gather", "--config", "formats={bad_samples: skip}")[0] == 0
    assert read_json(folder / "hdf5/manifest.json")["bad"][0]["name"] == "train/3"


@pytest.mark.parametrize(
    ("mode", "check", "spaces"),
    [
        ("L", "decode", {"grey": 1, "colour": 11}),
        ("CMYK", "header", {"CMYK": 1, "colour": 11}),
        ("L", "none", {"unknown": 12}),
    ],
)
def test_grey_and_cmyk_images_are_kept_and_counted(mode, check, spaces, mixed, tmp_path):
    """They decode to RGB like any other; the manifest says that they are there, if they were looked at."""
    choice = Formats(threads=2, check=check)
    manifest = convert(mixed(jpeg(5, mode=mode)), "set", "hdf5", choice, tmp_path / "hdf5")
    assert manifest["splits"]["train"]["shards"][0]["colour_spaces"] == spaces


def test_a_flipped_byte_is_found_when_read_and_when_verified(made):
    index, folder = made
    row = open_images(folder, "train").samples[5]
    shard = folder / open_images(folder, "train").manifest["splits"]["train"]["shards"][0]["file"]
    content = bytearray(shard.read_bytes())
    content[row["offset"] + row["length"] // 2] ^= 1
    shard.write_bytes(content)
    reader = open_images(folder, "train", check=True)
    assert reader[4] == open_images(folder, "train")[4]
    reads = lambda: reader[5], lambda: reader.view(5), lambda: reader.read_batch([1, 5]), lambda: [*reader.iterate(0)]
    for read in reads:
        with pytest.raises(DataError, match=rf"sample 5 \(number {row['source']} .*checksum differs"):
            read()
    with pytest.raises(DataError, match="sha256 differs") as caught:
        verify_images(folder, index, "set", Formats())
    assert f"is not train/{row['source']}: read, read by the format's own library" in str(caught.value)


def test_a_shard_cut_short_or_gone_is_named_when_opened(made):
    _, folder = made
    shard = folder / read_json(folder / "manifest.json")["splits"]["train"]["shards"][0]["file"]
    shard.write_bytes(shard.read_bytes()[:-1])
    said = rf"train\.h5 is cut short.*remove {shard.parent} and {folder}/\*\.json, and run"
    with pytest.raises(DataError, match=said):
        open_images(folder, "train")
    shard.unlink()
    with pytest.raises(DataError, match=r"train\.h5 is missing"):
        open_images(folder, "train")


@pytest.mark.parametrize(
    ("content", "said"), [(None, "no converted data here"), ("{", "not valid JSON"), ("{}", "of another version")]
)
def test_a_manifest_that_is_none_is_named(content, said, tmp_path):
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(DataError, match=said):
        open_images(tmp_path, "train")


def test_an_unknown_split_or_shard_is_named(made, tmp_path):
    index, folder = made
    with pytest.raises(DataError, match="no split `test`; there are train"):
        open_images(folder, "test")
    with pytest.raises(ConfigError, match="no shard 4"):
        convert_shard(index, "set", "hdf5", 4, Formats(shards=4), tmp_path / "more")
    other = packed_index(tmp_path / "other", {"train": [(jpeg(50), 0), (jpeg(51), 1)]})
    with pytest.raises(DataError, match="converted from another source than other"):
        verify_images(folder, other, "other", Formats())


def test_a_table_of_samples_that_was_changed_is_found(made):
    index, folder = made
    table = np.load(folder / "train.samples.npy")
    np.save(folder / "train.samples.npy", table[:-1])
    with pytest.raises(DataError, match="11 rows instead of 12"):
        open_images(folder, "train")
    table["label"][2] += 1
    np.save(folder / "train.samples.npy", table)
    with pytest.raises(DataError, match=r"samples\.npy: its sha256 differs(.|\n)*is not train/\d+: label"):
        verify_images(folder, index, "set", Formats())


def test_without_the_programs_of_squashfs_or_fuse_the_error_says_what_to_do(mixed, tmp_path, monkeypatch):
    monkeypatch.setattr(squashfs.shutil, "which", lambda program: None)
    with pytest.raises(RequirementError, match="squashfs-tools"):
        convert(mixed(GOOD), "set", "squashfs", Formats(threads=2), tmp_path / "squashfs")
    with pytest.raises(RequirementError, match=r"squashfuse, which is not on the PATH: .*hdf5"):
        squashfs.require_fuse()
    monkeypatch.setattr(squashfs.shutil, "which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(squashfs.os, "access", lambda path, mode: False)
    with pytest.raises(RequirementError, match="/dev/fuse is missing"):
        squashfs.require_fuse()


@pytest.mark.skipif(shutil.which("squashfuse") is None, reason="no squashfuse")
def test_a_file_that_is_no_squashfs_is_named(tmp_path):
    (tmp_path / "broken.squashfs").write_bytes(bytes(5000))
    with pytest.raises(RequirementError, match=r"broken\.squashfs could not be mounted"):
        squashfs.Mount(tmp_path / "broken.squashfs")


def test_a_copy_that_does_not_fit_shared_memory_is_refused(made, tmp_path, monkeypatch):
    _, folder = made
    monkeypatch.setattr(storage, "tree_bytes", lambda path: 1 << 60)
    with pytest.raises(RequirementError, match=r"not enough room in .*loaders\.shared_memory"):
        storage.require_room(folder, tmp_path)
    assert not list(tmp_path.glob("parascale-*"))
    monkeypatch.setattr("parascale.data.benchmark._run", None)  # nothing is measured before
    with pytest.raises(RequirementError, match="not enough room in /dev/shm"):
        benchmark("set", [folder], Loaders(shared_memory=True), ImageTraining())


def test_a_copy_in_shared_memory_reads_the_same(made, tmp_path):
    _, folder = made
    with storage.copy_in_memory(folder, tmp_path) as copy:
        copied, there = (open_images(place, "train") for place in (copy, folder))
        assert copy != folder and [copied[i] for i in range(12)] == [there[i] for i in range(12)]
    assert not copy.parent.exists()


@pytest.mark.parametrize(
    ("mounts", "path", "kind"),
    [
        ("/dev/a / ext4 rw 0 0\nx /data lustre rw 0 0\n", "/data/set", "lustre"),
        ("/dev/a / ext4 rw 0 0\nx /data lustre rw 0 0\n", "/database", "ext4"),
        ("/dev/a / ext4 rw 0 0\nx /my\\040data fuse.sshfs rw 0 0\n", "/my data/set", "fuse.sshfs"),
    ],
)
def test_the_filesystem_is_found_and_decides_how_to_read(mounts, path, kind, tmp_path, monkeypatch):
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mounts").write_text(mounts)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=1 << 34))
    assert storage.filesystem(path) == kind
    assert storage.default_io(path, 1000) == ("mmap" if kind == "ext4" else "pread")
    assert storage.default_io(path, 1 << 60) == "pread", "what does not stay in memory is not mapped"


def test_a_vanished_file_is_named_at_conversion_and_when_read(tmp_path):
    root = image_folder(tmp_path / "raw")
    index_images(root, Images(), tmp_path / "index")
    index = ImageIndex(tmp_path / "index")
    for name in ("files", "arrow"):
        convert(index, "set", name, Formats(threads=2), tmp_path / name)
    (root / "train/dog/2.jpg").unlink()
    (root / "train/dog/3.jpg").write_bytes(GOOD + b"more")
    (root / "train/dog/4.jpg").write_bytes((root / "train/dog/4.jpg").read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match=r"train/dog/2\.jpg: the source can no longer be read"):
        verify_images(tmp_path / "arrow", index, "set", Formats())
    with pytest.raises(DataError, match=r"train/dog/2\.jpg: it cannot be read \(No such file") as caught:
        convert(index, "set", "hdf5", Formats(threads=2), tmp_path / "hdf5")
    assert "changed since it was indexed" in str(caught.value)
    reader = open_images(tmp_path / "files", "train")
    places = {reader.path(i).decode().rsplit("/", 1)[1]: i for i in range(len(reader)) if b"dog" in reader.path(i)}
    with pytest.raises(DataError, match=r"train/dog/2\.jpg: No such file.*run the target `formats` again"):
        reader[places["2.jpg"]]
    for name in ("3.jpg", "4.jpg"):
        with pytest.raises(DataError, match=rf"train/dog/{name}: .*checksum differs.*run the target `formats` again"):
            reader[places[name]]
