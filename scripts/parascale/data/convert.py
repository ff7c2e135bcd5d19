"""Convert images and tokens into a format; images shard by shard.

A split's samples are shuffled once, with a seed, and cut into equal shards. A job converts shard `k` of every split, and
`write_manifest` joins the shards. The same source and settings give the same bytes. A shard omits and lists its bad samples;
only `write_manifest` looks at `bad_samples`, so changing that setting converts nothing again.
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import xxhash

from parascale.data import jpeg
from parascale.data.formats import image_format, token_format
from parascale.data.formats.samples import SAMPLE, samples_path
from parascale.data.manifests import MANIFEST, SCHEMA_VERSION
from parascale.data.pool import Demand, ordered_map
from parascale.data.progress import Progress
from parascale.data.sampler import Sampler
from parascale.errors import ConfigError, DataError, shorten_list
from parascale.files import atomic_folder, atomic_path, read_json, require_space, sha256, sync_path, write_json

RECORD = "record.json"
COST = "cost.json"  # not in the record, which must be the same if the shard is made again
SHARD_INODES, FORMAT_INODES = 3, 2  # a shard's folder, record and cost; a format's folder and manifest
SHOWN = 20  # bad samples listed in a message
CHUNK_SAMPLES, CHUNK_BYTES = 32, 1 << 20  # that a thread reads at once, to keep the cost of handing over low


def shard_samples(images, number, shards, seed):
    """Source numbers of the samples of a shard, in the order in which they are written."""
    places = (len(images) * each // shards for each in (number, number + 1))
    return Sampler(len(images) or 1, 1, seed)._part(len(images), *places)  # the sample count serves as the epoch


def convert_shard(index, dataset, format_name, number, settings, output):
    """Write shard `number` of every split below `output` (`results/data/<dataset>/<format>`); returns its record.

    index: parascale.data.images.ImageIndex. settings: parascale.settings.formats.Formats. An existing shard from the same
    source and settings is kept. The record's `bad` lists the samples that were left out.
    """
    format_module = image_format(format_name)
    if not 0 <= number < settings.shards:
        raise ConfigError(f"no shard {number}: `formats.shards` = {settings.shards} makes 0 to {settings.shards - 1}")
    target = Path(output) / settings.shard(number)
    identity = shard_identity(index, dataset, format_name, number, settings)
    if (record := finished_record(target, identity)) is not None:
        return record
    parts = {split: index.split(split) for split in index.splits}
    picked = {split: shard_samples(part, number, settings.shards, settings.seed) for split, part in parts.items()}
    needed = sum(int(parts[split].lengths[numbers].sum()) for split, numbers in picked.items())
    if format_name != "files":
        require_space(output, needed, f"shard {number} of `{dataset}` as {format_name}")
    title = f"{dataset} → {format_name}, shard {number + 1} of {settings.shards}"
    with costed_folder(target) as partial, Progress(title, "samples", sum(map(len, picked.values()))) as progress:
        splits, bad = {}, []
        for split, numbers in picked.items():
            splits[split], found = _write_split(partial, format_module, parts[split], numbers, settings, progress)
            bad += found
        record = {**identity, "splits": splits, "bad": bad}
        write_json(partial / RECORD, record)
    return record


@contextmanager
def costed_folder(target):
    """Yield a new folder that becomes `target` atomically, with the cost of writing it in COST."""
    start, cpu = time.perf_counter(), sum(os.times()[:4])  # of this process and its child processes
    with atomic_folder(target) as partial:
        yield partial
        cost = {"seconds": time.perf_counter() - start, "cpu_seconds": sum(os.times()[:4]) - cpu}
        write_json(partial / COST, cost)


def convert(index, dataset, format_name, settings, output):
    """Write all shards and the manifest in this process; returns the manifest. Raises the errors of `write_manifest`."""
    for number in range(settings.shards):
        convert_shard(index, dataset, format_name, number, settings, output)
    return write_manifest(index, dataset, format_name, settings, output)


def write_manifest(index, dataset, format_name, settings, output):
    """Join finished shards: write each split's table of samples, and `manifest.json` last.

    If `settings.bad_samples` is `error`, bad samples raise a DataError that lists those of all shards; the shards stay.
    """
    output = Path(output)
    records = []
    for number in range(settings.shards):
        target = output / settings.shard(number)
        record = finished_record(target, shard_identity(index, dataset, format_name, number, settings))
        if record is None:
            raise DataError(f"{target}: shard missing or made with other settings; remove it and convert it first")
        records.append(record)
    bad = [sample for record in records for sample in record["bad"]]
    if bad and settings.bad_samples == "error":
        skip = "Set `formats.bad_samples: skip` to leave them out: nothing is converted again."
        again = f"remove the folder of the index and {output}, and run again: both are rebuilt"
        raise DataError(f"{bad_message(dataset, bad)}\n{skip} Or repair or remove them, {again}.")
    splits = {split: _gather_split(index.split(split), records, settings, output) for split in index.splits}
    shards = [shard for split in splits.values() for shard in split["shards"]]
    written = sum(shard["inodes"] for shard in shards) + settings.shards * SHARD_INODES + FORMAT_INODES
    lying = set().union(*(index.split(split).folders() for split in splits)) if format_name == "files" else ()
    manifest = {"schema_version": SCHEMA_VERSION, "kind": "images", "dataset": dataset, "format": format_name}
    manifest |= {
        "settings": {key: getattr(settings, key) for key in ("shards", "seed", "check", "bad_samples")},
        "classes": index.classes,
        "splits": splits,
        **{key: sum(shard[key] for shard in shards) for key in ("bytes", "sample_bytes")},
        "inodes": written
        + len(shards)
        + len(splits)
        + len(lying),  # each shard has a table beside its file, and so has each split
        "bad": bad,
    }
    write_json(output / MANIFEST, manifest)
    return manifest


def bad_message(dataset, bad):
    """List bad samples in a message. bad: from a record or manifest, each {split, source, name, reason}."""
    lines = [f"{sample['split']}, {sample['name']}: {sample['reason']}" for sample in bad]
    return f"dataset `{dataset}`: {len(bad):,} bad samples:\n  " + shorten_list(lines, SHOWN, "\n  ")


def _gather_split(images, records, settings, output):
    """Join a split's tables, with one at a time in memory; returns the split's entry for the manifest."""
    facts = [record["splits"][images.split] for record in records]
    shards = [{**each, "file": f"{settings.shard(number)}/{each['file']}"} for number, each in enumerate(facts)]
    samples = sum(shard["samples"] for shard in shards)
    header = {"descr": np.lib.format.dtype_to_descr(SAMPLE), "fortran_order": False, "shape": (samples,)}
    path = samples_path(output, images.split)
    with atomic_path(path) as partial, open(partial, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for number in range(settings.shards):
            table = np.load(output / settings.shard(number) / f"{images.split}.npy")
            table["shard"] = number
            file.write(table.tobytes())
    return {"samples": samples, "source": images.digest, "digest": sha256(path), "shards": shards}


def shard_identity(index, dataset, format_name, number, settings):
    """What identifies a shard: its source and settings."""
    found = {"schema_version": SCHEMA_VERSION, "dataset": dataset, "format": format_name, "shard": number}
    found |= {key: getattr(settings, key) for key in ("shards", "seed", "check")}
    return found | {"source": {split: index.split(split).digest for split in index.splits}}


def finished_record(target, identity):
    """The record of a complete shard made from `identity`; None if there is none."""
    with suppress(FileNotFoundError, ValueError):
        record = read_json(target / RECORD)
        if all(record.get(key) == value for key, value in identity.items()):
            files = {target / facts["file"]: facts["bytes"] for facts in record["splits"].values()}
            if all(path.is_file() and path.stat().st_size == size for path, size in files.items()):
                return record
    return None


def read_samples(images, numbers, settings):
    """Yield (number, bytes or None, checksum or reason, colour space) for each of `numbers`, in order, with bounded memory."""

    def fetch(chunk):
        return [_fetch(images, number, settings.check) for number in chunk]

    chunks = _chunks(images, numbers)
    for samples in ordered_map(fetch, chunks, settings.threads, Demand(2 * settings.threads)):
        yield from samples


def _write_split(folder, format_module, images, numbers, settings, progress):
    """Write a split's part of a shard; returns (its entry for the record, bad samples)."""
    file = folder / f"{images.split}.{format_module.SUFFIX}"
    table, bad, spaces, count = np.zeros(len(numbers), SAMPLE), [], {}, 0
    with format_module.Writer(file, images, int(images.lengths[numbers].sum())) as writer:
        for number, data, checksum, space in progress.count(read_samples(images, numbers, settings)):
            if data is None:
                bad.append({"split": images.split, "source": number, "name": images.name(number), "reason": checksum})
                continue
            label = images.labels.item(number)
            writer.append(data, label, number)
            table[count] = (0, len(data), checksum, number, label, 0)
            spaces[space] = spaces.get(space, 0) + 1
            count += 1
        table = table[:count]
        table["offset"] = writer.finish()
        inodes = writer.inodes
    np.save(folder / f"{images.split}.npy", table)
    with ThreadPoolExecutor(1) as pool:  # the disk writes while the CPU hashes
        flushed = pool.submit(sync_path, file)
        digest = sha256(file)
        flushed.result()
    sizes = {"samples": count, "bytes": file.stat().st_size, "sample_bytes": int(table["length"].sum())}
    facts = {"file": file.name, **sizes, "sha256": digest, "inodes": inodes}
    return facts | {"colour_spaces": dict(sorted(spaces.items()))}, bad


def _fetch(images, number, check):
    try:
        data = images.read(number)
        if len(data) != (known := images.lengths.item(number)):
            raise jpeg.BadImage(f"it has {len(data):,} bytes instead of {known:,}: it changed since it was indexed")
        space = jpeg.check(data, check)
    except OSError as error:
        return number, None, f"it cannot be read ({error.strerror})", None
    except jpeg.BadImage as error:
        return number, None, str(error), None
    return number, data, xxhash.xxh3_64_intdigest(data), space


def _chunks(images, numbers):
    """Cut sample numbers into lists of limited length and bytes."""
    chunk, size = [], 0
    for number, length in zip(numbers.tolist(), images.lengths[numbers].tolist(), strict=True):
        if chunk and (len(chunk) == CHUNK_SAMPLES or size + length > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(number)
        size += length
    yield chunk


def convert_tokens(tokens, dataset, format_name, output):
    """Write every split as `format_name` into the folder `output`; returns the manifest.

    tokens: parascale.data.text.Tokens. The same tokens give the same bytes.
    """
    module, output = token_format(format_name), Path(output)
    arrays = {split: tokens.split(split) for split in tokens.manifest["splits"]}
    total = sum(array.nbytes for array in arrays.values())
    require_space(output, total, f"dataset `{dataset}` as {format_name}")
    digests = token_digests(tokens)
    with costed_folder(output) as partial, Progress(f"{dataset} → {format_name}", "B", total) as progress:
        splits = {}
        for split, array in arrays.items():
            path = partial / f"{split}.{module.SUFFIX}"
            module.write_tokens(path, array)
            facts = {"file": path.name, "tokens": len(array), "bytes": path.stat().st_size, "sha256": sha256(path)}
            splits[split] = facts | {"source": digests[split]}
            progress.add(array.nbytes)
        manifest = {"schema_version": SCHEMA_VERSION, "kind": "tokens", "dataset": dataset, "format": format_name}
        manifest |= {"dtype": tokens.manifest["dtype"], "splits": splits}
        manifest["bytes"] = sum(facts["bytes"] for facts in splits.values())
        manifest["inodes"] = len(splits) + 3  # manifest, cost and the folder
        write_json(partial / MANIFEST, manifest)
    return manifest


def token_digests(tokens):
    """split → sha256 of its flat array, from which it is converted."""
    files = tokens.manifest["files"]
    return {split: files[f"{split}.bin"]["sha256"] for split in tokens.manifest["splits"]}
