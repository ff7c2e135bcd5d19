"""Verify that converted data equals its source.

Each sample is read with our reader and with the format's own library, and compared byte by byte with a fresh read of the source.
Labels, checksums and the shards' sha256 are compared too. Every sample of the source must occur once or be listed as bad.
"""

import dataclasses
import itertools

import numpy as np
import xxhash

from parascale.data.convert import read_samples, token_digests
from parascale.data.formats import image_format, open_images, open_tokens
from parascale.data.formats.samples import read_manifest, require_source, samples_path
from parascale.data.progress import Progress
from parascale.errors import DataError, shorten_list
from parascale.files import sha256

SHOWN = 20  # differences listed in a message


def verify_images(folder, index, dataset, settings):
    """Compare a converted image set with its source. Returns counts; raises DataError that lists what differs."""
    manifest = read_manifest(folder)
    require_source(folder, manifest, dataset, {split: index.split(split).digest for split in index.splits})
    settings = dataclasses.replace(settings, check="none")  # the bytes are compared, so images need no check
    found, compared = [], 0
    for split, facts in manifest["splits"].items():
        reader = open_images(folder, split)
        digests = {samples_path(folder, split): facts["digest"]}
        digests |= {folder / shard["file"]: shard["sha256"] for shard in facts["shards"]}
        found += [f"{path}: its sha256 differs" for path, digest in digests.items() if sha256(path) != digest]
        images = index.split(split)
        bad = [sample["source"] for sample in manifest["bad"] if sample["split"] == split]
        # Each sample of the source must occur once, in the shards or among the bad ones.
        counts = np.bincount(np.concatenate([reader.samples["source"], np.array(bad, np.int64)]), minlength=len(images))
        if len(counts) > len(images):
            found.append(f"{folder}, {split}: samples that the source does not have")
        wrong = np.flatnonzero(counts[: len(images)] != 1).tolist()
        found += [f"{images.name(i)}: {counts[i]} times in {split} instead of once" for i in wrong]
        with Progress(f"{folder} {split}", "samples", len(reader)) as progress:
            for shard, rows in enumerate(reader.shards()):
                _compare_shard(reader, images, shard, rows, settings, progress, found)
        compared += len(reader)
        reader.close()
    if found:
        raise _difference(folder, found)
    facts = {"format": manifest["format"], "dataset": dataset, "samples": compared}
    return facts | {"bad": len(manifest["bad"]), "identical": True}


def verify_tokens(folder, tokens, dataset):
    """Compare converted tokens with the flat arrays. tokens: parascale.data.text.Tokens."""
    manifest = read_manifest(folder)
    require_source(folder, manifest, dataset, token_digests(tokens))
    found, compared = [], 0
    for split, facts in manifest["splits"].items():
        if sha256(folder / facts["file"]) != facts["sha256"]:
            found.append(f"{folder / facts['file']}: its sha256 differs")
        ours, theirs = open_tokens(folder, split), tokens.split(split)
        if ours.dtype != theirs.dtype or not np.array_equal(ours, theirs):
            found.append(f"{folder / facts['file']}: the tokens differ from {tokens.folder}")
        compared += len(ours)
    if found:
        raise _difference(folder, found)
    return {"format": manifest["format"], "dataset": dataset, "tokens": compared, "identical": True}


def _compare_shard(reader, images, shard, rows, settings, progress, found):
    numbers = reader.samples["source"][rows.start : rows.stop]
    samples = progress.count(read_samples(images, numbers, settings))
    native = getattr(image_format(reader.manifest["format"]), "native", None)
    # If the library ends early, every later sample counts as different.
    alone = itertools.chain(native(reader.paths()[shard]), itertools.repeat(None)) if native else None
    for (number, data, checksum, _), i in zip(samples, rows, strict=True):
        label = images.labels.item(number)
        theirs = next(alone) if alone else (data, label)
        if data is None:
            found.append(f"{images.name(number)}: the source can no longer be read: {checksum}")
            continue
        same = {
            "read": reader[i] == data,
            "checksum": xxhash.xxh3_64_intdigest(data) == reader.samples["checksum"].item(i),
            "label": reader.labels.item(i) == label,
            "read by the format's own library": theirs == (data, label),
        }
        if wrong := [what for what, holds in same.items() if not holds]:
            found.append(f"{reader.where(i)} is not {images.name(number)}: {', '.join(wrong)}")
    if alone and next(alone) is not None:
        found.append(f"{reader.paths()[shard]}: more samples than the manifest has")


def _difference(folder, found):
    return DataError(
        f"{folder}: {len(found):,} differences from its source:\n  " + shorten_list(found, SHOWN, "\n  ") + "\n"
        f"Remove the folders of these files, and {folder}/*.json, and run the target `formats` again."
    )
