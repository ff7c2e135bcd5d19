"""Base classes of the formats: a writer for one shard, and readers, which open files at the first read and keep no object per sample."""

import mmap
import os
from array import array
from collections.abc import Callable
from pathlib import Path

import numpy as np
import xxhash

from parascale.data.formats.samples import read_manifest, remedy, samples_path
from parascale.data.formats.storage import default_io
from parascale.data.manifests import require_split, require_whole
from parascale.errors import DataError

BLOCK_BYTES = 4 << 20  # written at once: large enough for any filesystem, small compared with memory
MOST_PARTS = 1024  # buffers per call: IOV_MAX of Linux, uio(7)
FOLDER_SAMPLES = 1000  # files per folder, if each sample is a file


def sample_path(source):
    """The path of a sample in a folder of files, from its number in the source."""
    return f"{source // FOLDER_SAMPLES:06d}/{source:09d}.jpg"


class ShardWriter:
    """Writes one shard. `append` each sample, then `finish`; use it in a `with` block."""

    inodes = 1  # files and folders of the samples themselves

    def __init__(self, path, images, data_bytes):
        """path: the shard's file. images: the source (parascale.data.images.ImageSplit). data_bytes: upper limit of the samples' bytes."""
        self.path, self.images = Path(path), images

    def append(self, data, label, source):
        """Add a sample. data: bytes; source: its number in the source."""
        raise NotImplementedError

    def finish(self):
        """Complete the file; returns the offset of every appended sample (int64 array)."""
        raise NotImplementedError

    def close(self):
        """Close open files, finished or not."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class BlockWriter(ShardWriter):
    """Writes samples one after the other into one file, in large blocks."""

    def __init__(self, path, images, data_bytes, start=0):
        super().__init__(path, images, data_bytes)
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o644)
        self._parts, self._waiting, self._written = [], 0, start
        self._offsets, self._labels, self._sources = array("q"), array("i"), array("q")

    def put(self, data):
        """Append bytes; returns their offset in the file."""
        place = self._written + self._waiting
        self._parts.append(data)
        self._waiting += len(data)
        if self._waiting >= BLOCK_BYTES:
            self.flush()
        return place

    def flush(self):
        """Write the waiting parts without joining them first, which would copy all data once more."""
        for first in range(0, len(self._parts), MOST_PARTS):
            self._write_parts(self._parts[first : first + MOST_PARTS])
        self._parts, self._waiting = [], 0

    def _write_parts(self, parts):
        """Write some parts one after the other. If a call writes only some of the bytes, further calls write the rest."""
        size = sum(map(len, parts))
        count = os.pwritev(self._file, parts, self._written)
        rest = memoryview(b"".join(parts))[count:] if count < size else b""
        while rest:
            more = os.pwrite(self._file, rest, self._written + count)
            count, rest = count + more, rest[more:]
        self._written += size

    def append(self, data, label, source):
        self._offsets.append(self.put(data))
        self._labels.append(label)
        self._sources.append(source)

    def finish(self):
        self.flush()
        return np.array(self._offsets)

    def close(self):
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class SplitReader:
    """One split: `len(reader)`, `reader[i]` (bytes), `reader.labels`, batches, and iteration by shard.

    A subclass has `_acquire` and `_release`, which open and close its files, and `_read(i)`.
    """

    CALLS: tuple = ("files",)  # supported ways to read: `pread`, `mmap`, or `files`
    _acquire: Callable
    _release: Callable
    _read: Callable
    THREADS = True  # several threads may read at once, and a training at random
    MERGES = False  # neighbours can be read in one piece

    def __init__(self, folder, split, io="auto", check=False):
        self.folder, self.split, self.check = Path(folder), split, check
        self.manifest = read_manifest(folder)
        require_split(folder, split, self.manifest["splits"])
        self.classes = self.manifest["classes"]
        self._facts = self.manifest["splits"][split]["shards"]
        for path, shard in zip(self.paths(), self._facts, strict=True):
            require_whole(path, shard, remedy(self.folder, str(path.parent)))
        self.io = default_io(self.folder, self.manifest["bytes"]) if io == "auto" else io
        path = samples_path(self.folder, self.split)
        try:
            # The mapped memory as a plain array: indexing np.memmap is slower.
            self.samples = np.asarray(np.load(path, mmap_mode="r"))
        except (OSError, ValueError) as error:
            raise DataError(f"{path} is missing or damaged ({error}); {remedy(self.folder)}") from None
        expected = sum(shard["samples"] for shard in self._facts)
        if len(self.samples) != expected:
            raise DataError(f"{path} has {len(self.samples):,} rows instead of {expected:,}; {remedy(self.folder)}")
        self.labels = self.samples["label"]
        # A memoryview is the fastest way to look up one number.
        self._length, self._offset, self._shard = (self.samples[key].data for key in ("length", "offset", "shard"))
        self._is_open = False

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        """The bytes of sample `i`."""
        if not self._is_open:
            self.require_open()
        return self._checked(i, self._read(i))

    def view(self, i):
        """Like `reader[i]`, but if the file is mapped, a memoryview without a copy, valid as long as it is referenced."""
        return self[i]

    def read_batch(self, indices):
        """The bytes of several samples, as a list in the requested order."""
        return [self[i] for i in indices]

    def read_piece(self, numbers):
        """Sample number → bytes, for samples of one shard in file order. Any thread may call it once files are open."""
        return {i: self[i] for i in numbers}

    def shards(self):
        """Sample numbers of each shard: a list of ranges."""
        ends = np.cumsum([shard["samples"] for shard in self._facts]).tolist()
        return [range(end - shard["samples"], end) for shard, end in zip(self._facts, ends, strict=True)]

    def iterate(self, shard):
        """Yield the bytes of the samples of one shard in file order."""
        for i in self.shards()[shard]:
            yield self[i]

    def close(self):
        """Close open files; the next read opens them again."""
        if self._is_open:
            self._release()
        self._is_open = False

    def paths(self):
        """The files of the shards."""
        return [self.folder / shard["file"] for shard in self._facts]

    def require_open(self):
        """Open the files if they are closed. Call it before several threads read."""
        if not self._is_open:
            self._acquire()
            self._is_open = True

    def _checked(self, i, data):
        wrong = len(data) != self._length[i]
        if wrong or (self.check and xxhash.xxh3_64_intdigest(data) != self.samples["checksum"].item(i)):
            shard = (self.folder / self._facts[self._shard[i]]["file"]).parent
            raise DataError(f"{self.where(i)} is damaged: its checksum differs; {remedy(self.folder, str(shard))}")
        return data

    def where(self, i):
        """Describe sample `i` for a message: file, offset and number in the source."""
        row = self.samples[i]
        return f"{self.folder / self._facts[row['shard']]['file']}: sample {i:,} (number {row['source']:,} of the source, byte {row['offset']:,})"


class ByteReader(SplitReader):
    """Reads samples that are stored unchanged in shards: with `pread`, which does not move a file position shared by threads, or by
    copying from mapped memory."""

    CALLS = ("pread", "mmap")
    MERGES = True

    def _read(self, i):
        length, offset = self._length[i], self._offset[i]
        if self._maps:
            return self._maps[self._shard[i]][offset : offset + length]
        return os.pread(self._files[self._shard[i]], length, offset)

    def view(self, i):
        self.require_open()
        if not self._maps:
            return self[i]
        offset = self._offset[i]
        return self._checked(i, memoryview(self._maps[self._shard[i]])[offset : offset + self._length[i]])

    def read_piece(self, numbers):
        if len(numbers) == 1 or self._maps:
            return super().read_piece(numbers)
        start, last = self._offset[numbers[0]], numbers[-1]
        piece = memoryview(
            os.pread(self._files[self._shard[last]], self._offset[last] + self._length[last] - start, start)
        )
        places = ((i, self._offset[i] - start) for i in numbers)
        return {i: self._checked(i, bytes(piece[place : place + self._length[i]])) for i, place in places}

    def _acquire(self):
        self._files = [os.open(self.folder / shard["file"], os.O_RDONLY | os.O_CLOEXEC) for shard in self._facts]
        self._maps = []
        if self.io == "mmap":
            self._maps = [
                mmap.mmap(file, 0, prot=mmap.PROT_READ) if os.fstat(file).st_size else b"" for file in self._files
            ]

    def _release(self):
        self._maps = []  # each is closed with its last view
        for file in self._files:
            os.close(file)
