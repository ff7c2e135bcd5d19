"""Readers behind torch's DataLoader. The one module of this package that imports torch, so import it where it is used."""

from functools import partial
from itertools import islice

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from parascale.data.sampler import evaluation_share, share


class DecodedImages:
    """The images of a reader, decoded and as large as they are, with their labels."""

    def __init__(self, reader):
        self.reader = reader

    def batch(self, numbers):
        """(uint8 pixels, int64 labels): one array of batch × height × width × 3, or a list where sizes differ."""
        from parascale.data import jpeg  # libraries for images, which other tasks do without
        from parascale.data.crops import readable

        images = [readable(self.reader[i], partial(self.reader.where, i), jpeg.decode) for i in numbers]
        same = len({image.shape for image in images}) == 1
        return np.stack(images) if same else list(map(np.array, images)), np.array(
            [self.reader.labels.item(i) for i in numbers]
        )


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


class WholeBatches(Dataset):
    """Samples as a DataLoader's worker takes them: asked for the numbers of a batch, it gives the batch."""

    def __init__(self, samples):
        self.samples = samples

    def __getitem__(self, numbers):
        return self.samples.batch(numbers)


class PlannedBatches(IterableDataset):
    """All batches of a plan, or, in a worker, each of its turns: a worker that knows its plan can read ahead."""

    def __init__(self, samples, chosen):
        self.samples, self.chosen = samples, chosen

    def __iter__(self):
        worker = get_worker_info()
        chosen = islice(self.chosen, worker.id, None, worker.num_workers) if worker else self.chosen
        planned = getattr(self.samples, "batches", None)
        yield from planned(chosen) if planned else map(self.samples.batch, chosen)


def read_batches(samples, chosen, workers=0):
    """Yield a tuple of tensors, (*inputs, labels), for each array of sample numbers in `chosen`, in that order.

    samples: its `batch(numbers)` gives the arrays, as does `batches(chosen)` where there is one. workers: processes that read
    and decode ahead, by turns; each goes through all of `chosen`.
    """
    if workers == 0:
        yield from (tuple(map(torch.from_numpy, arrays)) for arrays in PlannedBatches(samples, chosen))
    else:
        yield from map(tuple, DataLoader(PlannedBatches(samples, chosen), batch_size=None, num_workers=workers))


class Feed:
    """The batches of a rank on its device, `count` parts a step. On a GPU a stream of its own copies them from pinned memory.

    parts: iterator over tuples of tensors on the CPU.
    """

    def __init__(self, parts, count, device):
        self.parts, self.count, self.device = parts, count, device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.ahead = None

    def take(self):
        """The parts of the next step."""
        step, self.ahead = self.ahead or self._read(), None
        if self.stream is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_stream(self.stream)
            for tensor in (tensor for part in step for tensor in part):
                tensor.record_stream(current)  # its memory may not be taken again before the step has used it
        return step

    def read_ahead(self):
        """Read and copy those of the step after, while a GPU computes the one that has been started."""
        if self.stream is not None:
            self.ahead = self._read()

    def _read(self):
        step = list(islice(self.parts, self.count))
        if self.stream is None:
            return step
        with torch.cuda.stream(self.stream):
            return [tuple(tensor.pin_memory().to(self.device, non_blocking=True) for tensor in part) for part in step]


def image_loader(reader, batches, workers=0, start_method=None):
    """A DataLoader of decoded images and their labels, as tensors (see DecodedImages).

    batches: StepBatches or EvaluationBatches. start_method: of the workers; `fork`, `spawn`, or the platform's default.
    """
    return DataLoader(
        WholeBatches(DecodedImages(reader)),
        batch_size=None,
        sampler=batches,
        num_workers=workers,
        multiprocessing_context=start_method if workers else None,
    )
