"""Decoding no more than a crop needs gives the pixels of decoding everything, or, where it is also scaled, nearly."""

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from parascale.data import crops, jpeg
from parascale.errors import RequirementError


def photo(seed, width=200, height=150, mode="RGB", **how):
    """A JPEG with the spectrum of a photograph: amplitudes fall as 1 / frequency, and colours vary less than brightness."""
    random = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    noise = random.normal(size=(3, *frequency.shape)) + 1j * random.normal(size=(3, *frequency.shape))
    waves = np.fft.irfft2(noise / np.maximum(frequency, 1 / width), s=(height, width))
    waves /= waves.std()
    pixels = np.clip(128 + 45 * waves[:1] + 10 * waves, 0, 255).astype(np.uint8).transpose(1, 2, 0)
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, "JPEG", **{"quality": 90, **how})
    return buffer.getvalue()


def difference(data, box, size):
    """Per pixel, between the two decoders."""
    ours, full = (crops.cropped(data, lambda *_: box, size, decoder).astype(int) for decoder in ("scaled", "full"))
    assert ours.shape == full.shape == (3, size, size)
    return np.abs(ours - full)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(17, 200), st.integers(17, 200), st.sampled_from(["RGB", "L"]), st.sampled_from([0, 1, 2]),
    st.booleans(), st.sampled_from([0, 3]), st.tuples(*[st.floats(0, 1)] * 4),
)  # fmt: skip
def test_rows_below_the_crop_change_nothing(width, height, mode, subsampling, progressive, restart, places):
    """Bit for bit, whatever the subsampling, also in progressive JPEGs and with restart markers."""
    data = photo(3, width, height, mode, subsampling=subsampling, progressive=progressive, restart_marker_rows=restart)
    (left, right), (top, bottom) = (
        (sorted(pair)[0] * (most - 1), sorted(pair)[0] * (most - 1) + max(1.0, (max(pair) - min(pair)) * (most - 1)))
        for pair, most in ((places[:2], width), (places[2:], height))
    )
    box = (left, top, min(right, width), min(bottom, height))
    assert not difference(data, box, size=220).any()  # larger than the image: nothing is scaled


@pytest.mark.parametrize(
    ("box", "eighths"),
    [
        ((0, 0, 200, 150), 8),
        ((5, 3, 210, 250), 6),
        ((5.3, 3.7, 250.2, 260.1), 5),
        ((99.9, 80.4, 520, 600), 3),
        ((0, 0, 640, 640), 2),
    ],
)
def test_scaled_decoding_is_close_to_full_decoding(box, eighths):
    """On photographs: at most 4 of 255 on average, and 25 anywhere."""
    for seed in range(4):
        data = photo(seed, 640, 640)
        assert crops._moved(lambda *_, box=box: box, 640, 640, 150)[1] == eighths
        found = difference(data, box, 150)
        assert found.mean() <= 4.0 and found.max() <= 25, (found.mean(), found.max())


def test_a_16_bit_png_keeps_its_upper_bits_and_a_32_bit_image_is_refused():
    ramp = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    buffer = io.BytesIO()
    Image.fromarray(ramp).save(buffer, "PNG")
    assert (jpeg.decode(buffer.getvalue()) == (ramp >> 8)[..., None]).all()
    buffer = io.BytesIO()
    Image.fromarray(ramp.astype(np.int32)).save(buffer, "TIFF")
    with pytest.raises(jpeg.BadImage, match="32 bits"):
        jpeg.check(buffer.getvalue(), "decode")


def test_a_machine_without_the_decoder_is_told(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "simplejpeg", None)
    with pytest.raises(RequirementError, match=r"pip install simplejpeg.*decoder: full"):
        crops.require_decoder()
