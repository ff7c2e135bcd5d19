"""A part of an encoded image, decoded and resized, with no more of the image decoded than it takes.

`scaled` has libjpeg-turbo (through `simplejpeg`) decode a JPEG at the fewest eighths of its size at which the part is still as
large as wanted, and stop below the part: entropy decoding goes from top to bottom and takes most of the time. `full` has Pillow decode
everything; so do both where an image is no JPEG of 1 or 3 colours.
"""

import math
from typing import NamedTuple

import numpy as np
from PIL import Image

from parascale.data import jpeg
from parascale.errors import DataError, RequirementError

BLOCK = 8  # rows of a block; an MCU has one to four of them


class Frame(NamedTuple):
    """A JPEG's frame header: where its height stands, rows of an MCU, height and width in pixels."""

    place: int
    unit: int
    height: int
    width: int


def cropped(data, box_of, size, decoder):
    """Pixels of a part of an encoded image: uint8 array of size × size × 3, RGB.

    box_of: function (width, height) → (left, top, right, bottom) of the part in pixels, which need not be whole. decoder:
    `scaled` or `full`. Raises jpeg.BadImage.
    """
    frame = jpeg_frame(data) if decoder == "scaled" else None
    if frame is None:
        image = jpeg.opened(data)
        return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box=box_of(*image.size)))
    box = box_of(frame.width, frame.height)
    image, scale = _decode_part(data, frame, box, size)
    box = [min(place * scale, most) for place, most in zip(box, image.size * 2, strict=True)]
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box=box))[..., :3]


def jpeg_frame(data):
    """The Frame of a JPEG of 1 or 3 colours with 8 bits each; None for anything else."""
    place = jpeg.frame_place(data)
    if place is None or data[place + 4] != 8 or data[place + 9] not in (1, 3):
        return None
    height, width = (int.from_bytes(data[place + start : place + start + 2], "big") for start in (5, 7))
    rows = max(data[place + 11 + 3 * number] & 15 for number in range(data[place + 9]))
    return Frame(place + 5, BLOCK * rows, height, width) if height and width else None


def require_decoder():
    """Raise RequirementError where the package for `scaled` is missing."""
    try:
        import simplejpeg  # noqa: F401
    except ImportError:
        raise RequirementError(
            "`training.decoder: scaled` needs the package simplejpeg, which brings libjpeg-turbo with it: "
            "`pip install simplejpeg`, or set `training.decoder: full`, which is slower"
        ) from None


def _decode_part(data, frame, box, size):
    """(image of Pillow's that shares the decoder's memory, scale) with the rows down to the end of `box` at least."""
    import simplejpeg

    eighths = min(8, math.ceil(8 * max(size / (box[2] - box[0]), size / (box[3] - box[1]))))
    # One MCU more than needed, since chroma is interpolated over its neighbours.
    rows = min(frame.height, (math.ceil(box[3] / frame.unit) + 1) * frame.unit)
    if rows < frame.height:  # the decoder stops at the height that the header tells
        data = b"".join((data[: frame.place], rows.to_bytes(2, "big"), data[frame.place + 2 :]))
    least = {} if eighths == 8 else {"min_factor": 8 / eighths}
    try:
        pixels = simplejpeg.decode_jpeg(
            data,
            "RGBX",
            min_height=-(-rows * eighths // 8),
            min_width=-(-frame.width * eighths // 8),
            strict=False,
            **least,
        )
    except (ValueError, MemoryError) as error:
        raise jpeg.BadImage(f"it cannot be decoded ({error})") from None
    height, width = pixels.shape[:2]
    return Image.frombuffer("RGBX", (width, height), pixels, "raw", "RGBX", 0, 1), eighths / 8


def readable(reader, i, decode):
    """`decode(bytes)` of sample `i` of a reader of images. DataError that names a damaged one."""
    try:
        return decode(reader[i])
    except jpeg.BadImage as error:
        raise DataError(
            f"{reader.where(i)}: {error}. Leave it out: `formats.check: decode`, `formats.bad_samples: skip`"
        ) from None
