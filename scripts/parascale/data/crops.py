"""Decode and resize a part of an encoded image, decoding no more of the image than necessary.

With `scaled`, libjpeg-turbo (through `simplejpeg`) decodes a JPEG at the smallest of SCALES at which the part is large enough, and
stops below the part; it repeats chroma instead of interpolating. With `full`, Pillow decodes everything, as it does for all decoders
if an image is not a JPEG with 1 or 3 colours. torch resizes, in a third of Pillow's time. `dali`: see `parascale.data.dali`.
"""

import contextlib
import importlib
import math
from typing import NamedTuple

import numpy as np

from parascale.data import jpeg
from parascale.errors import DataError, RequirementError

BLOCK = 8  # rows of a block; an MCU is one to four blocks high
# Scales for decoding, in eighths of an image's size. libjpeg-turbo has vector instructions for these (`jddctmgr.c`); five, six or
# seven eighths take longer than the whole image.
SCALES = (1, 2, 4, 8)


class Frame(NamedTuple):
    """A JPEG's frame header: place of the height in the file, rows of an MCU, height and width in pixels."""

    place: int
    unit: int
    height: int
    width: int


class VisiblePart(NamedTuple):
    """The visible part of an image, and how to decode and resize it.

    box: (left, top, right, bottom) in the image's pixels, the same for every decoder. shape: (rows, columns) to decode, at `scale`.
    window: arguments of `as_strided` for the box in the decoded pixels, as 1 × 3 × rows × columns. zoom: factors of height and width.
    place, height: place of the height in a JPEG's header, and the two bytes to write there.
    """

    box: tuple
    mirrored: bool
    shape: tuple
    scale: float
    window: tuple
    zoom: tuple
    place: int | None = None
    height: bytes | None = None


class EncodedView(NamedTuple):
    """An encoded image and its visible part.

    seen: function (width, height) → (box in pixels, possibly fractional; mirrored). part: None if the image's size is known only
    after decoding. where: function that names the image.
    """

    data: bytes
    seen: object
    part: VisiblePart | None
    where: object


def jpeg_part(data, seen, size):
    """The VisiblePart of a JPEG with 1 or 3 colours, from its header; None for others. seen: as in EncodedView. size: as in `moved`."""
    frame = jpeg_frame(data)
    if frame is None:
        return None
    box, mirrored = seen(frame.width, frame.height)
    box, mirrored, eighths = moved(box, mirrored, frame.width, frame.height, size)
    return frame_part(frame, box, mirrored, eighths, size)


def frame_part(frame, box, mirrored, eighths, size):
    """The VisiblePart of a JPEG that is decoded from its first row to the end of the box."""
    least_rows = math.ceil(box[3] * eighths / 8) * 8 // eighths
    height = min(frame.height, math.ceil(least_rows / frame.unit) * frame.unit)
    shape = -(-height * eighths // 8), -(-frame.width * eighths // 8)
    return _part(box, mirrored, shape, eighths / 8, size, frame.place, height.to_bytes(2, "big"))


def _part(box, mirrored, shape, scale, size, *header):
    """Make a VisiblePart. Its box may end between pixels, or, by rounding, just beyond the last one."""
    (height, width), (left, top, right, bottom) = shape, (place * scale for place in box)
    wide, high, left, top = right - left, bottom - top, round(left), round(top)
    rows, columns = min(math.ceil(high), height - top), min(math.ceil(wide), width - left)
    window = (1, 3, rows, columns), (0, 1, 3 * width, 3), 3 * (top * width + left)
    return VisiblePart(box, mirrored, shape, scale, window, (size / high, size / wide), *header)


def moved(box, mirrored, width, height, size):
    """(the box for all decoders, mirrored, the smallest of SCALES at which it is large enough).

    box: in an image of width × height pixels; its corner is moved by at most half a block, to a whole pixel at that scale.
    size: wanted side in pixels.
    """
    left, top, right, bottom = box
    wide, high = right - left, bottom - top
    wanted = 8 * max(size / wide, size / high)
    eighths = next((scale for scale in SCALES if scale >= wanted), SCALES[-1])
    step = 8 // eighths
    left, top = (
        max(0, min(round(place / step), int((most - extent) / step))) * step
        for place, most, extent in ((left, width, wide), (top, height, high))
    )
    return (left, top, left + wide, top + high), mirrored, eighths


def draw(view, scratch, pixels_CHW):
    """Decode an EncodedView, resize it, and write it to a uint8 RGB array of 3 × size × size. DataError names a damaged image."""
    part = readable(view, view.where, scratch.decoded)
    resized_CHW = scratch.resized(part)
    pixels_CHW[:] = resized_CHW[..., ::-1] if part.mirrored else resized_CHW


def empty_pixels(count, size, pinned):
    """A uint8 tensor for `count` images. pinned: for copies to a GPU while it computes."""
    import torch

    shape = count, 3, size, size
    if pinned:
        return torch.empty(shape, dtype=torch.uint8, pin_memory=True)
    return torch.from_numpy(np.empty(shape, np.uint8))  # NumPy requests huge pages: fewer page faults


@contextlib.contextmanager
def one_thread(threads):
    """Resize in this thread alone: torch's threads would wait for each other longer than a small image takes.

    threads: torch's number in the model's thread, restored on exit. A thread that starts in between has 1, so it cannot look it up.
    """
    import torch

    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def jpeg_frame(data):
    """The Frame of a JPEG with 1 or 3 colours of 8 bits; None for anything else, or if the header is cut short."""
    place = jpeg.frame_place(data)
    try:
        if place is None or data[place + 4] != 8 or data[place + 9] not in (1, 3):
            return None
        height, width = (int.from_bytes(data[place + start : place + start + 2], "big") for start in (5, 7))
        rows = max(data[place + 11 + 3 * number] & 15 for number in range(data[place + 9]))
    except IndexError:
        return None
    return Frame(place + 5, BLOCK * rows, height, width) if height and width else None


# Decoder → (module, what to do if it is missing).
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
    """Raise RequirementError if a decoder's package is missing."""
    if decoder in REQUIRED:
        module, remedy = REQUIRED[decoder]
        try:
            importlib.import_module(module)
        except ImportError:
            raise RequirementError(f"`training.decoder: {decoder}` needs {remedy}") from None


class Scratch:
    """Reused memory to decode images and resize them to `size` × `size`, one at a time: fresh memory costs page faults."""

    def __init__(self, size):
        import torch

        self.size = size
        self._make(0)
        # Channels last, as the kernel writes them.
        self._resized_1CHW = torch.empty(1, 3, size, size, dtype=torch.uint8, memory_format=torch.channels_last)
        self._resized_CHW = self._resized_1CHW[0].numpy()
        # `interpolate` calls this, but takes no factors beside a size: a part need not end at a whole pixel.
        self._resize = torch.ops.aten._upsample_bilinear2d_aa.out

    def _make(self, size):
        import torch

        self._tensor = torch.empty(size, dtype=torch.uint8)
        self.pixels = self._tensor.numpy()  # the image decoded last, row by row

    def decoded(self, view):
        """Decode an image into this memory; returns its VisiblePart. Raises jpeg.BadImage."""
        part = view.part
        if part is None:
            pixels_HWC = jpeg.decode(view.data)
            if len(self.pixels) < pixels_HWC.size:
                self._make(pixels_HWC.size)
            self.pixels[: pixels_HWC.size] = pixels_HWC.ravel()
            height, width, _ = pixels_HWC.shape
            box, mirrored = view.seen(width, height)
            box, mirrored, _ = moved(box, mirrored, width, height, self.size)
            return _part(box, mirrored, (height, width), 1.0, self.size)
        import simplejpeg

        rows, columns = part.shape
        if len(self.pixels) < 3 * rows * columns:
            self._make(3 * rows * columns)
        # The decoder stops at the height in the header.
        data = bytearray(view.data)
        data[part.place : part.place + 2] = part.height
        try:
            simplejpeg.decode_jpeg(data, "RGB", False, True, rows, columns, 1 / part.scale, self.pixels, False)
        except (ValueError, MemoryError) as error:
            raise jpeg.BadImage(f"it cannot be decoded ({error})") from None
        return part

    def resized(self, part):
        """Resize the image decoded last, averaging the pixels that each new one covers. Returns an array of 3 × size × size, which the
        next call overwrites."""
        part_1CHW = self._tensor.as_strided(*part.window)
        self._resize(part_1CHW, (self.size, self.size), False, *part.zoom, out=self._resized_1CHW)
        return self._resized_CHW


def readable(data, where, decode):
    """Return `decode(data)`. DataError names a damaged image. where: function that names it."""
    try:
        return decode(data)
    except jpeg.BadImage as error:
        raise DataError(f"{where()}: {error}. To skip: `formats.check: decode`, `formats.bad_samples: skip`") from None
