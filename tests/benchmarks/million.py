"""As many samples as ImageNet has, converted and read: the peak of memory must not grow with them.

The samples are made from their numbers (some hundred bytes each), so that no million files are needed. Prints the peak
memory of each stage, measured in a process of its own, for a tenth of the samples and for all.

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

from parascale.config.formats import Formats
from parascale.data.convert import convert
from parascale.data.formats import open_images

SAMPLES = 1_281_167
SHARDS = 4
CLASSES = 1000
SHORTEST, SPAN = 100, 400  # bytes of a sample: 100 to 499
READ_SAMPLES = 200_000  # of the random pass


class Synthetic:
    """An index, and its one split, of samples made from their numbers."""

    root, splits = None, ["train"]

    def __init__(self, count):
        self.classes = [f"class {number}" for number in range(CLASSES)]
        numbers = np.arange(count, dtype=np.int64)
        self.labels = (numbers % CLASSES).astype(np.int32)
        self.lengths = SHORTEST + numbers * 7919 % SPAN
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


def content(i, length):
    """The bytes of sample `i`."""
    seed = hashlib.blake2b(i.to_bytes(8, "little"), digest_size=50).digest()
    return (seed * (length // len(seed) + 1))[:length]


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
        assert reader[i] == content(number, SHORTEST + number * 7919 % SPAN)
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
        folder = arguments.work / f"{arguments.format}-{count}"
        shutil.rmtree(folder, ignore_errors=True)
        for stage in (write, read):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                seconds, (most, anonymous) = pool.submit(stage, count, arguments.format, folder).result()
            print(
                f"{arguments.format}, {count:,} samples, {stage.__name__}: {seconds:.0f} s, peak {most:.0f} MiB, "
                f"{anonymous:.0f} MiB of it not mapped from files at the end",
                flush=True,
            )


if __name__ == "__main__":
    main()
