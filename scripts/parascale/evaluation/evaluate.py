"""The loss that training and evaluation share, and sums over a whole split in which each target counts once."""

import itertools
import math
from contextlib import nullcontext

import numpy as np
import torch
import torch.nn.functional as F

from parascale.data.loader import Feed, read_batches
from parascale.data.sampler import evaluation_share
from parascale.data.text import IGNORED


def summed_loss(logits_BTV, labels_BT, label_smoothing=0.0):
    """Cross-entropy in nats, summed over the targets; labels that are IGNORED do not count. Never below fp32.

    label_smoothing: part of each target that is spread evenly over all classes.
    """
    if logits_BTV.itemsize < 4:
        logits_BTV = logits_BTV.float()
    return F.cross_entropy(
        logits_BTV.flatten(0, -2),
        labels_BT.flatten(),
        reduction="sum",
        ignore_index=IGNORED,
        label_smoothing=label_smoothing,
    )


def correct_within(logits_BK, labels_B, count):
    """The number of samples whose label is among the `count` likeliest classes, as a tensor. Of equals the first ones count."""
    likeliest_Bn = logits_BK.topk(min(count, logits_BK.shape[-1])).indices
    return (likeliest_Bn == labels_B[:, None]).any(-1).sum()


@torch.no_grad()
def split_sums(
    outputs, samples, rank, ranks, batch, device, metrics=(), workers=0, loss=summed_loss, between=lambda: None
):
    """This rank's sums over its share of a split: (loss in nats, number of targets, then each of `metrics`), a float64 tensor.

    outputs: function from a sample's inputs to what `loss` takes, such as logits (…, V), or to None on a pipeline rank without
    the last stage. loss, metrics: functions (outputs, labels) → summed over the targets. workers: threads that decode ahead.
    between: called before each batch, by all ranks alike; what it raises ends the evaluation.
    Summed over the `ranks` that see different samples, the result is exact: no padding, no mean of means. All ranks make
    the same number of forward passes, because strategies communicate in them; a rank that runs out of samples repeats
    its first ones with labels that do not count.
    """
    share = evaluation_share(len(samples), rank, ranks)
    total = torch.zeros(2 + len(metrics), dtype=torch.float64, device=device)
    passes = math.ceil(math.ceil(len(samples) / ranks) / batch)
    parts_of_share = (share[number * batch : (number + 1) * batch] for number in range(passes))
    chosen, ahead = itertools.tee(np.array(part, dtype=np.int64) for part in parts_of_share)
    filled = (numbers if len(numbers) else np.zeros(1, dtype=np.int64) for numbers in ahead)
    feed = Feed(read_batches(samples, filled, workers, device), 1, torch.device(device))
    for numbers in chosen:
        between()
        ((*inputs, labels),) = feed.take()
        # Of the last batch's size there would be more graphs, for a single batch.
        with torch.compiler.set_stance("force_eager") if len(numbers) < batch else nullcontext():
            sums = _batch_sums(outputs(*inputs), labels, (loss, *metrics))
        feed.read_ahead()
        if sums is not None and len(numbers):
            total += sums
    return total


def _batch_sums(outputs, labels, functions):
    """What a batch adds to the total, or None without outputs: those are gone when the next batch's are made."""
    if outputs is None:
        return None
    loss, *sums = (function(outputs, labels) for function in functions)
    sums = [loss, (labels >= 0).sum(), *sums]
    return torch.stack([value.double() for value in sums])
