"""How fast a reader is: one case at a time, each in a fresh process, so that only what should be warm is.

What is read is counted by the kernel (`/proc/self/io`, proc(5)): `rchar`, bytes that read calls returned; `syscr`, how many
calls; `read_bytes`, what storage had to deliver, page faults of mapped files included.
"""

import statistics
import sys
import time
import warnings

from parascale.data import cases
from parascale.data.formats.storage import drop_from_cache

CLOCK_EVERY = 32  # samples between looks at the clock
WORKER_BATCHES = 5  # of each thread that decodes in a pass, at least: which is ahead at its ends matters little
COUNTED = 512  # samples over which opens are counted


def measure(case):
    """Measure one case; returns the columns that reading gives, or None where the cache cannot be dropped.

    samples_per_second is the median of the repeats and spread their range relative to it; of a pass, samples is the mean and
    cpu_seconds the median, all threads together; sample_bytes is the mean of what was asked for. peak_memory_bytes is what reading
    added to the process, mapped pages of files as long as they are mapped. Unknown figures are None: where images are decoded, workers read
    further than what they gave, and calls and bytes are those of reading alone.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Parquet warns that random access is slow, which is what is measured here
        return _measured(case)


def _measured(case):
    if case.decoder:
        import torch  # noqa: F401 (takes seconds, which are not those of the first batch)

        from parascale.data.crops import require_decoder

        require_decoder(case.decoder)  # its package too

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
    reading = None if case.decoder else passes
    return {
        **_rates([one["samples"] / one["seconds"] for one in passes]),
        "samples": samples // case.repeats,
        "sample_bytes": asked / samples,
        "cpu_seconds": statistics.median(one["cpu"] for one in passes),
        "bytes_read_per_byte": reading and _read_per_byte(case, passes, asked),
        "read_calls_per_sample": reading and sum(one["syscr"] for one in passes) / samples,
        "first_batch_seconds": first,
        "peak_memory_bytes": max(0, _memory("VmHWM") - start_memory),
        "opens_per_sample": _opens(case) if case.cache == "warm" and reading else None,
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
    reads, start, first = cases.reads(case, source, seed), time.perf_counter(), None
    uncounted, least = _uncounted(case, source)
    for _ in range(uncounted):
        next(reads)
        first = first or time.perf_counter() - start
    before, start, cpu = _counters(), time.perf_counter(), time.process_time()
    samples = size = 0
    for count, length in reads:
        samples, size = samples + count, size + length
        if first is None and samples >= cases.BATCH:
            first = time.perf_counter() - start
        looked = samples >= least and (count > 1 or samples % CLOCK_EVERY == 0)
        if looked and time.perf_counter() - start > case.seconds:
            break
        if case.cache == "cold" and samples >= case.samples:
            break
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    counts = _counted_since(before)
    return {"samples": samples, "bytes": size, "seconds": seconds, "cpu": cpu, "first": first or seconds, **counts}


def _uncounted(case, source):
    """Where images are decoded: (batches that come before a pass counts, samples that it counts at least).

    Threads that have just started give nothing for the time of a batch, and batches under way at the end are never counted. So a pass
    counts from the first batch that is a thread's second: it then begins as it ends. A cold pass too short for that counts from its
    start.
    """
    if not case.decoder:
        return 0, 0
    batches = case.workers + 1
    if case.cache == "cold" and min(len(source), case.samples) < 2 * batches * cases.BATCH:
        return 0, 0
    return batches, WORKER_BATCHES * max(1, case.workers) * cases.BATCH


def _opens(case):
    """Files opened for each sample once a reader is warm. An audit hook cannot be removed, so this comes last."""
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


def _counters():
    with open("/proc/self/io", encoding="ascii") as file:
        values = dict(line.split(": ") for line in file.read().splitlines())
    return {key: int(values[key]) for key in ("rchar", "syscr", "read_bytes")}


def _memory(key):
    """A line of /proc/self/status in bytes. VmHWM belongs to this program alone; ru_maxrss is inherited from the parent."""
    with open("/proc/self/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024
