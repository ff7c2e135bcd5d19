"""Mean loss over a whole split, each target token counted once."""

import math

import numpy as np
import torch

from parascale.data.sampler import evaluation_share
from parascale.evaluation.loss import summed_loss


@torch.no_grad()
def split_loss(logits, windows, rank, ranks, batch, device):
    """This rank's (summed loss in nats, number of target tokens) over its share of a split, as a float64 tensor of two.

    logits: function from inputs (B, T) to logits (B, T, V), or to None on a pipeline rank without the last stage.
    Summed over the `ranks` that see different samples, the result is exact: no padding, no mean of means. All ranks make
    the same number of forward passes, because strategies communicate in them; a rank that runs out of samples repeats
    its first ones with labels that do not count.
    """
    share = evaluation_share(len(windows), rank, ranks)
    total = torch.zeros(2, dtype=torch.float64, device=device)
    passes = math.ceil(math.ceil(len(windows) / ranks) / batch)
    for number in range(passes):
        chosen = share[number * batch : (number + 1) * batch]
        counts = len(chosen) > 0
        inputs, labels = windows.batch(chosen if counts else np.zeros(1, dtype=np.int64))
        output = logits(torch.from_numpy(inputs).to(device))
        if output is not None and counts:
            labels = torch.from_numpy(labels).to(device)
            total += torch.stack([summed_loss(output, labels).double(), (labels >= 0).sum().double()])
    return total
