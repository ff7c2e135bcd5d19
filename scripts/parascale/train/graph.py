"""What a model computes, from its graph on tensors without data, of which the largest takes no memory."""

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from parascale.evaluation.evaluate import summed_loss
from parascale.evaluation.task import empty_batch
from parascale.families.build import build_model

SAMPLES = 2


class _Types(TorchFunctionMode):
    """The types of all results through which gradients flow."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        self.seen |= {
            each.dtype for each in tree_leaves(result) if isinstance(each, torch.Tensor) and each.requires_grad
        }
        return result


def narrowest_type(workload, outputs):
    """fp32 if gradients pass through it, or through less, where a model computes in fp64; else fp64.

    Several models of `transformers` convert what enters a norm to fp32, whatever they are told to compute in.
    """
    with torch.device("meta"):
        model = build_model(workload.model, outputs, *workload.sizes).double()
    *inputs, labels = (torch.from_numpy(each).to("meta") for each in empty_batch(workload, SAMPLES))
    with _Types() as types:
        summed_loss(model(*inputs), labels)
    return "fp32" if min(kind.itemsize for kind in types.seen) < 8 else "fp64"
