"""WebDataset: a tar file with `<number>.jpg` and `<number>.cls` a sample, which is what the WebDataset library streams.

A tar file has no index, so by itself it can only be read from its start. The offset of each image is kept when it is
written, and with it the same file is read at random, at the speed of a bare binary.
"""

import tarfile

from parascale.data.formats.base import BlockWriter, ByteReader

SUFFIX = "tar"
RANDOM_ACCESS = True
Reader = ByteReader  # at the offsets of the images, past the tar headers
BLOCK = 512  # tar's unit: headers and contents are padded to it


class Writer(BlockWriter):
    """Writes two members a sample, with neither dates nor owners, so that a rebuild gives the same bytes."""

    def append(self, data, label, source):
        key = f"{source:09d}"
        self.put(header(f"{key}.jpg", len(data)))
        super().append(data, label, source)
        text = str(label).encode()
        self.put(padding(len(data)) + header(f"{key}.cls", len(text)) + text + padding(len(text)))

    def finish(self):
        self.put(bytes(2 * BLOCK))  # the mark of a tar file's end
        return super().finish()


def header(name, size):
    """A tar header for a plain file."""
    member = tarfile.TarInfo(name)
    member.size = size
    return member.tobuf(tarfile.USTAR_FORMAT)


def padding(size):
    """Zeros up to the next block."""
    return bytes(-size % BLOCK)


def native(path):
    """Yield (bytes, label) of every sample, as any tar program would read them."""
    with tarfile.open(path, "r:") as archive:
        for member in archive:
            content = archive.extractfile(member).read()
            if member.name.endswith(".jpg"):
                image = content
            else:
                yield image, int(content)
