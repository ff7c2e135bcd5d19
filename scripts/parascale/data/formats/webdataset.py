"""WebDataset: a tar file with `<name>.<jpg, png or webp>` and `<name>.cls` per sample, as the WebDataset library streams it.

A tar file has no index, so by itself it can only be read from the start. The writer keeps the offset of each image, so
that our reader can read the file at random, at the speed of a bare binary.
"""

import os
import tarfile

import xxhash

from parascale.data.formats.base import BlockWriter, ByteReader
from parascale.data.jpeg import extension

SUFFIX = "tar"
BLOCK = 512  # tar's unit: headers and contents are padded to it


class WebDatasetWriter(BlockWriter):
    """Writes two members per sample, without dates and owners, so that a rebuild gives the same bytes."""

    def __init__(self, *args):
        super().__init__(*args)
        self._keys = set()  # hashes of the keys; a million take 80 MB

    def append(self, data, label, source):
        key = self._key(source)
        self.put(header(f"{key}.{extension(data)}", len(data)))
        super().append(data, label, source)
        text = str(label).encode()
        self.put(padding(len(data)) + header(f"{key}.cls", len(text)) + text + padding(len(text)))

    def _key(self, source):
        """The path in the source, its file name without extension and dots: to WebDataset, the first dot begins the extension."""
        folder, name = os.path.split(self.images.name_bytes(source).decode("utf-8", "surrogateescape").lstrip("./"))
        key = os.path.join(folder, os.path.splitext(name)[0].replace(".", "_"))
        while (known := xxhash.xxh3_64_intdigest(os.fsencode(key))) in self._keys:
            key = f"{key}_{source}"  # such as a.jpg and a.png, which would be one sample to WebDataset
        self._keys.add(known)
        return key

    def finish(self):
        self.put(bytes(2 * BLOCK))  # the end mark of a tar file
        return super().finish()


Writer, Reader = WebDatasetWriter, ByteReader  # at the offsets of the images, past the tar headers


def header(name, size):
    """A tar header for a regular file, preceded by another one if the name is long."""
    member = tarfile.TarInfo(name)
    member.size = size
    return member.tobuf(tarfile.GNU_FORMAT, errors="surrogateescape")


def padding(size):
    """Zeros up to the next block."""
    return bytes(-size % BLOCK)


def native(path):
    """Yield (bytes, label) of every sample, read like any tar program does."""
    with tarfile.open(path, "r:") as archive:
        for member in archive:
            content = archive.extractfile(member).read()  # type: ignore[union-attr] # all are files
            if not member.name.endswith(".cls"):
                image = content
            else:
                yield image, int(content)
