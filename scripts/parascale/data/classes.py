"""Images with their classes as samples of a training: decoded, cropped, flipped, of one size.

What is random in a training image follows from (seed, epoch, sample) alone, so that layouts, workers and restarts see
the same images.
"""

import numpy as np
from PIL import Image

from parascale.data import jpeg
from parascale.errors import DataError

RATIO = (3 / 4, 4 / 3)  # of width to height of a random crop (Szegedy et al. 2014, arXiv:1409.4842, section 6)
TRIES = 10  # crops that are drawn before the largest one in the middle is taken
MARGIN = 1.14  # an image is evaluated at its middle, 1 / MARGIN of its shorter side (256 / 224 in He et al. 2015)


class ClassImages:
    """The images of a split as they are evaluated: the square in the middle, resized.

    reader: of parascale.data.formats. size: pixels of a side of what the model sees.
    """

    def __init__(self, reader, size):
        self.reader, self.size = reader, size
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
        pixels = np.stack([self._square(int(number)) for number in numbers])
        labels_B = np.array([self.reader.labels[self._sample(int(number))] for number in numbers], dtype=np.int64)
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)), labels_B

    def _sample(self, number):
        """The place in the reader of a sample number."""
        return number

    def _square(self, number):
        image = self._decoded(number)
        side = min(image.size) / MARGIN
        left, top = ((length - side) / 2 for length in image.size)
        return self._resized(image, (left, top, left + side, top + side))

    def _decoded(self, number):
        return Image.fromarray(jpeg.decode_sample(self.reader, self._sample(number)))

    def _resized(self, image, box):
        return np.asarray(image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box))


class AugmentedImages(ClassImages):
    """The images of a split as they are trained on: a random part, resized, and flipped or not.

    Numbers go on from epoch to epoch: sample i of epoch e is e × len + i. smallest: least part of an image's area that a
    crop holds.
    """

    def __init__(self, reader, size, seed, smallest):
        super().__init__(reader, size)
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
        image = self._decoded(number)
        pixels = self._resized(image, random_crop(*image.size, self.smallest, random))
        return pixels[:, ::-1] if random.random() < 0.5 else pixels


def random_crop(width, height, smallest, random):
    """(left, top, right, bottom) of a crop of random area, from `smallest` of the image on, and random ratio."""
    for _ in range(TRIES):
        area = width * height * random.uniform(smallest, 1.0)
        ratio = np.exp(random.uniform(*np.log(RATIO)))
        wide, high = np.sqrt(area * ratio), np.sqrt(area / ratio)
        if wide <= width and high <= height:
            left, top = random.uniform(0, width - wide), random.uniform(0, height - high)
            return left, top, left + wide, top + high
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side
