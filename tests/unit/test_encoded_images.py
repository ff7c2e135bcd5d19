"""JPEGs and other encoded images: drawn ones are what they should be, and damage in them is found."""

import contextlib
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from parascale.data import image_download, jpeg
from parascale.settings.formats import Images
from tests.unit.image_sets import jpeg as make_jpeg
from tests.unit.trees import encoded

SHARED = Path(__file__).parents[3] / "shared/cases"


@settings(max_examples=25)
@given(st.integers(0, 9), st.integers(16, 96), st.integers(0, 1000))
def test_a_drawn_image_is_a_jpeg_of_its_size(label, size, number):
    settings_ = Images(size=size)
    data = image_download.encode(image_download.draw(label, settings_, (0, number)), settings_.quality)
    assert jpeg.check(data) == "colour" and jpeg.decode(data).shape == (size, size, 3)


def test_classes_of_drawn_images_can_be_told_apart_but_not_by_colour():
    """Nearest class mean on shape-sensitive features beats chance by far; on mean colours it does not."""
    settings_ = Images(size=32)
    images = [
        [image_download.draw(label, settings_, (0, 10 * n + label)).astype(float) for n in range(60)]
        for label in range(10)
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


def picture(form, mode="RGB", **options):
    """A smooth picture of 256 × 256, so that most of what is lost in it decodes to something."""
    ramp = np.add.outer(np.arange(256), np.arange(256)) // 2
    pixels = np.stack([ramp, ramp[::-1], ramp[:, ::-1]], 2) + np.random.default_rng(0).integers(0, 9, (256, 256, 3))
    return encoded(Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).convert(mode), form, **options)


@pytest.mark.parametrize(
    "options", [{"mode": "CMYK"}, {}, {"progressive": True}, {"subsampling": 0}, {"restart_marker_blocks": 8}]
)
def test_damage_inside_a_jpeg_is_found_where_every_pixel_is_looked_at(options):
    data, space = picture("JPEG", **options), options.get("mode", "colour")
    middle = len(data) // 2
    assert jpeg.check(data + b"trailing bytes, which cameras leave", "decode") == space
    for damaged in (data[:middle] + bytes(512) + data[middle + 512 :], data[:middle] + jpeg.END):
        assert jpeg.check(damaged, "header") == space
        with pytest.raises(jpeg.BadImage, match="cannot be decoded"):
            jpeg.check(damaged, "decode")


def scans_of(data):
    """Where the scans of a JPEG begin."""
    return [match.start() for match in re.finditer(b"\xff\xda", data)]


def with_segment(data, marker, content):
    return data[:2] + b"\xff" + bytes([marker]) + (len(content) + 2).to_bytes(2, "big") + content + data[2:]


def with_adobe(data, transform):
    """Without JFIF's segment, before which Adobe's would count for nothing."""
    return with_segment(data[:2] + data[20:], 0xEE, b"Adobe\0\x64\0\0\0\0" + bytes([transform]))


PLAIN, PROGRESSIVE, RESTARTS = (
    picture("JPEG", **options) for options in ({}, {"progressive": True}, {"restart_marker_blocks": 8})
)
HARMLESS = {  # libjpeg's warning → (picture, the same without what it warns of)
    "extraneous bytes before marker 0xd9": (PROGRESSIVE[:-2] + bytes(34) + jpeg.END, PROGRESSIVE),
    "[0-9] extraneous bytes before marker 0xd9": (PLAIN[:-2] + b"text that somebody put there" + jpeg.END, PLAIN),
    "unknown JFIF revision number 3.00": (PLAIN.replace(b"JFIF\0\1\1", b"JFIF\0\3\0"), PLAIN),
    "Unknown Adobe color transform code 5": (with_adobe(PLAIN, 5), with_adobe(PLAIN, 1)),
    "bad ICC marker": (with_segment(PLAIN, 0xE2, b"ICC_PROFILE\0\1\3x"), PLAIN),
    "Invalid SOS parameters for sequential JPEG": (PLAIN.replace(b"\0\x3f\0", bytes(3), 1), PLAIN),
}
SCANS = scans_of(PROGRESSIVE)
TABLE = PROGRESSIVE.rindex(b"\xff\xc4", 0, SCANS[2])
RESTART = RESTARTS.index(b"\xff\xd3")
DAMAGED = {
    "premature end of data segment": PLAIN[:2000] + jpeg.END,
    "bad Huffman code": PROGRESSIVE[: SCANS[0] + 60] + b"\xfe" * 40 + PROGRESSIVE[SCANS[0] + 100 :],
    "extraneous bytes before marker 0xc4": PROGRESSIVE[:TABLE] + bytes(20) + PROGRESSIVE[TABLE:],
    "extraneous bytes before marker 0xd3": RESTARTS[:RESTART] + bytes(20) + RESTARTS[RESTART:],
    "found marker 0xd6 instead of RST3": RESTARTS[:RESTART] + b"\xff\xd6" + RESTARTS[RESTART + 2 :],
    "Inconsistent progression sequence": PROGRESSIVE[: SCANS[1]] + PROGRESSIVE[SCANS[0] :],
}


@pytest.mark.parametrize("warning", HARMLESS)
def test_a_warning_that_changes_no_pixel_is_no_damage_and_hides_none(warning):
    found, clean = HARMLESS[warning]
    with pytest.raises(ValueError, match=warning):
        pytest.importorskip("simplejpeg").decode_jpeg(found, strict=True)
    assert jpeg.check(found, "decode") == "colour"
    assert np.array_equal(jpeg.decode(found), jpeg.decode(clean))
    damaged = found[:2000] + bytes(200) + found[2200:]
    with pytest.raises(jpeg.BadImage, match="cannot be decoded"):
        jpeg.check(damaged, "decode")


@pytest.mark.parametrize("warning", DAMAGED)
def test_a_warning_of_lost_data_is_damage(warning):
    with pytest.raises(jpeg.BadImage, match=warning):
        jpeg.check(DAMAGED[warning], "decode")


@pytest.mark.skipif(not SHARED.is_dir(), reason="no shared cases here")
def test_pictures_from_outside_are_judged_by_their_pixels():
    harmless = sorted((SHARED / "harmless-jpegs").iterdir())
    found = {path.name: path.read_bytes() for path in (*harmless, *(SHARED / "damaged-jpegs").iterdir())}
    bad = set()
    for name, data in found.items():
        try:
            jpeg.check(data, "decode")
        except jpeg.BadImage:
            bad.add(name)
    assert bad == {"half-with-end-mark.jpg", "zeros-inside.jpg"}
    for one, other in (("clean", "stray-before-end"), ("progressive-clean", "progressive-stray")):
        assert np.array_equal(*(jpeg.decode(found[f"{name}.jpg"]) for name in (one, other)))


def test_damage_in_an_avif_is_found():
    data = picture("AVIF")
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
