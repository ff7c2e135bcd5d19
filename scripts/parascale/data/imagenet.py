"""ImageNet (ILSVRC 2012), read in place: its official tar files, or Kaggle's copy, whose validation images are in one folder.

The tars are not compressed, so images are read directly from them. The tar of training images has a tar per class; the tar of
validation images has only images, whose classes are in Kaggle's `LOC_val_solution.csv`.
"""

import csv
import os
import tarfile

from parascale.data.images import ImageIndexWriter
from parascale.data.named_files import is_foreign, note_foreign
from parascale.data.sources.archives import require_end
from parascale.errors import DataError, shorten_list

TRAIN, VALIDATION, LABELS = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar", "LOC_val_solution.csv"
KAGGLE = "ILSVRC/Data/CLS-LOC"
DAMAGED = (tarfile.TarError, OSError, EOFError)


def is_imagenet(root):
    """True if a folder contains the official tar files."""
    return (root / TRAIN).is_file()


def is_kaggle(root):
    """True if a folder contains Kaggle's copy."""
    return (root / KAGGLE / "train").is_dir()


def kaggle_folders(root):
    """Split → folder of classes in Kaggle's copy, with `val` if its images have been sorted into classes."""
    folders = {"train": root / KAGGLE / "train", "validation": root / KAGGLE / "val"}
    classes = [path for path in folders["validation"].glob("*/") if not is_foreign(f"{path.name}/")]
    return {split: path for split, path in folders.items() if split == "train" or classes}


def kaggle_validation(root, classes, splits, notes):
    """The validation split of Kaggle's copy if all its images are in one folder, as published; else empty."""
    folder = root / KAGGLE / "val"
    if (root / KAGGLE / "test").is_dir():
        notes.append("test: its images have no classes, and were left out")
    if "validation" in splits or not folder.is_dir():
        return {}
    images = sorted(entry for entry in folder.iterdir() if entry.is_file() and not is_foreign(entry.name))
    labels = _validation_labels(root, {name: number for number, name in enumerate(classes)})
    known = _labels_of([image.name for image in images], labels, folder)
    writer = ImageIndexWriter()
    names = [os.path.join(os.fsencode(KAGGLE), b"val", os.fsencode(image.name)) for image in images]
    writer.add(names, known, [image.stat().st_size for image in images])
    return {"validation": writer.arrays()}


def imagenet_classes(root):
    """The names of the classes, which are WordNet ids."""
    with opened_tar(root / TRAIN) as tar:
        names = [member.name for member in tar_members(tar, [])]
    return sorted(name.removesuffix(".tar") for name in names if name.endswith(".tar"))


def index_tars(root, classes, notes, folder):
    """Split → (rows, names) of the images. Makes `<split>.packed` in `folder`, links to the tar files."""
    numbers, writer, foreign = {name: number for number, name in enumerate(classes)}, ImageIndexWriter(), []
    with opened_tar(root / TRAIN) as tar:
        for member in tar_members(tar, foreign):
            if member.name.endswith(".tar"):
                name = member.name.removesuffix(".tar")
                with opened_tar(root / TRAIN, tar.extractfile(member)) as images:
                    _add(writer, images, numbers[name], f"{name}/", member.offset_data, foreign)
    splits = {"train": writer.arrays()}
    if (root / VALIDATION).is_file():
        labels, writer = _validation_labels(root, numbers), ImageIndexWriter()
        with opened_tar(root / VALIDATION) as images:
            _add(writer, images, lambda names: _labels_of(names, labels, root / VALIDATION), "", 0, foreign)
        splits["validation"] = writer.arrays()
    for split, tar in zip(splits, (TRAIN, VALIDATION), strict=False):
        (folder / f"{split}.packed").symlink_to((root / tar).resolve())
    note_foreign(foreign, notes)
    return splits


def _add(writer, images, labels, prefix, start, foreign):
    """Add the images of an open tar that begins at byte `start` of its file. labels: one for all, or a function from names to labels."""
    members = [member for member in tar_members(images, foreign) if member.isfile()]
    labels = labels([member.name for member in members]) if callable(labels) else labels
    names = [(prefix + member.name).encode("utf-8", "surrogateescape") for member in members]
    writer.add(names, labels, [member.size for member in members], [start + member.offset_data for member in members])


def _labels_of(names, labels, place):
    """The labels of validation images, in order. Raises DataError unless folder and table have the same images."""
    names = [name.removesuffix(".JPEG") for name in names]
    unknown, gone = [name for name in names if name not in labels], sorted(labels.keys() - set(names))
    if unknown:
        raise DataError(f"{place}: images without a class in {LABELS}: {shorten_list(unknown)}; fetch the table again")
    if gone:
        raise DataError(f"{place}: lacks images that {LABELS} names: {shorten_list(gone)}; fetch both again")
    return [labels[name] for name in names]


def tar_members(tar, foreign):
    """Yield the members of an open tar that are data, and append the others' names to `foreign`. DataError if the tar is damaged."""
    try:
        for member in tar:
            if is_foreign(member.name):
                foreign.append(member.name)
            else:
                yield member
        require_end(tar, tar.name)
    except DAMAGED as error:
        raise DataError(f"{tar.name}: the tar file is damaged ({error}); fetch it again") from None


def _validation_labels(root, numbers):
    """Name of a validation image, without its extension → label."""
    path = root / LABELS
    try:
        with open(path, newline="", encoding="utf-8") as file:
            found = {row["ImageId"]: row["PredictionString"].split()[0] for row in csv.DictReader(file)}
        return {image: numbers[name] for image, name in found.items()}
    except FileNotFoundError:
        remedy = "Put the table of Kaggle's copy there, or sort the images into folders `train/<class>`, `val/<class>`"
        raise DataError(f"{path} is missing: the validation images hold no classes. {remedy}") from None
    except (KeyError, IndexError, AttributeError, ValueError, csv.Error) as error:
        said = "not a table of `ImageId` and `PredictionString`, or with a class that the train split lacks"
        raise DataError(f"{path}: {said} ({error}); fetch it again") from None


def opened_tar(path, file=None):
    """Open a tar file, or one inside another. Raises DataError if it is not one."""
    try:
        return tarfile.open(path, "r:", fileobj=file)
    except DAMAGED as error:
        raise DataError(f"{path}: not a complete tar file ({error}); fetch it again") from None
