"""`checkpoint.json`: what makes a folder a whole checkpoint. It is written last and holds the checksum of every other file."""

import json
from pathlib import Path

import xxhash

from parascale.data.pool import ordered_map
from parascale.errors import CheckpointError
from parascale.files import BLOCK_BYTES, read_json, write_json

MANIFEST = "checkpoint.json"
SCHEMA_VERSION = 1


def checksum(path):
    """The hex xxh3 (128 bits) of a file's bytes: guards against accidents, at the speed of memory."""
    digest = xxhash.xxh3_128()
    with open(path, "rb") as handle:
        while block := handle.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def describe_files(folder, names, threads=1):
    """File name → size in bytes and checksum, for some files of a folder."""
    paths = [Path(folder) / name for name in names]
    sums = ordered_map(checksum, paths, threads)
    return {
        str(name): {"bytes": path.stat().st_size, "xxh3": sum_}
        for name, path, sum_ in zip(names, paths, sums, strict=True)
    }


def write_manifest(folder, facts, files):
    """Make a written folder a checkpoint. facts: JSON values to keep. files: what `describe_files` gave."""
    write_json(Path(folder) / MANIFEST, {"schema_version": SCHEMA_VERSION, "facts": facts, "files": files})


def read_manifest(folder):
    """{facts, files} of a checkpoint folder; CheckpointError where it is none."""
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise CheckpointError(f"{folder}: not a whole checkpoint ({MANIFEST} is missing)")
    try:
        manifest = read_json(path)
        return {"facts": manifest["facts"], "files": manifest["files"]}
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None


def check_files(folder, files, threads=1):
    """Raise CheckpointError that names the first of `files` (name → bytes, xxh3) which is missing or altered."""
    folder = Path(folder)
    for name, entry in files.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{folder}: {name} is missing")
        if path.stat().st_size != entry["bytes"]:
            raise CheckpointError(
                f"{folder}: {name} is damaged ({path.stat().st_size:,} bytes instead of {entry['bytes']:,})"
            )
    sums = ordered_map(checksum, [folder / name for name in files], threads)
    for (name, entry), found in zip(files.items(), sums, strict=True):
        if found != entry["xxh3"]:
            raise CheckpointError(f"{folder}: {name} is damaged (its checksum differs from {MANIFEST})")
