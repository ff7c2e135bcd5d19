"""Context parallelism (`parallel/context.py`) for models whose attention and masks go through the interfaces of `transformers`.

We register an attention kernel and a mask function under NAME. The kernel calls the layer's `mixed`, around which ranks exchange heads for
positions; the mask function makes the mask of the whole window. Dimensions: B batch, H heads, T positions, E head width.
"""

import sys
from functools import partial

import torch

from parascale.errors import ConfigError

NAME = "of_all_positions"


def context_plan(network, prefix):
    """Map the name of each attention module, with `prefix`, to its role, and give the module its `mixed`."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    plan, chosen = {}, network.config._attn_implementation
    for name, module in network.named_modules():
        if hasattr(module, "is_causal"):
            eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
            module.mixed = partial(_mixed, module, ALL_ATTENTION_FUNCTIONS.get_interface(chosen, eager))
            plan[prefix + name] = "exchanges"
    return plan


def take_parts(network, parts):
    """Make `network` expect one of `parts` equal parts of the positions. Later calls do nothing."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    chosen = network.config._attn_implementation
    if chosen == NAME:
        return
    ALL_ATTENTION_FUNCTIONS.register(NAME, _attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, partial(_mask, ALL_MASK_ATTENTION_FUNCTIONS[chosen], parts))
    for module in network.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = NAME


def _attend(module, query, key, value, attention_mask=None, **more):
    """Attention kernel with the signature, argument names and result that `transformers` expects."""
    if unknown := [name for name, each in more.items() if isinstance(each, torch.Tensor) and name != "position_ids"]:
        raise ConfigError(
            f"cp > 1: attention of `transformers` gets a tensor `{unknown[0]}` that we cannot split by position; take cp = 1"
        )
    return module.mixed(query, key, value, attention_mask, **more).transpose(1, 2).contiguous(), None


def _mixed(module, kernel, query_BHTE, key_BHTE, value_BHTE, mask, **more):
    """Attention over all positions by the library's kernel: (B, H, T, E)."""
    if hasattr(module, "num_key_value_groups"):  # for the heads that this rank has now
        module.num_key_value_groups = query_BHTE.shape[1] // key_BHTE.shape[1]
    return kernel(module, query_BHTE, key_BHTE, value_BHTE, mask, **more)[0].transpose(1, 2)


def _mask(make, parts, *, q_length, kv_length, **more):
    return make(q_length=parts * q_length, kv_length=parts * kv_length, **more)
