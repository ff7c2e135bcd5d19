"""How fast a reader is: one case at a time, each in a fresh process, so that only what should be warm is.

What is read is counted by the kernel (`/proc/self/io`, proc(5)): `rchar`, bytes that read calls returned; `syscr`, how many
calls; `read_bytes`, what storage had to deliver, page faults of mapped files included.
"""

import dataclasses
import resource
import statistics
import sys
import time
import warnings
from multiprocessing import get_context

import numpy as np
import psutil

from parascale.data import cases
from parascale.data.formats.storage import drop_from_cache

CLOCK_EVERY = 32  # samples between looks at the clock
COUNTED = 512  # samples over which opens are counted


def measure(case):
    """Measure one case; returns the columns that reading gives, or None where the cache cannot be dropped.

    samples_per_second is the median of the repeats and spread their range relative to it; samples and cpu_seconds are a
    pass's medians, sample_bytes is the mean of what was asked for. peak_memory_bytes is what reading added to the process,
    mapped pages of files as long as they are mapped. Workers share most pages with others: theirs is each one's private memory
    at the end of a pass, all together, and no peak. Unknown figures are None.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Parquet warns that random access is slow, which is what is measured here
        return _measure_workers(case) if case.workers else _measure_here(case)


def _measure_here(case):
    start_memory = _memory("VmRSS")
    if case.cache == "warm":
        # One reader for all passes: the first fills the cache and is not counted, but for its first batch.
        start = time.perf_counter()
        with cases.opened(case) as source:
            # Readers open at the first read, and mapping takes no time: only what is read as a whole is waited for here.
            opening = time.perf_counter() - start if case.io == "memory" else 0.0
            first = opening + _one_pass(case, source, 0)["first"]
            passes = [_one_pass(case, source, repeat) for repeat in range(1, case.repeats + 1)]
    else:
        with cases.opened(case):
            passes = []  # opened once before, so that no import is counted
        for repeat in range(case.repeats):
            if not drop_from_cache(cases.paths(case)):
                return None
            passes.append(_cold_pass(case, repeat))
        first = statistics.median(one["first"] for one in passes)
    asked, samples = (sum(one[key] for one in passes) for key in ("bytes", "samples"))
    return {
        **_rates([one["samples"] / one["seconds"] for one in passes]),
        "samples": samples // case.repeats,
        "sample_bytes": asked / samples,
        "cpu_seconds": statistics.median(one["cpu"] for one in passes),
        "bytes_read_per_byte": _read_per_byte(case, passes, asked),
        "read_calls_per_sample": sum(one["syscr"] for one in passes) / samples,
        "first_batch_seconds": first,
        "peak_memory_bytes": max(0, _memory("VmHWM") - start_memory),
        "opens_per_sample": _opens(case) if case.cache == "warm" else None,
    }


def _cold_pass(case, seed):
    """A pass that counts opening as well, and leaves nothing open or mapped, which would keep pages in the cache."""
    before = _counters()
    with cases.opened(case) as source:
        return {**_one_pass(case, source, seed), **_counted_since(before)}


def _read_per_byte(case, passes, asked):
    """Bytes read for each byte that was asked for, by the kernel's counter for this kind of read; None where there is none."""
    # A mapped file is read by page faults, which only storage sees, and only when nothing is cached.
    counted = {"pread": "rchar", "files": "rchar", "mmap": "read_bytes" if case.cache == "cold" else None}.get(case.io)
    return sum(one[counted] for one in passes) / asked if counted and asked else None


def _rates(rates):
    middle = statistics.median(rates)
    return {"samples_per_second": middle, "spread": (max(rates) - min(rates)) / middle, "repeats": len(rates)}


def _one_pass(case, source, seed):
    """Read for a while: samples, bytes asked for, seconds, CPU seconds, seconds to the first batch, the kernel's counts."""
    reads = cases.reads(case, source, seed)
    before, start, cpu = _counters(), time.perf_counter(), time.process_time()
    samples = size = 0
    first = None
    for count, length in reads:
        samples, size = samples + count, size + length
        if first is None and samples >= cases.BATCH:
            first = time.perf_counter() - start
        if samples % CLOCK_EVERY == 0 and time.perf_counter() - start > case.seconds:
            break
        if case.cache == "cold" and samples >= case.samples:
            break
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    counts = _counted_since(before)
    return {"samples": samples, "bytes": size, "seconds": seconds, "cpu": cpu, "first": first or seconds, **counts}


def _measure_workers(case):
    """Decoded batches through torch's DataLoader; reads and memory are those of the workers, all together."""
    from parascale.data.loader import EvaluationBatches, StepBatches, image_loader
    from parascale.data.sampler import Sampler

    with cases.opened(case) as reader:
        batch = max(1, min(cases.BATCH, len(reader) // (2 * case.workers)))  # every worker has two batches at least
        steps = min(case.samples, len(reader)) // batch
        rates, firsts, costs, counts, reads = [], [], [], [], []
        for repeat in range(case.repeats):
            if case.cache == "cold" and not drop_from_cache(cases.paths(case)):
                return None
            batches = StepBatches(Sampler(len(reader), batch, repeat), 0, steps)
            if case.access == "sequential":
                batches = EvaluationBatches(steps * batch, batch)
            cpu, asked = _cpu_of_workers(), _Asked(batches)
            # Forked, as in a training: this process was spawned itself, and would pass that on to its workers.
            loader = image_loader(reader, asked, case.workers, start_method="fork")
            arrivals, seen = _arrivals(loader, asked, case.seconds)
            numbers = np.concatenate(asked.batches)
            reads.append({**seen, "asked": int(reader.samples["length"][numbers].sum())})
            firsts.append(arrivals[0])
            counts.append(len(numbers))
            costs.append(_cpu_of_workers() - cpu)
            # Starting the workers is in the time to the first batch; each delivers its first batch at about that time.
            ready = min(case.workers, len(arrivals) - 1) - 1
            rates.append((len(arrivals) - 1 - ready) * batch / (arrivals[-1] - arrivals[ready]))
    asked = sum(seen["asked"] for seen in reads)
    return {
        **_rates(rates),
        "samples": statistics.median(counts),
        "sample_bytes": asked / sum(counts),
        "cpu_seconds": statistics.median(costs),
        "first_batch_seconds": statistics.median(firsts),
        "bytes_read_per_byte": _read_per_byte(case, reads, asked),
        "read_calls_per_sample": sum(seen["syscr"] for seen in reads) / sum(counts),
        "peak_memory_bytes": max(seen["memory"] for seen in reads),
    }


class _Asked:
    """Batches of numbers for a loader, until `over` is set; keeps those that it asked for, which its workers read."""

    def __init__(self, source):
        self.source, self.batches, self.over = source, [], False

    def __len__(self):
        return len(self.source)

    def __iter__(self):
        for batch in self.source:
            if self.over:
                break
            self.batches.append(batch)
            yield batch


def _arrivals(loader, asked, seconds):
    """(seconds until each batch arrived, what the workers read and took for all that was asked).

    Ends `seconds` after the first; what was asked for ahead by then is waited for without a look at the clock.
    """
    others = set(psutil.Process().children())
    ready = get_context("fork").SimpleQueue()
    # A worker's start reads torch's own files: what it counts from here on is the data's.
    loader.worker_init_fn = lambda _: ready.put(_counters())
    start, arrivals = time.perf_counter(), []
    batches = iter(loader)
    workers = set(psutil.Process().children()) - others
    for _ in batches:
        arrivals.append(time.perf_counter() - start)
        late = arrivals[-1] - arrivals[0] > seconds and len(arrivals) > 2 * loader.num_workers
        if late or len(arrivals) == len(loader):
            break
    asked.over = True
    for _ in range(len(asked.batches) - len(arrivals)):
        next(batches)
    # Counted once, after the last time was taken, since counting a worker's pages takes 8 ms. The workers are still alive.
    first, last = [ready.get() for _ in workers], [_counters(each.pid) for each in workers]
    seen = {key: sum(one[key] for one in last) - sum(one[key] for one in first) for key in last[0]}
    seen["memory"] = sum(each.memory_full_info().uss for each in workers)
    del batches  # ends the workers, whose CPU time counts only then
    return arrivals, seen


def _cpu_of_workers():
    own, workers = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + workers.ru_utime + workers.ru_stime


def _opens(case):
    """Files opened for each sample once a reader is warm. An audit hook cannot be removed, so this comes last."""
    case = dataclasses.replace(case, decode=False)
    with cases.opened(case) as source:
        reads, opens, count = cases.reads(case, source, cases.SEED), [0], 0
        next(reads)

        def hook(event, _):
            opens[0] += event == "open"

        sys.addaudithook(hook)
        while count < COUNTED:
            count += next(reads)[0]
        return opens[0] / count


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
