"""Reading ahead by plan: threads read batches before they are needed, some megabytes at a time.

The samples of several batches are read together, in their order on disk, near ones in one piece. Memory holds two such windows at
most, and what the consumer keeps.
"""

from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np

THREADS = 64  # reads under way: with 20 ms each, enough for 350 MB/s in samples of 110 kB
WINDOW_BYTES = 32 << 20  # read together; the first windows are smaller, so that the first batch comes soon
FIRST_BYTES = 1 << 20
NEAR_BYTES = 32 << 10  # between two samples: read with them, since another request takes longer
PIECE_BYTES = 1 << 20  # of one read at most, unless a sample is larger


def read_ahead(reader, chosen, threads=THREADS, most=WINDOW_BYTES):
    """Yield (numbers, list of the samples' bytes) for each array of sample numbers in `chosen`, in that order.

    reader: of parascale.data.formats. threads: most reads at once. most: bytes of a window.
    """
    reader.require_open()  # once, before threads need it
    pool, waiting = ThreadPoolExecutor(threads), deque()
    try:
        for batches in _windows(reader, chosen, most):
            numbers = np.unique(np.concatenate(batches))
            waiting.append((batches, [pool.submit(reader.read_piece, piece) for piece in pieces(reader, numbers)]))
            if len(waiting) == 2:
                yield from _delivered(*waiting.popleft())
        while waiting:
            yield from _delivered(*waiting.popleft())
    finally:
        pool.shutdown(cancel_futures=True)


def pieces(reader, numbers):
    """Sample numbers as lists that are read at once: by shard and place, near ones together."""
    rows = reader.samples[numbers]
    order = np.lexsort((rows["offset"], rows["shard"]))
    numbers, rows = numbers[order], rows[order]
    if not reader.MERGES:
        return numbers[:, None].tolist()
    starts = rows["offset"]
    ends = starts + rows["length"]
    apart = (np.diff(rows["shard"]) != 0) | (starts[1:] - ends[:-1] > NEAR_BYTES)
    found, first = [], 0
    for last in range(1, len(numbers) + 1):
        if last == len(numbers) or apart[last - 1] or ends[last] - starts[first] > PIECE_BYTES:
            found.append(numbers[first:last].tolist())
            first = last
    return found


def _windows(reader, chosen, most):
    """Yield lists of batches that are read together."""
    lengths, batches, size, wanted = reader.samples["length"], [], 0, min(FIRST_BYTES, most)
    for numbers in chosen:
        numbers = np.asarray(numbers, np.int64)
        batches.append(numbers)
        size += int(lengths[numbers].sum())
        if size >= wanted:
            yield batches
            batches, size, wanted = [], 0, min(2 * wanted, most)
    if batches:
        yield batches


def _delivered(batches, reads):
    """Yield the batches of a window."""
    data = {number: found for read in reads for number, found in read.result().items()}
    for numbers in batches:
        yield numbers, [data[i] for i in numbers.tolist()]
