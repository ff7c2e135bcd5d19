"""As many samples as ImageNet has, indexed, converted and read: the peak of memory must not grow with them.

The samples are made from their numbers (some hundred bytes each), so that no million files are needed: a list that is
indexed names one file a class over and over, and a Parquet file holds its images. Prints the peak memory of each stage,
measured in a process of its own, for a tenth of the samples and for all.

Example: python tests/benchmarks/million.py --work /tmp/million --format hdf5
"""

import argparse
import hashlib
import shutil
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from parascale.data.convert import convert
from parascale.data.formats import open_images
from parascale.data.image_sources import index_images
from parascale.settings.formats import Formats, Images

SAMPLES = 1_281_167
SHARDS = 4
CLASSES = 1000
SHORTEST, SPAN = 100, 400  # bytes of a sample: 100 to 499
READ_SAMPLES = 200_000  # of the random pass
ROWS = 10_000  # of Parquet that are written at once


class Synthetic:
    """An index, and its one split, of samples made from their numbers."""

    root, splits = None, ["train"]

    def __init__(self, count):
        self.classes = [f"class {number}" for number in range(CLASSES)]
        numbers = np.arange(count, dtype=np.int64)
        self.labels = (numbers % CLASSES).astype(np.int32)
        self.lengths = length(numbers)
        self.digest = f"synthetic {count}"

    def split(self, name):
        """Itself, named."""
        return _Split(self, name)

    def __len__(self):
        return len(self.labels)


class _Split(Synthetic):
    def __init__(self, whole, name):
        self.__dict__.update(whole.__dict__)
        self.split = name

    def read(self, i):
        """Bytes that depend on the number alone."""
        return content(i, self.lengths.item(i))

    def name(self, i):
        """For messages."""
        return f"sample {i}"


def length(i):
    """Bytes of sample `i`, or of many."""
    return SHORTEST + i * 7919 % SPAN


def content(i, size):
    """The bytes of sample `i`."""
    seed = hashlib.blake2b(i.to_bytes(8, "little"), digest_size=50).digest()
    return (seed * (size // len(seed) + 1))[:size]


def make_list(count, folder):
    """A table of paths, as long as ImageNet's, and labels."""
    paths = [f"n{label:08d}/n{label:08d}_{label:05d}.JPEG" for label in range(CLASSES)]
    for label, path in enumerate(paths):
        (folder / path).parent.mkdir()
        (folder / path).write_bytes(content(label, SHORTEST))
    with open(folder / "train.csv", "w", encoding="utf-8") as file:
        file.write("path,label\n")
        file.writelines(f"{paths[i % CLASSES]},{i % CLASSES}\n" for i in range(count))


def make_parquet(count, folder):
    """A Parquet file that holds the images, as sets from the Hub come."""
    import pyarrow as pa  # here, since what this module imports is in the memory of every stage
    import pyarrow.parquet as pq

    schema = pa.schema([("image", pa.binary()), ("label", pa.int64())])
    with pq.ParquetWriter(folder / "train.parquet", schema) as writer:
        for first in range(0, count, ROWS):
            numbers = range(first, min(first + ROWS, count))
            images, labels = [content(i, length(i)) for i in numbers], [i % CLASSES for i in numbers]
            writer.write_table(pa.table([images, labels], schema=schema), row_group_size=ROWS)


def index(count, name, folder):
    """Index what lies in `folder/raw`; returns seconds."""
    start = time.perf_counter()
    manifest = index_images(folder / "raw", Images(), folder / "index")
    assert sum(split["samples"] for split in manifest["splits"].values()) == count
    return time.perf_counter() - start, peak()


def write(count, name, folder):
    """Convert; returns seconds."""
    start = time.perf_counter()
    convert(Synthetic(count), "million", name, Formats(check="none", shards=SHARDS, threads=2), folder)
    return time.perf_counter() - start, peak()


def read(count, name, folder):
    """Read in order, all of it, then a part at random, and check what comes; returns seconds."""
    reader, start, seen = open_images(folder, "train", "pread"), time.perf_counter(), 0
    for shard in range(SHARDS):
        for _ in reader.iterate(shard):
            seen += 1
    assert seen == count == len(reader)
    order = np.random.default_rng(1).permutation(count)[:READ_SAMPLES].item
    for place in range(min(count, READ_SAMPLES)):
        i = order(place)
        number = reader.samples["source"].item(i)
        assert reader[i] == content(number, length(number))
    return time.perf_counter() - start, peak()


def peak():
    """(peak memory of this process, the anonymous part of it now) in MiB; the first counts mapped pages of files too."""
    with open("/proc/self/status", encoding="ascii") as file:
        lines = dict(line.split(":", 1) for line in file)
    return tuple(int(lines[key].split()[0]) / 1024 for key in ("VmHWM", "RssAnon"))


def main():
    """Run each stage in a fresh process and print its peak."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for the conversions")
    parser.add_argument("--format", default="hdf5", help="format to write (default: %(default)s)")
    arguments = parser.parse_args()
    for count in (SAMPLES // 10, SAMPLES):
        for name, make in (("list", make_list), ("parquet", make_parquet)):
            folder = _emptied(arguments.work / f"index-{name}-{count}")
            (folder / "raw").mkdir(parents=True)
            make(count, folder / "raw")
            _measure(index, count, name, folder)
        folder = _emptied(arguments.work / f"{arguments.format}-{count}")
        for stage in (write, read):
            _measure(stage, count, arguments.format, folder)


def _emptied(folder):
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def _measure(stage, count, name, folder):
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        seconds, (most, anonymous) = pool.submit(stage, count, name, folder).result()
    print(
        f"{name}, {count:,} samples, {stage.__name__}: {seconds:.0f} s, peak {most:.0f} MiB, "
        f"{anonymous:.0f} MiB of it not mapped from files at the end",
        flush=True,
    )


if __name__ == "__main__":
    main()
