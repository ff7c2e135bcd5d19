"""Recomputation: the backward pass makes a block's activations again, all or selectively, instead of finding them kept.

Selectively, a block keeps what is dear to make and cheap to keep:

- what fused attention gives; explicit attention, as with dropout, is made again (Korthikanti et al. 2022, arXiv:2205.05198, section 5)
- what tensor parallelism adds up. What it gathers is `tp` times as large, and gathered again (the same, section 4.2.2)
- every second product with a matrix: queries, values, and one side of the feed-forward layer (as torchtitan does, arXiv:2410.06511)

The result of its last product, and what follows, is not kept: only a norm behind it would read that again.
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
    """The forward pass of `block`, to take its place. copies: the `Copies` that the block computes with, if any.

    A function of ours: a partial of torch's own is skipped by `torch.compile`, silently.
    """
    forward = block.forward
    products = sum(isinstance(module, MATRICES) for module in block.modules()) if selective else 0

    def contexts() -> tuple[Any, Any]:
        traced = get_proxy_mode() is not None
        first, again = nullcontext(), nullcontext()
        if selective or traced:  # the modes tell a graph what to keep; without a product there is nothing to tell
            first, again = create_selective_checkpoint_contexts(_keeping(products))
        # A graph holds the copies that it was given; where Python computes again, those of the part are gone.
        return first, again if copies is None or traced else _WithCopies(copies, block, again)

    vars(contexts)["cache_hash"] = (
        f"{__name__} {products}"  # or nothing that `torch.compile` made is found again in its cache
    )

    def recomputing(*inputs: Any, **keywords: Any) -> Any:
        return checkpoint(forward, *inputs, use_reentrant=False, context_fn=contexts, **keywords)

    return recomputing


def _keeping(products: int) -> Callable[..., CheckpointPolicy]:
    """The policy of a block with so many products."""
    seen: Counter[bool] = Counter()

    def policy(context: Any, operation: Any, *arguments: Any, **keywords: Any) -> CheckpointPolicy:
        """It is asked in the forward pass, and by some versions of torch when that is computed again."""
        seen[context.is_recompute] += operation in PRODUCTS
        number = seen[context.is_recompute]
        dear = operation in DEAR or (operation in PRODUCTS and number % 2 == 1)
        return CheckpointPolicy.MUST_SAVE if dear and number < products else CheckpointPolicy.PREFER_RECOMPUTE

    return policy


class _WithCopies:
    """Copies in the places of a block's parameters, and within that another context; as often as it is entered."""

    def __init__(self, copies: Copies, block: nn.Module, inner: AbstractContextManager[Any]) -> None:
        self.copies, self.block, self.inner, self.stack = copies, block, inner, ExitStack()

    def __enter__(self) -> None:
        self.stack.enter_context(self.copies.placed(self.block))
        self.stack.enter_context(self.inner)

    def __exit__(self, *error: Any) -> bool | None:
        return self.stack.__exit__(*error)
