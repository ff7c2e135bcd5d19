"""A part of an encoded image, decoded and resized, with no more of the image decoded than it takes.

`scaled` has libjpeg-turbo (through `simplejpeg`) decode a JPEG at the smallest of SCALES at which the part is still as large as wanted,
and stop below the part: entropy decoding goes from top to bottom and takes most of the time. `full` has Pillow decode everything; so
do all decoders where an image is no JPEG of 1 or 3 colours. torch resizes, in a third of the time that Pillow takes. `dali` is
`parascale.data.dali`, which decodes and resizes batches of the same parts.
"""

import contextlib
import importlib
import math
from typing import NamedTuple

import numpy as np

from parascale.data import jpeg
from parascale.errors import DataError, RequirementError

BLOCK = 8  # rows of a block; an MCU has one to four of them
CONTEXT = 2  # rows below a row of pixels, at most, from which its chroma is interpolated (`jdsample.c`, h2v2)
# Eighths of an image's size at which it is decoded. libjpeg-turbo has vector instructions for these (`jddctmgr.c`); at five, six
# or seven eighths it takes longer than for the whole.
SCALES = (1, 2, 4, 8)


class Frame(NamedTuple):
    """A JPEG's frame header: where its height stands, rows of an MCU, height and width in pixels."""

    place: int
    unit: int
    height: int
    width: int


def cropped(data, box_of, size, decoder, scratch=None):
    """Pixels of a part of an encoded image: uint8 array of 3 × size × size, RGB, in the memory of `scratch`.

    box_of: function (width, height) → (left, top, right, bottom) of the part in pixels, which need not be whole; its corner is
    moved to one that is a whole pixel at the scale of decoding, by half a block at most, whatever the decoder: both see the same
    part. decoder: `scaled`, or another that has Pillow decode everything. scratch: a Scratch that serves one call after the other. Raises jpeg.BadImage.
    """
    scratch = scratch or Scratch(size)
    frame = jpeg_frame(data) if decoder == "scaled" else None
    if frame is None:
        pixels_HWC, scale = jpeg.decode(data), 1.0
        box, _ = moved(box_of, pixels_HWC.shape[1], pixels_HWC.shape[0], size)
    else:
        box, eighths = moved(box_of, frame.width, frame.height, size)
        pixels_HWC, scale = _decode_part(data, frame, box, eighths, scratch), eighths / 8
    return _resized(pixels_HWC, [place * scale for place in box], scratch.resized_1CHW)


def moved(box_of, width, height, size):
    """(the part of an image as every decoder takes it, the smallest of SCALES at which it is as large as wanted)."""
    left, top, right, bottom = box_of(width, height)
    wide, high = right - left, bottom - top
    wanted = 8 * max(size / wide, size / high)
    eighths = next((scale for scale in SCALES if scale >= wanted), SCALES[-1])
    step = 8 // eighths
    left, top = (
        max(0, min(round(place / step), int((most - extent) / step))) * step
        for place, most, extent in ((left, width, wide), (top, height, high))
    )
    return (left, top, left + wide, top + high), eighths


def _resized(pixels_HWC, box, resized_1CHW):
    """A part of an image, averaged over the pixels that each new one covers, as an array of 3 × size × size in the memory of
    `resized_1CHW`. Its corner is a whole pixel.
    """
    import torch

    left, top, wide, high = round(box[0]), round(box[1]), box[2] - box[0], box[3] - box[1]
    part_HWC = pixels_HWC[top : top + math.ceil(high), left : left + math.ceil(wide)]
    part_1CHW = torch.from_numpy(part_HWC if part_HWC.flags.writeable else part_HWC.copy()).permute(2, 0, 1)[None]
    # What `interpolate` calls, which takes no factors beside a size: the part need not end at a whole pixel.
    resize, size = torch.ops.aten._upsample_bilinear2d_aa.out, resized_1CHW.shape[-1]
    resize(part_1CHW, [size, size], False, size / high, size / wide, out=resized_1CHW)
    return resized_1CHW[0].numpy()


def torch_threads():
    """Threads that torch shares work out to from this one."""
    import torch

    return torch.get_num_threads()


@contextlib.contextmanager
def one_thread(threads):
    """Resize in this thread alone: torch would share out each small image, and the threads wait for each other longer than it takes.

    threads: `torch_threads()` of the model's, set again at the end. A thread that starts in between has 1, so cannot ask itself.
    """
    import torch

    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def jpeg_frame(data):
    """The Frame of a JPEG of 1 or 3 colours with 8 bits each; None for anything else, and where the header is cut short."""
    place = jpeg.frame_place(data)
    try:
        if place is None or data[place + 4] != 8 or data[place + 9] not in (1, 3):
            return None
        height, width = (int.from_bytes(data[place + start : place + start + 2], "big") for start in (5, 7))
        rows = max(data[place + 11 + 3 * number] & 15 for number in range(data[place + 9]))
    except IndexError:
        return None
    return Frame(place + 5, BLOCK * rows, height, width) if height and width else None


# Decoder → (module, what to do where it is missing).
REQUIRED = {
    "scaled": (
        "simplejpeg",
        "the package simplejpeg, which brings libjpeg-turbo with it: `pip install simplejpeg`, or set `training.decoder: full`, which is slower",
    ),
    "dali": (
        "nvidia.dali",
        "NVIDIA DALI: `pip install -r envs/requirements-dali.txt`, or set `training.decoder: scaled`",
    ),
}


def require_decoder(decoder):
    """Raise RequirementError where the package of a decoder is missing."""
    if decoder in REQUIRED:
        module, remedy = REQUIRED[decoder]
        try:
            importlib.import_module(module)
        except ImportError:
            raise RequirementError(f"`training.decoder: {decoder}` needs {remedy}") from None


class Scratch:
    """Memory that images of `size` pixels a side are decoded and resized in, one after the other: fresh memory costs page faults."""

    def __init__(self, size):
        import torch

        self._pixels = np.empty(0, np.uint8)
        # Colours next to each other, as the kernel writes them.
        self.resized_1CHW = torch.empty(1, 3, size, size, dtype=torch.uint8, memory_format=torch.channels_last)

    def take(self, size):
        """An array of so many bytes or more, the same one as long as it suffices."""
        if len(self._pixels) < size:
            self._pixels = np.empty(size, np.uint8)
        return self._pixels


def _decode_part(data, frame, box, eighths, scratch):
    """The pixels at so many eighths of their size, with the rows down to the end of `box` at least, in the memory of `scratch`."""
    import simplejpeg

    least_rows = (math.ceil(box[3] * eighths / 8) + CONTEXT) * 8 // eighths
    rows = min(frame.height, math.ceil(least_rows / frame.unit) * frame.unit)
    if rows < frame.height:  # the decoder stops at the height that the header tells
        data = b"".join((data[: frame.place], rows.to_bytes(2, "big"), data[frame.place + 2 :]))
    least = {} if eighths == 8 else {"min_factor": 8 / eighths}
    high, wide = -(-rows * eighths // 8), -(-frame.width * eighths // 8)
    try:
        return simplejpeg.decode_jpeg(
            data,
            "RGB",
            min_height=high,
            min_width=wide,
            buffer=scratch.take(high * wide * 3),
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
