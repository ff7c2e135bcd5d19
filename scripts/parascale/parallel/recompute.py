"""Activation checkpointing: the backward pass recomputes all or some of a block's activations instead of keeping them.

With `selective`, a block keeps the tensors that are expensive to compute and cheap to store:

- outputs of fused attention; explicit attention, as with dropout, is recomputed (Korthikanti et al. 2022, arXiv:2205.05198, section 5)
- reductions of tensor parallelism. Gathered tensors are `tp` times as large and are gathered again (same paper, section 4.2.2)
- every second matrix product: queries, values, and one side of the feed-forward layer (as torchtitan does, arXiv:2410.06511)

The result of the last product and everything after it is not kept: only a norm after it would read it again.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from parascale.parallel.precision import Copies

MATRICES = (nn.Linear, nn.Conv1d, nn.Conv2d)
PRODUCTS = (
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.convolution.default,
    torch.ops.aten._scaled_mm_v2.default,
)
DEAR = (
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.higher_order.flex_attention,
    torch.ops._c10d_functional.all_reduce.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
)


def recomputed(block: nn.Module, selective: bool, copies: Copies | None = None) -> Callable[..., Any]:
    """Return a replacement for the forward pass of `block`. copies: the `Copies` that the block computes with, if any.

    It must be our own function: `torch.compile` silently skips a partial of torch's.
    """
    forward = block.forward
    products = sum(isinstance(module, MATRICES) for module in block.modules()) if selective else 0

    def contexts() -> tuple[Any, Any]:
        traced = get_proxy_mode() is not None
        first, again = nullcontext(), nullcontext()
        if selective or traced:  # when tracing, the modes mark in the graph which tensors to keep
            first, again = create_selective_checkpoint_contexts(_keeping(products))
        # A compiled graph holds its copies; in eager recomputation they are gone and must be placed again.
        return first, again if copies is None or traced else _WithCopies(copies, block, again)

    vars(contexts)["cache_hash"] = f"{__name__} {products}"  # without it, `torch.compile` never hits its cache

    def recomputing(*inputs: Any, **keywords: Any) -> Any:
        return checkpoint(forward, *inputs, use_reentrant=False, context_fn=contexts, **keywords)

    return recomputing


def _keeping(products: int) -> Callable[..., CheckpointPolicy]:
    """The policy for a block with `products` matrix products."""
    seen: Counter[bool] = Counter()

    def policy(context: Any, operation: Any, *arguments: Any, **keywords: Any) -> CheckpointPolicy:
        """Called in the forward pass and, by some versions of torch, again in the recomputation."""
        seen[context.is_recompute] += operation in PRODUCTS
        number = seen[context.is_recompute]
        dear = operation in DEAR or (operation in PRODUCTS and number % 2 == 1)
        return CheckpointPolicy.MUST_SAVE if dear and number < products else CheckpointPolicy.PREFER_RECOMPUTE

    return policy


class _WithCopies:
    """A re-enterable context: places copies in a block, then enters `inner`."""

    def __init__(self, copies: Copies, block: nn.Module, inner: AbstractContextManager[Any]) -> None:
        self.copies, self.block, self.inner, self.stack = copies, block, inner, ExitStack()

    def __enter__(self) -> None:
        self.stack.enter_context(self.copies.placed(self.block))
        self.stack.enter_context(self.inner)

    def __exit__(self, *error: Any) -> bool | None:
        return self.stack.__exit__(*error)
