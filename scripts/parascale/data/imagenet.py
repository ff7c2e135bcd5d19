"""ImageNet's official tar files (ILSVRC 2012), read where they lie: nothing in them is compressed, so an image is bytes of the tar.

The tar of the training images holds a tar a class, that of the validation images holds images alone: their classes are in Kaggle's
`LOC_val_solution.csv`.
"""

import csv
import tarfile

from parascale.data.images import ImageIndexWriter
from parascale.data.named_files import is_foreign, note_foreign
from parascale.errors import DataError, few

TRAIN, VALIDATION, LABELS = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar", "LOC_val_solution.csv"
DAMAGED = (tarfile.TarError, OSError, EOFError)


def is_imagenet(root):
    """Whether the official tar files lie in a folder."""
    return (root / TRAIN).is_file()


def imagenet_classes(root):
    """The names of the classes, which are WordNet's numbers."""
    with _opened(root / TRAIN) as tar:
        return sorted(member.name.removesuffix(".tar") for member in _members(tar, []) if member.name.endswith(".tar"))


def index_tars(root, classes, notes, folder):
    """Split → (rows, names) of the images; `<split>.packed` below `folder` are links to the tar files."""
    numbers, writer, foreign = {name: number for number, name in enumerate(classes)}, ImageIndexWriter(), []
    with _opened(root / TRAIN) as tar:
        for member in _members(tar, foreign):
            if member.name.endswith(".tar"):
                name = member.name.removesuffix(".tar")
                with _opened(root / TRAIN, tar.extractfile(member)) as images:
                    _add(writer, images, lambda _, name=name: numbers[name], f"{name}/", member.offset_data, foreign)
    splits = {"train": writer.arrays()}
    if (root / VALIDATION).is_file():
        labels, writer = _validation_labels(root, numbers), ImageIndexWriter()
        with _opened(root / VALIDATION) as images:
            names = _add(writer, images, lambda name: labels.get(name.removesuffix(".JPEG")), "", 0, foreign)
        gone = sorted(labels.keys() - {name.removesuffix(".JPEG") for name in names})
        if gone:
            raise DataError(f"{root / VALIDATION}: lacks images that {LABELS} names: {few(gone)}; fetch both again")
        splits["validation"] = writer.arrays()
    for split, tar in zip(splits, (TRAIN, VALIDATION), strict=False):
        (folder / f"{split}.packed").symlink_to((root / tar).resolve())
    note_foreign(foreign, notes)
    return splits


def _add(writer, images, label_of, prefix, start, foreign):
    """Add the images of an open tar that begins at byte `start` of its file; returns their names."""
    members = [member for member in _members(images, foreign) if member.isfile()]
    labels = [label_of(member.name) for member in members]
    unknown = [member.name for member, label in zip(members, labels, strict=True) if label is None]
    if unknown:
        raise DataError(f"{images.name}: images without a class in {LABELS}: {few(unknown)}; fetch the table again")
    names = [(prefix + member.name).encode("utf-8", "surrogateescape") for member in members]
    writer.add(names, labels, [member.size for member in members], [start + member.offset_data for member in members])
    return [member.name for member in members]


def _members(tar, foreign):
    """Yield the members of an open tar that are data, and append the names of the others; DataError where it is damaged or cut.

    `tarfile` takes a header that it cannot read for the end of the tar: a whole one has a block of zeros there.
    """
    try:
        for member in tar:
            if is_foreign(member.name):
                foreign.append(member.name)
            else:
                yield member
        tar.fileobj.seek(tar.offset)
        end = tar.fileobj.read(tarfile.BLOCKSIZE)
    except DAMAGED as error:
        raise DataError(f"{tar.name}: the tar file is damaged ({error}); fetch it again") from None
    if end != bytes(tarfile.BLOCKSIZE):
        raise DataError(f"{tar.name}: the tar file ends early, or is damaged at byte {tar.offset:,}; fetch it again")


def _validation_labels(root, numbers):
    """Name of a validation image without its ending → label."""
    path = root / LABELS
    try:
        with open(path, newline="", encoding="utf-8") as file:
            found = {row["ImageId"]: row["PredictionString"].split()[0] for row in csv.DictReader(file)}
        return {image: numbers[name] for image, name in found.items()}
    except FileNotFoundError:
        raise DataError(
            f"{path} is missing: {VALIDATION} holds no classes. Put the table of Kaggle's copy of the set there, or sort the images into "
            "folders `train/<class>` and `val/<class>`"
        ) from None
    except (KeyError, IndexError, AttributeError, ValueError, csv.Error) as error:
        raise DataError(
            f"{path}: not a table of `ImageId` and `PredictionString`, or with a class that {TRAIN} lacks ({error}); "
            "fetch it again"
        ) from None


def _opened(path, file=None):
    try:
        return tarfile.open(path, "r:", fileobj=file)
    except DAMAGED as error:
        raise DataError(f"{path}: not a whole tar file ({error}); fetch it again") from None
