"""The index of a set of images: their names, sizes and labels.

An index folder has `manifest.json` and, for each split, `<split>.npy` (one row per image, see IMAGE), `<split>.names` (the paths
below the root, concatenated, as the filesystem spells them) and, for packed images, `<split>.packed`.
"""

import hashlib
import io
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ExifTags, Image

from parascale.data.jpeg import UNREADABLE, BadImage, opened
from parascale.data.manifests import MANIFEST, SCHEMA_VERSION, manifest_in, require_split
from parascale.data.pool import ordered_map
from parascale.errors import DataError
from parascale.files import atomic_folder, write_json

IMAGE = np.dtype(
    [
        ("name_start", "<i8"),  # place of the path in `<split>.names`
        ("name_bytes", "<i4"),
        ("label", "<i4"),
        ("start", "<i8"),  # place in `<split>.packed`; 0 for a separate file
        ("length", "<i8"),  # bytes of the encoded image
    ]
)


HEAD_BYTES = 1 << 16  # of an image are searched for EXIF, which comes first and is at most this long
LOOKED_AT = 10_000  # images of a split that are checked for EXIF; each is a request to the filesystem's servers
LOOKED_INTO = 200  # images of a split that are decoded if they are 16-bit PNGs
LOOKING_THREADS = 32


class ImageIndexWriter:
    """Collects the images of one split."""

    def __init__(self):
        self._names, self._blocks, self._names_bytes = [], [], 0

    def add(self, names, labels, lengths, starts=0):
        """Append images. names: list of bytes; labels, lengths, starts: arrays or one number for all."""
        block = np.zeros(len(names), IMAGE)
        sizes = np.fromiter(map(len, names), np.int64, len(names))
        block["name_start"] = self._names_bytes + np.cumsum(sizes) - sizes
        block["name_bytes"], block["label"], block["length"], block["start"] = sizes, labels, lengths, starts
        self._names.append(b"".join(names))
        self._names_bytes += int(sizes.sum())
        self._blocks.append(block)

    def arrays(self):
        """(rows of IMAGE, bytes of all names)."""
        return np.concatenate([np.empty(0, IMAGE), *self._blocks]), b"".join(self._names)


def write_index(folder, root, classes, splits, notes):
    """Write the index of a dataset atomically; returns its manifest.

    root: folder that the names are relative to, or None if images are packed. splits: split → (rows of IMAGE, names), or a
    function that packs the images in the folder being written and returns those. notes: sentences on anything unusual.
    """
    with atomic_folder(folder) as target:
        if callable(splits):
            splits = splits(target)
        place = None if root is None else str(Path(root).resolve())
        manifest: dict = {"schema_version": SCHEMA_VERSION, "kind": "images", "root": place, "classes": list(classes)}
        manifest |= {"splits": {}, "notes": list(notes)}
        for split, (rows, names) in splits.items():
            np.save(target / f"{split}.npy", rows)
            (target / f"{split}.names").write_bytes(names)
            manifest["splits"][split] = {
                "samples": len(rows),
                "bytes": int(rows["length"].sum()),
                "per_class": np.bincount(rows["label"], minlength=len(classes)).tolist(),
                "digest": hashlib.sha256(rows.tobytes() + names).hexdigest(),
            }
        write_json(target / MANIFEST, manifest)
        index = ImageIndex(target)
        manifest["notes"] += filter(None, (look(index.split(split)) for split in splits for look in (_turned, _narrow)))
        write_json(target / MANIFEST, manifest)
    return manifest


def _turned(images):
    """A note on images of a split whose EXIF orientation would rotate or mirror them; None if there are none."""
    looked_at = range(0, len(images), -(-len(images) // LOOKED_AT) or 1)
    turned = sum(ordered_map(partial(_is_turned, images), looked_at, LOOKING_THREADS))
    if turned:
        return (
            f"{images.split}: {turned:,} of {len(looked_at):,} images looked at have an orientation in their EXIF. No decoder here applies "
            "it, nor does torchvision's: apply it to the files first if pictures should stand upright (`mogrify -auto-orient`)"
        )


def _is_turned(images, i):
    try:
        with Image.open(io.BytesIO(images.read(i, HEAD_BYTES))) as image:
            exif = Image.Exif()
            exif.load(image.info.get("exif", b""))  # `getexif` would decode a whole PNG
            return exif.get(ExifTags.Base.Orientation) in range(2, 9)
    except UNREADABLE:  # the conversion lists it
        return False


def _narrow(images: "ImageSplit") -> str | None:
    """A note on 16-bit PNGs in a split that use fewer bits; None if there are none."""
    looked_into = range(0, len(images), -(-len(images) // LOOKED_INTO) or 1)
    found = ordered_map(partial(_brightest, images), looked_into, LOOKING_THREADS)
    wide = [brightest for brightest in found if brightest is not None]
    if not (wide and max(wide) < 128):
        return None
    return (
        f"{images.split}: {len(wide):,} of {len(looked_into):,} images checked are 16-bit PNGs that use fewer bits. Only the upper 8 are "
        f"kept, which leaves {max(wide) + 1} of 256 levels: scale their values to 16 bits first"
    )


def _brightest(images, i):
    """The largest value of the upper 8 bits in image `i` if it is a 16-bit PNG, else None."""
    try:
        head = images.read(i, 25)
        is_wide = head[12:16] == b"IHDR" and head[24] == 16
        return max(top for _, top in opened(images.read(i)).getextrema()) if is_wide else None
    except (*UNREADABLE, BadImage):  # the conversion lists it
        return None


class ImageIndex:
    """An open index folder."""

    def __init__(self, folder):
        self.folder = Path(folder)
        missing = "no index of images here; the target `data` makes it"
        self.manifest = manifest_in(folder, missing, f"remove {folder} and run again")
        if self.manifest.get("kind") != "images":
            raise DataError(f"{self.folder / MANIFEST} is not the index of a set of images")

    @property
    def classes(self):
        """Class names by label."""
        return self.manifest["classes"]

    @property
    def splits(self):
        """Names of the splits."""
        return list(self.manifest["splits"])

    def split(self, name):
        """The images of a split."""
        require_split(self.folder, name, self.splits)
        kind = PackedImages if self.manifest["root"] is None else FileImages
        return kind(self, name)


class ImageSplit:
    """One split: `len`, `labels`, `lengths`, `name(i)`, and `read(i)`, the encoded bytes. Safe to read from many threads."""

    root: Any = None  # folder of the images, if each is a file

    def __init__(self, index, split):
        self.index, self.split = index, split
        rows = np.load(index.folder / f"{split}.npy", mmap_mode="r")
        self._rows = np.asarray(rows)  # the same memory as a plain array: indexing np.memmap is slower
        names: Any = np.memmap(index.folder / f"{split}.names", np.uint8, mode="r") if len(rows) else b""
        self.labels, self.lengths = self._rows["label"], self._rows["length"]
        # A memoryview is the fastest way to look up one number.
        self._names, fields = memoryview(names), ("name_start", "name_bytes", "start", "length")
        self._name_start, self._name_bytes, self._start, self._length = (self._rows[key].data for key in fields)
        self.digest = index.manifest["splits"][split]["digest"]
        self.classes = index.classes

    def __len__(self):
        return len(self._rows)

    def name_bytes(self, i):
        """The path of image `i` below the root, as the filesystem spells it."""
        start = self._name_start[i]
        return bytes(self._names[start : start + self._name_bytes[i]])

    def folders(self):
        """The folders of the images and those above them, as paths below the root."""
        return set()

    def name(self, i):
        """The path for messages and records, with bytes escaped that are not UTF-8."""
        return self.name_bytes(i).decode("utf-8", "backslashreplace")


class FileImages(ImageSplit):
    """Images in separate files below one root."""

    def __init__(self, index, split):
        super().__init__(index, split)
        self.root = os.fsencode(index.manifest["root"])

    def folders(self):
        found, pending = set(), {os.path.dirname(self.name_bytes(i)) for i in range(len(self))}
        while pending:
            found |= pending
            pending = {os.path.dirname(folder) for folder in pending} - found
        return found

    def read(self, i, most=None):
        """The bytes of image `i`, or the first `most` of them. Raises OSError if it cannot be read."""
        with open(os.path.join(self.root, self.name_bytes(i)), "rb") as file:
            return file.read(most or self._length[i] + 1)  # one more than in the index, to see if it grew


class PackedImages(ImageSplit):
    """Images that are concatenated in `<split>.packed`."""

    def __init__(self, index, split):
        super().__init__(index, split)
        self._file = open(index.folder / f"{split}.packed", "rb", buffering=0)  # noqa: SIM115 - closed with the object

    def read(self, i, most=None):
        """The bytes of image `i`, or the first `most` of them."""
        return os.pread(self._file.fileno(), min(most or self._length[i], self._length[i]), self._start[i])
