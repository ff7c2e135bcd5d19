"""Find and index images: in folders of classes, by tables of path and label, or inside tables and other files.

A split may be a folder `<split>/<class>/…`, a table `<split>.csv` or `<split>.parquet` with columns `path` and `label`, files
`<split>*.parquet` or a folder of `save_to_disk` with an `image` column in Hugging Face's form, Arrow files or WebDataset tars with the
split in their names, or a part of a zip or HDF5 file. Without any of these, ImageNet's official tar files or Kaggle's copy are read in
place, or else folders of classes directly below the root are the train split, and a part of it is held out.
"""

import os
import re
import stat
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from parascale.data import image_tables, imagenet, named_files
from parascale.data.image_forms import HDF5_ENDINGS, TarSamples, parts_of
from parascale.data.image_tables import holds_images, path_label, require_distinct
from parascale.data.imagenet import TRAIN, VALIDATION
from parascale.data.images import ImageIndexWriter, write_index
from parascale.data.named_files import (
    ONE_SET,
    SPLIT_NAMES,
    as_spelled,
    is_copy,
    is_foreign,
    note_foreign,
    require_one_set,
    saved_files,
)
from parascale.data.pool import ordered_map
from parascale.errors import DataError, shorten_list

IMAGE_SUFFIXES = (b".jpg", b".jpeg", b".png", b".webp")
FORMS = (
    "Supported: .jpg, .jpeg, .png and .webp in folders of classes, a zip of them, tables of paths and labels, and Parquet, Arrow, `save_to_disk`, "
    "tars of WebDataset and HDF5 with the images inside; convert other forms (.tiff, .jfif, .bmp, LMDB, TFRecord) first."
)
IMAGE_DATA = "image_data"  # the column of images in the Arrow files of Jülich's courses
SCAN_THREADS = 32  # folders listed at once: each file size is a request to the filesystem's servers
TABLE = re.compile(r"([a-z]+)(?:\.csv|(?:-.*)?\.parquet)", re.IGNORECASE)  # of a split
WORDS = "|".join(name for names in SPLIT_NAMES.values() for name in names)
PACKED = re.compile(rf"(?:.*[^a-z])?({WORDS})(?:[^a-z].*)?\.(?:arrow|tar)", re.IGNORECASE)  # `imagenet_train-0001.tar`


def index_images(root, settings, output, columns=None):
    """Write the index of the images below `root` to the folder `output`; returns its manifest.

    settings: parascale.settings.formats.Images. columns: role (`path`, `label`, `image`) → column name if it differs.
    Raises DataError for a root or class without images, and for missing or unknown labels.
    """
    root = Path(root)
    columns = {"path": "path", "label": "label", "image": "image", **(columns or {})}
    if not root.is_dir():
        raise DataError(f"{root}: no such folder for images")
    root, notes = _unwrapped(root), []
    folders, tables = find_splits(root)
    there = folders or tables
    if there and "train" not in there:
        raise DataError(f"{root}: no train split, only {', '.join(there)}; call its folder or table `train`")
    course, tried = columns | {"image": IMAGE_DATA}, [] if folders else tables.get("train", ())
    if any(holds_images(table, course) and not holds_images(table, columns) for table in tried[:1]):
        columns = course
    pack = None
    # Unpacked, and perhaps changed, images take precedence over the tars that they came from.
    if not there and imagenet.is_imagenet(root):
        classes = imagenet.imagenet_classes(root)
        pack = partial(imagenet.index_tars, root, classes, notes)
    elif not folders and any(holds_images(path, columns) for paths in tables.values() for path in paths):
        classes, numbers_in = image_tables.packed_classes(tables, columns)
        pack = partial(image_tables.pack_tables, tables, numbers_in, columns)
    elif tables and not folders:
        classes, splits = scan_tables(tables, columns, root)
    elif not there and imagenet.is_kaggle(root):
        classes, splits = scan_folders(imagenet.kaggle_folders(root), root, notes)
        splits = {**splits, **imagenet.kaggle_validation(root, classes, splits, notes)}
    else:
        classes, splits = scan_folders(folders or {"train": root}, root, notes)
    if len(classes) < 2:
        raise DataError(
            f"{root}: only one class, `{shorten_list(classes)}`: set `data.source.location` to the folder that holds the classes. {FORMS}"
        )
    if pack is None:
        return write_index(output, root, classes, finished(root, splits, classes, settings, notes), notes)

    def packed(folder):
        there = pack(folder)
        found = finished(root, there, classes, settings, notes)
        for split in found.keys() - there.keys():  # held out of the train split, and packed in its file
            (folder / f"{split}.packed").symlink_to("train.packed")
        return found

    return write_index(output, None, classes, packed, notes)


def _unwrapped(root):
    """The folder with the data, if it is nested in `root` as the only folder at each level, as in many archives; else `root`."""
    folder = root
    while not (any(find_splits(folder)) or imagenet.is_imagenet(folder) or imagenet.is_kaggle(folder)):
        inside = [entry for entry in folder.iterdir() if entry.is_dir() and not is_foreign(f"{entry.name}/")]
        if len(inside) != 1:
            return root
        (folder,) = inside
    return folder


def _require_no_splits(folder, folders, files):
    """Raise DataError if a folder inside a class holds splits: they would become one class."""
    tables = {match[1].lower() for name in files if (match := TABLE.fullmatch(os.fsdecode(name)))}
    there = tables.union(os.fsdecode(name).lower() for name in folders)
    found = [split for split, names in SPLIT_NAMES.items() if not there.isdisjoint(names)]
    if len(found) > 1 or not tables.isdisjoint(SPLIT_NAMES["train"]):
        said = f"holds splits ({', '.join(found)}), so it is not a class"
        raise DataError(f"{_shown(folder)}: {said}: set `data.source.location` to it, or move it up")


def finished(root, splits, classes, settings, notes):
    """The splits, with a validation split held out if there is none; adds notes on classes with a single image."""
    rows, _ = splits["train"]
    for split, (others, _) in splits.items():
        if len(lacking := np.setdiff1d(others["label"], rows["label"])):
            said = f"the {split} split has classes that the train split does not have"
            shown = shorten_list(classes[label] for label in lacking)
            raise DataError(f"{root}: {said}: {shown}. Remove them or add them to the train split.")
    if single := [classes[label] for label in np.flatnonzero(np.bincount(rows["label"]) == 1)]:
        said = f"{len(single):,} classes have one image, too few to hold any out: {shorten_list(single)}"
        notes.append(f"train: {said}. Add images, or take the classes out")
    if "validation" not in splits and settings.validation_fraction:
        return hold_out(root, splits, settings, notes)
    return splits


def scan_folders(folders, root, notes):
    """Index folders that have a folder per class. Returns (classes, split → (rows, names)), and adds to the notes."""
    classes, splits = [], {}
    for split, folder in folders.items():
        entries = [(entry.name, os.path.isdir(entry)) for entry in os.scandir(os.fsencode(folder))]
        foreign = [_shown(name) for name, is_folder in entries if is_foreign(os.fsdecode(name) + "/" * is_folder)]
        found = sorted(name for name, is_folder in entries if is_folder and not is_foreign(os.fsdecode(name) + "/"))
        if not found:
            raise DataError(f"{folder}: no folders of classes here; each class needs one, with images inside. {FORMS}")
        if folder == root:
            named_files.require_no_names_of_splits(root, [*map(_shown, found)])
        classes = list(dict.fromkeys([*classes, *found]))
        require_distinct(folder, list(map(_shown, classes)))
        labels = [label for label, name in enumerate(classes) if name in set(found)]
        prefix = os.fsencode(folder.relative_to(root))
        writer, ignored = ImageIndexWriter(), 0
        paths = [os.path.join(prefix, classes[label]) if prefix != b"." else classes[label] for label in labels]
        lists = ordered_map(lambda path: _scan_class(os.fsencode(root), path), paths, SCAN_THREADS)
        for label, path, (names, lengths, others, hidden) in zip(labels, paths, lists, strict=True):
            if not names:
                place = _shown(os.path.join(os.fsencode(root), path))
                raise DataError(f"{place}: a class without images: remove the folder or fill it. {FORMS}")
            writer.add(names, label, lengths)
            ignored += others
            foreign += hidden
        note_foreign(foreign, notes, f"{split}: ")
        if ignored:
            notes.append(f"{split}: {ignored:,} files whose names are not those of images were left out")
        splits[split] = writer.arrays()
    return [_shown(name) for name in classes], splits


def hold_out(root, splits, settings, notes):
    """Move a part of each class from `train` to `validation`: the same images for the same seed."""
    rows, names = splits["train"]
    random = np.random.default_rng([settings.seed, len(rows)])
    held = np.zeros(len(rows), bool)
    for label in np.unique(rows["label"]):
        members = np.flatnonzero(rows["label"] == label)
        count = min(round(len(members) * settings.validation_fraction) or 1, len(members) - 1)
        held[random.permutation(members)[:count]] = True
    if not held.any():
        said = "there is no validation split, and none can be held out: no class has two images"
        raise DataError(f"{root}: {said}. Add images, or a folder or table `validation`")
    notes.append(f"validation: {int(held.sum()):,} images held out of the train split with seed {settings.seed}")
    return {**splits, "train": _picked(rows, names, ~held), "validation": _picked(rows, names, held)}


def _scan_class(root, path):
    """Find images below `root/path`: (names, sorted; lengths; number of other files; hidden, foreign or copied files and folders).

    An image that is a broken link has length 0: the conversion lists it as a bad sample.
    """
    names, others, foreign, real = [], 0, [], {}

    def refuse(error):
        raise DataError(f"{_shown(error.filename)}: cannot be read ({error.strerror}); remove it, or make it readable")

    for folder, folders, files in os.walk(os.path.join(root, path), onerror=refuse, followlinks=True):
        above = real.get(os.path.dirname(folder), frozenset())
        if (here := os.path.realpath(folder)) in above:
            raise DataError(f"{_shown(folder)}: this link leads back to a folder above it; remove it")
        real[folder] = above | {here}
        _require_no_splits(folder, folders, files)
        below = os.path.relpath(folder, root)
        hidden = {name for name in folders if is_foreign(os.fsdecode(name) + "/")}
        hidden |= {name for name in files if is_foreign(os.fsdecode(name)) or is_copy(folder, name)}
        twins = {name for name in files if is_copy(root, below + b"/" + name)}
        hidden |= twins if twins.issuperset(files) else set()  # the same picture in two classes is not a copied folder
        foreign += [_shown(below + b"/" + name) for name in sorted(hidden)]
        folders[:], files = ([name for name in listed if name not in hidden] for listed in (folders, files))
        images = [name for name in files if name.lower().endswith(IMAGE_SUFFIXES)]
        names += [below + b"/" + name for name in images]
        others += len(files) - len(images)
    names.sort()
    return names, [_size(os.path.join(root, name)) or 0 for name in names], others, foreign


def scan_tables(tables, columns, root):
    """Index the files named in tables of path and label. Returns (classes, split → (rows, names))."""
    rows = {split: [row for path in paths for row in path_label(path, columns)] for split, paths in tables.items()}
    classes = image_tables.class_names(label for part in rows.values() for _, label in part)
    require_distinct(root, classes)
    numbers = {name: number for number, name in enumerate(classes)}
    splits = {}
    for split, part in rows.items():
        spelled = ordered_map(lambda path: as_spelled(root, path), (path for path, _ in part), SCAN_THREADS)
        names = list(map(os.fsencode, spelled))
        sizes = list(ordered_map(lambda name: _size(os.path.join(os.fsencode(root), name)), names, SCAN_THREADS))
        if gone := [path for (path, _), size in zip(part, sizes, strict=True) if size is None]:
            said = f"files named in the table of the `{split}` split are missing: {shorten_list(gone)}"
            raise DataError(f"{root}: {len(gone):,} {said}. Paths are relative to {root}.")
        writer = ImageIndexWriter()
        writer.add(names, [numbers[label] for _, label in part], sizes)
        splits[split] = writer.arrays()
    return classes, splits


def _size(path):
    """Size of a file in bytes; None if there is none, for a broken link, or for an impossible name."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _picked(rows, names, which):
    """Select some rows and their names."""
    writer = ImageIndexWriter()
    kept = rows[which]
    ends = kept["name_start"] + kept["name_bytes"]
    spelled = [names[start:end] for start, end in zip(kept["name_start"].tolist(), ends.tolist(), strict=True)]
    writer.add(spelled, kept["label"], kept["length"], kept["start"])
    return writer.arrays()


def _shown(name):
    return name.decode("utf-8", "backslashreplace")


def find_splits(root):
    """Find splits directly below `root`: (split → folder of classes, split → its tables)."""
    folders, tables, entries = {}, {}, [path for path in sorted(root.iterdir()) if path.name not in (TRAIN, VALIDATION)]
    for split, names in SPLIT_NAMES.items():
        if found := {path: {path.name} for path in entries if path.name.lower() in names and path.is_dir()}:
            require_one_set(split, found)
            (folder,) = found
            if (saved := saved_files(folder)) is None:
                folders[split] = folder
            else:
                tables[split] = list[Any](map(Path, saved))
        matched = ((path, TABLE.fullmatch(path.name) or PACKED.fullmatch(path.name)) for path in entries)
        listed = {path: {match[1]} for path, match in matched if match and match[1].lower() in names and path.is_file()}
        if listed:
            require_one_set(split, listed)
            if split in tables:
                raise DataError(f"{folder} and {next(iter(listed))} may both be the {split} split: {ONE_SET}")
            tables[split] = [TarSamples(path) if path.suffix.lower() == ".tar" else path for path in sorted(listed)]
    if folders and tables.keys() - folders.keys():
        there = f"a folder for {', '.join(folders)}, but a table for {', '.join(tables)}"
        raise DataError(f"{root}: {there}: remove or rename the unintended ones")
    return folders, tables if folders or tables else _find_in_files(root, entries)


def _find_in_files(root, entries):
    """Split → its tables, if `save_to_disk` wrote `root` without splits, or if it contains zips or HDF5 files and no folders."""
    if (saved := saved_files(root)) is not None:
        return {"train": list(map(Path, saved))}
    tables = {}
    if any(path.is_dir() and not is_foreign(f"{path.name}/") for path in entries):
        return tables
    for path in (path for path in entries if path.suffix.lower() in (".zip", *HDF5_ENDINGS)):
        for name, samples in parts_of(path).items():
            words = {*re.split("[^a-z]+", (name or path.stem).lower())}
            split = next((split for split, names in SPLIT_NAMES.items() if not words.isdisjoint(names)), "train")
            if split in tables:
                raise DataError(f"{tables[split][0]} and {samples} may both be the {split} split: {ONE_SET}")
            tables[split] = [samples]
    return tables
