"""Arrow IPC: large record batches of encoded images and labels; the place of each image is looked up once, when written.

The file is what `pyarrow.ipc.open_file` and Hugging Face's tools read. A batch holds many rows, because one batch an
image costs a header and a lookup each.
"""

import numpy as np
import pyarrow as pa

from parascale.data.formats.base import ByteReader
from parascale.data.formats.base import Writer as BaseWriter

SUFFIX = "arrow"
TOKEN_SUFFIX = "arrow"
TOKENS_MAPPED = True
RANDOM_ACCESS = True
ROWS = 1024  # of a record batch,
BATCH_BYTES = 32 << 20  # or fewer, so that a batch of large images fits the memory too
SCHEMA = pa.schema([("image", pa.large_binary()), ("label", pa.int32()), ("source", pa.int64())])


class Writer(BaseWriter):
    """Collects rows to a batch and writes it."""

    def __init__(self, path, images, data_bytes):
        super().__init__(path, images, data_bytes)
        self._writer = pa.ipc.new_file(str(path), SCHEMA)
        self._clear()

    def append(self, data, label, source):
        self._rows.append(data)
        self._labels.append(label)
        self._sources.append(source)
        self._waiting += len(data)
        if len(self._rows) == ROWS or self._waiting >= BATCH_BYTES:
            self._write()

    def finish(self):
        self._write()
        self.close()
        return np.concatenate([np.empty(0, np.int64), *(offsets for offsets, _, _ in _batches(self.path))])

    def close(self):
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write(self):
        if self._rows:
            columns = [
                pa.array(values, field.type)
                for values, field in zip((self._rows, self._labels, self._sources), SCHEMA, strict=True)
            ]
            self._writer.write_batch(pa.record_batch(columns, schema=SCHEMA))
        self._clear()

    def _clear(self):
        self._rows, self._labels, self._sources, self._waiting = [], [], [], 0


class Reader(ByteReader):
    """Reads at the places that the batches' own offsets gave."""


def native(path):
    """Yield (bytes, label) of every sample, as any Arrow program would read them."""
    with pa.memory_map(str(path)) as source:
        file = pa.ipc.open_file(source)
        for number in range(file.num_record_batches):
            batch = file.get_batch(number)
            for image, label in zip(batch.column(0), batch.column(1), strict=True):
                yield image.as_py(), label.as_py()


def write_tokens(path, tokens_N):
    """Write a flat array as one column in one record batch, so that it lies in the file as one piece."""
    column = pa.array(tokens_N)
    with pa.ipc.new_file(str(path), pa.schema([("token", column.type)])) as writer:
        writer.write_batch(pa.record_batch([column], names=["token"]))


def read_tokens(path):
    """The tokens, memory-mapped."""
    file = pa.ipc.open_file(pa.memory_map(str(path)))
    return file.get_batch(0).column(0).to_numpy(zero_copy_only=True)


def _batches(path):
    """(places of the images in the file, their lengths, labels) of each record batch."""
    with pa.memory_map(str(path)) as source:
        start = source.read_buffer().address  # of the file's first byte in memory
        file = pa.ipc.open_file(source)
        for number in range(file.num_record_batches):
            column = file.get_batch(number).column(0)
            _, offsets, data = column.buffers()
            ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
            yield data.address - start + ends[:-1], np.diff(ends), None
