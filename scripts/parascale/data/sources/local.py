"""Data on this machine: read in place, never written to or copied. The manifest points at it."""

import glob
import itertools
import os
import re
from fractions import Fraction
from pathlib import Path

from parascale.data import named_files
from parascale.data.manifests import MANIFEST
from parascale.data.named_files import SPLIT_NAMES, as_list, saved_files, without_foreign
from parascale.data.sources import readers
from parascale.data.sources.raw import Raw, describe, write_manifest
from parascale.errors import ConfigError, DataError
from parascale.files import atomic_folder
from parascale.paths import expanded
from parascale.settings import SPLITS


def fetch(source, output, attempts=None):
    """Make the folder `output` with a manifest that points at the files of a source that are on this machine."""
    folder, notes = location(source) if source.location else Path.cwd(), []
    if (folder / MANIFEST).exists() and not source.files:  # this workflow downloaded it
        raw = Raw(folder)
        splits = raw.manifest["splits"]
        for entry in (entry for entries in splits.values() for entry in entries):
            entry["path"] = str(raw.path(entry).absolute())
    else:
        splits = find_splits(source.files, folder, Path.absolute, notes)
    for split, entries in splits.items():
        if not any(entry["bytes"] for entry in entries):
            paths = ", ".join(entry["path"] for entry in entries[:3])
            raise DataError(f"{paths}: empty, so the {split} split has no data")
    with atomic_folder(output) as partial:
        write_manifest(partial, source, {"folder": str(folder.absolute())}, splits, notes)


def location(source):
    """The folder on this machine that a source names. Raises DataError if there is none."""
    folder = Path(expanded(source.location, "data.source.location"))
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder (`data.source.location` = `{source.location}`)")
    return folder


def find_splits(files, folder, name, notes):
    """Manifest entries of each split that `data.source.files` names, else of the files below a folder with a split in their names.

    name: function from a path to its name in the manifest. notes: list to which sentences on omitted files are added.
    """
    if files:
        named = {
            split: [entry for pattern in as_list(patterns) for entry in _entries(pattern, folder, name, notes)]
            for split, patterns in files.items()
        }
        _refuse_shared_rows(named)
        return named
    paths = []
    for path in sorted(path for path in folder.rglob("*") if readers.known_kind(path) and path.is_file()):
        saved = saved_files(path.parent)  # if a `state.json` lists the data files
        if saved is None or str(path) in saved:
            paths.append(path.relative_to(folder).as_posix())
    return {
        split: [describe(path, name(path)) for path in map(folder.joinpath, found)]
        for split, found in paths_by_split(paths, notes, folder).items()
    }


def paths_by_split(paths, notes, folder=None):
    """Split → the relative paths with its name in them (`train.txt`, `data/train-00000-of-00002.parquet`, `dev/0.jsonl`).

    folder: as in `without_foreign`.
    """
    by_split = {}
    for path in without_foreign(paths, notes, folder=folder):
        words = set(re.split(r"[^a-z]+", path.lower()))
        splits = {split: found for split, names in SPLIT_NAMES.items() if (found := words.intersection(names))}
        if len(splits) > 1:
            remedy = "rename or remove it, or name the files of each split under `data.source.files`"
            raise DataError(f"{path}: its name says {' and '.join(splits)}: {remedy}")
        for split, found in splits.items():
            by_split.setdefault(split, {})[path] = found
    for split, found in by_split.items():
        named_files.require_one_set(split, found)
    return {split: list(by_split[split]) for split in SPLITS if split in by_split}


def _entries(pattern, folder, name, notes):
    """Manifest entries of one `path`, glob or `path[first:last]`; a slice applies to each file separately."""
    path, first, last = named_files.sliced(pattern)
    found = {os.path.relpath(file, folder): Path(file) for file in sorted(named_files.matches(folder, path))}
    meant = without_foreign(found, notes, expanded(path, "data.source.files"), folder)
    if not meant:
        wanted = Path(folder) / expanded(path, "data.source.files")
        what = "no file matches" if glob.has_magic(path) else "no such file"
        raise DataError(f"{wanted}: {what} (`data.source.files`; relative paths start at {Path(folder).absolute()})")
    entries = []
    for file in map(found.get, meant):
        readers.kind_of(file)
        if first is None:
            entries.append(describe(file, name(file)))
        else:
            rows = readers.count_rows(file)
            entries.append(describe(file, name(file), (_place(first or "0", rows), _place(last or "100%", rows))))
    return entries


def _refuse_shared_rows(named):
    """Raise ConfigError if slices of two splits overlap: a model must not be evaluated on training data."""
    entries = [(split, entry) for split, entries in named.items() for entry in entries if "first" in entry]
    for (split, one), (other, two) in itertools.combinations(entries, 2):
        first, last = max(one["first"], two["first"]), min(one["last"], two["last"])
        if split != other and one["path"] == two["path"] and first < last:
            both = f"{split} and {other} both have rows {first:,} to {last:,} of {one['path']}"
            remedy = "let one slice begin where the other ends, such as `[:80%]` and `[80%:]`"
            raise ConfigError(f"`data.source.files`: {both}: {remedy}")


def _place(text, rows):
    """The row at `text` (`1000` or `99.5%`). Percentages are rounded down, so that `[:50%]` and `[50%:]` neither share nor miss a row."""
    if text.endswith("%"):
        if text == "%" or Fraction(text[:-1]) > 100:
            raise ConfigError(f"`data.source.files`: `{text}` must be a percentage from 0% to 100%")
        return rows * Fraction(text[:-1]) // 100
    return min(int(text), rows)
