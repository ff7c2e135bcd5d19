"""Tensors as a stream of blocks of rows: several are read at once, and together they stay below a bound of memory."""

from dataclasses import dataclass

import torch

from parascale.checkpoint.pieces import bytes_of, rows_of
from parascale.data.pool import ordered_map

# Memory of blocks that are much larger is new to the process each time, and the kernel clears it first: reading in blocks of
# 42 MiB took 6 times the processor time of 4 MiB.
LARGEST_BLOCK = 4 << 20


@dataclass(frozen=True)
class Streaming:
    """How tensors are read. memory_bytes: bound on all blocks in flight (a single row is never split,
    nor is a tensor that says it is `indivisible`). progress: counts bytes."""

    memory_bytes: int
    threads: int
    progress: object
    largest_block: int = LARGEST_BLOCK

    @property
    def block_bytes(self):
        """Size of a block: threads + 1 are in flight, and each may be there twice while its columns or dtype are changed."""
        return max(1, min(self.largest_block, self.memory_bytes // (2 * (self.threads + 1))))

    def blocks(self, tensors):
        """Yield (name, first row, rows as a contiguous tensor) through all of `tensors` (name → tensor), in their order."""

        def read(task):
            name, first, last = task
            return name, first, tensors[name].rows(first, last)

        for name, first, block in ordered_map(read, self._tasks(tensors), self.threads, self.threads + 1):
            yield name, first, block
            self.progress.add(block.numel() * block.element_size())

    def _tasks(self, tensors):
        for name, tensor in tensors.items():
            rows, size = rows_of(tensor), bytes_of(tensor)
            if size == 0:
                continue
            step = rows if tensor.indivisible else max(1, self.block_bytes * rows // size)
            for first in range(0, rows, step):
                yield name, first, min(first + step, rows)


class Cast:
    """A tensor in another floating dtype; numbers that are no floats stay what they are."""

    def __init__(self, tensor, dtype):
        self.tensor, self.shape, self.indivisible = tensor, tensor.shape, tensor.indivisible
        self.dtype = dtype if tensor.dtype.is_floating_point else tensor.dtype

    def rows(self, first, last):
        """Rows in the new dtype, rounded to the nearest."""
        return self.tensor.rows(first, last).to(self.dtype)


DTYPES = {name: getattr(torch, name) for name in ("float64", "float32", "float16", "bfloat16")}
