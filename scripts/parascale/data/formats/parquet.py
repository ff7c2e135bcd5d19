"""Parquet: a column of encoded images in row groups of some megabytes.

A row group is always read as a whole: fine for sequential reads, wasteful for random ones.
Pages are not compressed or dictionary-encoded: encoded images would not get smaller.
"""

import warnings
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parascale.data.formats.arrow import RowWriter
from parascale.data.formats.base import SplitReader
from parascale.data.formats.samples import remedy
from parascale.errors import DataError

SUFFIX = "parquet"
TOKENS_MAPPED = False
GROUP_ROWS = 256  # in a row group,
GROUP_BYTES = 16 << 20  # or fewer rows; the cost of one random read
GROUP_TOKENS = 1 << 20
PLAIN = {"compression": "none", "use_dictionary": False, "write_statistics": False}


class ParquetWriter(RowWriter):
    """Writes row groups. The offset of a sample is its row in the file."""

    def __init__(self, path, images, data_bytes):
        super().__init__(path, images, partial(pq.ParquetWriter, **PLAIN), GROUP_ROWS, GROUP_BYTES)
        self._count = 0

    def append(self, data, label, source):
        super().append(data, label, source)
        self._count += 1

    def finish(self):
        super().finish()
        return np.arange(self._count, dtype=np.int64)


class ParquetReader(SplitReader):
    """Reads row groups and keeps the last one in each process."""

    CALLS = ("pread",)
    THREADS = False

    def _acquire(self):
        self._files = [pq.ParquetFile(self.folder / shard["file"], pre_buffer=False) for shard in self._facts]
        for path, file, shard in zip(self.paths(), self._files, self._facts, strict=True):
            if file.metadata.num_rows != shard["samples"]:
                raise DataError(
                    f"{path} has {file.metadata.num_rows:,} rows instead of {shard['samples']:,}; "
                    + remedy(self.folder, str(path.parent))
                )
        groups = [[file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] for file in self._files]
        self._starts = [np.cumsum([0, *rows])[:-1] for rows in groups]
        self._group: tuple = ()

    def _release(self):
        for file in self._files:
            file.close()

    def read_batch(self, indices):
        warnings.warn(
            f"{self.folder}: Parquet is read at random, and each sample costs a row group of up to {GROUP_ROWS}; take hdf5 or arrow",
            stacklevel=2,
        )
        return super().read_batch(indices)

    def iterate(self, shard):
        self.require_open()
        for group in range(self._files[shard].num_row_groups):
            yield from self._load(shard, group).to_pylist()

    def _read(self, i):
        shard, row = self._shard[i], self._offset[i]
        group = int(np.searchsorted(self._starts[shard], row, side="right")) - 1
        if (shard, group) != self._group:
            self._images, self._group = self._load(shard, group), (shard, group)
        return self._images[row - self._starts[shard].item(group)].as_py()

    def _load(self, shard, group):
        images = self._files[shard].read_row_group(group, columns=["image"]).column(0).combine_chunks()
        # Files of earlier versions have only the bytes.
        return images.field("bytes") if pa.types.is_struct(images.type) else images


Writer, Reader = ParquetWriter, ParquetReader


def native(path):
    """Yield (bytes, label) of every sample, read like any Parquet program does."""
    for batch in pq.ParquetFile(path, pre_buffer=False).iter_batches(GROUP_ROWS, columns=["image", "label"]):
        yield from zip(batch.column(0).field("bytes").to_pylist(), batch.column(1).to_pylist(), strict=True)


def write_tokens(path, tokens_N):
    """Write a flat array as one column."""
    schema = pa.schema([("token", pa.from_numpy_dtype(tokens_N.dtype))])
    with pq.ParquetWriter(path, schema, **PLAIN) as writer:
        for first in range(0, len(tokens_N), GROUP_TOKENS):
            writer.write_table(pa.table([pa.array(tokens_N[first : first + GROUP_TOKENS])], schema=schema))


def read_tokens(path):
    """The tokens, all decoded into memory: Parquet cannot be mapped."""
    return pq.read_table(path, columns=["token"]).column(0).to_numpy()
