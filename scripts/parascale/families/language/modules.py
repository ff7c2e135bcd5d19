"""A decoder-only Transformer language model. The encoder-decoder uses the same parts.

Depending on the settings it is the original architecture, GPT-2 (learned positions, `gelu_tanh`, tied) or Llama (RMSNorm, rotary
positions, SwiGLU, grouped-query attention, no bias). Dimensions: B batch, T time, S time of another sequence, D width,
H heads, E head width, V vocabulary.
"""

import functools
import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from parascale.families.dropout import Dropout
from parascale.families.head import Head
from parascale.families.kind import PipelinePlan
from parascale.families.language.sizes import LEAST_FLEX

ROTARY_BASE = 10_000.0


class Attention(nn.Module):
    """Self-attention or, with `across`, cross-attention to another sequence, the memory.

    The number of heads follows from the projections' output, so a split projection uses its own heads.
    """

    def __init__(self, settings, causal=True, across=False):
        super().__init__()
        self.head_width = settings.dim // settings.heads
        self.causal = causal
        # Positions in two sequences have no distance, so cross-attention is not rotated.
        self.rotary = settings.position == "rotary" and not across
        self.dropout, self.same_masks = Dropout(settings.dropout), settings.dropout_masks == "same"
        kv_width = (settings.kv_heads or settings.heads) * self.head_width
        self.q = nn.Linear(settings.dim, settings.dim, bias=settings.bias)
        # Without rotation a key bias adds a constant to all scores of a query, which softmax cancels: its gradient
        # would be only rounding noise, which Adam would amplify differently in every layout.
        self.k = nn.Linear(settings.dim, kv_width, bias=settings.bias and self.rotary)
        self.v = nn.Linear(settings.dim, kv_width, bias=settings.bias)
        self.o = nn.Linear(settings.dim, settings.dim, bias=settings.bias)

    def forward(self, hidden_BTD, memory_BSD=None, mask_BS=None, documents=None):
        """memory_BSD: attend to this instead of `hidden_BTD`. mask_BS: True at tokens, False at padding.
        documents: result of `documents`, whose mask is already causal."""
        source_BSD = hidden_BTD if memory_BSD is None else memory_BSD
        q_BHTE = self._heads(self.q(hidden_BTD))
        k_BHSE, v_BHSE = (self._heads(project(source_BSD)) for project in (self.k, self.v))
        mask_B11S = None if mask_BS is None else mask_BS[:, None, None, :]
        return self.o(self.mixed(q_BHTE, k_BHSE, v_BHSE, *(documents or [mask_B11S])).transpose(1, 2).flatten(2))

    def mixed(self, q_BHTE, k_BHSE, v_BHSE, mask=None, places_B1T=None):
        """The part between the projections: attention over all positions, separately for each head."""
        if self.rotary:
            q_BHTE, k_BHSE = _rotate(q_BHTE, places_B1T), _rotate(k_BHSE, places_B1T)
        if mask is not None and not isinstance(mask, torch.Tensor):
            return _flex()(q_BHTE, k_BHSE, v_BHSE, block_mask=mask, enable_gqa=q_BHTE.shape[1] != k_BHSE.shape[1])
        probability = self.dropout.p if self.dropout.active else 0.0
        if probability and self.same_masks:
            return self._mixed_with_dropout(q_BHTE, k_BHSE, v_BHSE, mask)
        grouped = q_BHTE.shape[1] != k_BHSE.shape[1]
        if grouped and not _takes_groups(q_BHTE, mask):
            (k_BHSE, v_BHSE), grouped = _for_each_head(q_BHTE, k_BHSE, v_BHSE), False
        return F.scaled_dot_product_attention(
            q_BHTE, k_BHSE, v_BHSE, mask, probability, is_causal=self.causal and mask is None, enable_gqa=grouped
        )

    def _mixed_with_dropout(self, q_BHTE, k_BHSE, v_BHSE, mask):
        """Attention with explicit weights: torch's fused kernels draw their own masks, which other layouts cannot reproduce."""
        k_BHSE, v_BHSE = _for_each_head(q_BHTE, k_BHSE, v_BHSE)
        scores_BHTS = (q_BHTE / math.sqrt(self.head_width)) @ k_BHSE.mT
        if self.causal and mask is None:
            seen_TS = torch.ones(scores_BHTS.shape[2:], dtype=torch.bool, device=scores_BHTS.device).tril()
            scores_BHTS = scores_BHTS.where(seen_TS, -math.inf)
        if mask is not None:
            scores_BHTS = scores_BHTS.where(mask, -math.inf) if mask.dtype == torch.bool else scores_BHTS + mask
        scores_BHTS = scores_BHTS.softmax(-1)  # rebinding frees the scores before dropout allocates memory
        return self.dropout(scores_BHTS) @ v_BHSE

    def _heads(self, projected):
        return projected.unflatten(-1, (-1, self.head_width)).transpose(1, 2)


class FeedForward(nn.Module):
    """Two matrices with an activation between them, or three with a gate (SwiGLU, Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, settings):
        super().__init__()
        hidden = settings.hidden_width
        self.up = nn.Linear(settings.dim, hidden, bias=settings.bias)
        self.gate = nn.Linear(settings.dim, hidden, bias=settings.bias) if settings.activation == "swiglu" else None
        self.down = nn.Linear(hidden, settings.dim, bias=settings.bias)
        self.activation = {
            "gelu": F.gelu,
            "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
            "relu": F.relu,
            "swiglu": F.silu,
        }[settings.activation]

    def forward(self, hidden_BTD):
        if self.gate is None:
            return self.down(self.activation(self.up(hidden_BTD)))
        return self.down(self.activation(self.gate(hidden_BTD)) * self.up(hidden_BTD))


class Block(nn.Module):
    """Attention and feed-forward, each with a residual connection and a norm before (or after) it."""

    def __init__(self, settings, causal=True):
        super().__init__()
        self.pre_norm = settings.pre_norm
        self.attention_norm = make_norm(settings)
        self.attention = Attention(settings, causal)
        self.feed_forward_norm = make_norm(settings)
        self.feed_forward = FeedForward(settings)
        self.attention_dropout, self.feed_forward_dropout = Dropout(settings.dropout), Dropout(settings.dropout)

    def forward(self, hidden_BTD, mask_BT=None, documents=None):
        """mask_BT: True at tokens, False at padding; None: no padding."""
        hidden_BTD = self.sublayer(hidden_BTD, "attention", mask_BS=mask_BT, documents=documents)
        return self.sublayer(hidden_BTD, "feed_forward")

    def sublayer(self, hidden_BTD, name, **others):
        """Apply a layer with dropout, residual connection, and a norm before or after it.

        others: further arguments of the layer.
        """
        layer, norm, dropout = (getattr(self, f"{name}{part}") for part in ("", "_norm", "_dropout"))
        if self.pre_norm:
            return hidden_BTD + dropout(layer(norm(hidden_BTD), **others))
        return norm(hidden_BTD + dropout(layer(hidden_BTD, **others)))


class Embedding(nn.Module):
    """Token vectors plus positions, unless positions are rotary. part: which of equal parts of the positions this rank has."""

    def __init__(self, settings, vocabulary, window):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, settings.dim)
        self.positions = nn.Embedding(window, settings.dim) if settings.position == "learned" else None
        self.sinusoidal = settings.position == "sinusoidal"
        self.dropout = Dropout(settings.dropout)
        self.part = 0

    def forward(self, tokens_BT, starts_BT=None):
        hidden_BTD, time = self.tokens(tokens_BT), tokens_BT.shape[1]
        first = self.part * time
        places = torch.arange(first, first + time, device=tokens_BT.device)
        if starts_BT is not None:
            places = places - starts_BT[:, first : first + time]
        if self.positions is not None:
            hidden_BTD = hidden_BTD + self.positions(places)
        if self.sinusoidal:
            hidden_BTD = hidden_BTD * math.sqrt(hidden_BTD.shape[-1]) + _sinusoids(hidden_BTD, places)
        return self.dropout(hidden_BTD)


class TransformerLM(nn.Module):
    """Tokens (B, T) → logits (B, T, V). A pipeline stage is the same module with some of its parts set to None.

    `starts_BT`, the first position of each token's document, for all positions, keeps packed documents separate.
    """

    shard_units: ClassVar = ("blocks.*",)
    tensor_plan: ClassVar = {
        "embedding": "split_sequence_after",
        "embedding.tokens": "vocabulary",
        "embedding.positions": "whole",
        "blocks.*.*attention": "gather_before",  # with a wildcard because EncoderDecoder reuses this plan and its decoder has two
        "blocks.*.*attention.[qkv]": "columns",
        "blocks.*.*attention.o": "rows",
        "blocks.*.*attention.dropout": "drops_of_heads",
        "blocks.*.*_dropout": "drops_of_sequence",
        "blocks.*.feed_forward": "gather_before",
        "blocks.*.feed_forward.up": "columns",
        "blocks.*.feed_forward.gate": "columns",
        "blocks.*.feed_forward.down": "rows",
        "blocks.*.*_norm": "on_sequence",
        "norm": "on_sequence",
        "head": "logits",
    }
    context_plan: ClassVar = {
        "embedding": "positions",
        "embedding.dropout": "drops_of_positions",
        "blocks.*.attention": "exchanges",
        "blocks.*.attention.dropout": "drops_of_heads",
        "blocks.*.*_dropout": "drops_of_positions",
    }
    pipeline_plan: ClassVar = PipelinePlan(first=("embedding",), blocks="blocks", last=("norm", "head"))

    def __init__(self, settings, vocabulary, window):
        super().__init__()
        self.layers, self.window, self.dropout = settings.layers, window, settings.dropout
        self.dense = settings.head_width < LEAST_FLEX
        self.embedding = Embedding(settings, vocabulary, window)
        self.blocks = nn.ModuleDict({str(index): Block(settings) for index in range(settings.layers)})
        self.norm = make_norm(settings) if settings.pre_norm else None
        self.head = Head(settings.dim, vocabulary)
        if settings.tied:
            self.head.weight = self.embedding.tokens.weight

    def forward(self, tokens_or_hidden, starts_BT=None):
        hidden_BTD = tokens_or_hidden if self.embedding is None else self.embedding(tokens_or_hidden, starts_BT)
        packed = {}
        if starts_BT is not None:
            packed["documents"] = documents(starts_BT, hidden_BTD, self.dense or (self.training and self.dropout > 0))
        for block in self.blocks.values():
            hidden_BTD = block(hidden_BTD, **packed)
        if self.norm is not None:
            hidden_BTD = self.norm(hidden_BTD)
        return hidden_BTD if self.head is None else self.head(hidden_BTD)

    def initialise_parameter(self, name, shard):
        initialise_as_gpt2(name, shard, 2 * self.layers)


def initialise_as_gpt2(name, shard, sublayers):
    """Initialise a parameter: normal(0, 0.02), divided by √sublayers if it adds to the residual stream (Radford et al. 2019)."""
    if name.endswith("bias"):
        shard.fill_(0.0)
    elif "norm" in name:
        shard.fill_(1.0)
    else:
        into_residual = name.endswith(("attention.o.weight", "feed_forward.down.weight"))
        shard.normal_(0.02 / math.sqrt(sublayers) if into_residual else 0.02)


def make_norm(settings):
    """LayerNorm or RMSNorm over the width, depending on the settings."""
    if settings.norm == "rms":
        return nn.RMSNorm(settings.dim, eps=settings.norm_eps)
    return nn.LayerNorm(settings.dim, eps=settings.norm_eps, bias=settings.bias)


def documents(starts_BT, hidden, dense):
    """(mask, places (B, 1, T)) for documents packed end to end: each attends only to itself and counts positions from its start.

    starts_BT: the first position of each token's document. hidden: a tensor of the device and type that attention computes with.
    dense: return an additive mask (B, 1, T, T), as on CPUs and in fp64; otherwise, on GPUs, a BlockMask, whose empty blocks the kernel
    skips.
    """
    samples, time = starts_BT.shape
    order_T = torch.arange(time, device=starts_BT.device)
    places_B1T = (order_T - starts_BT)[:, None]
    if hidden.is_cuda and hidden.itemsize < 8 and not dense:
        return block_mask(starts_BT), places_B1T
    seen_BTT = (order_T >= starts_BT[:, :, None]) & (order_T <= order_T[:, None])
    unseen = torch.full((samples, 1, time, time), -math.inf, dtype=hidden.dtype, device=hidden.device)
    return unseen.masked_fill_(seen_BTT[:, None], 0.0), places_B1T


def block_mask(starts_BT, make=None):
    """The same mask as a BlockMask of `flex_attention`. make: torch's `create_block_mask`; the compiled default allocates no dense mask."""

    def seen(sample, head, query, key):
        return (key >= starts_BT[sample, query]) & (key <= query)

    return (make or _flex("create_block_mask"))(seen, len(starts_BT), None, *2 * [starts_BT.shape[1]], starts_BT.device)


@functools.cache
def _flex(name="flex_attention"):
    """A compiled function from torch's flex_attention module: uncompiled it would compute all scores."""
    from torch.nn.attention import flex_attention  # rarely needed

    compiled = torch.compile(getattr(flex_attention, name), dynamic=False)

    def called(*given, **named):
        if torch.compiler.is_compiling():
            return compiled(*given, **named)
        with torch.compiler.set_stance("default"):  # short batches and a pipeline's first step are otherwise eager
            return compiled(*given, **named)

    return called


def _takes_groups(q_BHTE, mask):
    """True if torch (2.13) has fused attention for grouped heads: on GPUs only in half precision and without a mask."""
    return not q_BHTE.is_cuda or (q_BHTE.itemsize <= 2 and mask is None)


def _for_each_head(q_BHTE, *grouped):
    """Repeat grouped keys and values for each query head."""
    return (x.repeat_interleave(q_BHTE.shape[1] // x.shape[1], dim=1) for x in grouped)


def _rotate(x_BHTE, places_B1T=None):
    """Rotary positions (Su et al. 2021, arXiv:2104.09864), with halves paired as in Llama's weights in `transformers`."""
    time, width = x_BHTE.shape[-2:]
    exponents = torch.arange(0, width, 2, device=x_BHTE.device, dtype=torch.float32) / width
    angles_TE = torch.outer(torch.arange(time, device=x_BHTE.device, dtype=torch.float32), ROTARY_BASE**-exponents)
    cos, sin = (part.repeat(1, 2).to(x_BHTE.dtype) for part in (angles_TE.cos(), angles_TE.sin()))
    if places_B1T is not None:
        cos, sin = cos[places_B1T], sin[places_B1T]
    first, second = x_BHTE.chunk(2, dim=-1)
    return x_BHTE * cos + torch.cat((-second, first), dim=-1) * sin


def _sinusoids(hidden_BTD, places):
    """Sinusoidal positions (Vaswani et al. 2017, arXiv:1706.03762, section 3.5): (T, D) or (B, T, D) for `places` (T) or (B, T)."""
    width = hidden_BTD.shape[2]
    exponents = torch.arange(0, width, 2, device=hidden_BTD.device, dtype=torch.float32) / width
    angles = places.float()[..., None] * 10_000.0**-exponents
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[..., :width].to(hidden_BTD.dtype)
