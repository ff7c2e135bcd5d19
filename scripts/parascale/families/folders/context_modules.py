"""Context parallelism (`parallel/context.py`) of models whose attention and masks go through the interfaces of `transformers`.

Instead of the kernel that the library chose, its layers then call NAME: it gives them their `mixed`, around which ranks exchange heads for
positions. Asked for a mask, NAME makes that of the whole window. Dimensions: B batch, H heads, T positions, E width of a head.
"""

import sys
from functools import partial

import torch

from parascale.errors import ConfigError

NAME = "of_all_positions"


def context_plan(network, prefix):
    """Name of submodule → role, of those that attend; each gets its `mixed`. prefix: of the names."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    plan, chosen = {}, network.config._attn_implementation
    for name, module in network.named_modules():
        if hasattr(module, "is_causal"):
            eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
            module.mixed = partial(_mixed, module, ALL_ATTENTION_FUNCTIONS.get_interface(chosen, eager))
            plan[prefix + name] = "exchanges"
    return plan


def take_parts(network, parts):
    """From now on `network` is given one of so many equal parts of the positions."""
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
    """What the library calls, by its names; takes and gives what its own kernels do."""
    if unknown := [name for name, each in more.items() if isinstance(each, torch.Tensor) and name != "position_ids"]:
        raise ConfigError(
            f"cp > 1: attention of `transformers` is given `{unknown[0]}`, of which nobody knows its part; take cp = 1"
        )
    return module.mixed(query, key, value, attention_mask, **more).transpose(1, 2).contiguous(), None


def _mixed(module, kernel, query_BHTE, key_BHTE, value_BHTE, mask, **more):
    """What each head makes of all positions, (B, H, T, E), by the library's kernel."""
    if hasattr(module, "num_key_value_groups"):  # of the heads that this rank has now
        module.num_key_value_groups = query_BHTE.shape[1] // key_BHTE.shape[1]
    return kernel(module, query_BHTE, key_BHTE, value_BHTE, mask, **more)[0].transpose(1, 2)


def _mask(make, parts, *, q_length, kv_length, **more):
    return make(q_length=parts * q_length, kv_length=parts * kv_length, **more)
