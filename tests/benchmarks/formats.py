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
import platform
import shutil
import statistics
import subprocess
import time
from importlib.metadata import version
from pathlib import Path

import h5py
import numpy as np
import psutil

from parascale.config.formats import Formats, Images
from parascale.data.convert import convert
from parascale.data.drawing import draw_images
from parascale.data.formats import open_images
from parascale.data.image_sources import index_images
from parascale.data.images import ImageIndex
from parascale.data.measure import Case, measure
from parascale.data.text import Windows

SAMPLES = 20_000
DRAWN = Images(train=SAMPLES, validation=10, test=10, size=184)  # 14.05 kB on average
LATENCY = 0.002  # seconds that an open takes on a busy parallel filesystem
SERIAL_SAMPLES = 2_000  # of the serial loop with latency; its time is proportional to them
PASS_SECONDS = 0.5
LOADER_SECONDS = 6.0
WINDOW, TOKENS = 64, 2_000_000
DEFAULT = "hdf5"
PARTS = ["writing", "latency", "reading", "loader", "text", "peers"]  # reading, loader and peers need writing once
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


class Report:
    """Collects rows of the table."""

    def __init__(self):
        self.rows = []

    def add(self, what, ratio, goal, ours, theirs, unit, at_most=False):
        """ratio: larger is better unless at_most. goal: None where there is none."""
        missed = goal is not None and (ratio > goal if at_most else ratio < goal)
        aim = "" if goal is None else f"{'≤' if at_most else '≥'} {goal:g}{' (missed)' if missed else ''}"
        self.rows.append(f"| {what} | {ratio:,.2f} | {aim} | {ours} | {theirs} | {unit} |")
        print(self.rows[-1], flush=True)

    def markdown(self):
        """The table."""
        head = ["| what | ratio | goal | ours | other side | |", "| --- | ---: | --- | ---: | ---: | --- |"]
        return "\n".join([*head, *self.rows])


class SlowImages:
    """Images whose every open takes LATENCY longer."""

    def __init__(self, images, count):
        self._images, self._count = images, count
        self.root, self.split, self.digest, self.classes = images.root, images.split, images.digest, images.classes
        self.labels, self.lengths = images.labels[:count], images.lengths[:count]
        self.name, self.name_bytes = images.name, images.name_bytes

    def __len__(self):
        return self._count

    def read(self, i):
        """The bytes, late."""
        time.sleep(LATENCY)
        return self._images.read(i)


class OneSplit:
    """An index with one split."""

    def __init__(self, images):
        self.splits, self.classes, self._images = ["train"], images.classes, images

    def split(self, name):
        """The images."""
        return self._images


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
        "--parts", nargs="+", choices=PARTS, default=PARTS, help="what is measured (default: all, in order)"
    )
    arguments = parser.parse_args()
    work, repeats, parts, clock = arguments.work, arguments.repeats, arguments.parts, CLOCKS[arguments.clock]
    index = samples(work)
    report = Report()
    if "writing" in parts:
        writing(index, work, report, repeats)
    if "latency" in parts:
        latency(index, work, report)
    if "reading" in parts:
        reading(work, report, repeats, clock)
        exactness(work, report)
    if "loader" in parts:
        loader(work, report, repeats)
    peer = Peer(arguments.peers, arguments.clock, work, repeats)
    if "text" in parts and arguments.peers:
        text(work, report, repeats, clock, peer)
    if "peers" in parts and arguments.peers:
        peers(index, work, report, repeats, clock, peer)
    print(f"\n{machine()}\n\n{report.markdown()}")


def samples(work):
    """Draw the images once, index them, and warm the page cache."""
    if not (work / "index" / "manifest.json").exists():
        draw_images(work / "raw", DRAWN, processes=2)
        index_images(work / "raw", DRAWN, work / "index")
    index = ImageIndex(work / "index")
    images = index.split("train")
    for i in range(len(images)):
        images.read(i)
    return OneSplit(images)


def writing(index, work, report, repeats):
    """Our HDF5 with checks, checksums, sha256 and fsync, against the loop that it replaces."""
    images = index.split("train")
    ours, theirs = [], []
    for _ in range(repeats):
        shutil.rmtree(work / DEFAULT, ignore_errors=True)
        ours.append(seconds(lambda: convert(index, "bench", DEFAULT, Formats(), work / DEFAULT)))
        theirs.append(seconds(lambda: write_rows_of_lists(images, work / "rows.h5")))
    add_pair(
        report, "HDF5 written, against a loop of np.array(list(bytes)) rows", ours, theirs, 10, "s", time_ratio=True
    )
    for name in ("arrow", "binary", "webdataset", "parquet"):
        convert(index, "bench", name, Formats(), work / name)


def write_rows_of_lists(images, path):
    """Each file through a list of Python numbers into a row of a variable-length dataset."""
    with h5py.File(path, "w") as file:
        rows = file.create_dataset("images", (len(images),), h5py.vlen_dtype(np.uint8))
        labels = file.create_dataset("labels", (len(images),), np.int32)
        for i in range(len(images)):
            rows[i] = np.array(list(images.read(i)), np.uint8)
            labels[i] = images.labels[i]
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def latency(index, work, report):
    """Conversion where an open takes long, against a serial loop over a part, scaled up."""
    images = index.split("train")
    slow = SlowImages(images, SAMPLES)
    start = time.perf_counter()
    with open(work / "serial.bin", "wb") as file:
        for i in range(SERIAL_SAMPLES):
            file.write(slow.read(i))
    serial = (time.perf_counter() - start) * SAMPLES / SERIAL_SAMPLES
    shutil.rmtree(work / "slow", ignore_errors=True)
    ours = seconds(lambda: convert(OneSplit(slow), "bench", DEFAULT, Formats(), work / "slow"))
    add_pair(report, "conversion with 2 ms an open, against a serial loop", [ours], [serial], 12, "s", time_ratio=True)


def reading(work, report, repeats, clock):
    """Random reads of our formats against the old HDF5 and against a bare binary."""
    order = np.random.default_rng(1).permutation(SAMPLES).tolist()
    rows = h5py.File(work / "rows.h5")["images"]
    readers = {name: open_images(work / name, "train", io) for name, io in ((DEFAULT, "pread"), ("arrow", "mmap"))}
    bare = open(work / "binary/00000-of-00001/train.bin", "rb", buffering=0)  # noqa: SIM115
    places = open_images(work / "binary", "train").samples
    offsets, lengths = places["offset"].tolist(), places["length"].tolist()
    rates = {name: [] for name in ("rows", "bare", *readers)}
    for reader in (*readers.values(), open_images(work / "binary", "train")):
        warm(reader)
    for _ in range(repeats):
        rates["rows"].append(rate((rows[i] for i in order), clock))
        rates["bare"].append(rate((os.pread(bare.fileno(), lengths[i], offsets[i]) for i in order), clock))
        for name, reader in readers.items():
            rates[name].append(rate((reader[i] for i in order), clock))
    add_pair(
        report, "random reads: our HDF5 against variable-length rows", rates[DEFAULT], rates["rows"], 20, "samples/s"
    )
    add_pair(
        report, "random reads: our HDF5 against a bare binary by pread", rates[DEFAULT], rates["bare"], 0.8, "samples/s"
    )
    add_pair(
        report,
        "random reads: our Arrow against a bare binary by pread",
        rates["arrow"],
        rates["bare"],
        0.8,
        "samples/s",
    )


def exactness(work, report):
    """Bytes that were read for each byte asked for, and files opened for each sample."""
    for name in (DEFAULT, "arrow", "binary", "webdataset"):
        figures = measure(case(work / name, name, "pread", "warm"))
        opened = figures["opens_per_sample"]
        report.add(
            f"{name}, pread: bytes read per byte asked ({opened:g} opens a sample)", figures["bytes_read_per_byte"], 1.05,
            f"{figures['read_calls_per_sample']:.2f} calls", "1", "a sample", at_most=True,
        )  # fmt: skip
    for name in (DEFAULT, "arrow"):
        figures = measure(case(work / name, name, "mmap", "cold"))
        if figures is not None:
            print(f"    {name}, mmap, cold: {figures['bytes_read_per_byte']:.2f} bytes paged in per byte asked")


def case(folder, name, io, cache):
    """A case of bytes at random."""
    return Case(str(folder), "train", name, "random", cache, io, 0, False, SAMPLES, PASS_SECONDS, 1)


def loader(work, report, repeats):
    """DataLoader with two workers that decode: our HDF5 against the samples in a list in memory."""
    from parascale.data.loader import StepBatches, image_loader
    from parascale.data.sampler import Sampler

    reader = open_images(work / DEFAULT, "train")
    memory = InMemory(reader)
    ours, theirs = [], []
    for repeat in range(repeats):
        for source, found in ((reader, ours), (memory, theirs)):
            batches = image_loader(source, StepBatches(Sampler(SAMPLES, 64, repeat), 0, SAMPLES // 64), 2)
            found.append(loader_rate(batches))
    add_pair(report, "DataLoader with decoding, 2 workers, against samples in memory", ours, theirs, 0.88, "samples/s")


class InMemory:
    """All samples as objects in a list, which workers inherit."""

    def __init__(self, reader):
        self.samples, self.labels = [reader[i] for i in range(len(reader))], reader.labels

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        return self.samples[i]

    def where(self, i):
        """For messages."""
        return f"sample {i}"


def loader_rate(loader):
    """Samples a second, from the first batch on."""
    count, first = 0, None
    for images, _ in loader:
        now = time.perf_counter()
        first = first or now
        count += len(images)
        if now - first > LOADER_SECONDS:
            break
    return (count - len(images)) / (now - first)


def text(work, report, repeats, clock, peer):
    """Batches of windows at random over a flat array, against rows of lists in Hugging Face datasets."""
    tokens = np.random.default_rng(0).integers(0, 30_000, TOKENS).astype("<u2")
    folder = work / "peer-samples"
    folder.mkdir(exist_ok=True)
    tokens.tofile(folder / "tokens.bin")
    (folder / "tokens.json").write_text(json.dumps({"window": WINDOW}))
    windows = Windows(np.memmap(folder / "tokens.bin", "<u2", "r"), WINDOW)
    order = np.random.default_rng(1).permutation(len(windows))
    ours = []
    for _ in range(repeats + 1):
        start = clock()
        for first in range(0, len(order), 64):
            windows.batch(order[first : first + 64])
        ours.append(len(order) / (clock() - start))
    theirs = peer.run("huggingface_rows", folder)
    for access, words, goal in (("random", "one by one", 25), ("batched", "in batches of 64 too", None)):
        what = f"text windows in batches of 64, against rows of lists in HF datasets {theirs['version']}, {words}"
        add_pair(report, what, ours[1:], [theirs[access]], goal, "windows/s")


def peers(index, work, report, repeats, clock, peer):
    """Our default format against MosaicML's MDS, LitData and WebDataset."""
    folder = work / "peer-samples"
    pack(index.split("train"), folder)
    reader = open_images(work / DEFAULT, "train")
    warm(reader)
    order = np.random.default_rng(1).permutation(SAMPLES).tolist()
    goals = {"mosaic": {"random": 4}, "litdata": {"random": 50, "sequential": 1.5}, "webdataset": {"sequential": 20}}
    for name, wanted in goals.items():
        ours = {"random": [], "sequential": []}
        for _ in range(repeats):
            ours["random"].append(rate((reader[i] for i in order), clock))
            ours["sequential"].append(rate(reader.iterate(0), clock))
        theirs = peer.run(name, folder)
        for access, goal in wanted.items():
            what = "random reads" if access == "random" else "in order"
            add_pair(
                report,
                f"{what}: our {DEFAULT} against {name} {theirs['version']}",
                ours[access],
                [theirs[access]],
                goal,
                "samples/s",
            )


def pack(images, folder):
    """All samples in one file, for the peers."""
    with open(folder / "samples.packed", "wb") as file:
        for i in range(len(images)):
            file.write(images.read(i))
    facts = {"lengths": images.lengths.tolist(), "labels": images.labels.tolist()}
    (folder / "samples.json").write_text(json.dumps(facts))


class Peer:
    """Runs a peer in its own environment."""

    def __init__(self, python, clock, work, repeats):
        self.python, self.clock, self.work, self.repeats = python, clock, work, repeats

    def run(self, name, samples):
        """What a peer measured: {version, write, random, sequential}."""
        scratch = self.work / f"peer-{name}"
        shutil.rmtree(scratch, ignore_errors=True)
        script = Path(__file__).with_name("peer_formats.py")
        command = [self.python, script, name, samples.absolute(), scratch.absolute()]
        command += ["--repeats", str(self.repeats), "--clock", self.clock]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        rows = [json.loads(line.removeprefix("RESULT ")) for line in lines]
        return {"version": rows[0]["version"]} | {row["what"]: row["value"] for row in rows}


def add_pair(report, what, ours, theirs, goal, unit, time_ratio=False):
    """Medians of both sides, and of the ratios turn by turn; for times the other way round."""
    if len(ours) != len(theirs):  # a peer gives the median of its own passes
        ours, theirs = [statistics.median(ours)], [statistics.median(theirs)]
    ratios = [other / one if time_ratio else one / other for one, other in zip(ours, theirs, strict=True)]
    one, other = statistics.median(ours), statistics.median(theirs)
    report.add(what, statistics.median(ratios), goal, shown(one), shown(other), unit)


def shown(value):
    """A figure with three digits at least."""
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def warm(reader):
    """Read every sample once: all are in the page cache then, and mapped."""
    for i in range(len(reader)):
        reader[i]


def rate(reads, clock):
    """Samples a second of an iterator, for some seconds at most."""
    count, start = 0, clock()
    for _ in reads:
        count += 1
        if count % 32 == 0 and clock() - start > PASS_SECONDS:
            break
    return count / (clock() - start)


def seconds(work):
    """How long a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def machine():
    """Hardware and versions in a line."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        name = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), platform.machine())
    packages = ", ".join(f"{package} {version(package)}" for package in ("numpy", "h5py", "pyarrow", "pillow", "torch"))
    memory = psutil.virtual_memory().total / 2**30
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{psutil.cpu_count()} cores of {name}, {memory:.0f} GiB; Python {platform.python_version()}, {packages}; load {load}"


if __name__ == "__main__":
    main()
