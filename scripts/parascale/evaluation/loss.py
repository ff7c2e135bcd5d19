"""The loss that training and evaluation share."""

import torch
import torch.nn.functional as F
from torch.distributed.tensor import DTensor

from parascale.data.text import IGNORED


def summed_loss(logits_BTV, labels_BT, label_smoothing=0.0):
    """Cross-entropy in nats, summed over the targets; labels that are IGNORED do not count. Never below fp32.

    label_smoothing: part of each target that is spread evenly over all classes.
    """
    if logits_BTV.dtype == torch.bfloat16:
        logits_BTV = logits_BTV.float()
    loss = F.cross_entropy(
        logits_BTV.flatten(0, -2),
        labels_BT.flatten(),
        reduction="sum",
        ignore_index=IGNORED,
        label_smoothing=label_smoothing,
    )
    return loss.to_local() if isinstance(loss, DTensor) else loss
