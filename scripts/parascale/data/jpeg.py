"""Encoded images: is one whole, and what are its pixels?

The check walks a JPEG's markers (ITU-T T.81, annex B): microseconds, and it finds empty files, other files, cut-off tails.
"""

import io
import struct
import zlib

import numpy as np
from PIL import Image, UnidentifiedImageError

START, END = b"\xff\xd8", b"\xff\xd9"
START_OF_SCAN = 0xDA
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # start-of-frame markers; the three are tables
SPACES = {1: "grey", 3: "colour", 4: "CMYK"}


# What Pillow raises for damaged images, for those so large that they may be an attack, and (NotImplementedError) for pixels of a
# layout that it does not know. RuntimeError is what its decoders of AVIF and WebP raise.
UNREADABLE = (
    OSError, SyntaxError, ValueError, TypeError, IndexError, KeyError, OverflowError, MemoryError, EOFError, struct.error,
    zlib.error, NotImplementedError, RuntimeError, Image.DecompressionBombError,
)  # fmt: skip


class BadImage(Exception):
    """Why bytes are no image that a training can use; the text says what is wrong."""


def _reason(error):
    """What an error of Pillow's says, but for the address in memory that stands in some: records must not differ by it."""
    return "its format is unknown" if isinstance(error, UnidentifiedImageError) else error


def check(data, depth="header"):
    """The colour space of an encoded image: `grey`, `colour` or `CMYK` (all three decode to RGB), or `unknown`.

    depth: as in Formats.check; `none` looks at nothing. Raises BadImage for data that is empty, no image, or cut short.
    """
    if not data:
        raise BadImage("the file is empty")
    if depth == "none":
        return "unknown"
    space = _check_markers(data) if data[:2] == START else _check_other(data)
    if depth == "decode":
        _decode_strictly(data)
    return space


def _decode_strictly(data):
    """Decode an image for what its decoder says: of lost data inside a JPEG Pillow says nothing, libjpeg-turbo warns."""
    frame = frame_place(data)
    try:
        import simplejpeg
    except ImportError:
        frame = None
    try:
        if frame is None or data[frame + 4] != 8 or data[frame + 9] not in (1, 3, 4):
            opened(data)
        else:
            Image.open(io.BytesIO(data)).close()  # is it too large?
            simplejpeg.decode_jpeg(data, "CMYK" if data[frame + 9] == 4 else "RGB", strict=True)
    except UNREADABLE as error:
        raise BadImage(f"it cannot be decoded ({_reason(error)})") from None


def decode(data):
    """The pixels of an encoded image as RGB: uint8 array of height × width × 3. Raises BadImage where it is damaged."""
    return np.asarray(opened(data))


def opened(data):
    """An encoded image, decoded in full by Pillow, as an RGB image of Pillow's. Of 16-bit grey the upper 8 bits are kept, as of
    16-bit colour. Raises BadImage.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.mode.startswith("I;16"):
                return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
            if image.mode in ("I", "F"):
                raise BadImage(f"its pixels are of 32 bits (Pillow's mode {image.mode}), whose range is not known")
            return image.convert("RGB")
    except UNREADABLE as error:
        raise BadImage(f"it cannot be decoded ({_reason(error)})") from None


def extension(data):
    """What files of such images are called: `jpg`, `png` or `webp`, by their first bytes."""
    return next((name for start, name in ((b"\x89PNG", "png"), (b"RIFF", "webp")) if data.startswith(start)), "jpg")


def frame_place(data):
    """Where the frame header of a JPEG begins, its marker first; None where there is none to be found."""
    try:
        return next((place for marker, place in _segments(data) if marker in FRAMES), None)
    except (IndexError, BadImage):
        return None


def _segments(data):
    """Yield (marker, place) of the segments of a JPEG up to its first scan, and of that. IndexError where the data ends before."""
    if data[:2] != START:
        return
    place = 2
    while data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xFF:  # a fill byte
            place += 1
            continue
        yield marker, place
        if marker == START_OF_SCAN:
            return
        place += 2 + (data[place + 2] << 8 | data[place + 3])
    raise BadImage(f"the JPEG is damaged: no marker at byte {place:,}")


def _check_markers(data):
    """Follow the segments up to the first scan; the end-of-image marker must come after it."""
    components = None
    try:
        for marker, place in _segments(data):
            if marker in FRAMES:
                components = data[place + 9]
        place += 2 + (data[place + 2] << 8 | data[place + 3])
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
    except UNREADABLE as error:
        raise BadImage(f"it is not a readable image ({_reason(error)})") from None
    return {"L": "grey", "CMYK": "CMYK"}.get(mode, "colour")
