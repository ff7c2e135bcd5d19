"""Folders of finished trainings: list and copy their contents, and check that they, or other results, are complete."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from parascale.checkpoint.manifest import MANIFEST as CHECKPOINT
from parascale.checkpoint.manifest import check_files, read_manifest
from parascale.files import link_or_copy, read_json, sha256, tree_bytes
from parascale.paths import SUMMARY, RunFolder

MANIFEST = "training.json"
SCHEMA_VERSION = 1
TREES = ("checkpoint", "best", "profile", "wandb")  # folders that a training leaves beside its files
MANIFESTS = ("manifest.json", "record.json", CHECKPOINT)  # of data, of a shard of images, of a checkpoint or conversion
READERS = 4  # files of a checkpoint that are read at the same time


def is_whole(folder: Path) -> bool:
    """True if a folder has a finished training and all its files. For weights, only sizes are compared."""
    files = RunFolder(folder)
    needed = files.record, files.summary, files.checkpoint / CHECKPOINT
    return all(path.is_file() and not lacking(path) for path in needed)


def lacking(path: Path) -> Path | None:
    """The first file that a result needs and that is missing or has the wrong size; None if there is none.

    A manifest needs the files that it names, a proof the manifest beside it, the folder `checkpoint` its manifest, and the summary
    of a training its best weights.
    """
    for file, size in _stands_for(path):
        try:
            if size not in (None, os.stat(file).st_size):
                return file
        except OSError:
            return file
        if size is None and (gone := lacking(file)):
            return gone
    return None


def _stands_for(path: Path) -> list[tuple[Path, int | None]]:
    """(file, bytes or None) of each file that a file needs. An unreadable file needs none: whoever reads it reports it."""
    folder, name, held = path.parent, path.name, None
    if name == TREES[0] and path.is_dir():
        return [(path / CHECKPOINT, None)]
    if name == "verify.json":
        return [(folder / each, None) for each in MANIFESTS if (folder / each).exists()]
    if name in (*MANIFESTS, SUMMARY):
        with suppress(OSError, ValueError):
            held = read_json(path)
    if not isinstance(held, dict):
        return []
    beside = [f"best/{CHECKPOINT}"] if held.get("best_step") is not None else _tables(held)
    return [(folder / str(each), size) for each, size in [*_described(held), *((name, None) for name in beside)]]


def _described(value: Any, name: Any = None) -> Iterator[tuple[Any, int]]:
    """Yield (name, bytes) of the files in any kind of manifest: each entry with a size and a checksum."""
    if isinstance(value, dict) and "bytes" in value and not value.keys().isdisjoint(("sha256", "xxh3")):
        yield value.get("file", value.get("path", name)), value["bytes"]
    elif isinstance(value, dict | list):
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _described(entry, key)


def _tables(held: dict[str, Any]) -> list[str]:
    """Names of the tables beside a manifest of images, which does not list them."""
    ends: tuple[str, ...] = ("npy",) if "shard" in held else ("samples.npy",) if "format" in held else ("npy", "names")
    ends += ("packed",) if held.get("root", "") is None else ()
    of_images = "shard" in held or held.get("kind") == "images"
    return [f"{split}.{end}" for split in held.get("splits", ()) for end in ends if of_images]


def described(folder: Path, key: str, place: str) -> dict[str, Any]:
    """The contents of a training's manifest. The other files of a checkpoint are in its own manifest."""
    inside = _checkpoints(folder)
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    files = [path for path in paths if path.name == CHECKPOINT or not any(tree in path.parents for tree in inside)]
    return {
        "schema_version": SCHEMA_VERSION,
        "key": key,
        "place": place,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "core_hours": read_json(folder / SUMMARY)["core_hours"],
        "bytes": tree_bytes(folder),
        "files": {
            str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in files
        },
    }


def copy_tree(source: Path, target: Path, copy_file: Callable[..., object] = link_or_copy) -> None:
    """Copy a folder, its files as hard links if the filesystem has them. Symbolic links are kept only if they are relative and lead into
    the folder: W&B's package leaves links to files elsewhere, which may change or go. copy_file: function (source, target)."""
    root = os.path.realpath(source)

    def leaves(path: str) -> bool:
        inside = os.path.exists(path) and os.path.realpath(path).startswith(f"{root}{os.sep}")
        return os.path.islink(path) and (os.path.isabs(os.readlink(path)) or not inside)

    def links(folder: str, names: list[str]) -> set[str]:
        return {name for name in names if leaves(os.path.join(folder, name))}

    shutil.copytree(source, target, symlinks=True, copy_function=copy_file, ignore=links)


def _checkpoints(folder: Path) -> list[Path]:
    return [path.parent for path in folder.glob(f"*/{CHECKPOINT}")]


def check_trees(folder: Path, shown: Path | None = None) -> None:
    """Raise CheckpointError unless the checkpoints in a folder are complete. Of files hard-linked in `shown`, only sizes are checked."""
    for tree in _checkpoints(folder):
        files = read_manifest(tree)["files"]
        common = {name for name in files if shown and _are_one(tree / name, shown / tree.name / name)}
        check_files(tree, files, READERS, common)


def _are_one(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except FileNotFoundError:
        return False


def files_in(folder: Path) -> list[Path]:
    """The files directly in a folder, sorted by name."""
    return [path for path in sorted(folder.iterdir()) if path.is_file()]
