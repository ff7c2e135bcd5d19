"""A pretrained summariser, T5 or BART, from a folder in Hugging Face's format, for fine-tuning.

The architecture is that of the library `transformers`. The weights come from the folder's safetensors, one tensor at a time, and are
reordered to the token numbers of the prepared data (parascale.pretrained). Rows beyond the tokenizer's vocabulary, which no text uses
(T5 has 28 of them), are left out. Dimensions: B batch, S document positions, T summary positions, D width, V vocabulary.
"""

import functools
import re
from typing import ClassVar

import torch
from torch import nn

from parascale.errors import DataError
from parascale.families.dropout import Dropout
from parascale.families.foreign import StoredWeights, taken, theirs_of
from parascale.pretrained import CONFIG, Pretrained

# `model_type` of a folder → name endings of the modules with dropout on their output, and of attention with dropout on its weights.
ARCHITECTURES = {
    "t5": (r"embed_tokens|final_layer_norm|Attention\.o|DenseReluDense\.(dropout|wo)", r"Attention"),
    "bart": (r"layernorm_embedding|_attn\.out_proj|fc2", r"_attn"),
}
ATTENTION = "parascale"  # the name under which `transformers` knows `_attention`
# Name ending → the vocabulary axis.
VOCABULARY_AXES = {"shared.weight": 0, "embed_tokens.weight": 0, "lm_head.weight": 0, "final_logits_bias": 1}
PREFIX = "network."


class PretrainedSummariser(nn.Module):
    """Documents (B, S), their mask (B, S), and summaries shifted right by one (B, T) → logits (B, T, V), like EncoderDecoder.

    settings: a config Model of kind `pretrained`. The constructor reads no weights. Raises DataError if the folder is incomplete
    or has another architecture, ConfigError if samples are longer than its positions, and RequirementError if `transformers`
    is not installed.
    """

    shard_units: ClassVar = (
        "network.encoder.block.*",  # T5
        "network.decoder.block.*",
        "network.model.encoder.layers.*",  # BART
        "network.model.decoder.layers.*",
    )

    def __init__(self, settings, vocabulary, window, summary_window):
        super().__init__()
        self._pretrained = Pretrained(settings.pretrained)
        if len(self._pretrained.order) != vocabulary:
            raise DataError(
                f"{self._pretrained.folder}: its tokenizer has {len(self._pretrained.order):,} entries, but the data was prepared "
                f"with {vocabulary:,}; make the data again with the target `data`"
            )
        self.network = _network(self._pretrained, settings.dropout, max(window, summary_window))
        self._first = self.network.config.decoder_start_token_id
        self._stored = StoredWeights(self._pretrained, self.network)
        self.check_weights = self._stored.check

    def forward(self, documents_BS, mask_BS, summaries_BT):
        return self.decode(summaries_BT, self.encode(documents_BS, mask_BS), mask_BS)

    def encode(self, documents_BS, mask_BS):
        """Encode documents; returns the memory (B, S, D)."""
        return self.network.get_encoder()(input_ids=documents_BS, attention_mask=mask_BS.long()).last_hidden_state

    def decode(self, summaries_BT, memory_BSD, mask_BS):
        """Logits (B, T, V) of the token after each position of a summary. Its first token becomes this architecture's start token."""
        first_B1 = torch.full_like(summaries_BT[:, :1], self._first)
        found = self.network(
            encoder_outputs=(memory_BSD,),
            attention_mask=mask_BS.long(),
            decoder_input_ids=torch.cat([first_B1, summaries_BT[:, 1:]], dim=1),
            use_cache=False,
        )
        return found.logits

    def initialise_parameter(self, name, shard):
        """Fill this rank's part of a parameter or buffer from the folder, without random numbers. Raises DataError if it does not fit."""
        name = name.removeprefix(PREFIX)
        stored = self._stored.tensor(name)
        if stored is None and name == "final_logits_bias":  # BART's is zero, and not every folder stores it
            shard.fill_(0.0)
            return
        axis = next((axis for ending, axis in VOCABULARY_AXES.items() if name.endswith(ending)), None)
        if stored is not None and axis is not None:
            order = torch.tensor(self._pretrained.order, device="cpu")
            if stored.shape[axis] < len(order):
                raise DataError(
                    f"{self._pretrained.folder}: `{name}` has {stored.shape[axis]:,} entries, but its tokenizer {len(order):,}"
                )
            stored = stored.index_select(axis, order)
        self._stored.fill(name, shard, stored)


def _network(pretrained, dropout, places):
    """Build a folder's `transformers` model with our token numbers and random weights."""
    kind = pretrained.config.get("model_type")
    if kind not in ARCHITECTURES:
        raise DataError(
            f"{pretrained.folder / CONFIG}: `model_type` = {kind} cannot be fine-tuned here. Allowed: {', '.join(ARCHITECTURES)}"
        )
    theirs = _config(pretrained, places)
    from transformers import AutoModelForSeq2SeqLM  # slow to import, and only this kind needs it
    from transformers.models.t5.modeling_t5 import T5LayerNorm

    network = taken(pretrained, "build", AutoModelForSeq2SeqLM.from_config, theirs, dtype=torch.float32)
    for module in network.modules():
        if type(module) is T5LayerNorm:
            module.forward = functools.partial(_rms_norm, module)
    if dropout:
        _add_dropout(network, dropout, *ARCHITECTURES[kind])
    if not getattr(theirs, "scale_decoder_outputs", True):
        # T5 1.1 and Flan-T5 have an untied output layer, which the class only notices while reading weights.
        network.lm_head.weight = nn.Parameter(torch.empty_like(network.lm_head.weight))
    return network


def _rms_norm(norm, hidden_BTD):
    """T5's norm. The library's computes the mean square in fp32 even for fp64 inputs; here they stay in fp64."""
    squares_BTD = hidden_BTD.to(torch.promote_types(hidden_BTD.dtype, torch.float32)).pow(2)
    scaled_BTD = hidden_BTD * torch.rsqrt(squares_BTD.mean(-1, keepdim=True) + norm.variance_epsilon)
    if norm.weight.dtype in (torch.float16, torch.bfloat16):
        scaled_BTD = scaled_BTD.to(norm.weight.dtype)
    return norm.weight * scaled_BTD


def _add_dropout(network, probability, dropped, attentions):
    """Apply our `Dropout` where the library applies dropout.

    dropped, attentions: name endings of modules with dropout on their output, and of attention modules.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionInterface.register(ATTENTION, functools.partial(_attention, AttentionInterface()["sdpa"]))
    AttentionMaskInterface.register(ATTENTION, eager_mask)  # masks that are added to the scores
    network.set_attn_implementation(ATTENTION)
    for name, module in list(network.named_modules()):
        if re.search(rf"({dropped}|{attentions})$", name):
            module.drops = Dropout(probability)
        if re.search(rf"({dropped})$", name):
            module.register_forward_hook(lambda module, _, output: module.drops(output))


def _attention(fused, module, query_BHTE, key_BHSE, value_BHSE, mask, scaling, position_bias=None, **others):
    """Attention with the signature of `transformers`: explicit if its weights have dropout, otherwise `fused`."""
    if not module.drops.active:
        return fused(module, query_BHTE, key_BHSE, value_BHSE, mask, scaling=scaling, position_bias=position_bias)
    scores_BHTS = query_BHTE @ key_BHSE.transpose(2, 3) * scaling
    for added in (position_bias, mask):
        if added is not None:
            scores_BHTS = scores_BHTS + added
    mixed_BHTE = module.drops(scores_BHTS.softmax(-1)) @ value_BHSE
    return mixed_BHTE.transpose(1, 2).contiguous(), None


def _config(pretrained, places):
    """The folder's config with our token numbers."""
    theirs, order = theirs_of(pretrained, places), pretrained.order
    ids = {key: getattr(theirs, key, None) for key in ("pad_token_id", "eos_token_id", "decoder_start_token_id")}
    if ids["decoder_start_token_id"] is None:
        ids["decoder_start_token_id"] = ids["pad_token_id"]  # T5's start token; BART's folders name theirs
    for key, number in ids.items():
        if number not in order:
            raise DataError(f"{pretrained.folder / CONFIG}: `{key}` = {number} is not an entry of its tokenizer")
        setattr(theirs, key, order.index(number))
    theirs.vocab_size, theirs.use_cache = len(order), False
    return theirs
