"""Decoding no more than a crop needs gives the pixels of decoding everything, or, where it is also scaled, nearly."""

import io
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.cbook import get_sample_data
from PIL import Image

from parascale.data import crops, jpeg
from parascale.data.classes import ClassImages, random_crop
from parascale.errors import DataError, RequirementError
from tests.unit.trees import encoded


def photo(seed, width=200, height=150, mode="RGB", **how):
    """A JPEG with the spectrum of a photograph: amplitudes fall as 1 / frequency, and colours vary less than brightness."""
    random = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    noise = random.normal(size=(3, *frequency.shape)) + 1j * random.normal(size=(3, *frequency.shape))
    waves = np.fft.irfft2(noise / np.maximum(frequency, 1 / width), s=(height, width))
    waves /= waves.std()
    pixels = np.clip(128 + 45 * waves[:1] + 10 * waves, 0, 255).astype(np.uint8).transpose(1, 2, 0)
    return encoded(Image.fromarray(pixels).convert(mode), "JPEG", **{"quality": 90, **how})


def view(data, box, size, decoder="scaled"):
    part = None if decoder == "full" else crops.jpeg_part(data, lambda *_: (box, False), size)
    return crops.EncodedView(data, lambda *_: (box, False), part, lambda: "sample 2")


def drawn(data, box, size, decoder, scratch=None):
    """A part of an image as a decoder shows it."""
    pixels_CHW = np.empty((3, size, size), np.uint8)
    crops.draw(view(data, box, size, decoder), scratch or crops.Scratch(size), pixels_CHW)
    return pixels_CHW


def difference(data, box, size):
    """Per pixel, between the two decoders."""
    return np.abs(drawn(data, box, size, "scaled").astype(int) - drawn(data, box, size, "full"))


def decoded(data, box, eighths):
    """The pixels that are decoded for a box: rows × columns × 3."""
    part, scratch = crops.frame_part(crops.jpeg_frame(data), box, False, eighths, 16), crops.Scratch(16)
    assert scratch.decoded(crops.EncodedView(data, None, part, None)) is part
    return scratch.pixels[: 3 * math.prod(part.shape)].reshape(*part.shape, 3)


@settings(max_examples=40)
@given(
    st.integers(17, 200), st.integers(17, 200), st.sampled_from(["RGB", "L"]), st.booleans(), st.sampled_from([0, 3]),
    st.tuples(*[st.floats(0, 1)] * 4),
)  # fmt: skip
def test_what_is_neither_scaled_nor_subsampled_is_that_of_full_decoding(
    width, height, mode, progressive, restart, places
):
    """Bit for bit, whatever lies below the crop, also in progressive JPEGs and with restart markers."""
    data = photo(3, width, height, mode, subsampling=0, progressive=progressive, restart_marker_rows=restart)
    (left, right), (top, bottom) = (
        (sorted(pair)[0] * (most - 1), sorted(pair)[0] * (most - 1) + max(1.0, (max(pair) - min(pair)) * (most - 1)))
        for pair, most in ((places[:2], width), (places[2:], height))
    )
    box = (left, top, min(right, width), min(bottom, height))
    assert not difference(data, box, size=220).any()  # larger than the image: nothing is scaled


@pytest.mark.parametrize("eighths", crops.SCALES)
@pytest.mark.parametrize(("subsampling", "progressive"), [(0, False), (1, False), (2, False), (2, True)])
def test_rows_below_the_crop_change_nothing_wherever_it_ends(eighths, subsampling, progressive):
    """At the last row of an MCU too, where chroma would be interpolated from rows of the next one, if it were."""
    data = photo(4, 40, 75, subsampling=subsampling, progressive=progressive, quality=100)
    whole = decoded(data, (0, 0, 40, 75), eighths)
    for bottom in np.arange(1, 75, 0.5):
        rows = math.ceil(bottom * eighths / 8)
        assert np.array_equal(decoded(data, (0, 0, 40, bottom), eighths)[:rows], whole[:rows]), bottom


@given(st.integers(1, 70), st.integers(1, 70), st.sampled_from(crops.SCALES), st.sampled_from([0, 1, 2]))
def test_rows_and_columns_are_those_that_the_decoder_makes(width, height, eighths, subsampling):
    """They are counted before, and lie one after the other in memory that held other images."""
    data = photo(5, width, height, subsampling=subsampling)
    columns, rows = (math.ceil(side * eighths / 8) for side in (width, height))
    least = {"min_factor": 8 / eighths, "min_width": columns, "min_height": rows}
    expected = simplejpeg.decode_jpeg(data, "RGB", fastupsample=True, **least)
    assert np.array_equal(decoded(data, (0, 0, width, height), eighths), expected)


def squares(seed, side):
    """A JPEG of squares in saturated colours."""
    colours = 255 * np.random.default_rng(seed).integers(0, 2, (375 // side, 500 // side, 3), dtype=np.uint8)
    return encoded(colours.repeat(side, 0).repeat(side, 1), "JPEG", quality=91)


@pytest.mark.parametrize(
    ("images", "least", "mean", "most"),
    [
        ([photo(seed, 500, 375, quality=91) for seed in range(4)], 0.5, 1.5, 62),
        ([Path(get_sample_data("grace_hopper.jpg", asfileobj=False)).read_bytes()], 0.5, 1.5, 62),
        ([squares(seed, 32) for seed in range(3)], 1.5, 3, 190),
        ([squares(seed, 3) for seed in range(3)], 8, 12, 190),
    ],
    ids=["drawn photographs", "a real one", "large squares", "small squares"],
)
def test_random_crops_differ_from_full_decoding_by_no_more_than_is_stated(images, least, mean, most):
    """As config/README.md says of `training.decoder`."""
    random, found = np.random.default_rng(0), []
    for data in images:
        frame = crops.jpeg_frame(data)
        found += [difference(data, random_crop(frame.width, frame.height, 0.08, random), 160) for _ in range(6)]
    assert least < np.mean(found) < mean and np.max(found) <= most, (np.mean(found), np.max(found))


def test_an_image_does_not_depend_on_what_was_decoded_into_the_same_memory_before():
    scratch = crops.Scratch(40)
    for seed, (width, height) in enumerate([(64, 48), (200, 150), (31, 90), (200, 150)]):
        data, box = photo(seed, width, height), (3, 2, width - 5, height - 1)
        for decoder in ("scaled", "full"):
            assert np.array_equal(drawn(data, box, 40, decoder, scratch), drawn(data, box, 40, decoder))


def test_a_16_bit_png_keeps_its_upper_bits_and_a_32_bit_image_is_refused():
    ramp = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    assert (jpeg.decode(encoded(ramp)) == (ramp >> 8)[..., None]).all()
    with pytest.raises(jpeg.BadImage, match="32-bit"):
        jpeg.check(encoded(ramp.astype(np.int32), "TIFF"), "decode")


@pytest.mark.parametrize(
    ("decoder", "module", "said"),
    [
        ("scaled", "simplejpeg", r"pip install simplejpeg.*decoder: full"),
        (
            "dali",
            "nvidia.dali",
            r"decoder: dali` needs NVIDIA DALI: `pip install -r envs/requirements-dali.txt`.*decoder: scaled",
        ),
    ],
)
def test_a_machine_without_the_decoder_is_told_before_anything_is_read(decoder, module, said, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(RequirementError, match=said):
        ClassImages(None, 32, decoder)


def test_full_decoding_needs_no_other_decoder(monkeypatch):
    expected = drawn(photo(0), (3, 4, 90, 80), 16, "full")
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    assert np.array_equal(drawn(photo(0), (3, 4, 90, 80), 16, "full"), expected)


@pytest.mark.parametrize(("mode", "subsampling", "unit"), [("RGB", 0, 8), ("RGB", 2, 16), ("L", 0, 8)])
def test_a_jpegs_header_says_its_size_and_where_its_height_stands(mode, subsampling, unit):
    """Without it every image would be decoded whole, to the same pixels, only slower."""
    data = photo(0, 200, 150, mode, subsampling=subsampling)
    frame = crops.jpeg_frame(data)
    assert (frame.unit, frame.height, frame.width) == (unit, 150, 200)
    assert data[frame.place : frame.place + 2] == (150).to_bytes(2, "big")


@pytest.mark.parametrize("decoder", ["scaled", "full"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_jpeg_that_is_cut_anywhere_in_its_header_is_named(mode, decoder):
    data = photo(0, mode=mode)
    header = data.index(b"\xff\xda")
    assert jpeg.frame_place(data) < header
    for end in range(header):
        with pytest.raises(DataError, match=r"^sample 2: it cannot be decoded"):
            drawn(data[:end], (0, 0, 9, 9), 8, decoder)


def test_what_is_no_jpeg_of_one_or_three_colours_has_no_frame():
    png = io.BytesIO()
    Image.new("RGB", (20, 10)).save(png, "PNG")
    assert crops.jpeg_frame(png.getvalue()) is None
    assert crops.jpeg_frame(photo(0, mode="CMYK")) is None
    assert crops.jpeg_frame(photo(0)[:100]) is None
