"""What a benchmark of readers reads: a case, what is opened for it, and the reads that it consists of."""

import contextlib
import itertools
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parascale.data.formats import image_format, open_images, open_tokens
from parascale.data.formats.manifest import read_manifest

BATCH = 64
SEED = 1


@dataclass(frozen=True)
class Case:
    """What is measured.

    decoder: from file to tensor, as a training with this decoder sees random crops of `smallest` of an image's area or more,
    in random order and resized to `size` pixels a side, by `workers` threads, and for `dali` on the first GPU if there is one; None:
    the encoded bytes alone, and no `size` or `smallest`. window: of text; None for images.
    """

    folder: str
    split: str
    format: str
    access: str  # sequential | random
    cache: str  # warm | cold
    io: str  # pread | mmap | files | memory, for what was read as it was opened
    workers: int
    decoder: str | None
    samples: int
    seconds: float
    repeats: int
    window: int | None = None
    size: int | None = None
    smallest: float | None = None


@contextlib.contextmanager
def opened(case):
    """What a case reads from: a reader of images (which opens its files at the first read), or windows and a token's bytes."""
    if case.window:
        from parascale.data.text import Tokens, Windows  # loads a tokenizer, which images have no use for

        tokens_N = (
            Tokens(case.folder).split(case.split) if case.format == "flat" else open_tokens(case.folder, case.split)
        )
        yield Windows(tokens_N, case.window), tokens_N.itemsize
    else:
        reader = open_images(case.folder, case.split, "auto" if case.io == "files" else case.io)
        yield reader
        reader.close()


def reads(case, source, seed):
    """Yield (samples, bytes) of each read, in the order that a case wants."""
    order = _order(len(source[0] if case.window else source), case.access, seed)
    read = _window_reads if case.window else _decoded_reads if case.decoder else _image_reads
    return read(case, source, order)


def paths(case):
    """The files that a case reads."""
    if case.window:
        return [path for path in Path(case.folder).iterdir() if path.stem == case.split]
    reader = open_images(case.folder, case.split)
    if case.format == "files":
        return [os.fsdecode(reader.path(i)) for i in range(len(reader))]
    return reader.paths()


def byte_addressed(folder):
    """Whether a format is read at byte offsets, so that `pread` and `mmap` are a choice."""
    from parascale.data.formats.base import ByteReader

    manifest = read_manifest(folder)
    return issubclass(image_format(manifest["format"]).Reader, ByteReader)


def _order(count, access, seed):
    """Sample numbers in the order in which they are read: an int64 array, or None for the order in which they lie."""
    return np.random.default_rng((SEED, seed)).permutation(count) if access == "random" else None


def _rounds(case):
    """A cold pass reads the data once, since it is cached then; a warm one starts over until its time is up."""
    return range(1) if case.cache == "cold" else itertools.count()


def _image_reads(case, reader, order):
    """Yield (1, bytes) of each image read."""
    for _ in _rounds(case):
        for data in _samples(reader, order):
            yield 1, len(data)


def _decoded_reads(case, reader, order):
    """Yield (images, bytes) of each batch of images that was decoded, cropped and resized, each differently in each round."""
    import torch

    from parascale.data.classes import AugmentedImages

    device = torch.device("cuda", 0) if torch.cuda.is_available() else None
    samples, lengths = AugmentedImages(reader, case.size, SEED, case.smallest, case.decoder), reader.samples["length"]
    here, there = itertools.tee(
        order[first : first + BATCH] + number * len(reader)
        for number in _rounds(case)
        for first in range(0, len(order), BATCH)
    )
    for numbers, _ in zip(here, samples.batches(there, case.workers, device), strict=True):
        yield len(numbers), int(lengths[numbers % len(reader)].sum())


def _samples(reader, order):
    if order is None:
        for shard in range(len(reader.shards())):
            yield from reader.iterate(shard)
        return
    number = order.item  # one at a time: no list of Python numbers
    for place in range(len(order)):
        yield reader[number(place)]


def _window_reads(case, source, order):
    """Yield (windows, bytes) of each batch of windows."""
    windows, token_bytes = source
    order = np.arange(len(windows)) if order is None else order
    width = token_bytes * (case.window + 1)
    for _ in _rounds(case):
        for first in range(0, len(order), BATCH):
            indices = order[first : first + BATCH]
            windows.batch(indices)
            yield len(indices), len(indices) * width
