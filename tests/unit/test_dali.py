"""Where NVIDIA DALI is installed, it decodes what our readers read: the same pixels as the loader's, with their labels."""

import numpy as np
import pytest

from parascale.data import jpeg
from parascale.data.convert import convert
from parascale.data.dali import dali_batches
from parascale.data.drawing import draw, encode
from parascale.data.formats import open_images
from parascale.settings.formats import Formats, Images
from tests.unit.image_sets import packed_index

DRAWN = Images(size=32, noise=0.0)


@pytest.mark.parametrize("device", [None, pytest.param(0, marks=pytest.mark.gpu)])
def test_dali_gives_the_pixels_and_labels_of_the_samples_asked_for(device, tmp_path):
    pytest.importorskip("nvidia.dali", reason="NVIDIA DALI is not installed")
    samples = [(encode(draw(number % 3, DRAWN, (0, number)), 90), number % 3) for number in range(12)]
    index = packed_index(tmp_path / "index", {"train": samples})
    convert(index, "set", "hdf5", Formats(threads=2), tmp_path / "hdf5")
    reader, batches = open_images(tmp_path / "hdf5", "train"), [[3, 1, 7, 0], [11, 2]]
    found = list(dali_batches(reader, batches, 4, DRAWN.size, device_id=device))
    assert [len(images) for images, _ in found] == [4, 2]
    for (images, labels), asked in zip(found, batches, strict=True):
        if device is not None:
            images = images.as_cpu()
        for place, i in enumerate(asked):
            assert np.asarray(labels.at(place)).item() == reader.labels[i]
            difference = np.asarray(images.at(place)).astype(int) - jpeg.decode(reader[i])
            assert np.abs(difference).mean() < 3, "decoders may round differently, and no more"
