"""Benchmark a dataset's formats: the cases, their results as rows, and the best rates of the machine."""

import dataclasses
import gc
import itertools
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import psutil

from parascale.data.formats import image_format, tokens_are_mapped
from parascale.data.formats.samples import read_manifest
from parascale.data.formats.storage import copy_in_memory, default_io, filesystem, require_room
from parascale.data.measure import Case, measure
from parascale.data.progress import Progress
from parascale.files import csv_text, read_json, write_text
from parascale.settings.formats import IMAGE_FORMATS, TOKEN_FORMATS
from parascale.settings.workload import usable_decoders

COLUMNS = (
    "dataset", "format", "access", "cache", "io", "workers", "decoder", "place", "samples_per_second", "spread", "repeats",
    "samples", "sample_bytes", "cpu_seconds", "bytes_read_per_byte", "read_calls_per_sample", "opens_per_sample", "first_batch_seconds",
    "peak_memory_bytes", "inodes", "bytes", "write_seconds", "write_cpu_seconds",
)  # fmt: skip
DISK, SHARED_MEMORY = "disk", "shm"
BLOCK_BYTES, COPY_BYTES = 8 << 20, 256 << 20
GOOD_ENOUGH = 0.7  # as a share of the fastest; among formats above it, PREFERENCE decides
PREFERENCE = ("flat", *IMAGE_FORMATS, *TOKEN_FORMATS)


def benchmark(dataset, folders, settings, training):
    """Measure formats, the unconverted tokens (`flat`) among them; returns rows of COLUMNS.

    settings: parascale.settings.formats.Loaders. training: settings of the training that reads the samples: an ImageTraining, or one
    with a `window`. Raises RequirementError, before measuring anything, if a copy does not fit in shared memory.
    """
    copied = [Path(folder) for folder in folders if settings.shared_memory and not _is_text(training)]
    for folder in copied:
        require_room(folder)
    rows = _run(dataset, [(folder, DISK, case) for folder in folders for case in cases_of(folder, settings, training)])
    for folder in copied:
        # Raw files stay where the user has them; a copy of their list would measure the same files.
        wanted = [
            case for case in cases_of(folder, settings, training) if case.cache == "warm" and case.format != "files"
        ]
        if wanted:
            with copy_in_memory(folder) as copy:
                there = [dataclasses.replace(case, folder=str(copy)) for case in wanted]
                rows += _run(dataset, [(folder, SHARED_MEMORY, case) for case in there])
    return rows


def cases_of(folder, settings, training):
    """Yield all cases of one format: raw bytes by access, cache and system call, and tensors by cache, decoder and workers."""
    limits = {key: getattr(settings, key) for key in ("samples", "seconds", "repeats")}
    name = "flat" if Path(folder).name == "flat" else read_manifest(folder)["format"]
    case = Case(str(folder), name, "random", "warm", "mmap", **limits)
    caches = ("warm", "cold") if settings.cold else ("warm",)
    if _is_text(training):
        case, calls, decoders = dataclasses.replace(case, window=training.window), ("mmap",), []
        if not tokens_are_mapped(name):  # decoded into memory when opened
            caches, calls = ("warm",), ("memory",)
    else:
        reader = image_format(name).Reader
        calls, decoders = reader.CALLS, usable_decoders() if reader.THREADS else []
        usual = calls[0] if len(calls) == 1 else default_io(folder, read_manifest(folder)["bytes"])
        seen = {"io": usual, "size": training.image_size, "smallest": training.smallest_crop}
    for cache in caches:
        for access in ("sequential", "random"):
            for io in calls:
                yield dataclasses.replace(case, access=access, cache=cache, io=io)
        for decoder in decoders:
            for workers in settings.workers:
                yield dataclasses.replace(case, **seen, cache=cache, workers=workers, decoder=decoder)


def write_rows(path, rows):
    """Write rows as CSV."""
    write_text(path, csv_text(COLUMNS, rows))


def best_ceilings(folders):
    """Best rates of this machine in bytes per second, each the best of a few tries: `preadv` reads the beginning of the largest file below
    the folders from the page cache, `memcpy` copies memory. With the file's `filesystem`."""
    files = [path for folder in folders for path in Path(folder).rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    buffer = bytearray(BLOCK_BYTES)
    source, target = (np.ones(COPY_BYTES, np.uint8) for _ in range(2))  # filled: fresh memory is one page of zeros

    def read():
        with open(largest, "rb", buffering=0) as file:
            blocks = iter(lambda: file.readinto(buffer), 0)
            return sum(itertools.islice(blocks, COPY_BYTES // BLOCK_BYTES))

    def copy():
        target[:] = source
        return COPY_BYTES

    return {"preadv": _best_rate(read), "memcpy": _best_rate(copy), "filesystem": filesystem(largest)}


def _best_rate(work, repeats=4):
    """Bytes per second of the fastest of a few calls; `work` returns its bytes."""
    best = 0.0
    for _ in range(repeats):
        start = time.perf_counter()
        size = work()
        best = max(best, size / (time.perf_counter() - start))
    return best


def _is_text(training):
    return hasattr(training, "window")


def _run(dataset, cases):
    """Measure the cases one at a time, each in a fresh process, because they would disturb each other."""
    rows = []
    server = get_context("forkserver")  # it imports what cases need once, so that processes start fast
    formats = [f"parascale.data.formats.{name}" for name in IMAGE_FORMATS]
    decoding = ["torch"] if any(case.decoder for *_, case in cases) else []  # takes seconds
    server.set_forkserver_preload(["parascale.data.measure", "parascale.data.text", *formats, *decoding])
    with (
        Progress(f"{dataset}: reading", "cases", len(cases)) as progress,
        # Garbage collection would copy the pages that the server shares.
        ProcessPoolExecutor(1, mp_context=server, initializer=gc.freeze, max_tasks_per_child=1) as fresh,
    ):
        for folder, place, case in cases:
            figures = fresh.submit(measure, case).result()
            progress.add(1)
            if figures is not None:
                row = {key: getattr(case, key) for key in ("format", "access", "cache", "io", "workers", "decoder")}
                rows.append({"dataset": dataset, "place": place, **row, **_costs(Path(folder), case.format), **figures})
    return rows


def _costs(folder, name):
    """Costs of writing and keeping a format. Costs of writing are None if unknown."""
    costs = [read_json(path) for path in sorted(folder.rglob("cost.json"))]
    written = {
        f"write_{key}": sum(cost[key] for cost in costs) if costs else None for key in ("seconds", "cpu_seconds")
    }
    if name == "flat":
        files = read_json(folder / "manifest.json")["files"].values()
        # + 2: its manifest and its folder
        return {**written, "inodes": len(files) + 2, "bytes": sum(facts["bytes"] for facts in files)}
    manifest = read_manifest(folder)
    size = manifest["sample_bytes" if name == "files" else "bytes"]
    return {**written, "inodes": manifest["inodes"], "bytes": size}


def advise(rows, unit, memory_bytes=None, taken=None, devices="GPUs"):
    """Recommend a format: (its name, the reason in a sentence).

    rows: from the benchmark. unit: of samples, `images` or `windows`. memory_bytes: of the machine (default: this one).
    taken: samples per second that one of `devices` trains on if it never waits for data, if known.
    """
    memory = memory_bytes or psutil.virtual_memory().total
    best = _best([row for row in rows if not row["decoder"] and row["access"] == "random"])
    speeds = {name: best[name]["samples_per_second"] for name in PREFERENCE if name in best}
    fastest = max(speeds, key=lambda name: speeds[name])
    chosen = next(name for name, speed in speeds.items() if speed >= GOOD_ENOUGH * speeds[fastest])
    row = best[chosen]
    said = f"Take {chosen}: {speeds[chosen]:,.0f} {unit}/s at random"
    if fastest != chosen:
        near = f"of those with at least {100 * GOOD_ENOUGH:.0f} % of that, {chosen} is the easiest to use elsewhere"
        said += f" ({fastest}: {speeds[fastest]:,.0f}; {near})"
    parts = [said]
    if "files" in best and chosen != "files":
        parts[0] += f", {speeds[chosen] / speeds['files']:.1f} times as many as the raw files"
        parts.append(f"{row['inodes']:,} inodes instead of {best['files']['inodes']:,}")
    if row["io"] == "memory":
        parts.append(f"each process decodes all of it into its own memory, {row['bytes'] / 2**20:,.0f} MiB on disk")
    elif row["bytes"] < memory / 2:
        stay = f"its {row['bytes'] / 2**20:,.0f} MiB stay in the page cache after the first epoch"
        parts.append(f"{stay} ({memory / 2**30:,.0f} GiB of memory), shared by all processes of a node")
    else:
        parts.append(
            f"its {row['bytes'] / 2**30:,.1f} GiB do not stay in {memory / 2**30:,.0f} GiB of memory: every epoch reads the disk, "
            "so prefer `pread`, more workers, and one shard per node"
        )
    decoded = _best([row for row in rows if row["decoder"]]).get(chosen)
    if decoded:
        rate, a_core = decoded["samples_per_second"], decoded["samples"] / decoded["cpu_seconds"]
        workers = f"{decoded['workers']} worker{'s' * (decoded['workers'] > 1)}" if decoded["workers"] else "no workers"
        by = f"(decoder `{decoded['decoder']}`, {workers}), {a_core:,.0f} per core-second"
        parts.append(f"from file to tensor {rate:,.0f} {unit}/s {by}")
        if rate < speeds[chosen] / 2:
            parts[-1] += ": decoding takes most of the time, so a format that is read faster would gain little"
        if taken:
            parts.append(
                f"that keeps {rate / taken:,.1f} of these {devices} busy: each trains on {taken:,.0f} {unit}/s by the plan"
            )
    return chosen, "; ".join(parts) + "."


def _best(rows):
    """format → its fastest row with a warm cache, on disk."""
    rows = [row for row in rows if row["cache"] == "warm" and row["place"] == "disk"]
    return {row["format"]: row for row in sorted(rows, key=lambda row: row["samples_per_second"])}
