"""The samples of formats.py: 20,000 JPEGs of about 14 kB, as they are, as they come late, and as lists in memory."""

import io
import json
import os
import time

import h5py
import numpy as np
from PIL import Image

from parascale.data.drawing import draw_images
from parascale.data.image_sources import index_images
from parascale.data.images import ImageIndex
from parascale.settings.formats import Images

SAMPLES = 20_000
DRAWN = Images(train=SAMPLES, validation=10, test=10, size=184)  # 14.05 kB on average
LATENCY = 0.002  # seconds that an open takes on a busy parallel filesystem


class OneSplit:
    """An index with one split."""

    def __init__(self, images):
        self.splits, self.classes, self._images = ["train"], images.classes, images

    def split(self, name):
        """The images."""
        return self._images


class SlowImages:
    """Images whose every open takes LATENCY longer."""

    def __init__(self, images):
        self._images = images
        self.root, self.split, self.digest, self.classes = images.root, images.split, images.digest, images.classes
        self.labels, self.lengths = images.labels, images.lengths
        self.name, self.name_bytes = images.name, images.name_bytes

    def __len__(self):
        return len(self._images)

    def read(self, i):
        """The bytes, late."""
        time.sleep(LATENCY)
        return self._images.read(i)


class InMemory:
    """All samples of a reader as objects in a list."""

    io, THREADS = "mmap", True

    def __init__(self, reader):
        self.classes = reader.classes
        self.samples, self.labels = [reader[i] for i in range(len(reader))], reader.labels

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        return self.samples[i]

    def require_open(self):
        """There is nothing to open."""

    def where(self, i):
        """For messages."""
        return f"sample {i}"


class Numbered:
    """A reader of tiny images whose label is their number: what a loader delivers, without the cost of decoding."""

    io, THREADS = "mmap", True

    def __init__(self, count):
        self.classes = range(count)
        buffer = io.BytesIO()
        Image.new("RGB", (1, 1)).save(buffer, "BMP")
        self.labels, self._data = np.arange(count), buffer.getvalue()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self._data

    def require_open(self):
        """There is nothing to open."""

    def where(self, i):
        """For messages."""
        return f"sample {i}"


def samples(work):
    """Draw the images once, index them, and warm the page cache."""
    if not (work / "index" / "manifest.json").exists():
        draw_images(work / "raw", DRAWN)
        index_images(work / "raw", DRAWN, work / "index")
    images = ImageIndex(work / "index").split("train")
    for i in range(len(images)):
        images.read(i)
    return OneSplit(images)


def write_rows_of_lists(images, path):
    """Each file through a list of Python numbers into a row of a variable-length dataset: what our HDF5 replaces."""
    with h5py.File(path, "w") as file:
        rows = file.create_dataset("images", (len(images),), h5py.vlen_dtype(np.uint8))
        labels = file.create_dataset("labels", (len(images),), np.int32)
        for i in range(len(images)):
            rows[i] = np.array(list(images.read(i)), np.uint8)
            labels[i] = images.labels[i]
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def pack(images, folder):
    """All samples in one file, for the peers."""
    folder.mkdir(exist_ok=True)
    with open(folder / "samples.packed", "wb") as file:
        for i in range(len(images)):
            file.write(images.read(i))
    facts = {"lengths": images.lengths.tolist(), "labels": images.labels.tolist()}
    (folder / "samples.json").write_text(json.dumps(facts))
