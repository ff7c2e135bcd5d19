"""Planned read-ahead: threads read batches before they are needed, some megabytes at a time.

The samples of several batches (a window) are read together, in disk order, neighbours in one piece. At most two windows are in
memory, plus whatever the consumer keeps.
"""

from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np

THREADS = 64  # concurrent reads: at 20 ms each, enough for 350 MB/s in samples of 110 kB
WINDOW_BYTES = 32 << 20  # of a window; the first ones are smaller, so that the first batch comes soon
FIRST_BYTES = 1 << 20
NEAR_BYTES = 32 << 10  # a gap up to this is read too, since another request takes longer
PIECE_BYTES = 1 << 20  # largest read, unless a sample is larger


def read_ahead(reader, chosen, threads=THREADS, most=WINDOW_BYTES):
    """Yield (numbers, list of the samples' bytes) for each array of sample numbers in `chosen`, in that order.

    reader: from parascale.data.formats. threads: most concurrent reads. most: largest window in bytes.
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
    """Group sample numbers into lists that are each read at once: sorted by shard and place, neighbours together."""
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
