"""Where the splits of a set of images lie: folders, tables, and files that hold many images."""

import re
from pathlib import Path
from typing import Any

from parascale.data.image_forms import HDF5_ENDINGS, TarSamples, parts_of
from parascale.data.imagenet import TRAIN, VALIDATION
from parascale.data.named_files import ONE_SET, SPLIT_NAMES, is_foreign, require_one_set, saved_files
from parascale.errors import DataError

TABLE = re.compile(r"([a-z]+)(?:\.csv|(?:-.*)?\.parquet)", re.IGNORECASE)  # of a split
WORDS = "|".join(name for names in SPLIT_NAMES.values() for name in names)
PACKED = re.compile(rf"(?:.*[^a-z])?({WORDS})(?:[^a-z].*)?\.(?:arrow|tar)", re.IGNORECASE)  # `imagenet_train-0001.tar`


def find_splits(root):
    """(split → folder of classes, split → its tables), whichever lie directly below `root`."""
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
        raise DataError(f"{root}: {there}: remove or rename those that are not meant")
    return folders, tables if folders or tables else _find_in_files(root, entries)


def _find_in_files(root, entries):
    """Split → its tables, where `root` is a set that `save_to_disk` wrote without splits, or holds zips or HDF5 and no folders."""
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
