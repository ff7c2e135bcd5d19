"""An encoder-decoder Transformer (Vaswani et al. 2017, arXiv:1706.03762): reads a document, writes its summary.

Dimensions: B batch, S document positions, T summary positions, D width, V vocabulary.
"""

from typing import ClassVar

from torch import nn

from parascale.families.dropout import Dropout
from parascale.families.head import Head
from parascale.families.language.modules import (
    Attention,
    Block,
    Embedding,
    TransformerLM,
    initialise_as_gpt2,
    make_norm,
)


class DecoderBlock(Block):
    """A causal block with cross-attention to the encoder's memory between self-attention and feed-forward layer."""

    def __init__(self, settings):
        super().__init__(settings)
        self.cross_attention_norm = make_norm(settings)
        self.cross_attention = Attention(settings, causal=False, across=True)
        self.cross_attention_dropout = Dropout(settings.dropout)

    def forward(self, hidden_BTD, memory_BSD, mask_BS):  # type: ignore[override] # also takes a document
        hidden_BTD = self.sublayer(hidden_BTD, "attention")
        hidden_BTD = self.sublayer(hidden_BTD, "cross_attention", memory_BSD=memory_BSD, mask_BS=mask_BS)
        return self.sublayer(hidden_BTD, "feed_forward")


class Stack(nn.Module):
    """One half of the model: embedding, blocks and, with `pre_norm`, a final norm."""

    def __init__(self, settings, vocabulary, window, make_block):
        super().__init__()
        self.embedding = Embedding(settings, vocabulary, window)
        self.blocks = nn.ModuleDict({str(index): make_block() for index in range(settings.layers)})
        self.norm = make_norm(settings) if settings.pre_norm else None

    def forward(self, tokens_BT, *others):
        """others: further arguments of each block."""
        hidden_BTD = self.embedding(tokens_BT)
        for block in self.blocks.values():
            hidden_BTD = block(hidden_BTD, *others)
        return hidden_BTD if self.norm is None else self.norm(hidden_BTD)


class EncoderDecoder(nn.Module):
    """Documents (B, S), their mask (B, S), and summaries shifted right by one (B, T) → logits (B, T, V).

    In the mask, True is a token and False is padding. Summaries need no mask: their padding comes last, where no token attends to it.
    """

    shard_units: ClassVar = ("encoder.blocks.*", "decoder.blocks.*")
    tensor_plan: ClassVar = {
        **{f"*.{pattern}": role for pattern, role in TransformerLM.tensor_plan.items() if pattern != "head"},
        "encoder": "gather_after",
        "head": "logits",
    }

    def __init__(self, settings, vocabulary, window, summary_window):
        super().__init__()
        self.layers = settings.layers
        self.encoder = Stack(settings, vocabulary, window, lambda: Block(settings, causal=False))
        self.decoder = Stack(settings, vocabulary, summary_window, lambda: DecoderBlock(settings))
        self.head = Head(settings.dim, vocabulary)
        if settings.tied:
            self.decoder.embedding.tokens.weight = self.encoder.embedding.tokens.weight
            self.head.weight = self.encoder.embedding.tokens.weight

    def forward(self, documents_BS, mask_BS, summaries_BT):
        return self.decode(summaries_BT, self.encode(documents_BS, mask_BS), mask_BS)

    def encode(self, documents_BS, mask_BS):
        """Encode documents; returns the memory (B, S, D)."""
        return self.encoder(documents_BS, mask_BS)

    def decode(self, summaries_BT, memory_BSD, mask_BS):
        """Logits (B, T, V) of the token that follows each position of a summary."""
        return self.head(self.decoder(summaries_BT, memory_BSD, mask_BS))

    def initialise_parameter(self, name, shard):
        initialise_as_gpt2(name, shard, (2 if name.startswith("encoder") else 3) * self.layers)
