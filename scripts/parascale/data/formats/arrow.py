"""Arrow IPC: large record batches of encoded images and labels; the offset of each image is looked up once, after writing.

`pyarrow.ipc.open_file` and Hugging Face's tools read the file: its schema tells `datasets` that the bytes are images, and the
names of the classes.
"""

import json
import os

import numpy as np
import pyarrow as pa

from parascale.data.formats.base import ByteReader, ShardWriter

SUFFIX = "arrow"
TOKENS_MAPPED = True
ROWS = 1024  # in a record batch,
BATCH_BYTES = 32 << 20  # or fewer rows, so that a batch of large images fits in memory too
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])  # Hugging Face's type


def schema(classes):
    """Columns of images, with Hugging Face's features. classes: names by label."""
    number, label = {"dtype": "int64", "_type": "Value"}, {"names": list(classes), "_type": "ClassLabel"}
    features = {"image": {"_type": "Image"}, "label": label, "source": number}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    return pa.schema([("image", IMAGE), ("label", pa.int64()), ("source", pa.int64())], metadata)


class RowWriter(ShardWriter):
    """Collects rows into batches and passes them to a pyarrow writer.

    open_file: function (path, schema) → the writer. rows, size: most rows and bytes of a batch.
    """

    def __init__(self, path, images, open_file, rows, size):
        super().__init__(path, images, 0)
        self._schema, self._batch_rows, self._batch_bytes = schema(images.classes), rows, size
        self._writer = open_file(str(path), self._schema)
        self._clear()

    def append(self, data, label, source):
        self._rows.append({"bytes": data, "path": os.path.basename(self.images.name(source))})
        self._labels.append(label)
        self._sources.append(source)
        self._waiting += len(data)
        if len(self._rows) == self._batch_rows or self._waiting >= self._batch_bytes:
            self._write()

    def finish(self):
        if self._rows:
            self._write()
        self.close()

    def close(self):
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write(self):
        columns = zip((self._rows, self._labels, self._sources), self._schema.types, strict=True)
        batch = pa.record_batch([pa.array(values, kind) for values, kind in columns], schema=self._schema)
        self._writer.write_batch(batch)
        self._clear()

    def _clear(self):
        self._rows, self._labels, self._sources, self._waiting = [], [], [], 0


class ArrowWriter(RowWriter):
    """Writes record batches, then looks up the offset of each image."""

    def __init__(self, path, images, data_bytes):
        super().__init__(path, images, pa.ipc.new_file, ROWS, BATCH_BYTES)

    def finish(self):
        super().finish()
        return np.concatenate([np.empty(0, np.int64), *_places(self.path)])


Writer, Reader = ArrowWriter, ByteReader  # at the offsets found in the batches


def native(path):
    """Yield (bytes, label) of every sample, read like any Arrow program does."""
    with pa.memory_map(str(path)) as source:
        file = pa.ipc.open_file(source)
        for number in range(file.num_record_batches):
            batch = file.get_batch(number)
            for image, label in zip(batch.column(0), batch.column(1), strict=True):
                yield image["bytes"].as_py(), label.as_py()


def write_tokens(path, tokens_N):
    """Write a flat array as one column in one record batch, so that it is contiguous in the file."""
    column = pa.array(tokens_N)
    with pa.ipc.new_file(str(path), pa.schema([("token", column.type)])) as writer:
        writer.write_batch(pa.record_batch([column], names=["token"]))


def read_tokens(path):
    """The tokens, memory-mapped."""
    file = pa.ipc.open_file(pa.memory_map(str(path)))
    return file.get_batch(0).column(0).to_numpy(zero_copy_only=True)


def _places(path):
    """Yield the offsets of the images in the file, an array per record batch."""
    with pa.memory_map(str(path)) as source:
        start = source.read_buffer().address  # address of the file's first byte in memory
        file = pa.ipc.open_file(source)
        for number in range(file.num_record_batches):
            column = file.get_batch(number).column(0).field("bytes")
            _, offsets, data = column.buffers()
            starts = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column)]
            yield data.address - start + starts
