"""Small sets of images for the tests of formats and loaders."""

import shutil

import numpy as np
import pytest
from PIL import Image

from parascale.data.formats.squashfs import require_fuse
from parascale.data.image_sources import index_images
from parascale.data.images import ImageIndex, ImageIndexWriter, write_index
from parascale.errors import RequirementError
from parascale.settings.formats import IMAGE_FORMATS, Images
from tests.unit.trees import encoded


def is_available(name):
    """Whether a format can be written and read here: SquashFS needs its tools and FUSE, which not every machine has."""
    if name != "squashfs":
        return True
    try:
        require_fuse()
    except RequirementError:
        return False
    return shutil.which("mksquashfs") is not None


FORMATS = [
    pytest.param(name, marks=pytest.mark.skipif(not is_available(name), reason="no FUSE or SquashFS tools"))
    for name in IMAGE_FORMATS
]


def jpeg(seed=0, size=16, mode="RGB"):
    """A small JPEG of random pixels."""
    channels = {"L": (), "RGB": (3,), "CMYK": (4,)}[mode]
    pixels = np.random.default_rng(seed).integers(0, 256, (size, size, *channels), np.uint8)
    return encoded(Image.fromarray(pixels, mode), "JPEG")


def packed_index(folder, splits, classes=("a", "b", "c")):
    """An index of images that lie packed. splits: split → list of (bytes, label)."""

    def pack(target):
        packed = {}
        for split, samples in splits.items():
            data = [sample for sample, _ in samples]
            lengths = np.array([len(sample) for sample in data], np.int64)
            writer = ImageIndexWriter()
            writer.add(
                [f"{split}/{number}".encode() for number in range(len(data))],
                np.array([label for _, label in samples], np.int32),
                lengths,
                np.cumsum(lengths) - lengths,
            )
            (target / f"{split}.packed").write_bytes(b"".join(data))
            packed[split] = writer.arrays()
        return packed

    write_index(folder, None, classes, pack, [])
    return ImageIndex(folder)


def index_of(root, folder, **changes):
    """Index `root` and open the index."""
    index_images(root, Images(**changes), folder)
    return ImageIndex(folder)


def image_folder(root, classes=("cat", "dog"), train=6, validation=2):
    """Folders of classes with JPEGs in them: `root/train/<class>/<number>.jpg` and `root/val/…`."""
    seed = 0
    for split, count in (("train", train), ("val", validation)):
        for name in classes:
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                (root / split / name / f"{number}.jpg").write_bytes(jpeg(seed))
                seed += 1
    return root
