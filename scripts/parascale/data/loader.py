"""Readers behind torch's DataLoader. The one module of this package that imports torch, so import it where it is used."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from parascale.data import jpeg
from parascale.data.sampler import evaluation_share, share
from parascale.errors import DataError


class ImageDataset(Dataset):
    """(pixels, label) of each image. transform: from a uint8 array of height × width × 3 to what the model wants."""

    def __init__(self, reader, transform=None):
        self.reader, self.transform = reader, transform

    def __len__(self):
        return len(self.reader)

    def __getitem__(self, i):
        try:
            pixels = jpeg.decode(self.reader[i])
        except jpeg.BadImage as error:
            raise DataError(
                f"{self.reader.where(i)}: {error}. Leave it out: `formats.check: decode`, `formats.bad_samples: skip`"
            ) from None
        return (self.transform(pixels) if self.transform else pixels), self.reader.labels.item(i)


class StepBatches:
    """A rank's share of the global batch of each step from `first` to `last` − 1: whatever the workers, the same batches.

    sampler: parascale.data.sampler.Sampler. To resume, begin with the step that its state gives.
    """

    def __init__(self, sampler, first, last, rank=0, ranks=1):
        self.sampler, self.first, self.last, self.rank, self.ranks = sampler, first, last, rank, ranks

    def __len__(self):
        return self.last - self.first

    def __iter__(self):
        for step in range(self.first, self.last):
            yield share(self.sampler.indices(step), self.rank, self.ranks).tolist()


class EvaluationBatches:
    """A rank's share of all samples in batches: over all ranks each exactly once, the last batch as short as it is."""

    def __init__(self, samples, batch, rank=0, ranks=1):
        self.indices, self.batch = evaluation_share(samples, rank, ranks), batch

    def __len__(self):
        return -(-len(self.indices) // self.batch)

    def __iter__(self):
        for first in range(0, len(self.indices), self.batch):
            yield self.indices[first : first + self.batch].tolist()


def image_loader(reader, batches, workers=0, transform=None, start_method=None):
    """A DataLoader of (images, labels): a tensor of batch × …, and int64 labels.

    batches: StepBatches or EvaluationBatches. start_method: of the workers; `fork`, `spawn`, or the platform's default.
    """
    return DataLoader(
        ImageDataset(reader, transform),
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=_collate,
        multiprocessing_context=start_method if workers else None,
    )


class WholeBatches(Dataset):
    """Samples as a DataLoader's worker takes them: asked for the numbers of a batch, it gives the batch."""

    def __init__(self, samples):
        self.samples = samples

    def __getitem__(self, numbers):
        return self.samples.batch(numbers)


def read_batches(samples, chosen, workers=0):
    """Yield a tuple of tensors, (*inputs, labels), for each array of sample numbers in `chosen`, in that order.

    samples: its `batch(numbers)` gives the arrays. workers: processes that read ahead, a batch each.
    """
    if workers == 0:
        for numbers in chosen:
            yield tuple(map(torch.from_numpy, samples.batch(numbers)))
    else:
        yield from map(tuple, DataLoader(WholeBatches(samples), batch_size=None, sampler=chosen, num_workers=workers))


def _collate(samples):
    images, labels = zip(*samples, strict=True)
    if len({image.shape for image in images}) > 1:
        raise DataError(
            "images of different sizes in one batch: give the loader a `transform` that makes them one size"
        )
    stacked = torch.stack(images) if isinstance(images[0], torch.Tensor) else torch.from_numpy(np.stack(images))
    return stacked, torch.tensor(labels)
