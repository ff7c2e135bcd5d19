"""The folder of a finished training: what is in it, how it is copied, and whether it is whole."""

import os
import shutil
from datetime import UTC, datetime

from parascale.checkpoint.manifest import MANIFEST as CHECKPOINT
from parascale.checkpoint.manifest import check_files, read_manifest
from parascale.files import link_or_copy, read_json, sha256, tree_bytes

MANIFEST = "training.json"
SCHEMA_VERSION = 1
TREES = ("checkpoint", "best", "profile", "wandb")  # what a training leaves besides single files
NEEDED = ("run.json", "summary.json", f"checkpoint/{CHECKPOINT}")
READERS = 4  # files of a checkpoint that are read at once


def record_in(folder):
    """The `run.json` of a folder; empty where there is none, or it is not whole."""
    try:
        record = read_json(folder / "run.json")
    except (FileNotFoundError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def described(folder, key, place):
    """What the manifest of a training holds. A checkpoint's own manifest has the checksums of its other files."""
    inside = _checkpoints(folder)
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    files = [path for path in paths if path.name == CHECKPOINT or not any(tree in path.parents for tree in inside)]
    return {
        "schema_version": SCHEMA_VERSION,
        "key": key,
        "place": place,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "core_hours": read_json(folder / "summary.json")["core_hours"],
        "bytes": tree_bytes(folder),
        "files": {
            str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in files
        },
    }


def copy(shown, folder):
    """Copy a result, its trees as links where the filesystem has them."""
    for path in files_in(shown):
        shutil.copyfile(path, folder / path.name)
    for name in filter(lambda name: (shown / name).is_dir(), TREES):
        copy_tree(shown / name, folder / name)


def copy_tree(source, target, copy_file=link_or_copy):
    """Copy a folder, its files as hard links where the filesystem has them. Symbolic links are left out: W&B's package leaves some to
    files elsewhere, which others change and remove. copy_file: function (source, target)."""

    def links(folder, names):
        return {name for name in names if os.path.islink(os.path.join(folder, name))}

    shutil.copytree(source, target, copy_function=copy_file, ignore=links)


def _checkpoints(folder):
    return [path.parent for path in folder.glob(f"*/{CHECKPOINT}")]


def check_trees(folder, shown=None):
    """Raise CheckpointError unless the checkpoints in a folder are whole. Of files that are also those in `shown`, sizes are checked."""
    for tree in _checkpoints(folder):
        files = read_manifest(tree)["files"]
        common = {name for name in files if shown and _are_one(tree / name, shown / tree.name / name)}
        check_files(tree, files, READERS, common)


def _are_one(path, other):
    try:
        return path.samefile(other)
    except FileNotFoundError:
        return False


def files_in(folder):
    """The files of a folder itself, by name."""
    return [path for path in sorted(folder.iterdir()) if path.is_file()]
