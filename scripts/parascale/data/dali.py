"""Decode, crop, resize and flip JPEGs with NVIDIA DALI, a batch at a time: on a GPU, or with DALI's threads on the CPU."""

from typing import Any

import numpy as np

from parascale.data.crops import readable
from parascale.data.jpeg import BadImage


class Dali:
    """A pipeline that decodes batches, one after the other; any thread may call it.

    size: pixels of a side. threads: number of DALI's threads. device: torch.device to decode on (default: the CPU).
    """

    def __init__(self, size, threads, device=None):
        import torch

        self.size, self.threads, self.device = size, threads, device or torch.device("cpu")
        self._stream = torch.cuda.Stream(device) if self.device.type == "cuda" else None
        self._pipeline: Any = None
        self._most = 0

    def batch(self, views, others):
        """Decode a batch into a uint8 RGB tensor of B × 3 × size × size on the device. DataError names a damaged image.

        views: row → EncodedView of a JPEG, with its VisiblePart. others: row → pixels of an image that is decoded already.
        """
        import torch

        shape = (len(views) + len(others), 3, self.size, self.size)
        with torch.cuda.stream(self._stream):
            pixels_BCHW = torch.empty(shape, dtype=torch.uint8, device=self.device)
            if views:
                found = self._decoded(list(views.values()), shape[0])
                pixels_BCHW[list(views)] = torch.from_dlpack(found.as_tensor())
            if others:
                pixels_BCHW[list(others)] = torch.from_numpy(np.stack(list(others.values()))).to(self.device)
            if self._stream:
                self._stream.synchronize()  # DALI reuses the memory of `found`
        return pixels_BCHW

    def hand_over(self, pixels_BCHW):
        """Tell the allocator that the caller's stream uses this tensor, so that its memory is not reused too early."""
        import torch

        if self._stream:
            pixels_BCHW.record_stream(torch.cuda.current_stream(self.device))

    def _decoded(self, views, most):
        """DALI's output for the images of a batch. most: images of a full batch."""
        try:
            return self._run(views, most)
        except RuntimeError:  # it names no sample, or one by its position
            alone = Dali(self.size, 1)
            for view in views:
                readable(view, view.where, alone._try)
            raise

    def _try(self, view):
        try:
            self._run([view], 1)
        except RuntimeError:
            raise BadImage("DALI cannot decode it (another `training.decoder` may)") from None

    def _run(self, views, most):
        if most > self._most:
            self._most = most
            self._pipeline = _pipeline(self.size, self._most, self.threads, self.device.index)
        parts = [view.part for view in views]
        sides = [(bottom - top, right - left) for left, top, right, bottom in (part.box for part in parts)]
        (found,) = self._pipeline.run(
            encoded=[np.frombuffer(view.data, np.uint8) for view in views],
            start=np.array([(part.box[1], part.box[0]) for part in parts], np.int32),
            shape=np.ceil(sides).astype(np.int32),
            end=np.array(sides, np.float32),
            mirror=np.array([part.mirrored for part in parts], np.int32),
        )
        return found


def _pipeline(size, batch, threads, device_id):
    """A pipeline for batches of up to `batch` images: decode, cut, resize, then flip.

    An image must not depend on the others of its batch, or layouts would see different pixels: hence no `hw_decoder_load`, which
    gives a share of each batch to the GPU's JPEG engine. EXIF orientation is ignored, as by the other decoders.
    """
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=batch, num_threads=threads, device_id=device_id, prefetch_queue_depth=1)
    def cropped():
        given = {name: fn.external_source(name=name) for name in ("encoded", "start", "shape", "end", "mirror")}
        part_HWC = fn.decoders.image_slice(
            given["encoded"],
            start=given["start"],
            shape=given["shape"],
            axis_names="HW",
            device="cpu" if device_id is None else "mixed",
            output_type=types.RGB,
            adjust_orientation=False,
            jpeg_fancy_upsampling=True,
            hw_decoder_load=0.0,
        )
        # The part may end between pixels.
        resized_HWC = fn.resize(part_HWC, size=[size, size], roi_start=[0.0, 0.0], roi_end=given["end"], antialias=True)
        return fn.crop_mirror_normalize(resized_HWC, mirror=given["mirror"], dtype=types.UINT8, output_layout="CHW")

    pipeline = cropped()
    pipeline.build()
    return pipeline
