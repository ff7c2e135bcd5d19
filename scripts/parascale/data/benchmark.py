"""The benchmark of a dataset's formats: which cases there are, the rows they give, and what the machine can do at best."""

import dataclasses
import os
import shutil
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from parascale.data.cases import Case, byte_addressed
from parascale.data.formats import image_format, module_name, tokens_are_mapped
from parascale.data.formats.manifest import read_manifest
from parascale.data.formats.storage import copy_to_memory, default_io, filesystem, require_room
from parascale.data.measure import measure
from parascale.data.progress import Progress
from parascale.files import csv_text, read_json, write_text
from parascale.settings.formats import IMAGE_FORMATS
from parascale.settings.workload import usable_decoders

COLUMNS = (
    "dataset", "format", "access", "cache", "io", "workers", "decoder", "place", "samples_per_second", "spread", "repeats",
    "samples", "sample_bytes", "cpu_seconds", "bytes_read_per_byte", "read_calls_per_sample", "opens_per_sample", "first_batch_seconds",
    "peak_memory_bytes", "inodes", "bytes", "write_seconds", "write_cpu_seconds",
)  # fmt: skip
DISK, SHARED_MEMORY = "disk", "shm"
CEILING_BLOCK, CEILING_COPY_BYTES, CEILING_SECONDS = 8 << 20, 256 << 20, 0.3


def benchmark_images(dataset, folders, settings, training):
    """Measure image formats. folders: those of the formats; settings: parascale.settings.formats.Loaders; training: what sees the
    decoded images, a parascale.settings.workload.ImageTraining. Returns rows.

    Raises RequirementError, before anything is measured, where a copy in shared memory is wanted and does not fit.
    """
    if settings.shared_memory:
        for folder in folders:
            require_room(folder)
    cases = [(folder, DISK, case) for folder in folders for case in image_cases(folder, settings, training)]
    rows = _run(dataset, cases)
    if settings.shared_memory:
        for folder in folders:
            rows += _in_shared_memory(dataset, Path(folder), settings, training)
    return rows


def benchmark_tokens(dataset, folders, window, settings):
    """Measure token formats, as batches of windows. folders: those of the formats, `flat` among them. Returns rows."""
    cases = [(folder, DISK, case) for folder in folders for case in token_cases(Path(folder), window, settings)]
    return _run(dataset, cases)


def image_cases(folder, settings, training):
    """Every case of one format: by cache, bytes by each kind of access and call, and tensors by each decoder and number of workers."""
    manifest = read_manifest(folder)
    case = _case(folder, manifest["format"], settings)
    seen = {"access": "random", "size": training.image_size, "smallest": training.smallest_crop}
    chosen = settings.io if settings.io != "auto" else default_io(folder, manifest["bytes"])
    calls = [settings.io] if settings.io != "auto" else ["pread", "mmap"]
    if not byte_addressed(folder):
        chosen = "pread" if case.format == "parquet" else "files"
        calls = [chosen]
    for cache in ("warm", "cold") if settings.cold else ("warm",):
        for access in ("sequential", "random"):
            for io in calls:
                yield dataclasses.replace(case, access=access, cache=cache, io=io)
        for decoder in usable_decoders() if image_format(case.format).RANDOM_ACCESS else ():
            for workers in settings.workers:
                yield dataclasses.replace(case, **seen, cache=cache, io=chosen, workers=workers, decoder=decoder)


def token_cases(folder, window, settings):
    """Every case of one token format. What is decoded as it is opened is read from memory then, and never cold."""
    name = "flat" if folder.name == "flat" else read_manifest(folder)["format"]
    mapped = tokens_are_mapped(name)
    case = dataclasses.replace(_case(folder, name, settings), io="mmap" if mapped else "memory", window=window)
    for cache in ("warm", "cold") if settings.cold and mapped else ("warm",):
        for access in ("sequential", "random"):
            yield dataclasses.replace(case, access=access, cache=cache)


def write_rows(path, rows):
    """Write rows as CSV; an unknown figure is an empty cell."""
    write_text(path, csv_text(COLUMNS, rows))


def conversion_cost(folder):
    """(seconds, CPU seconds) that writing a format took, all shards together; (None, None) where nothing says so."""
    costs = [read_json(path) for path in sorted(Path(folder).rglob("cost.json"))]
    if not costs:
        return None, None
    return sum(cost["seconds"] for cost in costs), sum(cost["cpu_seconds"] for cost in costs)


def best_ceilings(folders):
    """The ceilings, read from the largest file below the folders, with its filesystem."""
    files = [path for folder in folders for path in Path(folder).rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    return {**ceilings(largest), "filesystem": filesystem(largest)}


def ceilings(path, repeats=3):
    """Bytes a second: {`preadv`: one large file in order from the page cache, `memcpy`: memory to memory}.

    path: a large file, such as a shard.
    """
    return {
        "preadv": statistics.median(_preadv(path) for _ in range(repeats + 1)),  # one more, to fill the cache
        "memcpy": statistics.median(_memcpy() for _ in range(repeats)),
    }


def _in_shared_memory(dataset, folder, settings, training):
    """The warm cases from a copy in shared memory; raw files have none, since they lie where the user has them."""
    cases = image_cases(folder, settings, training)
    wanted = [case for case in cases if case.cache == "warm" and case.format != "files"]
    if not wanted:
        return []
    copy = copy_to_memory(folder)
    try:
        return _run(dataset, [(folder, SHARED_MEMORY, dataclasses.replace(case, folder=str(copy))) for case in wanted])
    finally:
        shutil.rmtree(copy.parent, ignore_errors=True)


def _case(folder, name, settings):
    """The case of one format from which the others differ in a field or two."""
    limits = {key: getattr(settings, key) for key in ("samples", "seconds", "repeats")}
    return Case(str(folder), "train", name, "sequential", "warm", "pread", workers=0, decoder=None, **limits)


def _run(dataset, cases):
    """Measure each case, one at a time in a process of its own, since they would disturb each other."""
    rows = []
    server = get_context("forkserver")  # it has imported what a case needs, and nothing else: a fresh process is quick
    server.set_forkserver_preload(["parascale.data.measure", "parascale.data.text", *map(module_name, IMAGE_FORMATS)])
    with (
        Progress(f"{dataset}: reading", "cases", len(cases)) as progress,
        ProcessPoolExecutor(1, mp_context=server, max_tasks_per_child=1) as fresh,
    ):
        for folder, place, case in cases:
            figures = fresh.submit(measure, case).result()
            progress.add(1)
            if figures is not None:
                rows.append({**_row(dataset, folder, case), "place": place, **figures})
    return rows


def _row(dataset, folder, case):
    seconds, cpu = conversion_cost(folder)
    row = {key: getattr(case, key) for key in ("format", "access", "cache", "io", "workers", "decoder")}
    if case.format == "flat":
        manifest = read_json(Path(folder) / "manifest.json")
        files = manifest["files"]
        # Its manifest and its folder count, too.
        sizes = {"inodes": len(files) + 2, "bytes": sum(facts["bytes"] for facts in files.values())}
    else:
        manifest = read_manifest(folder)
        sizes = {
            "inodes": manifest["inodes"],
            "bytes": manifest["sample_bytes"] if case.format == "files" else manifest["bytes"],
        }
    return {"dataset": dataset, **row, **sizes, "write_seconds": seconds, "write_cpu_seconds": cpu}


def _preadv(path):
    buffer = bytearray(CEILING_BLOCK)
    file = os.open(path, os.O_RDONLY)
    try:
        total, place, start = 0, 0, time.perf_counter()
        while time.perf_counter() - start < CEILING_SECONDS:
            count = os.preadv(file, [buffer], place)
            total += count
            place = place + count if count else 0
            if not count and not total:
                break
        return total / (time.perf_counter() - start)
    finally:
        os.close(file)


def _memcpy():
    # Filled, because memory that nobody wrote to is one page of zeros; copied once before, so that the target is there.
    source, target = b"\1" * CEILING_COPY_BYTES, bytearray(CEILING_COPY_BYTES)
    view = memoryview(target)
    view[:] = source
    start = time.perf_counter()
    view[:] = source
    return CEILING_COPY_BYTES / (time.perf_counter() - start)
