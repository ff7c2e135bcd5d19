"""Bare binary: the samples of a shard one after the other, without gaps; the table of samples is the index."""

from parascale.data.formats.base import BlockWriter, ByteReader

SUFFIX = "bin"
Writer, Reader = BlockWriter, ByteReader
