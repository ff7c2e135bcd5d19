"""The loss for training and evaluation, and sums over a whole split in which each target counts once."""

import itertools
import math
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import torch
import torch.nn.functional as F

from parascale.data.loader import Prefetcher, read_batches
from parascale.data.sampler import evaluation_share
from parascale.data.text import IGNORED
from parascale.errors import ConfigError

FORESIGHT = (
    "the model sees tokens that come later, which it has to predict, as an encoder does: give a class's attention a causal mask, and keep no state from call to call; in a "
    "folder's config.json set `is_decoder` = true, if its model has that"
)


def summed_loss(logits_BTV, labels_BT, label_smoothing=0.0):
    """Cross-entropy in nats, summed over targets, at least in fp32. Labels equal to IGNORED do not count.

    label_smoothing: fraction of each target that is spread evenly over all classes.
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
    """Number of samples, as a tensor, whose label is among the `count` most likely classes. Ties go to the first classes."""
    likeliest_Bn = logits_BK.topk(min(count, logits_BK.shape[-1])).indices
    return (likeliest_Bn == labels_B[:, None]).any(-1).sum()


@torch.no_grad()
def foresees(outputs: Callable, window: int, entries: int, device: torch.device | str, tolerance: float) -> bool:
    """True if a language model's outputs for earlier tokens depend on later tokens. False on a pipeline rank without the last stage.

    outputs: function from tokens (B, T) to numbers (B, T, …), or to None on such a rank. tolerance: smaller changes, relative to the largest
    change at later positions, are rounding: kernels that group tokens may sum in another order.
    All later tokens change to the same new token, which moves outputs that attend to them most. The last token is also changed alone.
    """
    first_BT = torch.arange(window, device=device).remainder(entries)[None]
    cut = window // 2 | 1  # odd, so that it is not at the border of a block of tokens
    first_BT[:, cut:] = 0
    before, moved = outputs(first_BT), []
    if not isinstance(before, torch.Tensor | None):
        said = f"(batch × time × {entries} entries of the vocabulary), not {type(before).__name__}"
        raise ConfigError(f"a language model's `forward` must return a tensor of logits {said}")
    for place in (cut, window - 1):
        changed_BT = first_BT.clone()
        changed_BT[:, place:] = entries - 1
        after = outputs(changed_BT)  # all ranks must take part in the forward pass
        if before is not None and before.shape[:-1].numel() == window:  # skip outputs for only some of the tokens
            kind = torch.promote_types(before.dtype, torch.float32)
            moved.append(torch.linalg.vector_norm(after - before, dim=-1, dtype=kind).flatten())
    if not moved:
        return False
    earlier = torch.maximum(moved[0][:cut].max(), moved[1][:-1].max())
    # False for NaN, which has its own error.
    return bool(earlier > tolerance * moved[0][cut:].max())


@torch.no_grad()
def split_sums(
    outputs, samples, rank, ranks, batch, device, metrics=(), workers=0, loss=summed_loss, between=lambda: None
):
    """Sums over this rank's share of a split: a float64 tensor (loss in nats, number of targets, *metrics).

    outputs: function from a batch's inputs to the input of `loss`, such as logits (…, V), or to None on a pipeline rank without
    the last stage. loss, metrics: functions (outputs, labels) → sum over the targets. workers: threads that decode ahead.
    between: called before each batch, on all ranks; an exception from it ends the evaluation.
    The sum of the results of all `ranks` with different samples is exact: no padding, no mean of means. All ranks make the same
    number of forward passes, because strategies communicate in them; a rank that has no samples left runs sample 0 and ignores
    the result.
    """
    share = evaluation_share(len(samples), rank, ranks)
    total = torch.zeros(2 + len(metrics), dtype=torch.float64, device=device)
    passes = math.ceil(math.ceil(len(samples) / ranks) / batch)
    parts_of_share = (share[number * batch : (number + 1) * batch] for number in range(passes))
    chosen, ahead = itertools.tee(np.array(part, dtype=np.int64) for part in parts_of_share)
    filled = (numbers if len(numbers) else np.zeros(1, dtype=np.int64) for numbers in ahead)
    feed = Prefetcher(read_batches(samples, filled, workers, device), 1, torch.device(device))
    for numbers in chosen:
        between()
        ((*inputs, labels),) = feed.take()
        # A shorter last batch would trigger another compilation.
        with torch.compiler.set_stance("force_eager") if len(numbers) < batch else nullcontext():
            sums = _batch_sums(outputs(*inputs), labels, (loss, *metrics))
        feed.read_ahead()
        if sums is not None and len(numbers):
            total += sums
    return total


def _batch_sums(outputs, labels, functions):
    """Sums of a batch, or None without outputs. A function, so that outputs are freed before the next batch."""
    if outputs is None:
        return None
    loss, *sums = (function(outputs, labels) for function in functions)
    sums = [loss, (labels >= 0).sum(), *sums]
    return torch.stack([value.double() for value in sums])
