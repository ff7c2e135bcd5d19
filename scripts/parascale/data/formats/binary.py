"""Bare binary: the samples of a shard one after the other, nothing between them; the table of samples is the index."""

from parascale.data.formats.base import BlockWriter, ByteReader

SUFFIX = "bin"
RANDOM_ACCESS = True


class Writer(BlockWriter):
    """Appends samples."""


class Reader(ByteReader):
    """Reads at the offsets of the table."""


def native(path):
    """A bare file says nothing of itself: there is nothing to read without the table."""
    return None
