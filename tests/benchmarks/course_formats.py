"""The part `course` of formats.py: the loaders that the course compares, written as it writes them, and ours, in one table.

The course reads files, a variable-length dataset in HDF5 into which each image goes as a list of Python numbers, and an Arrow file with one
record batch an image.
"""

import os
import statistics
from pathlib import Path

import h5py
import pyarrow as pa
from comparison import rate, shown, warm
from format_samples import write_rows_of_lists

from parascale.data.formats import open_images

FILES, ROWS = "files", "the course's HDF5: a variable-length row of `np.array(list(bytes))` an image"
BATCHES = "the course's Arrow: a record batch an image"
OURS = {"our HDF5, by pread": ("hdf5", "pread"), "our Arrow, by mmap": ("arrow", "mmap")}


def course(bench):
    """Random reads of bytes from the page cache, and writing, all forms in turns; ratios are medians of those of a turn."""
    folder = bench.work / "course"
    folder.mkdir(exist_ok=True)
    writers = {
        ROWS: lambda: write_rows_of_lists(bench.images, folder / "rows.h5"),
        BATCHES: lambda: write_batches(bench.images, folder / "batches.arrow"),
    }
    writers |= {
        words: lambda name=name: bench.convert(name, Path("course") / name) for words, (name, _) in OURS.items()
    }
    read, written = {name: [] for name in (FILES, *writers)}, {name: [] for name in writers}
    for _ in range(bench.repeats):
        for name, write in writers.items():
            start = bench.clock()
            write()
            written[name].append(bench.clock() - start)
        for name, reader in _readers(bench.images, folder).items():
            warm(reader)
            assert name in OURS or bytes(reader[1]) == bench.images.read(1), name  # ours are shuffled
            read[name].append(rate((reader[i] for i in bench.order), bench.clock))
    print(f"\n{_table(read, written)}")


def write_batches(images, path):
    """Each file as a record batch of its own."""
    schema = pa.schema([("image", pa.binary()), ("label", pa.int32())])
    with pa.OSFile(os.fspath(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for i in range(len(images)):
            columns = [pa.array([images.read(i)], pa.binary()), pa.array([images.labels[i]], pa.int32())]
            writer.write(pa.record_batch(columns, schema))
    with open(path, "rb") as file:
        os.fsync(file.fileno())


class _Files:
    """Images as files, by their paths."""

    def __init__(self, images):
        self.paths = [os.path.join(images.root, images.name_bytes(i)) for i in range(len(images))]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        with open(self.paths[i], "rb") as file:
            return file.read()


class _Batches:
    """An Arrow file of one image a record batch."""

    def __init__(self, path):
        self.reader = pa.ipc.open_file(pa.OSFile(os.fspath(path), "rb"))

    def __len__(self):
        return self.reader.num_record_batches

    def __getitem__(self, i):
        return self.reader.get_batch(i)["image"][0].as_py()


def _readers(images, folder):
    ours = {words: open_images(folder / name, "train", io) for words, (name, io) in OURS.items()}
    rows = h5py.File(folder / "rows.h5")["images"]
    return {FILES: _Files(images), ROWS: rows, BATCHES: _Batches(folder / "batches.arrow"), **ours}


def _table(read, written):
    lines = ["| form | images read a second | times the files | seconds to write | times the course's HDF5 |"]
    lines += ["| --- | ---: | ---: | ---: | ---: |"]
    for name, rates in read.items():
        cells = [name, shown(statistics.median(rates)), _ratio(rates, read[FILES])]
        cells += (
            [shown(statistics.median(written[name])), _ratio(written[ROWS], written[name])]
            if name in written
            else ["–", "–"]
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _ratio(ones, others):
    ratios = [one / other for one, other in zip(ones, others, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
