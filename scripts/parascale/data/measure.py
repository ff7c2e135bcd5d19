"""Measure how fast a format is read, one case at a time, each in a fresh process, so that no other case warms its caches.

The kernel counts reads (`/proc/self/io`, proc(5)): `rchar`, bytes returned by read calls; `syscr`, number of calls; `read_bytes`, bytes
fetched from storage, including page faults of mapped files.
"""

import contextlib
import functools
import itertools
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parascale.data.formats import open_images, open_tokens
from parascale.data.formats.storage import drop_from_cache

SPLIT, SEED = "train", 1
BATCH = 64
CLOCK_EVERY = 32  # samples between checks of the clock
WORKER_BATCHES = 5  # at least, per decoding thread and pass, so that it matters little which thread is ahead at the end
COUNTED = 512  # samples for which opens are counted


@dataclass(frozen=True)
class Case:
    """One way of reading a format.

    decoder: decode, crop and resize images as in a training, to `size` pixels a side and crops of at least `smallest` of an image's
    area, with `workers` threads, and `dali` on the first GPU if there is one; None: only read the encoded bytes.
    window: tokens per sample of text; None for images. samples: most samples of a cold pass.
    """

    folder: str
    format: str
    access: str  # sequential | random
    cache: str  # warm | cold
    io: str  # pread | mmap | files | memory (read when opened)
    samples: int
    seconds: float
    repeats: int
    workers: int = 0
    decoder: str | None = None
    window: int | None = None
    size: int | None = None
    smallest: float | None = None


def measure(case):
    """Measure one case; returns its columns for reading, or None if the cache cannot be dropped.

    samples_per_second and cpu_seconds (of all threads) are medians over the passes, samples is their mean, and spread the range of the
    rates divided by their median. peak_memory_bytes is what reading adds, with mapped pages and torch's code. Unknown figures are None.
    """
    if case.decoder:
        import torch  # noqa: F401 (takes seconds, which must not count in the first batch)

        from parascale.data.crops import require_decoder

        require_decoder(case.decoder)  # imports its package too
    start_memory = _memory("VmRSS")
    found = (_warm_passes if case.cache == "warm" else _cold_passes)(case)
    if found is None:
        return None
    first, passes, opens = found
    asked, samples = (sum(each[key] for each in passes) for key in ("bytes", "samples"))
    rates = [each["samples"] / each["seconds"] for each in passes]
    # Mapped files are read by page faults, which only `read_bytes` counts, and only if nothing is cached.
    counted = {"pread": "rchar", "files": "rchar", "mmap": "read_bytes" if case.cache == "cold" else None}.get(case.io)
    counted = None if case.decoder else counted
    return {
        "samples_per_second": statistics.median(rates),
        "spread": (max(rates) - min(rates)) / statistics.median(rates),
        "repeats": len(passes),
        "samples": samples // len(passes),
        "sample_bytes": asked / samples,
        "cpu_seconds": statistics.median(each["cpu"] for each in passes),
        "bytes_read_per_byte": sum(each[counted] for each in passes) / asked if counted and asked else None,
        "read_calls_per_sample": None if case.decoder else sum(each["syscr"] for each in passes) / samples,
        "first_batch_seconds": first,
        "peak_memory_bytes": max(0, _memory("VmHWM") - start_memory),
        "opens_per_sample": opens,
    }


def _warm_passes(case):
    """(seconds to the first batch, passes, opens per sample). The first pass fills the cache; the others start from the beginning again.
    If threads decode, passes continue the one before, so that they begin and end in the same state."""
    start = time.perf_counter()
    with opened(case) as reads:
        decoding = time.perf_counter() - start if case.io == "memory" else 0.0
        same = reads()
        first, *passes = (_one_pass(case, same if case.decoder else reads()) for _ in range(case.repeats + 1))
        if case.decoder:
            return decoding + first["first"], passes, None
        events, samples, reading = Counter(), 0, reads()
        sys.addaudithook(lambda event, _: events.update([event]))  # it cannot be removed, so this comes last
        while samples < COUNTED:
            samples += next(reading)[0]
        return decoding + first["first"], passes, events["open"] / samples


def _cold_passes(case):
    """Like `_warm_passes`. Each pass opens and closes the files, because open or mapped ones would keep pages in the cache, and starts
    its threads. Each reads in another order: file servers and disks have caches that cannot be dropped here."""
    with opened(case) as reads:
        next(reads())  # so that imports are not counted
    passes = []
    for repeat in range(case.repeats):
        if not drop_from_cache(_paths(case)):
            return None
        before = _counters()
        with opened(case, repeat) as reads:
            passes.append(_one_pass(case, reads(), before))
    return statistics.median(each["first"] for each in passes), passes, None


def _one_pass(case, reading, before=None):
    """Read for a while: samples, bytes requested, seconds, CPU seconds, seconds to the first batch, the kernel's counts.

    before: the kernel's counts at the start (default: now).
    """
    least = WORKER_BATCHES * max(1, case.workers) * BATCH if case.decoder else 0
    before, cpu, start, first = before or _counters(), time.process_time(), time.perf_counter(), None
    samples = size = 0
    for count, length in reading:
        samples, size = samples + count, size + length
        if first is None and samples >= BATCH:
            first = time.perf_counter() - start
        if case.cache == "cold" and samples >= case.samples:
            break
        if samples >= least and samples % CLOCK_EVERY < count and time.perf_counter() - start > case.seconds:
            break
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    counts = {key: value - before[key] for key, value in _counters().items()}
    return {"samples": samples, "bytes": size, "seconds": seconds, "cpu": cpu, "first": first or seconds, **counts}


@contextlib.contextmanager
def opened(case, repeat=0):
    """Yield a function that yields (samples, bytes) of each read from the first: once for a cold case, repeatedly for a warm one. Its
    threads end before the files are closed.

    repeat: changes the order of random reads.
    """
    rounds = range(1) if case.cache == "cold" else itertools.count()
    with contextlib.ExitStack() as stack:
        if case.window:
            from parascale.data.text import Tokens, Windows  # loads a tokenizer, which images do not need

            flat = case.format == "flat"
            tokens_N = Tokens(case.folder).split(SPLIT) if flat else open_tokens(case.folder, SPLIT)
            source = Windows(tokens_N, case.window)
            work: Callable = functools.partial(_windows, width=tokens_N.itemsize * (case.window + 1))
        else:
            source = open_images(case.folder, SPLIT, "auto" if case.io == "files" else case.io)
            stack.callback(source.close)
            work = _decoded if case.decoder else _encoded
        order = np.arange(len(source))
        if case.access == "random":
            order = np.random.default_rng(SEED + repeat).permutation(order)
        yield lambda: stack.enter_context(contextlib.closing(work(case, source, order, rounds)))


def _batches(order):
    return (order[first : first + BATCH] for first in range(0, len(order), BATCH))


def _encoded(case, reader, order, rounds):
    number = order.item  # one at a time, without a list of Python numbers
    for _ in rounds:
        if case.access == "random":
            samples: Iterable = (reader[number(place)] for place in range(len(reader)))
        else:
            samples = itertools.chain.from_iterable(map(reader.iterate, range(len(reader.shards()))))
        for data in samples:
            yield 1, len(data)


def _decoded(case, reader, order, rounds):
    """Decode, crop and resize batches of images, differently in each round."""
    import torch

    from parascale.data.classes import AugmentedImages

    device = torch.device("cuda", 0) if torch.cuda.is_available() else None
    samples, lengths = AugmentedImages(reader, case.size, SEED, case.smallest, case.decoder), reader.samples["length"]
    here, there = itertools.tee(batch + number * len(reader) for number in rounds for batch in _batches(order))
    for numbers, _ in zip(here, samples.batches(there, case.workers, device), strict=True):
        yield len(numbers), int(lengths[numbers % len(reader)].sum())


def _windows(case, windows, order, rounds, width):
    for _ in rounds:
        for indices in _batches(order):
            windows.batch(indices)
            yield len(indices), len(indices) * width


def _paths(case):
    """The files that a case reads."""
    if case.window:
        return [path for path in Path(case.folder).iterdir() if path.stem == SPLIT]
    reader = open_images(case.folder, SPLIT)
    if case.format == "files":
        return [os.fsdecode(reader.path(i)) for i in range(len(reader))]
    return reader.paths()


def _counters():
    with open("/proc/self/io", encoding="ascii") as file:
        values = dict(line.split(": ") for line in file.read().splitlines())
    return {key: int(values[key]) for key in ("rchar", "syscr", "read_bytes")}


def _memory(key):
    """A line of /proc/self/status, in bytes. VmHWM is of this program alone; ru_maxrss is inherited from the parent."""
    with open("/proc/self/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024
