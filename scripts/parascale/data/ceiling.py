"""What this machine can do at best: the measure beside which readers are seen."""

import os
import statistics
import time

BLOCK = 8 << 20
COPY_BYTES = 256 << 20
SECONDS = 0.3


def ceilings(path, repeats=3):
    """Bytes a second: {`preadv`: one large file in order from the page cache, `memcpy`: memory to memory}.

    path: a large file, such as a shard.
    """
    return {
        "preadv": statistics.median(_preadv(path) for _ in range(repeats + 1)),  # one more, to fill the cache
        "memcpy": statistics.median(_memcpy() for _ in range(repeats)),
    }


def _preadv(path):
    buffer = bytearray(BLOCK)
    file = os.open(path, os.O_RDONLY)
    try:
        total, place, start = 0, 0, time.perf_counter()
        while time.perf_counter() - start < SECONDS:
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
    source, target = b"\1" * COPY_BYTES, bytearray(COPY_BYTES)
    view = memoryview(target)
    view[:] = source
    start = time.perf_counter()
    view[:] = source
    return COPY_BYTES / (time.perf_counter() - start)
