"""Raw files: one file per sample, as most data sets are published; the baseline for the other formats.

Images that are files already are not copied; packed images are written out. The shard's file is a list of paths, each ended by a zero
byte; the offset of a sample is the start of its path. A path is absolute, or relative to the shard's folder.
"""

import mmap
import os

from parascale.data.formats.base import BlockWriter, SplitReader, sample_path
from parascale.errors import DataError

SUFFIX = "paths"


class FilesWriter(BlockWriter):
    """Lists files in place, or writes them below the shard's folder."""

    def __init__(self, path, images, data_bytes):
        super().__init__(path, images, data_bytes)
        self.inodes = 1
        self._folder = None

    def append(self, data, label, source):
        if self.images.root is not None:
            name = os.path.join(self.images.root, self.images.name_bytes(source))
        else:
            name = self._write(data, source)
        super().append(name + b"\0", label, source)
        self.inodes += 1

    def _write(self, data, source):
        name = f"{self.images.split}/{sample_path(source)}"
        path = self.path.parent / name
        if path.parent != self._folder:
            self._folder = path.parent
            for folder in (self._folder.parent, self._folder):
                if not folder.is_dir():
                    folder.mkdir()
                    self.inodes += 1
        path.write_bytes(data)
        return name.encode()


class FilesReader(SplitReader):
    """Opens, reads and closes the sample's file. Others may change it, so its length and checksum are always checked."""

    def __init__(self, folder, split, io="auto", check=True):
        super().__init__(folder, split, io, check=True)

    def _acquire(self):
        self._lists, self._folders = [], []
        for shard in self._facts:
            path = self.folder / shard["file"]
            with open(path, "rb") as file:
                self._lists.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) if shard["bytes"] else b"")
            self._folders.append(os.fsencode(path.parent))

    def _release(self):
        self._lists.clear()

    def _read(self, i):
        path = self.path(i)
        try:
            with open(path, "rb", buffering=0) as file:
                return file.read()
        except OSError as error:
            name = path.decode("utf-8", "backslashreplace")
            raise DataError(
                f"{name}: {error.strerror}. Restore it, or remove its index and formats in {self.folder.parent} and run the target `formats` again"
            ) from None

    def where(self, i):
        return f"{self.path(i).decode('utf-8', 'backslashreplace')}: sample {i:,}"

    def path(self, i):
        """The path of sample `i`, as the filesystem spells it."""
        self.require_open()
        shard, start = self._shard[i], self._offset[i]
        return os.path.join(self._folders[shard], self._lists[shard][start : self._lists[shard].find(b"\0", start)])


Writer, Reader = FilesWriter, FilesReader
