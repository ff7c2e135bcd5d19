"""`checkpoint.json`, which marks a folder as a complete checkpoint: written last, with the checksums of every file and of itself."""

import hashlib
import json
import re
from pathlib import Path

from parascale.data.pool import ordered_map
from parascale.errors import CheckpointError
from parascale.files import read_json, write_json

MANIFEST = "checkpoint.json"
STEP = re.compile(r"step-(\d+)(?:\.old)?")  # `.old`: kept while the same step is being rewritten
SCHEMA_VERSION = 2


def step_folder(folder, step):
    """The folder of the checkpoint after `step` optimizer steps."""
    return Path(folder) / f"step-{step:09d}"


def step_of(folder):
    """The step in a checkpoint folder's name; None for any other name."""
    match = STEP.fullmatch(folder.name)
    return match and int(match[1])


def whole_checkpoints(folder):
    """Complete checkpoints below `folder`, newest step first."""
    found = [entry.parent for entry in Path(folder).glob(f"step-*/{MANIFEST}")]
    return sorted((entry for entry in found if step_of(entry) is not None), reverse=True)


def checksum(path):
    """128-bit xxh3 of a file, in hex: detects accidental damage, at the speed of memory."""
    import xxhash  # only when a checkpoint is written or read

    with open(path, "rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


def describe_files(folder, names, threads=1):
    """File name → size in bytes and checksum, for the named files of a folder."""
    paths = [Path(folder, name) for name in names]
    described = zip(names, paths, ordered_map(checksum, paths, threads), strict=True)
    return {str(name): {"bytes": path.stat().st_size, "xxh3": found} for name, path, found in described}


def write_manifest(folder, facts, files):
    """Complete a checkpoint with its manifest. facts: JSON values to keep. files: from `describe_files`."""
    manifest = {"schema_version": SCHEMA_VERSION, "facts": facts, "files": files}
    write_json(Path(folder) / MANIFEST, manifest | {"xxh3": _seal(manifest)})


def read_manifest(folder):
    """Read {facts, files} of a checkpoint folder. Raises CheckpointError if it is incomplete, damaged, or named after another step."""
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise CheckpointError(f"{folder}: not a complete checkpoint ({MANIFEST} is missing)")
    try:
        manifest = read_json(path)
        if manifest.pop("xxh3") != _seal(manifest):
            raise CheckpointError(f"{path} is damaged: its own checksum differs")
        if manifest["schema_version"] != SCHEMA_VERSION:
            raise CheckpointError(f"{path} was written by another version of parascale")
        step, named = manifest["facts"].get("step"), step_of(path.parent)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    if named is not None and named != step:
        raise CheckpointError(f"{path} is of step {step}, but its folder is named after step {named}")
    return manifest


def _seal(manifest):
    """Checksum of a manifest's values, independent of their formatting."""
    import xxhash

    read_back = json.loads(json.dumps(manifest))  # turns every key into text
    return xxhash.xxh3_128_hexdigest(json.dumps(read_back, sort_keys=True).encode())


def check_files(folder, files, threads=1, unread=()):
    """Raise CheckpointError for the first of `files` (name → bytes, xxh3) that is missing or changed.

    unread: names of files whose size alone is checked.
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
