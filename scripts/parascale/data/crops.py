"""A part of an encoded image, decoded and resized, with no more of the image decoded than it takes.

`scaled` has libjpeg-turbo (through `simplejpeg`) decode a JPEG at the fewest eighths of its size at which the part is still as
large as wanted, and stop below the part: entropy decoding goes from top to bottom and takes most of the time. `full` has Pillow decode
everything; so do both where an image is no JPEG of 1 or 3 colours. torch resizes: its kernel for bytes works on the decoder's own
memory, and takes a third of the time of Pillow's.
"""

import contextlib
import math
from typing import NamedTuple

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
    """Pixels of a part of an encoded image: uint8 array of 3 × size × size, RGB.

    box_of: function (width, height) → (left, top, right, bottom) of the part in pixels, which need not be whole; its corner is
    moved to one that is a whole pixel at the scale of decoding, by half a block at most, whatever the decoder: both see the same
    part. decoder: `scaled` or `full`. Raises jpeg.BadImage.
    """
    frame = jpeg_frame(data) if decoder == "scaled" else None
    if frame is None:
        pixels_HWC, scale = jpeg.decode(data), 1.0
        box, _ = _moved(box_of, pixels_HWC.shape[1], pixels_HWC.shape[0], size)
    else:
        box, eighths = _moved(box_of, frame.width, frame.height, size)
        pixels_HWC, scale = _decode_part(data, frame, box, eighths), eighths / 8
    return _resized(pixels_HWC, [place * scale for place in box], size)


def _moved(box_of, width, height, size):
    """(the part with its corner moved, the fewest eighths at which it is as large as wanted)."""
    left, top, right, bottom = box_of(width, height)
    wide, high = right - left, bottom - top
    eighths = min(8, math.ceil(8 * max(size / wide, size / high)))
    step = 8 // math.gcd(eighths, 8)
    left, top = (
        max(0, min(round(place / step), int((most - extent) / step))) * step
        for place, most, extent in ((left, width, wide), (top, height, high))
    )
    return (left, top, left + wide, top + high), eighths


def _resized(pixels_HWC, box, size):
    """A part of an image, averaged over the pixels that each new one covers: 3 × size × size. Its corner is a whole pixel."""
    import torch

    left, top, wide, high = round(box[0]), round(box[1]), box[2] - box[0], box[3] - box[1]
    part_HWC = pixels_HWC[top : top + math.ceil(high), left : left + math.ceil(wide)]
    part_1CHW = torch.from_numpy(part_HWC if part_HWC.flags.writeable else part_HWC.copy()).permute(2, 0, 1)[None]
    # What `interpolate` calls, which takes no factors beside a size: the part need not end at a whole pixel.
    resize = torch.ops.aten._upsample_bilinear2d_aa.default
    return resize(part_1CHW, [size, size], False, size / high, size / wide)[0].numpy()


@contextlib.contextmanager
def one_thread():
    """Resize in this thread alone: torch would share out each small image, and the threads wait for each other longer than it takes."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


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


def _decode_part(data, frame, box, eighths):
    """The pixels at so many eighths of their size, with the rows down to the end of `box` at least."""
    import simplejpeg

    # One MCU more than needed, since chroma is interpolated over its neighbours.
    rows = min(frame.height, (math.ceil(box[3] / frame.unit) + 1) * frame.unit)
    if rows < frame.height:  # the decoder stops at the height that the header tells
        data = b"".join((data[: frame.place], rows.to_bytes(2, "big"), data[frame.place + 2 :]))
    least = {} if eighths == 8 else {"min_factor": 8 / eighths}
    try:
        return simplejpeg.decode_jpeg(
            data,
            "RGB",
            min_height=-(-rows * eighths // 8),
            min_width=-(-frame.width * eighths // 8),
            strict=False,
            **least,
        )
    except (ValueError, MemoryError) as error:
        raise jpeg.BadImage(f"it cannot be decoded ({error})") from None


def readable(data, where, decode):
    """`decode(data)`. DataError that names a damaged image. where: function that says which it is."""
    try:
        return decode(data)
    except jpeg.BadImage as error:
        raise DataError(
            f"{where()}: {error}. Leave it out: `formats.check: decode`, `formats.bad_samples: skip`"
        ) from None
