"""Encoded images: is one whole, and what are its pixels?

The check walks a JPEG's markers (ITU-T T.81, annex B) instead of decoding it: a few microseconds instead of a
millisecond, and it finds what goes wrong in practice: empty files, other files under an image's name, cut-off tails.
"""

import io

import numpy as np
from PIL import Image

from parascale.errors import DataError

START, END = b"\xff\xd8", b"\xff\xd9"
START_OF_SCAN = 0xDA
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # start-of-frame markers; the three are tables
SPACES = {1: "grey", 3: "colour", 4: "CMYK"}


class BadImage(Exception):
    """Why bytes are no image that a training can use; the text says what is wrong."""


def check(data, depth="header"):
    """The colour space of an encoded image: `grey`, `colour` or `CMYK` (all three decode to RGB), or `unknown`.

    depth: as in Formats.check; `none` looks at nothing. Raises BadImage for data that is empty, no image, or cut short.
    """
    if not data:
        raise BadImage("the file is empty")
    if depth == "none":
        return "unknown"
    if depth == "decode":
        decode(data)
    return _check_markers(data) if data[:2] == START else _check_other(data)


def decode(data):
    """The pixels of an encoded image as RGB: uint8 array of height × width × 3. Raises BadImage where it is damaged."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BadImage(f"it cannot be decoded ({error})") from None


def decode_sample(reader, i):
    """The pixels of sample `i` of a reader of images, as `decode` gives them. DataError that names a damaged one."""
    try:
        return decode(reader[i])
    except BadImage as error:
        raise DataError(
            f"{reader.where(i)}: {error}. Leave it out: `formats.check: decode`, `formats.bad_samples: skip`"
        ) from None


def _check_markers(data):
    """Follow the segments up to the first scan; the end-of-image marker must come after it."""
    place, components = 2, None
    try:
        while data[place] == 0xFF:
            marker = data[place + 1]
            if marker == 0xFF:  # a fill byte
                place += 1
                continue
            if marker in FRAMES:
                components = data[place + 9]
            place += 2 + (data[place + 2] << 8 | data[place + 3])
            if marker == START_OF_SCAN:
                break
        else:
            raise BadImage(f"the JPEG is damaged: no marker at byte {place:,}")
    except IndexError:
        raise BadImage(f"the JPEG is cut short: {len(data):,} bytes end within its header") from None
    if components not in SPACES:
        raise BadImage("the JPEG is damaged: no frame header with 1, 3 or 4 colour components")
    # Inside a scan 0xFF is always followed by 0x00 or a restart marker, so this can only be the end.
    if data.rfind(END, place) < 0:
        raise BadImage(f"the JPEG is cut short: no end-of-image marker in its {len(data):,} bytes")
    return SPACES[components]


def _check_other(data):
    """PNG, WebP and the like: what Pillow can say without decoding."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            mode = image.mode
            image.verify()
    except (OSError, SyntaxError, ValueError) as error:
        raise BadImage(f"it is no image that can be read ({error})") from None
    return {"L": "grey", "CMYK": "CMYK"}.get(mode, "colour")
