"""The folder of a finished training: what is in it, how it is copied, and whether it, or another result, is whole."""

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
TREES = ("checkpoint", "best", "profile", "wandb")  # what a training leaves besides single files
MANIFESTS = ("manifest.json", "record.json", CHECKPOINT)  # of data, of a shard of images, of a checkpoint or conversion
READERS = 4  # files of a checkpoint that are read at once


def is_whole(folder: Path) -> bool:
    """Whether a folder shows a finished training and all its files. Of weights the sizes are compared."""
    files = RunFolder(folder)
    needed = files.record, files.summary, files.checkpoint / CHECKPOINT
    return all(path.is_file() and not lacking(path) for path in needed)


def lacking(path: Path) -> Path | None:
    """The first file that a result stands for and that is not there in full size; None if all are.

    A manifest stands for what it names, a proof for the manifest beside it, the folder `checkpoint` for its manifest, and the summary
    of a training for its best weights.
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
    """(file, bytes or None) of each file that one stands for. One that cannot be read stands for none: who needs it says so."""
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
    """(name, bytes) of the files in a manifest of whatever kind: each entry with a size and a checksum."""
    if isinstance(value, dict) and "bytes" in value and not value.keys().isdisjoint(("sha256", "xxh3")):
        yield value.get("file", value.get("path", name)), value["bytes"]
    elif isinstance(value, dict | list):
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _described(entry, key)


def _tables(held: dict[str, Any]) -> list[str]:
    """Names of the tables beside a manifest of images, which does not name them."""
    ends: tuple[str, ...] = ("npy",) if "shard" in held else ("samples.npy",) if "format" in held else ("npy", "names")
    ends += ("packed",) if held.get("root", "") is None else ()
    of_images = "shard" in held or held.get("kind") == "images"
    return [f"{split}.{end}" for split in held.get("splits", ()) for end in ends if of_images]


def described(folder: Path, key: str, place: str) -> dict[str, Any]:
    """The contents of a training's manifest. A checkpoint's own manifest has the checksums of its other files."""
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
    """Copy a folder, its files as hard links where the filesystem has them. Of symbolic links those stay that are relative and lead to
    what is in the folder: W&B's package leaves some to files elsewhere, which others change and remove. copy_file: function (source,
    target)."""
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
    """Raise CheckpointError unless the checkpoints in a folder are whole. Of files that are also those in `shown`, sizes are checked."""
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
    """The files of a folder itself, by name."""
    return [path for path in sorted(folder.iterdir()) if path.is_file()]
