"""HDF5: one contiguous dataset of bytes, with offsets and labels beside it.

A sample is one `pread` at the dataset's offset in the file, without HDF5's chunk cache and global lock; variable-length rows
are many times slower to read. Any HDF5 tool reads sample `i` as `bytes[offsets[i]:offsets[i + 1]]`.
"""

import itertools

import h5py
import numpy as np

from parascale.data.formats.base import BLOCK_BYTES, BlockWriter, ByteReader

SUFFIX = "h5"
TOKENS_MAPPED = True


class Hdf5Writer(BlockWriter):
    """Reserves space for the dataset first, then writes the samples there directly."""

    def __init__(self, path, images, data_bytes):
        with h5py.File(path, "w", libver=("v110", "v110")) as file:
            start = _reserve(file, data_bytes) if data_bytes else 0
        super().__init__(path, images, data_bytes, start)
        self._start = start

    def finish(self):
        offsets = super().finish()
        ends = np.append(offsets, self._written) - self._start
        with h5py.File(self.path, "r+", libver=("v110", "v110")) as file:
            file["offsets"] = ends
            file["labels"] = np.array(self._labels)
            file["sources"] = np.array(self._sources)
        return offsets


Writer, Reader = Hdf5Writer, ByteReader  # at the dataset's offset in the file


def native(path):
    """Yield (bytes, label) of every sample, read like any HDF5 program does."""
    with h5py.File(path, "r") as file:
        offsets, labels = file["offsets"][()].tolist(), file["labels"][()].tolist()
        for (start, end), label in zip(itertools.pairwise(offsets), labels, strict=True):
            yield file["bytes"][start:end].tobytes() if end > start else b"", label


def write_tokens(path, tokens_N):
    """Write a flat array as the contiguous dataset `tokens`."""
    with h5py.File(path, "w", libver=("v110", "v110")) as file:
        dataset = file.create_dataset("tokens", tokens_N.shape, tokens_N.dtype, track_times=False)
        step = BLOCK_BYTES // tokens_N.itemsize
        for first in range(0, len(tokens_N), step):
            dataset[first : first + step] = tokens_N[first : first + step]


def read_tokens(path):
    """The tokens, memory-mapped."""
    with h5py.File(path, "r") as file:
        dataset = file["tokens"]
        shape, dtype, offset = dataset.shape, dataset.dtype, dataset.id.get_offset()
    return np.memmap(path, dtype, "r", offset, shape)


def _reserve(file, size):
    """Create the contiguous dataset `bytes` without filling it; returns its offset in the file."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.CONTIGUOUS)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    properties.set_obj_track_times(False)  # a timestamp would make every rebuild differ
    space = h5py.h5s.create_simple((size,))
    return h5py.h5d.create(file.id, b"bytes", h5py.h5t.STD_U8LE, space, properties).get_offset()
