"""Formats side by side, in one run: ours, those that the course compares, and our peers. Prints a table of ratios.

20,000 JPEGs of about 14 kB are drawn once into the work folder. The course reads files, a variable-length dataset in HDF5 into which each
image goes as a list of Python numbers, and an Arrow file with one record batch an image. The peers need an environment of their own
(make_peers.py); without --peers their rows are left out. All forms take turns, and a ratio is the median of the turns' ratios, so that
another load on the machine disturbs all alike. `--clock processor` counts the processor's time, which others change less.

Example: python tests/benchmarks/formats.py --work /tmp/formats --peers /tmp/peers/bin/python
"""

import json
import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
from comparison import CLOCKS, Comparison, answer, machine, parser_of, rate, taken

from parascale.data.convert import convert
from parascale.data.formats import open_images
from parascale.data.image_download import draw_images
from parascale.data.image_sources import index_images
from parascale.data.images import ImageIndex
from parascale.data.text import Windows
from parascale.settings.formats import Formats, Images

SAMPLES = 20_000
DRAWN = Images(train=SAMPLES, validation=10, test=10, size=184)  # 14.05 kB on average
WINDOW, TOKENS, BATCH = 64, 2_000_000, 64
FILES, ROWS, BATCHES, BARE = "files", "the course's HDF5", "the course's Arrow", "a bare binary by pread"
# Name → format and how it is read.
OURS = {"our HDF5 by pread": ("hdf5", "pread"), "our Arrow by mmap": ("arrow", "mmap")}
HDF5, ARROW = OURS
PEERS = {"mosaic": {"random": 4}, "litdata": {"random": 50, "sequential": 1.5}, "webdataset": {"sequential": 20}}


class Bench:
    """What every part needs: folders, the samples, the table, how often and by which clock."""

    def __init__(self, arguments):
        self.work, self.repeats, self.clock = arguments.work, arguments.repeats, CLOCKS[arguments.clock]
        self.clock_name, self.peers = arguments.clock, arguments.peers
        if not (self.work / "index/manifest.json").exists():
            draw_images(self.work / "raw", DRAWN)
            index_images(self.work / "raw", DRAWN, self.work / "index")
        self.index = ImageIndex(self.work / "index")
        self.images = self.index.split("train")
        self.table = Comparison()
        self.order = np.random.default_rng(1).permutation(SAMPLES).tolist()

    def convert(self, name):
        """Write the samples in a format."""
        shutil.rmtree(self.work / name, ignore_errors=True)
        convert(self.index, "bench", name, Formats(), self.work / name)

    def peer(self, name, samples):
        """What a peer measured in its own environment: {version, write, random, sequential…}."""
        scratch = self.work / f"peer-{name}"
        shutil.rmtree(scratch, ignore_errors=True)
        options = ["--repeats", self.repeats, "--clock", self.clock_name]
        script = Path(__file__).with_name("peer_formats.py")
        return answer(self.peers, script, name, samples.absolute(), scratch.absolute(), *options)


class Files:
    """Images as files, by their paths."""

    def __init__(self, images):
        self.paths = [os.path.join(images.root, images.name_bytes(i)) for i in range(len(images))]

    def __getitem__(self, i):
        with open(self.paths[i], "rb") as file:
            return file.read()


class Batches:
    """An Arrow file of one image a record batch."""

    def __init__(self, path):
        self.reader = pa.ipc.open_file(pa.OSFile(os.fspath(path), "rb"))

    def __getitem__(self, i):
        return self.reader.get_batch(i)["image"][0].as_py()


class Bare:
    """The samples of our binary format, without our reader."""

    def __init__(self, reader):
        self.file = os.open(reader.paths()[0], os.O_RDONLY)
        self.offsets, self.lengths = reader.samples["offset"].tolist(), reader.samples["length"].tolist()

    def __getitem__(self, i):
        return os.pread(self.file, self.lengths[i], self.offsets[i])


def write_rows(images, path):
    """Each file through a list of Python numbers into a row of a variable-length dataset."""
    with h5py.File(path, "w") as file:
        rows = file.create_dataset("images", (len(images),), h5py.vlen_dtype(np.uint8))
        labels = file.create_dataset("labels", (len(images),), np.int32)
        for i in range(len(images)):
            rows[i] = np.array(list(images.read(i)), np.uint8)
            labels[i] = images.labels[i]
    flush(path)


def write_batches(images, path):
    """Each file as a record batch of its own."""
    schema = pa.schema([("image", pa.binary()), ("label", pa.int32())])
    with pa.OSFile(os.fspath(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for i in range(len(images)):
            columns = [pa.array([images.read(i)], pa.binary()), pa.array([images.labels[i]], pa.int32())]
            writer.write(pa.record_batch(columns, schema))
    flush(path)


def flush(path):
    """Wait until a file is on the disk, as our conversions do."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def forms(bench):
    """Writing (ours with checks, checksums and sha256), and random reads of bytes from the page cache."""
    rows, batches = bench.work / "rows.h5", bench.work / "batches.arrow"
    writers = {
        ROWS: lambda: write_rows(bench.images, rows),
        BATCHES: lambda: write_batches(bench.images, batches),
        HDF5: lambda: bench.convert("hdf5"),
        ARROW: lambda: bench.convert("arrow"),
    }
    bench.convert("binary")
    written, read = {name: [] for name in writers}, {name: [] for name in (FILES, BARE, *writers)}
    for _ in range(bench.repeats):
        for name, write in writers.items():
            written[name].append(taken(write, bench.clock))
        readers = {name: open_images(bench.work / form, "train", io) for name, (form, io) in OURS.items()}
        opened = h5py.File(rows)
        readers |= {FILES: Files(bench.images), ROWS: opened["images"], BATCHES: Batches(batches)}
        readers[BARE] = Bare(open_images(bench.work / "binary", "train"))
        for name, reader in readers.items():
            for i in bench.order:  # all are in the page cache then, and mapped
                reader[i]
            read[name].append(rate((reader[i] for i in bench.order), bench.clock))
        opened.close()
    for name, other, goal in ((HDF5, ROWS, 10), (ARROW, BATCHES, None)):
        bench.table.times(f"written: {name.split(' by')[0]} against {other}", written[name], written[other], goal)
    for name, other, goal in (
        (HDF5, ROWS, 20),
        (HDF5, BARE, 0.8),
        (ARROW, BARE, 0.8),
        (ARROW, BATCHES, None),
        (HDF5, FILES, None),
        (ROWS, FILES, None),
    ):
        bench.table.pair(f"random reads: {name} against {other}", read[name], read[other], goal, "samples/s")


def text(bench):
    """Batches of windows at random over a flat array, against rows of lists in Hugging Face datasets."""
    folder = bench.work / "peer-samples"
    folder.mkdir(exist_ok=True)
    np.random.default_rng(0).integers(0, 30_000, TOKENS).astype("<u2").tofile(folder / "tokens.bin")
    (folder / "tokens.json").write_text(json.dumps({"window": WINDOW}))
    windows = Windows(np.memmap(folder / "tokens.bin", "<u2", "r"), WINDOW)
    order = np.random.default_rng(1).permutation(len(windows))

    def read_all():
        for first in range(0, len(order), BATCH):
            windows.batch(order[first : first + BATCH])

    ours = [len(order) / taken(read_all, bench.clock) for _ in range(bench.repeats + 1)]  # the first fills the cache
    theirs = bench.peer("huggingface_rows", folder)
    for what, words, goal in (
        ("random", "a row at a time", 25),
        ("batched", f"{BATCH} rows at a time", 25),
        ("arrays", f"{BATCH} rows at a time, as inputs and labels", None),
    ):
        said = f"text windows, batched, against rows of lists in HF datasets {theirs['version']}, {words}"
        bench.table.pair(said, ours[1:], [theirs[what]], goal, "windows/s")


def peers(bench):
    """Our HDF5 against MosaicML's MDS, LitData and WebDataset."""
    folder = bench.work / "peer-samples"
    folder.mkdir(exist_ok=True)
    with open(folder / "samples.packed", "wb") as file:
        for i in range(SAMPLES):
            file.write(bench.images.read(i))
    facts = {"lengths": bench.images.lengths.tolist(), "labels": bench.images.labels.tolist()}
    (folder / "samples.json").write_text(json.dumps(facts))
    reader = open_images(bench.work / "hdf5", "train")
    for name, goals in PEERS.items():
        ours = {"random": [], "sequential": []}
        for _ in range(bench.repeats):
            ours["random"].append(rate((reader[i] for i in bench.order), bench.clock))
            ours["sequential"].append(rate(reader.iterate(0), bench.clock))
        theirs = bench.peer(name, folder)
        for access, goal in goals.items():
            words = "random reads" if access == "random" else "in order"
            said = f"{words}: our HDF5 against {name} {theirs['version']}"
            bench.table.pair(said, ours[access], [theirs[access]], goal, "samples/s")


def main():
    """Measure everything and print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder for samples and conversions")
    parser.add_argument("--peers", type=Path, help="python of the peers' environment")
    parser.add_argument("--repeats", type=int, default=5, help="times each pair is measured (default: %(default)s)")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="(default: %(default)s)")
    bench = Bench(parser.parse_args())
    for part in (forms, *([text, peers] if bench.peers else [])):
        part(bench)
    print(f"\n{machine()}\n\n{bench.table.markdown()}")


if __name__ == "__main__":
    main()
