"""Images with their classes as samples of a training: decoded, cropped, flipped, of one size.

What is random in a training image follows from (seed, epoch, sample) alone, so that layouts, workers and restarts see
the same images.
"""

import numpy as np

from parascale.data.crops import cropped, readable, require_decoder
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
        pixels = np.empty((len(numbers), 3, self.size, self.size), np.uint8)
        for row, number in enumerate(numbers):
            pixels[row] = self._square(int(number)).transpose(2, 0, 1)
        labels_B = np.array([self.reader.labels[self._sample(int(number))] for number in numbers], dtype=np.int64)
        return pixels, labels_B

    def _sample(self, number):
        """The place in the reader of a sample number."""
        return number

    def _square(self, number):
        return self._cropped(self._sample(number), middle_square)

    def _cropped(self, sample, box_of):
        return readable(self.reader, sample, lambda data: cropped(data, box_of, self.size, self.decoder))


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

    def _sample(self, number):
        return number % len(self.reader)

    def _square(self, number):
        epoch, sample = divmod(number, len(self.reader))
        random = np.random.default_rng((self.seed, epoch, sample))
        pixels = self._cropped(sample, lambda width, height: random_crop(width, height, self.smallest, random))
        return pixels[:, ::-1] if random.random() < 0.5 else pixels


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
