"""JPEGs and other encoded images: drawn ones are what they should be, and damage in them is found."""

import contextlib
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from parascale.data import drawing, jpeg
from parascale.settings.formats import Images
from tests.unit.image_sets import jpeg as make_jpeg


@settings(max_examples=25)
@given(st.integers(0, 9), st.integers(16, 96), st.integers(0, 1000))
def test_a_drawn_image_is_a_jpeg_of_its_size(label, size, number):
    settings_ = Images(size=size)
    data = drawing.encode(drawing.draw(label, settings_, (0, number)), settings_.quality)
    assert jpeg.check(data) == "colour" and jpeg.decode(data).shape == (size, size, 3)


def test_classes_of_drawn_images_can_be_told_apart_but_not_by_colour():
    """Nearest class mean on shape-sensitive features beats chance by far; on mean colours it does not."""
    settings_ = Images(size=32)
    images = [
        [drawing.draw(label, settings_, (0, 10 * n + label)).astype(float) for n in range(60)] for label in range(10)
    ]

    def shape(image):
        contrast = abs(image.mean(2) - np.median(image, (0, 1)).mean())
        return (contrast > 40).reshape(8, 4, 8, 4).mean((1, 3)).ravel()

    assert nearest_mean(images, shape) > 0.3  # chance is 0.1; textures and shifts are left to a network
    assert nearest_mean(images, lambda image: image.mean((0, 1))) < 0.2


def nearest_mean(images, feature):
    """Accuracy of assigning the second half of each class to the nearest mean of the first halves."""
    features = np.array([[feature(image) for image in group] for group in images])
    means, tests = features[:, :30].mean(1), features[:, 30:]
    found = np.linalg.norm(tests[:, :, None] - means, axis=-1).argmin(-1)
    return (found == np.arange(10)[:, None]).mean()


@settings(max_examples=60)
@given(st.integers(0, 3), st.floats(0, 0.999))
def test_a_jpeg_cut_anywhere_is_found(seed, part):
    """The check without decoding misses no truncation."""
    data = make_jpeg(seed)
    with pytest.raises(jpeg.BadImage):
        jpeg.check(data[: int(len(data) * part)])
    assert jpeg.check(data + b"trailing bytes, which cameras leave") == "colour"


def encoded(form, mode="RGB", **options):
    """A smooth picture of 256 × 256, so that most of what is lost in it decodes to something."""
    ramp = np.add.outer(np.arange(256), np.arange(256)) // 2
    buffer = io.BytesIO()
    pixels = np.stack([ramp, ramp[::-1], ramp[:, ::-1]], 2) + np.random.default_rng(0).integers(0, 9, (256, 256, 3))
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).convert(mode).save(buffer, form, **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "options", [{"mode": "CMYK"}, {}, {"progressive": True}, {"subsampling": 0}, {"restart_marker_blocks": 8}]
)
def test_damage_inside_a_jpeg_is_found_where_every_pixel_is_looked_at(options):
    data, space = encoded("JPEG", **options), options.get("mode", "colour")
    middle = len(data) // 2
    assert jpeg.check(data + b"trailing bytes, which cameras leave", "decode") == space
    for damaged in (data[:middle] + bytes(512) + data[middle + 512 :], data[:middle] + jpeg.END):
        assert jpeg.check(damaged, "header") == space
        with pytest.raises(jpeg.BadImage, match="cannot be decoded"):
            jpeg.check(damaged, "decode")


def test_damage_in_an_avif_is_found():
    data = encoded("AVIF")
    assert jpeg.check(data, "decode") == "colour"
    for place in range(0, len(data), 97):
        for damaged in (data[:place], data[:place] + bytes(200) + data[place + 200 :]):
            with contextlib.suppress(jpeg.BadImage):  # no other error
                jpeg.check(damaged, "decode")
    with pytest.raises(jpeg.BadImage):
        jpeg.check(data[: len(data) // 2], "decode")


def test_the_end_of_a_thumbnail_is_not_the_end_of_the_image():
    """Cameras put a small JPEG, with an end of its own, into the header of the large one."""
    data, thumbnail = make_jpeg(1), make_jpeg(2)
    header = b"\xff\xe1" + (len(thumbnail) + 2).to_bytes(2, "big") + thumbnail
    assert jpeg.check(data[:2] + header + data[2:]) == "colour"
    with pytest.raises(jpeg.BadImage, match="no end-of-image marker"):
        jpeg.check(data[:2] + header + data[2:-50])
