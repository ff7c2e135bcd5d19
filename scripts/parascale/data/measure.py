"""How fast a reader is: one case at a time, each in a fresh process, so that nothing is warm that should not be.

What is read is counted by the kernel (`/proc/self/io`, proc(5)): `rchar`, bytes that read calls returned; `syscr`, how many
calls; `read_bytes`, what storage had to deliver, page faults of mapped files included.
"""

import contextlib
import dataclasses
import itertools
import os
import resource
import statistics
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import psutil

from parascale.data import jpeg
from parascale.data.formats import image_format, open_images, open_tokens
from parascale.data.formats.manifest import read_manifest
from parascale.data.formats.storage import drop_from_cache

BATCH = 64
CLOCK_EVERY = 32  # samples between looks at the clock
COUNTED = 512  # samples over which opens are counted
SEED = 1


@dataclasses.dataclass(frozen=True)
class Case:
    """What is measured. window: of text; None for images."""

    folder: str
    split: str
    format: str
    access: str  # sequential | random
    cache: str  # warm | cold
    io: str  # pread | mmap | files
    workers: int
    decode: bool
    samples: int
    seconds: float
    repeats: int
    window: int | None = None


def measure(case):
    """Measure one case; returns the columns that reading gives, or None where the cache cannot be dropped.

    samples_per_second is the median of the repeats and spread their range relative to it; samples and cpu_seconds are a
    pass's medians, sample_bytes is the mean of what was asked for. peak_memory_bytes is what reading added to the process,
    mapped pages of files as long as they are mapped; of workers, what they share with no other process as a pass ends.
    Unknown figures are None.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Parquet says that random access is slow; here that is what is measured
        return _measure_workers(case) if case.workers else _measure_here(case)


def _measure_here(case):
    start_memory = _memory("VmRSS")
    if case.cache == "warm":
        # One reader for all passes: the first fills the cache and is not counted, but for its first batch.
        with _opened(case) as source:
            first = _one_pass(case, source, 0)["first"]
            passes = [_one_pass(case, source, repeat) for repeat in range(1, case.repeats + 1)]
    else:
        with _opened(case):
            passes = []  # opened once before, so that no import is counted
        for repeat in range(case.repeats):
            if not drop_from_cache(_paths(case)):
                return None
            passes.append(_cold_pass(case, repeat))
        first = statistics.median(one["first"] for one in passes)
    asked, samples = (sum(one[key] for one in passes) for key in ("bytes", "samples"))
    # A mapped file is read by page faults, which only storage sees, and only when nothing is cached.
    counted = {"pread": "rchar", "files": "rchar", "mmap": "read_bytes" if case.cache == "cold" else None}[case.io]
    return {
        **_rates([one["samples"] / one["seconds"] for one in passes]),
        "samples": samples // case.repeats,
        "sample_bytes": asked / samples,
        "cpu_seconds": statistics.median(one["cpu"] for one in passes),
        "bytes_read_per_byte": sum(one[counted] for one in passes) / asked if counted and asked else None,
        "read_calls_per_sample": sum(one["syscr"] for one in passes) / samples,
        "first_batch_seconds": first,
        "peak_memory_bytes": max(0, _memory("VmHWM") - start_memory),
        "opens_per_sample": _opens(case) if case.cache == "warm" else None,
    }


def _cold_pass(case, seed):
    """A pass that counts opening as well, and leaves nothing open or mapped, which would keep pages in the cache."""
    before = _counters()
    with _opened(case) as source:
        return {**_one_pass(case, source, seed), **_counted_since(before)}


def _rates(rates):
    middle = statistics.median(rates)
    return {"samples_per_second": middle, "spread": (max(rates) - min(rates)) / middle, "repeats": len(rates)}


def _one_pass(case, source, seed):
    """Read for a while: samples, bytes asked for, seconds, CPU seconds, seconds to the first batch, the kernel's counts."""
    order = _order(len(source[0] if case.window else source), case.access, seed)
    reads = (_window_reads if case.window else _image_reads)(case, source, order)
    before, start, cpu = _counters(), time.perf_counter(), time.process_time()
    samples = size = 0
    first = None
    for count, length in reads:
        samples, size = samples + count, size + length
        if first is None and samples >= BATCH:
            first = time.perf_counter() - start
        if samples % CLOCK_EVERY == 0 and time.perf_counter() - start > case.seconds:
            break
        if case.cache == "cold" and samples >= case.samples:
            break
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    counts = {key: value - before[key] for key, value in _counters().items()}
    return {"samples": samples, "bytes": size, "seconds": seconds, "cpu": cpu, "first": first or seconds, **counts}


def _order(count, access, seed):
    """Sample numbers in the order in which they are read: an int64 array, or None for the order in which they lie."""
    return np.random.default_rng((SEED, seed)).permutation(count) if access == "random" else None


def _rounds(case):
    """A cold pass ends with the data, since what was read is cached then; others go round until their time is over."""
    return range(1) if case.cache == "cold" else itertools.count()


@contextlib.contextmanager
def _opened(case):
    """What a case reads from: a reader of images (which opens its files at the first read), or windows and a token's bytes."""
    if case.window:
        from parascale.data.text import Tokens, Windows  # loads a tokenizer, which images have no use for

        tokens_N = (
            Tokens(case.folder).split(case.split) if case.format == "flat" else open_tokens(case.folder, case.split)
        )
        yield Windows(tokens_N, case.window), tokens_N.itemsize
    else:
        reader = open_images(case.folder, case.split, _reader_io(case))
        yield reader
        reader.close()


def _image_reads(case, reader, order):
    """Yield (1, bytes) of each image read."""
    for _ in _rounds(case):
        for data in _samples(reader, order):
            if case.decode:
                jpeg.decode(data)
            yield 1, len(data)


def _samples(reader, order):
    if order is None:
        for shard in range(len(reader.shards())):
            yield from reader.iterate(shard)
        return
    number = order.item  # one at a time: no list of Python numbers
    for place in range(len(order)):
        yield reader[number(place)]


def _window_reads(case, source, order):
    """Yield (windows, bytes) of each batch of windows."""
    windows, token_bytes = source
    order = np.arange(len(windows)) if order is None else order
    width = token_bytes * (case.window + 1)
    for _ in _rounds(case):
        for first in range(0, len(order), BATCH):
            indices = order[first : first + BATCH]
            windows.batch(indices)
            yield len(indices), len(indices) * width


def _measure_workers(case):
    """Decoded batches through torch's DataLoader; reads and memory are those of the workers, all together."""
    from parascale.data.loader import EvaluationBatches, StepBatches, image_loader
    from parascale.data.sampler import Sampler

    with _opened(case) as reader:
        batch = max(1, min(BATCH, len(reader) // (2 * case.workers)))  # every worker has two batches at least
        steps = min(case.samples, len(reader)) // batch
        rates, firsts, costs, counts, reads = [], [], [], [], []
        for repeat in range(case.repeats):
            if case.cache == "cold" and not drop_from_cache(_paths(case)):
                return None
            batches = StepBatches(Sampler(len(reader), batch, repeat), 0, steps)
            if case.access == "sequential":
                batches = EvaluationBatches(steps * batch, batch)
            cpu = _cpu_of_workers()
            # Forked, as in a training: this process was spawned itself, and would pass that on to its workers.
            loader = image_loader(reader, batches, case.workers, start_method="fork")
            arrivals, seen = _arrivals(loader, case.seconds)
            reads.append(seen)
            firsts.append(arrivals[0])
            counts.append(len(arrivals) * batch)
            costs.append(_cpu_of_workers() - cpu)
            # Starting the workers is in the time to the first batch; each delivers its first batch at about that time.
            ready = min(case.workers, len(arrivals) - 1) - 1
            rates.append((len(arrivals) - 1 - ready) * batch / (arrivals[-1] - arrivals[ready]))
    return {
        **_rates(rates),
        "samples": statistics.median(counts),
        "cpu_seconds": statistics.median(costs),
        "first_batch_seconds": statistics.median(firsts),
        # Batches that were made and not waited for are among the reads: a little more than for the samples alone.
        "read_calls_per_sample": sum(seen["syscr"] for seen in reads) / sum(counts),
        "peak_memory_bytes": max(seen["memory"] for seen in reads),
    }


def _arrivals(loader, seconds):
    """(seconds until each batch arrived, what the workers read and took by then); ends `seconds` after the first."""
    others = set(psutil.Process().children())
    start, arrivals = time.perf_counter(), []
    batches = iter(loader)
    workers = set(psutil.Process().children()) - others
    for _ in batches:
        arrivals.append(time.perf_counter() - start)
        late = arrivals[-1] - arrivals[0] > seconds and len(arrivals) > 2 * loader.num_workers
        if late or len(arrivals) == len(loader):
            break
    # Looked at once, after the last time was taken: counting a worker's own pages takes 8 ms. It still waits for its end.
    seen = {
        "syscr": sum(_counters(each.pid)["syscr"] for each in workers),
        "memory": sum(each.memory_full_info().uss for each in workers),
    }
    del batches  # ends the workers, whose CPU time counts only then
    return arrivals, seen


def _cpu_of_workers():
    own, workers = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + workers.ru_utime + workers.ru_stime


def _opens(case):
    """Files opened for each sample once a reader is warm. An audit hook cannot be removed, so this comes last."""
    if case.window:
        return 0.0
    with _opened(case) as reader:
        samples, opened, count = _samples(reader, _order(len(reader), case.access, SEED)), [0], 0
        next(samples)

        def hook(event, _):
            opened[0] += event == "open"

        sys.addaudithook(hook)
        for count, _ in enumerate(samples, 1):
            if count == COUNTED:
                break
        return opened[0] / count if count else None


def _paths(case):
    """The files that a case reads."""
    if case.window:
        return [path for path in Path(case.folder).iterdir() if path.stem == case.split]
    reader = open_images(case.folder, case.split)
    if case.format == "files":
        return [os.fsdecode(reader.path(i)) for i in range(len(reader))]
    return reader.paths()


def _reader_io(case):
    return "auto" if case.io == "files" else case.io


def byte_addressed(folder):
    """Whether a format is read at byte offsets, so that `pread` and `mmap` are a choice."""
    from parascale.data.formats.base import ByteReader

    manifest = read_manifest(folder)
    return issubclass(image_format(manifest["format"]).Reader, ByteReader)


def _counted_since(before):
    return {key: value - before[key] for key, value in _counters().items()}


def _counters(process="self"):
    with open(f"/proc/{process}/io", encoding="ascii") as file:
        values = dict(line.split(": ") for line in file.read().splitlines())
    return {key: int(values[key]) for key in ("rchar", "syscr", "read_bytes")}


def _memory(key):
    """A line of /proc/self/status in bytes. VmHWM belongs to this program alone; ru_maxrss is inherited from the parent."""
    with open("/proc/self/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024
