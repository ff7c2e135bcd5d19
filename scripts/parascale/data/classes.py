"""Images with their classes as samples of a training: decoded, cropped, flipped, of one size.

What is random in a training image follows from (seed, epoch, sample) alone, so that layouts, workers and restarts see
the same images.
"""

import itertools
from functools import partial

import numpy as np

from parascale.data.ahead import read_ahead
from parascale.data.crops import cropped, one_thread, readable, require_decoder
from parascale.errors import DataError

# Of width to height, as logarithms, of a random crop (Szegedy et al. 2014, arXiv:1409.4842, section 6).
RATIO = np.log((3 / 4, 4 / 3))
TRIES = 10  # crops that are drawn before the largest one in the middle is taken
MARGIN = 1.14  # an image is evaluated at its middle, 1 / MARGIN of its shorter side (256 / 224 in He et al. 2015)


class ClassImages:
    """The images of a split as they are evaluated: the square in the middle, resized.

    reader: of parascale.data.formats. size: pixels of a side of what the model sees. decoder: as in ImageTraining.
    """

    def __init__(self, reader, size, decoder="scaled"):
        if decoder == "scaled":
            require_decoder()
        self.reader, self.size, self.decoder = reader, size, decoder
        labels = np.asarray(reader.labels)
        classes = len(reader.classes)
        wrong = np.flatnonzero((labels < 0) | (labels >= classes))
        if len(wrong):
            raise DataError(
                f"{reader.where(int(wrong[0]))} has label {labels[wrong[0]]}, but there are {classes} classes, 0 to {classes - 1}"
                f" ({len(wrong):,} such samples): correct the source and run the target `formats` again"
            )

    def __len__(self):
        return len(self.reader)

    def batch(self, numbers):
        """Samples by number: (pixels_BCHW as uint8, labels_B as int64)."""
        return self._decoded(numbers, (self.reader[number % len(self.reader)] for number in map(int, numbers)))

    def batches(self, chosen):
        """Yield `batch(numbers)` of each array of numbers in `chosen`. What takes long to read is read ahead by threads."""
        if (
            self.reader.io == "mmap" or not self.reader.THREADS
        ):  # mapped data is in memory, or comes as the kernel reads ahead
            yield from map(self.batch, chosen)
            return
        here, there = itertools.tee(chosen)
        samples = (np.asarray(numbers, np.int64) % len(self.reader) for numbers in there)
        for numbers, (_, data) in zip(here, read_ahead(self.reader, samples), strict=True):
            yield self._decoded(numbers, data)

    def _decoded(self, numbers, encoded):
        pixels_BCHW = np.empty((len(numbers), 3, self.size, self.size), np.uint8)
        with one_thread():
            for row, (number, data) in enumerate(zip(map(int, numbers), encoded, strict=True)):
                pixels_BCHW[row] = self._square(number, data)
        return pixels_BCHW, np.asarray(self.reader.labels)[np.asarray(numbers) % len(self.reader)].astype(np.int64)

    def _square(self, number, data):
        return self._cropped(number, data, middle_square)

    def _cropped(self, number, data, box_of):
        where = partial(self.reader.where, number % len(self.reader))
        return readable(data, where, lambda encoded: cropped(encoded, box_of, self.size, self.decoder))


class AugmentedImages(ClassImages):
    """The images of a split as they are trained on: a random part, resized, and flipped or not.

    Numbers go on from epoch to epoch: sample i of epoch e is e × len + i. smallest: least part of an image's area that a
    crop holds.
    """

    def __init__(self, reader, size, seed, smallest, decoder="scaled"):
        super().__init__(reader, size, decoder)
        self.seed, self.smallest = seed, smallest
        empty = np.flatnonzero(np.bincount(np.asarray(reader.labels), minlength=len(reader.classes)) == 0)
        if len(empty):
            raise DataError(
                f"{reader.folder}: class `{reader.classes[empty[0]]}` has no image to train on ({len(empty)} such classes); "
                "add images, or take the class out of the source"
            )

    def _square(self, number, data):
        random = np.random.default_rng((self.seed, *divmod(number, len(self.reader))))
        pixels_CHW = self._cropped(number, data, lambda *size: random_crop(*size, self.smallest, random))
        return pixels_CHW[..., ::-1] if random.random() < 0.5 else pixels_CHW


def middle_square(width, height):
    """(left, top, right, bottom) of the square in the middle that an image is evaluated at."""
    side = min(width, height) / MARGIN
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def random_crop(width, height, smallest, random):
    """(left, top, right, bottom) of a crop of random area, from `smallest` of the image on, and random ratio."""
    for _ in range(TRIES):
        area = width * height * random.uniform(smallest, 1.0)
        ratio = np.exp(random.uniform(*RATIO))
        wide, high = np.sqrt(area * ratio), np.sqrt(area / ratio)
        if wide <= width and high <= height:
            left, top = random.uniform(0, width - wide), random.uniform(0, height - high)
            return left, top, left + wide, top + high
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side
