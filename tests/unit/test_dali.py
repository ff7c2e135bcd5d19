"""`decoder: dali` shows a training what the other decoders show it: the same parts of the same images, nearly the same pixels."""

import io
import threading

import numpy as np
import pytest
import torch
from PIL import Image

from parascale.data.classes import AugmentedImages, ClassImages
from parascale.data.convert import convert
from parascale.data.formats import open_images
from parascale.data.loader import Prefetcher, read_batches
from parascale.errors import DataError
from parascale.evaluation.evaluate import split_sums
from parascale.settings.formats import Formats
from parascale.settings.workload import usable_decoders
from tests.unit.image_sets import packed_index
from tests.unit.test_classes import Reader
from tests.unit.test_crops import photo
from tests.unit.trees import encoded

pytestmark = pytest.mark.skipif("dali" not in usable_decoders(), reason="NVIDIA DALI is not installed")
DEVICES = [torch.device("cpu"), pytest.param(torch.device("cuda", 0), marks=pytest.mark.gpu)]
SIZE = 64
# Of 255, between decoders: the mean and the largest that config/README.md states for a CPU. Windows off by a pixel have 9 and 130.
MEAN, LARGEST = 0.25, 12


def turned(data):
    """The same JPEG with a camera's orientation, which no decoder of ours applies."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(Image.open(io.BytesIO(data)), "JPEG", quality=95, exif=exif)


def samples():
    """Encoded images of every kind that a training meets; the last five are no JPEGs of 1 or 3 colours."""
    kinds = ((n, 160 + 7 * n, 200 - 5 * n, {"subsampling": n % 3, "progressive": n % 2}) for n in range(7))
    photos = [photo(*size, **how) for *size, how in kinds]
    kinds = [photo(7, mode="L"), turned(photo(8)), photo(9, 33, 400), photo(10, 17, 19)]
    image = Image.open(io.BytesIO(photo(11)))
    others = [encoded(image.convert(mode), "PNG") for mode in ("RGB", "RGBA", "P")]
    return photos + kinds + others + [encoded(image, "WEBP"), photo(12, mode="CMYK")]


COUNT = 16
JPEGS = COUNT - 5


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dali")
    return packed_index(folder / "index", {"train": [(data, number % 3) for number, data in enumerate(samples())]})


@pytest.fixture(scope="module")
def reader(index, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hdf5")
    convert(index, "set", "hdf5", Formats(threads=2), folder / "hdf5")
    return open_images(folder / "hdf5", "train")


def trained(reader, decoder="dali", size=SIZE):
    return AugmentedImages(reader, size, 1, 0.3, decoder)


def pixels(samples, chosen, workers=0, device=None):
    """Of all batches, behind each other, on the CPU."""
    return torch.cat([batch[0].cpu() for batch in read_batches(samples, chosen, workers, device)]).numpy().astype(int)


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.type)
@pytest.mark.parametrize("size", [SIZE, 224], ids=["smaller", "larger"])
@pytest.mark.parametrize("kind", ["trained", "evaluated"])
def test_crops_flips_and_pixels_are_nearly_those_of_decoding_everything(kind, size, device, reader):
    """Over three epochs: each image is cropped and flipped in several ways. What is no JPEG is decoded by Pillow, so to the same pixels."""
    chosen = [np.arange(COUNT) + COUNT * epoch for epoch in range(3)]
    dali, full = (
        pixels(trained(reader, name, size) if kind == "trained" else ClassImages(reader, size, name), chosen, 0, device)
        for name in ("dali", "full")
    )
    assert dali.shape == full.shape == (3 * COUNT, 3, size, size)
    found, by_dali = np.abs(dali - full).reshape(3, COUNT, -1), reader.samples["source"] < JPEGS
    assert not found[:, ~by_dali].any()
    bound = (MEAN, LARGEST) if device.type == "cpu" else (1.0, 40)
    found = found[:, by_dali]
    assert found.mean() < bound[0] and found.max() <= bound[1], (found.mean(), found.max())


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.type)
def test_an_image_depends_neither_on_its_batch_nor_on_threads(device, reader):
    """Else layouts, ranks and runs that continue within an epoch would see other images."""
    order = np.random.default_rng(2).permutation(3 * COUNT)
    whole = pixels(trained(reader), [order], 0, device)
    for workers, size in ((0, 5), (1, 17), (3, 7), (2, 1)):
        parts = [order[first : first + size] for first in range(0, len(order), size)]
        assert np.array_equal(pixels(trained(reader), parts, workers, device), whole)
    assert np.array_equal(pixels(trained(reader), [order[20:40], order[40:]], 2, device), whole[20:]), "continued"


class Broken(Reader):
    """A reader of these images, the third of which is damaged."""

    def __init__(self, damaged):
        self.images = [photo(0), photo(1), damaged, photo(2)]
        self.labels = np.array([0, 1, 2, 0])


@pytest.mark.parametrize(
    "damaged",
    [photo(3)[:4000], photo(3)[:300], photo(3)[: photo(3).index(b"\xff\xda")], b"\xff\xd8 cut short", b"", encoded(Image.new("L", (9, 9)), "PNG")[:45]],
    ids=["scan", "tables", "header", "start", "empty", "PNG"],
)  # fmt: skip
@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_image_is_named_when_its_batch_comes(damaged, workers):
    found = read_batches(trained(Broken(damaged)), [[0, 1], [3, 0], [1, 2, 3], [0]], workers)
    assert next(found)[1].tolist() == [0, 1] and next(found)[1].tolist() == [0, 0]
    with pytest.raises(DataError, match=r"^sample 2: .*`formats.bad_samples: skip`"):
        next(found)


def test_nothing_runs_on_after_the_last_batch(reader):
    from nvidia.dali import Pipeline

    def pipelines():
        return [each() for each in Pipeline._pipes if each()]

    before = threading.active_count(), pipelines()
    for stopped in (False, True):
        batches = trained(reader).batches([np.arange(4)] * 5, 2)
        next(batches)
        batches.close() if stopped else list(batches)
    assert (threading.active_count(), pipelines()) == before


@pytest.mark.gpu
def test_what_a_gpu_decodes_stays_there(reader):
    """Through the feed of a training, and as an evaluation takes it while decoding goes on ahead."""
    device, order = torch.device("cuda", 0), np.arange(COUNT)
    feed = Prefetcher(read_batches(trained(reader), [order, order], 1, device), 1, device)
    expected = pixels(trained(reader), [order], 0, device)
    for _ in range(2):
        ((images, labels),) = feed.take()
        feed.read_ahead()
        assert images.device == labels.device == device and np.array_equal(images.cpu().numpy(), expected)
    seen = ClassImages(reader, SIZE, "dali")
    sums = split_sums(
        lambda images: images.double().sum((1, 2, 3)), seen, 0, 1, 3, device, (), 1, lambda sums, _: sums.sum()
    )
    assert sums[0].item() == pixels(seen, [order], 0, device).sum()
