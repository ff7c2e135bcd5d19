"""The output layer of a language model, and a loss that never holds all logits at once.

The loss processes tokens in chunks. A chunk's logits yield its part of the loss and are overwritten by their gradient, from which its
part of the other gradients is computed at once, so no logits are kept (Hsu et al. 2024, arXiv:2410.10989, section 3.2).
Rows of logits are padded to a multiple of `ALIGNED` bytes; padding entries have probability 0.

Dimensions: N tokens, C tokens of a chunk, D width, V vocabulary entries on this rank, P the same with padding.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Partial

from parascale.families.sizes import chunk_tokens, padded, share


class Head(nn.Linear):
    """Hidden states (…, D) → logits (…, V). deferred: return the input unchanged, because the loss computes the logits.

    score: the function `score`, possibly compiled. copy: function that returns the half-precision copy of a parameter, if any.
    """

    deferred, copy = False, None

    def __init__(self, width, vocabulary):
        super().__init__(width, vocabulary, bias=False)
        self.score = score

    def forward(self, hidden):
        return hidden if self.deferred else super().forward(hidden)

    def summed_loss(self, hidden, labels, smoothing=0.0, divisor=1):
        """`summed_loss` of `parascale.evaluation` for hidden states (…, D) instead of logits, over `divisor`, a number or tensor."""
        weight_VD: Any
        weight_VD, first, group = self.weight if self.copy is None else self.copy(self.weight), 0, None
        if isinstance(hidden, DTensor):  # whole on each rank, while vocabulary and gradient are split
            group = weight_VD.device_mesh.get_group()
            first = share(self.out_features, group.size()) * group.rank()
            weight_VD, hidden = weight_VD.to_local(), hidden.to_local(grad_placements=[Partial()])
        wanted = torch.is_grad_enabled() and weight_VD.requires_grad
        rest = (self.score, first, self.out_features, smoothing, group, wanted, divisor)
        return _Loss.apply(hidden.flatten(0, -2), weight_VD, labels.flatten(), *rest)


class _Loss(torch.autograd.Function):
    """Computes the gradients together with the loss; each backward pass scales them.

    They include the division from the start: otherwise sums over tokens overflow in fp16, whatever the loss scale.
    """

    @staticmethod
    def forward(context, hidden_ND, weight_VD, labels_N, score, first, vocabulary, smoothing, group, wanted, divisor):
        entries, tokens, kind = len(weight_VD), len(hidden_ND), weight_VD.dtype
        matrix_PD, hidden_ND = _filled(weight_VD), hidden_ND.to(kind)
        exact = kind if kind.itemsize >= 4 else torch.float32
        step = chunk_tokens(tokens, len(matrix_PD))
        loss = torch.zeros((), dtype=exact, device=hidden_ND.device)
        weight = (torch.ones_like(loss) / divisor).to(exact)
        gradient_ND: Any = torch.empty_like(hidden_ND) if wanted else None
        gradient_PD = None
        for start in range(0, tokens, step):
            rows = slice(start, start + step)
            logits_CP = hidden_ND[rows] @ matrix_PD.T
            loss += score(logits_CP, labels_N[rows], first, entries, vocabulary, smoothing, group, weight)
            if wanted:
                torch.mm(logits_CP, matrix_PD, out=gradient_ND[rows])
                part_PD = logits_CP.T @ hidden_ND[rows]
                if gradient_PD is None:
                    gradient_PD = part_PD if step >= tokens else part_PD.to(exact)
                else:
                    gradient_PD += part_PD
            del logits_CP  # free them before the next chunk's are allocated
        if wanted:
            gradient_VD = torch.zeros_like(weight_VD) if gradient_PD is None else gradient_PD[:entries]
            context.save_for_backward(gradient_ND, gradient_VD)
            context.kind = weight_VD.dtype
        return loss / divisor

    @staticmethod
    def backward(context, scale):
        gradient_ND, gradient_VD = context.saved_tensors
        return gradient_ND * scale, (gradient_VD * scale).to(context.kind), *[None] * 8


def _filled(weight_VD):
    """Pad the matrix with rows of zeros to a multiple of ALIGNED bytes of logits; non-empty even if a rank has no entries."""
    entries, width = weight_VD.shape
    filled = padded(entries, weight_VD.itemsize)
    if filled == entries:
        return weight_VD
    matrix_PD = weight_VD.new_zeros(filled, width)
    matrix_PD[:entries] = weight_VD
    return matrix_PD


def score(logits_CP, labels_C, first, entries, vocabulary, smoothing, group, weight):
    """Return the summed loss of a chunk and overwrite its logits with their gradient. Negative labels are ignored.

    first: index of this rank's first entry in the whole `vocabulary`. group: the ranks that share the vocabulary, or None.
    weight: a tensor that multiplies the gradient before it is rounded.
    """
    counts_C1, places_C1 = (labels_C >= 0)[:, None], labels_C[:, None]
    here_C1 = counts_C1
    if group is not None:
        places_C1 = places_C1 - first
        here_C1 = counts_C1 & (places_C1 >= 0) & (places_C1 < entries)
    places_C1 = places_C1.clamp(0, max(0, entries - 1))
    if entries < logits_CP.shape[1]:
        logits_CP[:, entries:] = -torch.inf
    values_CP = logits_CP if logits_CP.itemsize >= 4 else logits_CP.float()
    highest_C1 = values_CP.amax(1, keepdim=True)
    if group is not None:
        dist.all_reduce(highest_C1, dist.ReduceOp.MAX, group)
    values_CP -= highest_C1
    target_C1 = values_CP.gather(1, places_C1).where(here_C1, 0.0)
    sums = [target_C1] + ([values_CP[:, :entries].sum(1, keepdim=True)] if smoothing else [])
    values_CP.exp_()
    sums.append(values_CP.sum(1, keepdim=True))
    if group is not None:
        together = torch.cat(sums, 1)
        dist.all_reduce(together, group=group)
        sums = together.split(1, dim=1)
    wanted_C1, *all_C1, total_C1 = sums
    loss_C1 = total_C1.log() - (1 - smoothing) * wanted_C1
    if smoothing:
        loss_C1 -= smoothing / vocabulary * all_C1[0]
    # The gradient: probabilities minus targets.
    weights_C1 = counts_C1 * weight
    values_CP *= weights_C1 / total_C1
    if smoothing:
        values_CP[:, :entries] -= weights_C1 * (smoothing / vocabulary)
    if values_CP is not logits_CP:
        logits_CP.copy_(values_CP)
    rows_C1 = torch.arange(len(labels_C), device=labels_C.device)[:, None]
    at_target_C1 = weight * (target_C1.exp() / total_C1 - (1 - smoothing) - smoothing / vocabulary)
    logits_CP[rows_C1, places_C1] = at_target_C1.to(logits_CP.dtype).where(here_C1, logits_CP.gather(1, places_C1))
    return (loss_C1 * counts_C1).sum()
