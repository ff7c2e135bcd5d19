"""Tensors whose rows are read on demand, a few at a time, so that a checkpoint streams within a memory limit.

A row is an entry of the first dimension; a tensor without dimensions counts as one row.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from parascale.data.pool import ordered_map
from parascale.errors import CheckpointError

# Larger blocks get fresh memory, which the kernel zeroes first: blocks of 42 MiB took 6 times the CPU time of 4 MiB.
LARGEST_BLOCK = 4 << 20
DTYPES = {name: getattr(torch, name) for name in ("float64", "float32", "float16", "bfloat16")}


@dataclass(frozen=True)
class Rows:
    """A tensor whose rows are read on demand.

    rows: function (first, last) → rows `first` … `last − 1`, on the CPU. indivisible: all rows are read at once.
    """

    shape: tuple
    dtype: torch.dtype
    rows: Callable
    indivisible: bool = False

    @property
    def count(self):
        return self.shape[0] if self.shape else 1

    @property
    def bytes(self):
        return math.prod(self.shape) * self.dtype.itemsize

    def whole(self):
        return self.rows(0, self.count).reshape(self.shape)


class Piece(NamedTuple):
    """A block of a tensor, contiguous in a file. position: function that returns its first byte. offsets, sizes: per tensor dimension."""

    path: Path
    position: Callable
    offsets: tuple
    sizes: tuple


def stored(name, shape, dtype, pieces):
    """The Rows of a tensor on disk. Raises CheckpointError unless the pieces cover it."""
    shape = tuple(shape)
    covered = sum(math.prod(piece.sizes) for piece in pieces)
    if covered != math.prod(shape):
        raise CheckpointError(f"tensor {name}: its shards hold {covered:,} of {math.prod(shape):,} elements")

    def rows(first, last):
        found = torch.empty((last - first, *shape[1:]), dtype=dtype)
        for piece in pieces:
            offsets, sizes = piece.offsets or (0,), piece.sizes or (1,)
            start, end = max(first, offsets[0]), min(last, offsets[0] + sizes[0])
            if start >= end:
                continue
            target = found[start - first : end - first]
            for axis in range(1, len(sizes)):
                target = target.narrow(axis, offsets[axis], sizes[axis])
            part = target.contiguous()
            row_bytes = math.prod(sizes[1:]) * dtype.itemsize
            _read_into(as_memory(part), piece.path, piece.position() + (start - offsets[0]) * row_bytes)
            if part is not target:
                target.copy_(part)
        return found

    return Rows(shape, dtype, rows)


def _read_into(memory, path, position):
    """Fill `memory` from byte `position` of a file. Opens it anew: a checkpoint may have more files than a process may open."""
    with open(path, "rb", buffering=0) as file:
        file.seek(position)
        while memory:
            count = file.readinto(memory)
            if count == 0:
                raise CheckpointError(f"{path} is cut short: it ends at byte {file.tell():,}")
            memory = memory[count:]


def as_memory(tensor):
    """The bytes of a contiguous CPU tensor, writable."""
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())


def cast(tensor, dtype):
    """Convert a floating-point tensor to another dtype, rounded to nearest; other tensors keep their dtype."""
    dtype = dtype if tensor.dtype.is_floating_point else tensor.dtype
    return Rows(tensor.shape, dtype, lambda first, last: tensor.rows(first, last).to(dtype), tensor.indivisible)


def joined(parts, turned):
    """Concatenate tensors along their rows; turned: then transpose."""
    shape = (sum(part.count for part in parts), *parts[0].shape[1:])

    def rows(first, last):
        whole = torch.cat([part.whole() for part in parts])
        return (whole.T if turned else whole)[first:last]

    return Rows(shape[::-1] if turned else shape, parts[0].dtype, rows, indivisible=True)


@dataclass(frozen=True)
class Streaming:
    """Reads tensors in blocks. memory_bytes: limit for all blocks in flight; a single row or an indivisible tensor may
    exceed it. progress: counts bytes."""

    memory_bytes: int
    threads: int
    progress: Any
    largest_block: int = LARGEST_BLOCK

    def blocks(self, tensors):
        """Yield (name, first row, contiguous rows) for `tensors` (name → Rows) in order, at least one block of each."""

        def read(task):
            name, first, last = task
            return name, first, tensors[name].rows(first, last)

        for name, first, block in ordered_map(read, self._tasks(tensors), self.threads, self.threads + 1):
            yield name, first, block
            self.progress.add(block.nbytes)

    def _tasks(self, tensors):
        # threads + 1 blocks are in flight, each twice while columns are copied or the dtype is converted.
        block_bytes = max(1, min(self.largest_block, self.memory_bytes // (2 * (self.threads + 1))))
        for name, tensor in tensors.items():
            whole = tensor.indivisible or not tensor.bytes
            step = max(1, tensor.count if whole else block_bytes * tensor.count // tensor.bytes)
            for first in range(0, max(1, tensor.count), step):
                yield name, first, min(first + step, tensor.count)
