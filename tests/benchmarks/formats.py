"""Formats side by side, in one run: ours, what they replace, and their peers. Prints a table of ratios.

20,000 JPEGs of about 14 kB are drawn once into the work folder and kept there. The peers need an environment of their
own (make_peers.py); without --peers their rows are left out. The two sides of a pair are measured in turns, and the ratio
is the median of the turns' ratios, so that another load on the machine disturbs both sides alike. On a machine that is
shared, `--clock processor` counts the processor's time of reads that are in the page cache, which others do not change.

Example: python tests/benchmarks/formats.py --work /tmp/formats --peers /tmp/peers/bin/python
"""

import argparse
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import h5py
import numpy as np
from comparison import Comparison, machine, rate, seconds, warm
from course_formats import course
from format_samples import SAMPLES, InMemory, Numbered, OneSplit, SlowImages, pack, samples, write_rows_of_lists

from parascale.data.cases import Case
from parascale.data.classes import ClassImages
from parascale.data.convert import convert
from parascale.data.formats import open_images
from parascale.data.measure import measure
from parascale.data.sampler import Sampler, evaluation_share, share
from parascale.data.text import Windows
from parascale.settings.formats import Formats

SERIAL_SAMPLES = 2_000  # of the serial loop with latency; its time is proportional to them
PASS_SECONDS = 0.5
LOADER_SECONDS = 6.0
WINDOW, TOKENS, BATCH = 64, 2_000_000, 64
DEFAULT = "hdf5"
MAPPABLE = (DEFAULT, "arrow", "binary", "webdataset")
GOALS = {"mosaic": {"random": 4}, "litdata": {"random": 50, "sequential": 1.5}, "webdataset": {"sequential": 20}}
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


class Bench:
    """What every part needs: folders, the samples, the table, how often and by which clock."""

    def __init__(self, arguments):
        self.work, self.repeats, self.clock = arguments.work, arguments.repeats, CLOCKS[arguments.clock]
        self.clock_name, self.peers = arguments.clock, arguments.peers
        self.index = samples(self.work)
        self.images = self.index.split("train")
        self.table = Comparison()
        self.order = np.random.default_rng(1).permutation(SAMPLES).tolist()

    def convert(self, name, folder, index=None, **settings):
        """Write the samples in a format."""
        shutil.rmtree(self.work / folder, ignore_errors=True)
        return convert(index or self.index, "bench", name, Formats(**settings), self.work / folder)

    def peer(self, name, samples):
        """What a peer measured in its own environment: {version, write, random, sequential…}."""
        scratch = self.work / f"peer-{name}"
        shutil.rmtree(scratch, ignore_errors=True)
        command = [
            self.peers,
            Path(__file__).with_name("peer_formats.py"),
            name,
            samples.absolute(),
            scratch.absolute(),
        ]
        command += ["--repeats", str(self.repeats), "--clock", self.clock_name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        rows = [json.loads(line.removeprefix("RESULT ")) for line in lines]
        return {"version": rows[0]["version"]} | {row["what"]: row["value"] for row in rows}


def writing(bench):
    """Our HDF5 with checks, checksums, sha256 and fsync, against the loop that it replaces."""
    ours, theirs = [], []
    for _ in range(bench.repeats):
        ours.append(seconds(lambda: bench.convert(DEFAULT, DEFAULT)))
        theirs.append(seconds(lambda: write_rows_of_lists(bench.images, bench.work / "rows.h5")))
    bench.table.times("HDF5 written, against a loop of np.array(list(bytes)) rows", ours, theirs, 10)
    for name in ("arrow", "binary", "webdataset", "parquet"):
        bench.convert(name, name)


def latency(bench):
    """Conversion where an open takes long, against a serial loop over a part, scaled up."""
    slow = SlowImages(bench.images)
    start = time.perf_counter()
    with open(bench.work / "serial.bin", "wb") as file:
        for i in range(SERIAL_SAMPLES):
            file.write(slow.read(i))
    serial = (time.perf_counter() - start) * SAMPLES / SERIAL_SAMPLES
    ours = seconds(lambda: bench.convert(DEFAULT, "slow", OneSplit(slow)))
    said = f"conversion with 2 ms an open, once, against a serial loop scaled up from {SERIAL_SAMPLES:,} samples"
    bench.table.times(said, [ours], [serial], 12)


def reading(bench):
    """Random reads of our formats against the old HDF5 and against a bare binary."""
    rows = h5py.File(bench.work / "rows.h5")["images"]
    readers = {
        name: open_images(bench.work / name, "train", io) for name, io in ((DEFAULT, "pread"), ("arrow", "mmap"))
    }
    binary = open_images(bench.work / "binary", "train")
    file = os.open(binary.paths()[0], os.O_RDONLY)
    offsets, lengths = binary.samples["offset"].tolist(), binary.samples["length"].tolist()
    for reader in (*readers.values(), binary):
        warm(reader)
    rates = {name: [] for name in ("rows", "bare", *readers)}
    for _ in range(bench.repeats):
        rates["rows"].append(rate((rows[i] for i in bench.order), bench.clock))
        rates["bare"].append(rate((os.pread(file, lengths[i], offsets[i]) for i in bench.order), bench.clock))
        for name, reader in readers.items():
            rates[name].append(rate((reader[i] for i in bench.order), bench.clock))
    os.close(file)
    for name, other, words, goal in (
        (DEFAULT, "rows", "HDF5 by pread against variable-length rows", 20),
        (DEFAULT, "bare", "HDF5 by pread against a bare binary by pread", 0.8),
        ("arrow", "bare", "Arrow by mmap against a bare binary by pread", 0.8),
    ):
        bench.table.pair(f"random reads: our {words}", rates[name], rates[other], goal, "samples/s")


def exactness(bench):
    """Bytes read for each byte asked for, files opened for each sample; and what must come out the same."""
    for name in MAPPABLE:
        figures = measure(_case(bench, name, "pread", "warm"))
        bench.table.at_most(
            f"{name}, pread: bytes read per byte asked, at random", figures["bytes_read_per_byte"], 1.05, ""
        )
        bench.table.at_most(f"{name}, pread: files opened a sample", figures["opens_per_sample"], 0, "")
    for name in MAPPABLE:
        figures = measure(_case(bench, name, "mmap", "cold"))
        if figures is not None:  # where the page cache cannot be dropped, nothing is known
            said = f"{name}, mmap, cold: bytes paged in per byte asked, {figures['samples']:,} samples at random"
            bench.table.alone(said, figures["bytes_read_per_byte"], "")
    again = bench.convert(DEFAULT, "again", threads=3)
    bench.table.exact("the same bytes on a rebuild with other threads", again == _manifest(bench.work / DEFAULT))
    reader = Numbered(SAMPLES)
    shares = [np.array_split(evaluation_share(SAMPLES, rank, 3), SAMPLES // BATCH) for rank in range(3)]
    seen = [number for batches in shares for number in _numbers(reader, batches, 2)]
    bench.table.exact("evaluation on 3 ranks × 2 workers: every sample once", sorted(seen) == list(range(SAMPLES)))
    bench.table.exact("resumed in mid-epoch with other ranks and workers: the same samples", _resumed(reader))


def _resumed(reader):
    """Whether 4 ranks × 2 workers go on from a kept state with the global batches of one process that never stopped."""
    sampler, first, last = Sampler(SAMPLES, BATCH, seed=1), 100, 400  # an epoch ends between
    whole = _numbers(reader, map(sampler.indices, range(first, last)))
    resumed = Sampler(SAMPLES, BATCH, seed=1)
    start = resumed.step(sampler.state(first))
    shares = [[share(resumed.indices(step), rank, 4) for step in range(start, last)] for rank in range(4)]
    parts = [np.array(_numbers(reader, batches, 2)) for batches in shares]
    together = np.stack(parts, axis=1)  # rank r has the samples r, r + 4, … of each global batch
    return together.ravel().tolist() == whole


def _numbers(reader, batches, workers=0):
    """Sample numbers in the order in which a loader delivers them."""
    return [number for _, labels in ClassImages(reader, 16).batches(batches, workers) for number in labels.tolist()]


def _manifest(folder):
    return json.loads((folder / "manifest.json").read_text())


def _case(bench, name, io, cache):
    return Case(str(bench.work / name), "train", name, "random", cache, io, 0, None, SAMPLES, PASS_SECONDS, 1)


def loader(bench):
    """Two threads that decode: our HDF5 against the samples in a list in memory."""
    reader = open_images(bench.work / DEFAULT, "train")
    memory = InMemory(reader)
    ours, theirs = [], []
    for repeat in range(bench.repeats):
        for source, found in ((reader, ours), (memory, theirs)):
            batches = map(Sampler(SAMPLES, BATCH, repeat).indices, range(SAMPLES // BATCH))
            found.append(_loader_rate(ClassImages(source, 160).batches(batches, 2)))
    bench.table.pair("from file to tensor, 2 workers, against samples in memory", ours, theirs, 0.88, "samples/s")


def _loader_rate(batches):
    """Samples a second, from the first batch on."""
    count, first = 0, None
    for images, _ in batches:
        now = time.perf_counter()
        first = first or now
        count += len(images)
        if now - first > LOADER_SECONDS:
            break
    return (count - len(images)) / (now - first)


def text(bench):
    """Batches of windows at random over a flat array, against rows of lists in Hugging Face datasets."""
    if bench.peers is None:
        return
    folder = bench.work / "peer-samples"
    folder.mkdir(exist_ok=True)
    np.random.default_rng(0).integers(0, 30_000, TOKENS).astype("<u2").tofile(folder / "tokens.bin")
    (folder / "tokens.json").write_text(json.dumps({"window": WINDOW}))
    windows = Windows(np.memmap(folder / "tokens.bin", "<u2", "r"), WINDOW)
    order = np.random.default_rng(1).permutation(len(windows))
    ours = []
    for _ in range(bench.repeats + 1):  # the first fills the cache
        start = bench.clock()
        for first in range(0, len(order), BATCH):
            windows.batch(order[first : first + BATCH])
        ours.append(len(order) / (bench.clock() - start))
    theirs = bench.peer("huggingface_rows", folder)
    for what, words, goal in (
        ("random", "a row at a time", 25),
        ("batched", f"{BATCH} rows at a time", 25),
        ("arrays", f"{BATCH} rows at a time, as inputs and labels", None),
    ):
        said = f"text windows, batched, against rows of lists in HF datasets {theirs['version']}, {words}"
        bench.table.pair(said, ours[1:], [theirs[what]], goal, "windows/s")


def peers(bench):
    """Our default format against MosaicML's MDS, LitData and WebDataset."""
    if bench.peers is None:
        return
    folder = bench.work / "peer-samples"
    pack(bench.images, folder)
    reader = open_images(bench.work / DEFAULT, "train")
    warm(reader)
    for name, goals in GOALS.items():
        ours = {"random": [], "sequential": []}
        for _ in range(bench.repeats):
            ours["random"].append(rate((reader[i] for i in bench.order), bench.clock))
            ours["sequential"].append(rate(reader.iterate(0), bench.clock))
        theirs = bench.peer(name, folder)
        for access, goal in goals.items():
            words = "random reads" if access == "random" else "in order"
            said = f"{words}: our {DEFAULT} against {name} {theirs['version']}"
            bench.table.pair(said, ours[access], [theirs[access]], goal, "samples/s")


# In the order in which they run; all but the course's and the text read what writing left in the work folder.
PARTS = {part.__name__: part for part in (course, writing, latency, reading, exactness, loader, text, peers)}


def main():
    """Measure everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for samples and conversions")
    parser.add_argument("--peers", type=Path, help="python of the peers' environment")
    parser.add_argument("--repeats", type=int, default=5, help="times each pair is measured (default: %(default)s)")
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="of the rates of reading (default: %(default)s)"
    )
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what is measured (default: all, in order)"
    )
    arguments = parser.parse_args()
    bench = Bench(arguments)
    for part in arguments.parts:
        PARTS[part](bench)
    print(f"\n{machine()}")
    if bench.table.rows:
        print(f"\n{bench.table.markdown()}")


if __name__ == "__main__":
    main()
