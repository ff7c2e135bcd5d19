"""NumPy: all samples in one flat `.npy` array of bytes, which any NumPy program can map, and an array of their offsets.

Both are in one file, one after the other, as `np.save` writes them. Sample `i` is `stack[start : start + length]` of
`stack = np.load(path, mmap_mode="r")`.
"""

import io
import os

import numpy as np

from parascale.data.formats.base import BlockWriter, ByteReader

SUFFIX = "stack.npy"
HEADER_BYTES = 128  # for a flat array; NumPy leaves room in it for any length
PLACE = np.dtype([("start", "<i8"), ("length", "<i8"), ("label", "<i4")])


class NumpyWriter(BlockWriter):
    """Writes the samples after space for the header, which has their total length and is written last."""

    def __init__(self, path, images, data_bytes):
        super().__init__(path, images, data_bytes, HEADER_BYTES)

    def finish(self):
        offsets = super().finish().astype(np.int64)
        size = self._written - HEADER_BYTES
        places = np.zeros(len(offsets), PLACE)
        places["start"], places["label"] = offsets - HEADER_BYTES, self._labels
        places["length"] = np.diff(places["start"], append=size)
        header, second = io.BytesIO(), io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (size,)})
        np.save(second, places)
        self.put(second.getvalue())
        self.flush()
        os.pwrite(self._file, header.getvalue(), 0)
        return offsets


Writer, Reader = NumpyWriter, ByteReader  # past the header of the stack


def native(path):
    """Yield (bytes, label) of every sample, read like any NumPy program does."""
    stack = np.load(path, mmap_mode="r")
    with open(path, "rb") as file:
        file.seek(stack.offset + len(stack))
        places = np.load(file)
    for start, length, label in places.tolist():
        yield stack[start : start + length].tobytes(), label
