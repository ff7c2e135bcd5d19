"""ImageNet's official tar files are read where they lie, and whole or not at all."""

import tarfile

import pytest

from parascale.data import imagenet
from parascale.data.convert import convert
from parascale.errors import DataError
from parascale.settings.formats import Formats
from tests.unit.image_sets import image_folder, index_of
from tests.unit.image_sets import jpeg as make_jpeg
from tests.unit.trees import tar_of, write_tree


def imagenet_tars(root):
    """The official tar files, small: two classes of three images, and two validation images; returns name → bytes."""
    content = {name: {f"{name}_{i}.JPEG": make_jpeg(i + len(name)) for i in range(3)} for name in ("n02", "n01")}
    inner = {f"{name}.tar": tar_of(images, "w") for name, images in content.items()}
    content["val"] = {f"ILSVRC2012_val_{i}.JPEG": make_jpeg(90 + i) for i in (1, 2)}
    lines = "ImageId,PredictionString\nILSVRC2012_val_2,n02 1 2 3 4\nILSVRC2012_val_1,n01 1 2 3 4 n01 5 6 7 8 "
    tars = {imagenet.TRAIN: tar_of(inner, "w"), imagenet.VALIDATION: tar_of(content["val"], "w")}
    write_tree(root, tars | {imagenet.LABELS: lines})
    return content


def test_imagenet_is_read_from_its_official_tar_files_where_they_lie(tmp_path):
    content = imagenet_tars(tmp_path / "raw")
    index = index_of(tmp_path / "raw", tmp_path / "index")
    assert index.classes == ["n01", "n02"] and index.splits == ["train", "validation"]
    train, validation = index.split("train"), index.split("validation")
    for i in range(6):
        name = train.name(i).split("/")
        assert train.read(i) == content[name[0]][name[1]] and index.classes[train.labels[i]] == name[0]
    seen = {validation.name(i): (validation.read(i), validation.labels[i]) for i in range(2)}
    assert seen == {f"ILSVRC2012_val_{i}.JPEG": (content["val"][f"ILSVRC2012_val_{i}.JPEG"], i - 1) for i in (1, 2)}
    convert(index, "set", "hdf5", Formats(threads=2), tmp_path / "hdf5")
    assert sum(path.stat().st_size for path in (tmp_path / "index").iterdir() if not path.is_symlink()) < 20_000


ONE, LABELS = tar_of({"ILSVRC2012_val_1.JPEG": make_jpeg(1)}, "w"), b"ImageId,PredictionString\nILSVRC2012_val_1,"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (imagenet.TRAIN, b"no tar at all", "ILSVRC2012_img_train.tar: not a complete tar file"),
        (imagenet.VALIDATION, ONE, "lacks images that .* names: ILSVRC2012_val_2; fetch both"),
        (imagenet.LABELS, None, "LOC_val_solution.csv is missing"),
        (imagenet.LABELS, LABELS + b"n01", "images without a class .* ILSVRC2012_val_2"),
        (imagenet.LABELS, LABELS + b"n77", "with a class that .* lacks"),
        (imagenet.LABELS, b"a,b\n1,2", "not a table of `ImageId`"),
    ],
)
def test_official_tar_files_that_are_not_whole_are_named(name, content, message, tmp_path):
    imagenet_tars(tmp_path / "raw")
    path = tmp_path / "raw" / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        index_of(tmp_path / "raw", tmp_path / "index")


@pytest.mark.parametrize("name", [imagenet.TRAIN, imagenet.VALIDATION])
def test_a_tar_cut_anywhere_is_refused(name, tmp_path):
    """In a header, in an image, between members: `tarfile` tells of few of them."""
    imagenet_tars(tmp_path / "raw")
    path = tmp_path / "raw" / name
    whole = path.read_bytes()
    with tarfile.open(path) as tar:
        end = [*tar][-1].offset_data
    end += -(-(len(whole.rstrip(b"\0")) - end) // 512) * 512  # where the last member's blocks end
    for length in (*range(0, end, 256), end, end + 511):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=f"{name}: .* fetch it again"):
            index_of(tmp_path / "raw", tmp_path / f"{length}")


@pytest.mark.parametrize("labels", [True, False])
def test_folders_come_before_the_tars_that_they_were_unpacked_from(labels, tmp_path):
    imagenet_tars(tmp_path / "raw")
    image_folder(tmp_path / "raw")
    if not labels:
        (tmp_path / "raw" / imagenet.LABELS).unlink()
    index = index_of(tmp_path / "raw", tmp_path / "index")
    assert index.classes == ["cat", "dog"] and index.splits == ["train", "validation"]


@pytest.mark.parametrize("wrapped", ["", "a/b"])
@pytest.mark.parametrize("sorted_", [False, True])
def test_imagenet_is_read_as_kaggle_has_it(wrapped, sorted_, tmp_path):
    root = tmp_path / "raw" / wrapped
    where = {"train": "train/n0{label}", "val": "val/n0{label}" if sorted_ else "val", "test": "test"}
    rows = ["ImageId,PredictionString"]
    for number in range(12):
        split, label = ("train", "val", "test")[number % 3], number % 2 + 1
        place = f"{imagenet.KAGGLE}/{where[split].format(label=label)}/{number}.JPEG"
        write_tree(root, {place: make_jpeg(number)})
        rows += [f"{number},n0{label} 1 2 3 4"] * (split == "val")
    (root / "ILSVRC/Annotations").mkdir()
    if not sorted_:
        (root / imagenet.KAGGLE / "val/.ipynb_checkpoints").mkdir()
    (root / imagenet.LABELS).write_text("\n".join(rows))
    index = index_of(tmp_path / "raw", tmp_path / "index")
    assert index.classes == ["n01", "n02"] and index.splits == ["train", "validation"]
    for name, rest in (("train", 0), ("validation", 1)):
        split = index.split(name)
        numbers = [int(split.name(i).split("/")[-1].removesuffix(".JPEG")) for i in range(len(split))]
        assert sorted(numbers) == list(range(rest, 12, 3))
        assert split.labels.tolist() == [number % 2 for number in numbers]
        assert [split.read(i) for i in range(len(split))] == [make_jpeg(number) for number in numbers]
    assert index.manifest["notes"] == ["test: its images have no classes, and were left out"]
    if not sorted_:
        (root / imagenet.KAGGLE / "val/1.JPEG").unlink()
        with pytest.raises(DataError, match=r"CLS-LOC/val: lacks images that LOC_val_solution\.csv names: 1; fetch"):
            index_of(tmp_path / "raw", tmp_path / "again")
