"""Tensors on disk whose rows are read a few at a time.

Whatever the form of a checkpoint, a tensor is one or more pieces that lie as plain bytes in files. Rows are entries of
the first dimension; a tensor without dimensions counts as one row.
"""

import functools
import math
import os
import pickle

import torch
from torch.distributed.checkpoint.utils import _create_file_view

from parascale.errors import CheckpointError


class Handle:
    """A file that several threads read at once."""

    def __init__(self, path):
        try:
            self.path, self.number = path, os.open(path, os.O_RDONLY)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None

    def read_into(self, memory, position):
        """Fill `memory` from byte `position` on; CheckpointError where the file ends before."""
        while memory:
            count = os.preadv(self.number, [memory], position)
            if count == 0:
                raise CheckpointError(f"{self.path} is cut short: it ends at byte {position:,}")
            memory, position = memory[count:], position + count

    def read(self, position, length):
        """`length` bytes from byte `position` on."""
        found = bytearray(length)
        self.read_into(memoryview(found), position)
        return bytes(found)

    @property
    def size(self):
        """Bytes of the file."""
        return os.fstat(self.number).st_size

    def close(self):
        """Close the file."""
        os.close(self.number)


class Piece:
    """A block of a tensor that lies contiguously in a file.

    offsets, sizes: where the block lies in the tensor, by dimension. locate: function that tells its first byte in the
    file; called at the first read, because some forms must be read to know it.
    """

    def __init__(self, handle, offsets, sizes, dtype, locate):
        self.handle, self.offsets, self.sizes, self.dtype = handle, tuple(offsets), tuple(sizes), dtype
        self._locate = locate

    @functools.cached_property
    def position(self):
        """The byte of the file at which the block begins."""
        return self._locate()

    def read_rows(self, first, target):
        """Fill `target`, a contiguous tensor, with the block's rows from `first` on."""
        row_bytes = math.prod(self.sizes[1:]) * self.dtype.itemsize
        self.handle.read_into(as_memory(target), self.position + first * row_bytes)


class StoredTensor:
    """A tensor on disk, made of pieces that cover it."""

    indivisible = False

    def __init__(self, name, shape, dtype, pieces):
        self.shape, self.dtype, self.pieces = tuple(shape), dtype, pieces
        covered = sum(math.prod(piece.sizes) for piece in pieces)
        if covered != math.prod(self.shape):
            raise CheckpointError(f"tensor {name}: its shards hold {covered:,} of {math.prod(self.shape):,} elements")

    def rows(self, first, last):
        """Rows `first` to before `last`, on the CPU."""
        shape = self.shape or (1,)
        whole = torch.empty((last - first, *shape[1:]), dtype=self.dtype)
        for piece in self.pieces:
            offsets, sizes = piece.offsets or (0,), piece.sizes or (1,)
            start, end = max(first, offsets[0]), min(last, offsets[0] + sizes[0])
            if start >= end:
                continue
            columns = tuple(slice(offset, offset + size) for offset, size in zip(offsets[1:], sizes[1:], strict=True))
            target = whole[(slice(start - first, end - first), *columns)]
            part = target if target.is_contiguous() else target.new_empty(target.shape)
            piece.read_rows(start - offsets[0], part)
            if part is not target:
                target.copy_(part)
        return whole


def rows_of(tensor):
    """Number of rows of a tensor."""
    return tensor.shape[0] if tensor.shape else 1


def bytes_of(tensor):
    """Bytes of a tensor (anything with shape and dtype)."""
    return math.prod(tensor.shape) * tensor.dtype.itemsize


def read_whole(tensor):
    """All of a tensor (anything with shape and rows), in its own shape."""
    return tensor.rows(0, rows_of(tensor)).reshape(tensor.shape)


def as_memory(tensor):
    """The bytes of a contiguous CPU tensor, writable."""
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())


def load_places(handle, start, length):
    """What `torch.save` wrote into a section of a file, on the meta device: shapes and places are read, numbers are not.

    Raises CheckpointError where it is damaged or would need a pickle to run code.
    """
    try:
        with open(handle.path, "rb") as file:
            return torch.load(_create_file_view(file, start, length), map_location="meta", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{handle.path}: refused, because it holds more than tensors ({reason})") from None
    except (RuntimeError, EOFError, ValueError, KeyError, OSError) as error:
        raise CheckpointError(f"{handle.path} is damaged: {str(error).splitlines()[0]}") from None


def place_of(handle, start, tensor):
    """The byte of the file at which a tensor of `load_places` begins."""
    offset = getattr(tensor.untyped_storage(), "_checkpoint_offset", None)
    if offset is None or not tensor.is_contiguous():
        raise CheckpointError(f"{handle.path}: a tensor of shape {tuple(tensor.shape)} does not lie in one block")
    return start + offset + tensor.storage_offset() * tensor.element_size()
