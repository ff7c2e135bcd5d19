"""Check and decode encoded images.

The check walks a JPEG's markers (ITU-T T.81, annex B). It takes microseconds and finds empty, truncated and other files.
"""

import bisect
import io
import re
import struct
import zlib
from collections.abc import Callable
from functools import partial

import numpy as np
from PIL import Image, UnidentifiedImageError

START, END = b"\xff\xd8", b"\xff\xd9"
START_OF_SCAN = 0xDA
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # start-of-frame markers, without three for tables
SEQUENTIAL = (0xC0, 0xC1)  # frames whose scans ignore the last three numbers of their headers
SPACES = {1: "grey", 3: "colour", 4: "CMYK"}
# Five of libjpeg's warnings change no pixel: stray bytes after the last scan, and those that `_without_harmless` avoids. Others: damage.
STRAY = re.compile(r"(\d+) extraneous bytes before marker 0xd9")
AHEAD = 16  # bytes that libjpeg reads ahead and does not count as stray
SCAN_HEADER = re.compile(rb"(\xff\xda\0(?:\x08\x01..|\x0a\x02.{4}|\x0c\x03.{6}|\x0e\x04.{8}))...", re.DOTALL)


# Pillow raises these for damaged images, for images so large that they may be an attack, and (NotImplementedError) for unknown pixel
# layouts. Its AVIF and WebP decoders raise RuntimeError.
UNREADABLE = (
    OSError, SyntaxError, ValueError, TypeError, IndexError, KeyError, OverflowError, MemoryError, EOFError, struct.error,
    zlib.error, NotImplementedError, RuntimeError, Image.DecompressionBombError,
)  # fmt: skip


class BadImage(Exception):
    """Why a training cannot use these bytes as an image; the text says what is wrong."""


def _reason(error):
    """The text of a Pillow error, without the memory address in some: records must not differ by it."""
    return "its format is unknown" if isinstance(error, UnidentifiedImageError) else error


def check(data, depth="header"):
    """The colour space of an encoded image: `grey`, `colour` or `CMYK` (all three decode to RGB), or `unknown`.

    depth: as in Formats.check; `none` checks nothing. Raises BadImage for data that is empty, not an image, or cut short.
    """
    if not data:
        raise BadImage("the file is empty")
    if depth == "none":
        return "unknown"
    space = _check_markers(data) if data[:2] == START else _check_other(data)
    if depth == "decode":
        _decode_strictly(data)
    return space


def _decode_strictly(data: bytes) -> None:
    """Decode an image to find damage inside it. Pillow ignores lost data in a JPEG; libjpeg-turbo warns, so it decodes JPEGs."""
    frame = frame_place(data)
    try:
        import simplejpeg
    except ImportError:
        frame = None
    try:
        if frame is None or data[frame + 4] != 8 or data[frame + 9] not in (1, 3, 4):
            opened(data)
            return
        Image.open(io.BytesIO(data)).close()  # is it too large?
        decoder = partial(simplejpeg.decode_jpeg, colorspace="CMYK" if data[frame + 9] == 4 else "RGB")
        sequential = data[frame + 1] in SEQUENTIAL
        data = _without_harmless(data, sequential)
        decoder(data, strict=True)
    except UNREADABLE as error:
        found = STRAY.search(str(error))
        if not (found and _is_stray(decoder if sequential else None, data, int(found[1]))):
            raise BadImage(f"it cannot be decoded ({_reason(error)})") from None


def _without_harmless(data: bytes, sequential: bool) -> bytes:
    """Remove a JPEG's application segments (unknown versions of JFIF, Adobe's colours, ICC) and unused numbers of its scans.

    libjpeg reports only a picture's first warning, so one about these would hide damage after it.
    """
    kept = [START]
    for marker, place in _segments(data):
        if marker == START_OF_SCAN:
            kept.append(SCAN_HEADER.sub(rb"\g<1>\0?\0", data[place:]) if sequential else data[place:])
        elif not 0xE0 <= marker <= 0xEF:
            kept.append(data[place : place + 2 + (data[place + 2] << 8 | data[place + 3])])
    return b"".join(kept)


def _is_stray(decoder: Callable | None, data: bytes, count: int) -> bool:
    """True if the `count` bytes before the end mark are stray, and not left over because damage ended a scan early.

    Before stray bytes, a scan ends correctly, padded with ones. decoder: None for a progressive JPEG, whose last bits may change no
    pixel; its stray bytes must all be equal.
    """

    def is_whole(length):
        try:
            decoder(data[:length] + END, strict=True)  # type: ignore[misc] # called where there is one
        except ValueError as error:
            return STRAY.search(str(error)) is not None
        return True

    end = data.rindex(END)
    if decoder is None:
        return len({*data[end - count : end]}) == 1
    length = bisect.bisect_left(range(end), True, end - count - AHEAD, key=is_whole)
    before, last = data[: length - 1], data[length - 1]
    if last == 0xFF or before.endswith(b"\xff"):
        return True
    # Its last 0 becomes 1, which changes the picture if it uses this bit.
    other = bytes([last | last + 1]).replace(b"\xff", b"\xff\0")
    try:
        return not np.array_equal(*(decoder(before + byte + END, strict=False) for byte in (bytes([last]), other)))
    except ValueError:
        return True


def decode(data):
    """The pixels of an encoded image as RGB: uint8 array of height × width × 3. Raises BadImage if it is damaged."""
    return np.asarray(opened(data))


def opened(data):
    """Decode an image in full with Pillow; returns a Pillow image in RGB. 16-bit grey keeps the upper 8 bits, like 16-bit colour.
    Raises BadImage."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.mode.startswith("I;16"):
                return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
            if image.mode in ("I", "F"):
                raise BadImage(f"it has 32-bit pixels (Pillow's mode {image.mode}), of unknown range")
            return image.convert("RGB")
    except UNREADABLE as error:
        raise BadImage(f"it cannot be decoded ({_reason(error)})") from None


def extension(data):
    """File extension of an encoded image: `jpg`, `png` or `webp`, by its first bytes."""
    return next((name for start, name in ((b"\x89PNG", "png"), (b"RIFF", "webp")) if data.startswith(start)), "jpg")


def frame_place(data):
    """The byte at which a JPEG's frame header begins, with its marker; None if it has none."""
    try:
        return next((place for marker, place in _segments(data) if marker in FRAMES), None)
    except (IndexError, BadImage):
        return None


def _segments(data):
    """Yield (marker, place) of a JPEG's segments up to and including its first scan. IndexError if the data ends earlier."""
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
    """Walk the segments up to the first scan; an end-of-image marker must follow."""
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
    """Check PNG, WebP and other images as far as Pillow can without decoding."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            mode = image.mode
            image.verify()
    except UNREADABLE as error:
        raise BadImage(f"it is not a readable image ({_reason(error)})") from None
    return {"L": "grey", "CMYK": "CMYK"}.get(mode, "colour")
