"""Labelled images as training samples: decoded, cropped, resized to one size, flipped.

Random choices depend on (seed, epoch, sample) alone, so that all layouts, numbers of workers and restarts see the same images.
"""

import itertools
import math
from collections.abc import Iterable
from functools import partial

import numpy as np

from parascale.data.ahead import read_ahead
from parascale.data.crops import EncodedView, Scratch, draw, empty_pixels, jpeg_part, one_thread, require_decoder
from parascale.data.dali import Dali
from parascale.data.pool import ordered_map
from parascale.errors import DataError

# Ratio of width to height of a random crop, as logarithms (Szegedy et al. 2014, arXiv:1409.4842, section 6).
RATIO = math.log(3 / 4), math.log(4 / 3)
TRIES = 10  # random crops before the middle is taken instead
MARGIN = 1.14  # evaluation crops the middle, 1 / MARGIN of the shorter side (256 / 224 in He et al. 2015)
# fastai squishes an image to a side longer by this share, then crops the middle (`val_xtra`).
SQUISHED = 0.14


class ClassImages:
    """The images of a split for evaluation: the middle, resized.

    reader: from parascale.data.formats. size: side of the model's input in pixels. decoder, crops: as in ImageTraining.
    """

    def __init__(self, reader, size, decoder="scaled", crops="square"):
        require_decoder(decoder)
        self.reader, self.size, self.decoder, self.crops = reader, size, decoder, crops
        labels = np.asarray(reader.labels)
        classes = len(reader.classes)
        wrong = np.flatnonzero((labels < 0) | (labels >= classes))
        if len(wrong):
            raise DataError(
                f"{reader.where(int(wrong[0]))} has label {labels[wrong[0]]}, not 0 to {classes - 1} ({len(wrong):,} such samples): correct the source, and run `formats` again"
            )

    def __len__(self):
        return len(self.reader)

    def batch(self, numbers):
        """Samples by number: (pixels_BCHW as a tensor of uint8, labels_B as an array of int64)."""
        return next(self.batches([numbers]))

    def batches(self, chosen, workers=0, device=None):
        """Yield `batch(numbers)` for each array of numbers in `chosen`, in that order; threads read ahead.

        workers: threads that decode the next batches, one batch each; with DALI they share a batch. 0: the caller's thread
        decodes. device: torch.device of the model (default: CPU). `dali` decodes on it; the others use pinned memory for a GPU.
        """
        import torch

        encoded, threads = self._encoded(chosen), torch.get_num_threads()
        if self.decoder == "dali":
            dali = Dali(self.size, max(1, workers), device)
            for pixels_BCHW, labels_B in _ahead(partial(self._decoded_by, dali, threads), encoded, min(workers, 1)):
                dali.hand_over(pixels_BCHW)
                yield pixels_BCHW, labels_B
        else:
            pinned = device is not None and device.type == "cuda"
            yield from _ahead(partial(self._decoded, threads, pinned), encoded, workers)

    def _encoded(self, chosen):
        """Yield (numbers, their encoded images) for each array of numbers."""
        here, there = itertools.tee(chosen)
        samples = (np.asarray(numbers, np.int64) % len(self.reader) for numbers in there)
        data: Iterable
        if not self.reader.THREADS:
            data = map(self.reader.read_batch, samples)
        elif self.reader.io == "mmap":  # the kernel reads ahead: read when decoding
            self.reader.require_open()
            data = (map(self.reader.view, batch.tolist()) for batch in samples)
        else:
            data = (read for _, read in read_ahead(self.reader, samples))
        return zip(here, data, strict=True)

    def _views(self, numbers, encoded):
        """The EncodedView of each image in a batch, made before the first is decoded: between two images it takes several times as long,
        because the decoder fills the CPU caches."""
        views = []
        for number, data in zip(map(int, numbers), encoded, strict=True):
            seen = self._seen(number)
            part = None if self.decoder == "full" else jpeg_part(data, seen, self.size)
            views.append(EncodedView(data, seen, part, partial(self.reader.where, number % len(self.reader))))
        return views

    def _decoded(self, threads, pinned, numbers, encoded):
        views, scratch = self._views(numbers, encoded), Scratch(self.size)
        pixels_BCHW = empty_pixels(len(views), self.size, pinned)
        with one_thread(threads):
            for view, pixels_CHW in zip(views, pixels_BCHW.numpy(), strict=True):
                draw(view, scratch, pixels_CHW)
        return pixels_BCHW, self._labels(numbers)

    def _decoded_by(self, dali, threads, numbers, encoded):
        """Like `_decoded`, but DALI decodes JPEGs with 1 or 3 colours."""
        views, scratch, others = self._views(numbers, encoded), Scratch(self.size), {}
        with one_thread(threads):
            for row, view in enumerate(views):
                if not view.part:
                    others[row] = np.empty((3, self.size, self.size), np.uint8)
                    draw(view, scratch, others[row])
            return dali.batch({row: view for row, view in enumerate(views) if view.part}, others), self._labels(numbers)

    def _labels(self, numbers):
        return np.asarray(self.reader.labels)[np.asarray(numbers) % len(self.reader)].astype(np.int64)

    def _seen(self, number):
        """The visible part of a sample, as a function (width, height) → (box, mirrored): the square in the middle, or, as fastai evaluates,
        the middle of the image squished to a longer side and cut to `size` pixels."""
        if self.crops == "fastai":
            seen = self.size / (self.size + 8 * math.ceil(SQUISHED * self.size / 8))
            return lambda width, height: (_middle(width, height, seen * width, seen * height), False)
        return lambda width, height: (_middle(width, height, side := min(width, height) / MARGIN, side), False)


class AugmentedImages(ClassImages):
    """The images of a split for training: a random crop, resized, and flipped at random.

    Sample i of epoch e has the number e × len + i. smallest: smallest share of an image's area in a crop.
    """

    def __init__(self, reader, size, seed, smallest, decoder="scaled", crops="square"):
        super().__init__(reader, size, decoder, crops)
        self.seed, self.smallest = seed, smallest
        empty = np.flatnonzero(np.bincount(np.asarray(reader.labels), minlength=len(reader.classes)) == 0)
        if len(empty):
            raise DataError(
                f"{reader.folder}: {len(empty)} classes without images, such as `{reader.classes[empty[0]]}`: remove them"
            )

    def _seen(self, number):
        random = np.random.default_rng((self.seed, *divmod(number, len(self.reader))))
        widest = 4 / 3 if self.crops == "fastai" else 1.0
        return lambda width, height: (random_crop(width, height, self.smallest, random, widest), random.random() < 0.5)


def _ahead(decoded, encoded, workers):
    """Yield `decoded(numbers, data)` for each of `encoded`, in order. workers: threads that work ahead."""
    if workers:
        yield from ordered_map(lambda batch: decoded(*batch), encoded, workers, workers + 1)
    else:
        yield from itertools.starmap(decoded, encoded)


def random_crop(width, height, smallest, random, widest=1.0):
    """(left, top, right, bottom) of a crop with a random area, at least `smallest` of the image, and a random aspect ratio.

    If TRIES crops do not fit in the image, the middle is taken. widest: its largest ratio of sides.
    """
    for _ in range(TRIES):
        area = width * height * random.uniform(smallest, 1.0)
        ratio = math.exp(random.uniform(*RATIO))
        wide, high = math.sqrt(area * ratio), math.sqrt(area / ratio)
        if wide <= width and high <= height:
            left, top = random.uniform(0, width - wide), random.uniform(0, height - high)
            return left, top, left + wide, top + high
    return _middle(width, height, min(width, height * widest), min(height, width * widest))


def _middle(width, height, wide, high):
    """(left, top, right, bottom) of the middle of an image."""
    left, top = (width - wide) / 2, (height - high) / 2
    return left, top, left + wide, top + high
