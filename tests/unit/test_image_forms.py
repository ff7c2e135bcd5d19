"""Images that others packed are those that their own tools read back, with their classes; damage and half samples are named."""

import io
import tarfile
import zipfile

import h5py
import numpy as np
import pyarrow as pa
import pytest

from parascale.data.named_files import local_folders
from parascale.errors import DataError
from parascale.settings import Source
from tests.unit.image_sets import image_folder, index_of, jpeg

CLASSES = ("cat", "dog", "emu")
SPLITS = {"train": 7, "val": 3}
# (encoded image, label) of each sample.
SAMPLES = {
    split: [(jpeg(10 * count + n, size=8 + n), (2 * n + count) % 3) for n in range(count)]
    for split, count in SPLITS.items()
}


def webdataset(root):
    """Several shards, members as the library writes them: those of one key in a row."""
    for split, samples in SAMPLES.items():
        for shard in range(2):
            with tarfile.open(root / f"birds-{split}-{shard:06d}.tar", "w") as tar:
                for number in range(shard, len(samples), 2):
                    image, label = samples[number]
                    parts = {"cls": str(label).encode(), "JPG": image, "seg.png": b"x", "json": b"{}"}
                    for ending, data in parts.items():
                        member = tarfile.TarInfo(f"some.folder/{number:04d}.{ending}")
                        member.size = len(data)
                        tar.addfile(member, io.BytesIO(data))
    return {split: samples[::2] + samples[1::2] for split, samples in SAMPLES.items()}


def course_hdf5(root):
    """As `save_imagenet_files.py` of the courses writes it, and `ImageNetH5` reads."""
    with h5py.File(root / "ImageNet.h5", "w") as file:
        for split, samples in SAMPLES.items():
            group = file.create_group(split)
            images = group.create_dataset("images", (len(samples),), h5py.vlen_dtype(np.uint8))
            targets = group.create_dataset("targets", (len(samples),), "int16")
            for number, (image, label) in enumerate(samples):
                images[number], targets[number] = np.array(list(image), np.uint8), label
    with h5py.File(root / "ImageNet.h5") as file:
        pairs = {split: zip(file[split]["images"], file[split]["targets"], strict=True) for split in SPLITS}
        return {split: [(bytes(image), int(label)) for image, label in each] for split, each in pairs.items()}


def course_arrow(root):
    """A record batch an image."""
    schema, found = pa.schema([("image_data", pa.binary()), ("label", pa.uint16())]), {}
    for split, samples in SAMPLES.items():
        path = str(root / f"ImageNet_{split}.arrow")
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, schema) as writer:
            for image, label in samples:
                writer.write(pa.record_batch([pa.array([image]), pa.array([label], pa.uint16())], schema=schema))
        reader = pa.ipc.open_file(path)
        rows = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        found[split] = [(row["image_data"][0].as_py(), row["label"][0].as_py()) for row in rows]
    return found


def saved(root):
    import datasets

    kinds = {"image": datasets.Image(decode=False), "label": datasets.ClassLabel(names=list(CLASSES))}
    splits = {}
    for split, samples in SAMPLES.items():
        rows = [{"image": {"bytes": image, "path": None}, "label": label} for image, label in samples]
        splits[split] = datasets.Dataset.from_list(rows, datasets.Features(kinds))
    datasets.DatasetDict(splits).save_to_disk(root, num_shards=dict(zip(SPLITS, (2, 1), strict=True)))
    again = datasets.load_from_disk(root)
    return {split: [(row["image"]["bytes"], row["label"]) for row in again[split]] for split in SPLITS}


def zipped(root):
    """Folders of classes, stored and deflated, below one folder more and with what macOS leaves in a zip."""
    found = {}
    with zipfile.ZipFile(root / "birds.zip", "w") as bundle:
        for split, samples in SAMPLES.items():
            for number, (image, label) in enumerate(samples):
                how = zipfile.ZIP_DEFLATED if number % 2 else zipfile.ZIP_STORED
                bundle.writestr(f"birds/{split}/{CLASSES[label]}/{number}.jpg", image, how)
            bundle.writestr(f"__MACOSX/birds/{split}/cat/._0.jpg", b"x")
            found[split] = sorted(samples, key=lambda sample: sample[1])
    return found


FORMS = {make.__name__: make for make in (webdataset, course_hdf5, course_arrow, saved, zipped)}


@pytest.mark.parametrize("form", FORMS)
def test_images_and_classes_are_those_that_their_own_tool_reads_back(form, tmp_path):
    (tmp_path / "data").mkdir()
    theirs = FORMS[form](tmp_path / "data")
    index = index_of(tmp_path / "data", tmp_path / "index")
    assert list(index.classes) == (list(CLASSES) if form in ("saved", "zipped") else ["0", "1", "2"])
    for split, name in (("train", "train"), ("validation", "val")):
        images = index.split(split)
        found = [(images.read(i), images.labels.item(i)) for i in range(len(images))]
        assert found == theirs[name] and sorted(found) == sorted(SAMPLES[name])
    assert (form == "saved") or len(local_folders(Source(kind="files", location=str(tmp_path / "data")))) > 1


@pytest.mark.parametrize("form", FORMS)
def test_a_file_that_was_cut_short_is_named(form, tmp_path):
    (tmp_path / "data").mkdir()
    FORMS[form](tmp_path / "data")
    pattern = "*train*.*" if form in ("webdataset", "course_arrow") else "*.*"
    path = next(path for path in sorted((tmp_path / "data").rglob(pattern)) if path.suffix != ".json")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match=rf"{path.name}.*(not a complete|damaged)"):
        index_of(tmp_path / "data", tmp_path / "index")


def test_a_set_without_splits_is_held_out_of(tmp_path):
    import datasets

    rows = {"image": [image for image, _ in SAMPLES["train"]], "label": [label for _, label in SAMPLES["train"]]}
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "saved")
    (tmp_path / "zip").mkdir()
    with zipfile.ZipFile(tmp_path / "zip/all.zip", "w") as bundle:
        for number, (image, label) in enumerate(SAMPLES["train"]):
            bundle.writestr(f"{CLASSES[label]}/{number}.jpg", image)
    for form in ("saved", "zip"):
        index = index_of(tmp_path / form, tmp_path / f"index-{form}")
        assert index.splits == ["train", "validation"]
        assert len(index.split("train")) + len(index.split("validation")) == len(SAMPLES["train"])


def test_a_zip_beside_folders_of_classes_is_no_data(tmp_path):
    image_folder(tmp_path / "data")
    (tmp_path / "data/train.zip").write_bytes(b"no zip at all")
    assert index_of(tmp_path / "data", tmp_path / "index").classes == ["cat", "dog"]


def wrong_sample(root):
    with tarfile.open(root / "train.tar", "w") as tar:
        for name in ("0.cls", "0.txt"):
            tar.addfile(tarfile.TarInfo(name))


def uneven(root):
    with h5py.File(root / "a.h5", "w") as file:
        file["train/images"], file["train/targets"] = np.zeros((2, 3), np.uint8), [1]


def unlabelled(root):
    with h5py.File(root / "a.h5", "w") as file:
        file["train/images"] = np.zeros((2, 3), np.uint8)


def pixels(root):
    with h5py.File(root / "a.h5", "w") as file:
        file["train/images"], file["train/targets"] = np.zeros((2, 8, 8, 3), np.uint8), [0, 1]


def twice(root):
    for name in ("a.zip", "b.zip"):
        with zipfile.ZipFile(root / name, "w") as bundle:
            bundle.writestr("train/cat/0.jpg", jpeg())


def like_splits(root):
    with zipfile.ZipFile(root / "birds.zip", "w") as bundle:
        for split in SPLITS:
            for number in range(2):
                bundle.writestr(f"birds/images-{split}/cat/{number}.jpg", jpeg())


def changed_byte(root):
    zipped(root)
    content = bytearray((root / "birds.zip").read_bytes())
    content[200] ^= 1
    (root / "birds.zip").write_bytes(content)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (wrong_sample, r"train\.tar: the sample `0` is not one image with a `\.cls`: it has \.cls, \.txt"),
        (uneven, r"a\.h5, `train`: 2 images, but 1 targets"),
        (unlabelled, r"a\.h5, `train`: `images`, but no `targets`"),
        (pixels, r"a\.h5, `train`: `images` are uint8 of the shape \(2, 8, 8, 3\): pixels"),
        (twice, r"a\.zip, `train` and .*b\.zip, `train` may both be the train split"),
        (like_splits, r"birds\.zip: images-train, images-val look like train and validation"),
        (changed_byte, r"birds\.zip, `train`: not a complete zip file \(Bad CRC-32"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(make, message, tmp_path):
    (tmp_path / "data").mkdir()
    make(tmp_path / "data")
    with pytest.raises(DataError, match=message):
        index_of(tmp_path / "data", tmp_path / "index")
