"""The manifest of a dataset in one format, and the table of its samples.

`manifest.json` has the source, the settings, and the shards of each split with their sha256. `<split>.samples.npy` has one row
(SAMPLE) per sample, in the order of the shards, and is memory-mapped.
"""

from pathlib import Path

import numpy as np

from parascale.data.manifests import MANIFEST, SCHEMA_VERSION, manifest_in
from parascale.errors import DataError

SAMPLE = np.dtype(
    [
        ("offset", "<i8"),  # byte in the shard's file; some formats use it otherwise, see their modules
        ("length", "<i8"),  # bytes of the sample
        ("checksum", "<u8"),  # xxh3 (64 bit) of the sample
        ("source", "<i8"),  # number of the sample in the source
        ("label", "<i4"),
        ("shard", "<i4"),
    ]
)


def samples_path(folder, split):
    """The path of the table of a split's samples."""
    return Path(folder) / f"{split}.samples.npy"


def remedy(folder, shard=None):
    """How to repair damaged data, for messages. shard: its folder. `verify.json` must go too: it is all that `formats` looks for."""
    return f"remove {shard + ' and ' if shard else ''}{folder}/*.json, and run the target `formats` again"


def read_manifest(folder):
    """The manifest in a format's folder. Raises DataError if it is missing or damaged."""
    manifest = manifest_in(folder, "no converted data here; the target `formats` makes it", remedy(folder))
    if manifest.get("schema_version") != SCHEMA_VERSION or "format" not in manifest:
        raise DataError(f"{folder}/{MANIFEST} is damaged or of another version; {remedy(folder)}")
    return manifest


def require_source(folder, manifest, dataset, digests):
    """Raise DataError unless the data was converted from this source. digests: split → digest."""
    found = {split: facts["source"] for split, facts in manifest["splits"].items()}
    if found != digests:
        raise DataError(f"{folder}: converted from another source than {dataset} has now: remove it, run `formats`")
