"""`checkpoint.json`: what makes a folder a whole checkpoint. It is written last and holds the checksums of every other file and of itself."""

import hashlib
import json
import re
from pathlib import Path

from parascale.data.pool import ordered_map
from parascale.errors import CheckpointError
from parascale.files import read_json, write_json

MANIFEST = "checkpoint.json"
STEP = re.compile(r"step-(\d+)(?:\.old)?")  # the old one of a step that is being written again
SCHEMA_VERSION = 2


def step_folder(folder, step):
    """The folder of the checkpoint after `step` optimizer steps."""
    return Path(folder) / f"step-{step:09d}"


def step_of(folder):
    """The number of steps in a checkpoint folder's name; None for another name."""
    match = STEP.fullmatch(folder.name)
    return match and int(match[1])


def whole_checkpoints(folder):
    """Checkpoint folders below `folder`, the newest step first."""
    found = [entry.parent for entry in Path(folder).glob(f"step-*/{MANIFEST}")]
    return sorted((entry for entry in found if step_of(entry) is not None), reverse=True)


def checksum(path):
    """The hex xxh3 (128 bits) of a file's bytes: guards against accidents, at the speed of memory."""
    import xxhash  # not before a checkpoint is written or read

    with open(path, "rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


def describe_files(folder, names, threads=1):
    """File name → size in bytes and checksum, for some files of a folder."""
    paths = [Path(folder, name) for name in names]
    described = zip(names, paths, ordered_map(checksum, paths, threads), strict=True)
    return {str(name): {"bytes": path.stat().st_size, "xxh3": found} for name, path, found in described}


def write_manifest(folder, facts, files):
    """Make a written folder a checkpoint. facts: JSON values to keep. files: what `describe_files` gave."""
    manifest = {"schema_version": SCHEMA_VERSION, "facts": facts, "files": files}
    write_json(Path(folder) / MANIFEST, manifest | {"xxh3": _seal(manifest)})


def read_manifest(folder):
    """{facts, files} of a checkpoint folder; CheckpointError where it is not one, is damaged, or is named after another step."""
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise CheckpointError(f"{folder}: not a complete checkpoint ({MANIFEST} is missing)")
    try:
        manifest = read_json(path)
        if manifest.pop("xxh3") != _seal(manifest):
            raise CheckpointError(f"{path} is damaged: its own checksum differs")
        if manifest["schema_version"] != SCHEMA_VERSION:
            raise CheckpointError(f"{path} is of another version of parascale")
        step, named = manifest["facts"].get("step"), step_of(path.parent)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    if named is not None and named != step:
        raise CheckpointError(f"{path} is of step {step}, unlike the name of its folder")
    return manifest


def _seal(manifest):
    """The checksum of a manifest's values, however they are written down."""
    import xxhash

    read_back = json.loads(json.dumps(manifest))  # where every key is text
    return xxhash.xxh3_128_hexdigest(json.dumps(read_back, sort_keys=True).encode())


def check_files(folder, files, threads=1, unread=()):
    """Raise CheckpointError that names the first of `files` (name → bytes, xxh3) which is missing or altered.

    unread: names of files of which only the size is checked.
    """
    folder = Path(folder)
    for name, entry in files.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{folder}: {name} is missing")
        if (size := path.stat().st_size) != entry["bytes"]:
            raise CheckpointError(f"{folder}: {name} is damaged ({size:,} bytes instead of {entry['bytes']:,})")
    read = [name for name in files if name not in unread]
    sums = ordered_map(checksum, [folder / name for name in read], threads)
    for name, found in zip(read, sums, strict=True):
        if found != files[name]["xxh3"]:
            raise CheckpointError(f"{folder}: {name} is damaged (its checksum differs from {MANIFEST})")
