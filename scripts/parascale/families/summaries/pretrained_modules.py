"""A summariser that was trained elsewhere, T5 or BART, from a folder in Hugging Face's form: what fine-tuning begins from.

The architecture is that of the library `transformers`; the weights come from the folder's safetensors, a tensor at a time, in
the numbers of the prepared data (parascale.pretrained). Rows beyond the tokenizer's vocabulary, which no text reaches
(T5 has 28 of them), are left out. Dimensions: B batch, S places of a document, T places of a summary, D width, V vocabulary.
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

# `model_type` of a folder → how the names of its modules end: those whose output is dropped, and attention, whose weights are.
ARCHITECTURES = {
    "t5": (r"embed_tokens|final_layer_norm|Attention\.o|DenseReluDense\.(dropout|wo)", r"Attention"),
    "bart": (r"layernorm_embedding|_attn\.out_proj|fc2", r"_attn"),
}
ATTENTION = "parascale"  # the name of `_attention` there
# How names end → the axis of the vocabulary.
VOCABULARY_AXES = {"shared.weight": 0, "embed_tokens.weight": 0, "lm_head.weight": 0, "final_logits_bias": 1}
PREFIX = "network."


class PretrainedSummariser(nn.Module):
    """Documents (B, S), their mask (B, S), and summaries one place late (B, T) → logits (B, T, V), as EncoderDecoder.

    settings: a config Model of kind `pretrained`. Made without reading weights. Raises DataError for a folder that is
    incomplete or of another architecture, ConfigError for samples longer than its positions, and RequirementError where
    `transformers` is not installed.
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
        """The memory (B, S, D) of documents."""
        return self.network.get_encoder()(input_ids=documents_BS, attention_mask=mask_BS.long()).last_hidden_state

    def decode(self, summaries_BT, memory_BSD, mask_BS):
        """Logits (B, T, V) of what follows each place of a summary, whose first is the mark that this architecture begins with."""
        first_B1 = torch.full_like(summaries_BT[:, :1], self._first)
        found = self.network(
            encoder_outputs=(memory_BSD,),
            attention_mask=mask_BS.long(),
            decoder_input_ids=torch.cat([first_B1, summaries_BT[:, 1:]], dim=1),
            use_cache=False,
        )
        return found.logits

    def initialise_parameter(self, name, shard):
        """Fill this rank's part of a parameter or buffer from the folder; nothing is drawn. Raises DataError where it does not fit."""
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
    """The module of `transformers` that a folder describes, in our numbers, its weights whatever the constructor draws."""
    kind = pretrained.config.get("model_type")
    if kind not in ARCHITECTURES:
        raise DataError(
            f"{pretrained.folder / CONFIG}: `model_type` = {kind} cannot be fine-tuned here. Allowed: {', '.join(ARCHITECTURES)}"
        )
    theirs = _config(pretrained, places)
    from transformers import AutoModelForSeq2SeqLM  # slow to load, and needed for this kind alone
    from transformers.models.t5.modeling_t5 import T5LayerNorm

    network = taken(pretrained, "build", AutoModelForSeq2SeqLM.from_config, theirs, dtype=torch.float32)
    for module in network.modules():
        if type(module) is T5LayerNorm:
            module.forward = functools.partial(_rms_norm, module)
    if dropout:
        _add_dropout(network, dropout, *ARCHITECTURES[kind])
    if not getattr(theirs, "scale_decoder_outputs", True):
        # T5 1.1 and Flan-T5 have an output layer of their own, which the class finds out only while it reads weights.
        network.lm_head.weight = nn.Parameter(torch.empty_like(network.lm_head.weight))
    return network


def _rms_norm(norm, hidden_BTD):
    """T5's norm as the library has it, which takes the mean square in fp32 even of numbers in fp64: these stay what they are."""
    squares_BTD = hidden_BTD.to(torch.promote_types(hidden_BTD.dtype, torch.float32)).pow(2)
    scaled_BTD = hidden_BTD * torch.rsqrt(squares_BTD.mean(-1, keepdim=True) + norm.variance_epsilon)
    if norm.weight.dtype in (torch.float16, torch.bfloat16):
        scaled_BTD = scaled_BTD.to(norm.weight.dtype)
    return norm.weight * scaled_BTD


def _add_dropout(network, probability, dropped, attentions):
    """Drop, with the masks of our `Dropout`, where the library would.

    dropped, attentions: patterns of how names end, of modules whose output is dropped, and of attention modules.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionInterface.register(ATTENTION, functools.partial(_attention, AttentionInterface()["sdpa"]))
    AttentionMaskInterface.register(ATTENTION, eager_mask)  # numbers to add to scores
    network.set_attn_implementation(ATTENTION)
    for name, module in list(network.named_modules()):
        if re.search(rf"({dropped}|{attentions})$", name):
            module.drops = Dropout(probability)
        if re.search(rf"({dropped})$", name):
            module.register_forward_hook(lambda module, _, output: module.drops(output))


def _attention(fused, module, query_BHTE, key_BHSE, value_BHSE, mask, scaling, position_bias=None, **others):
    """Attention as `transformers` calls it. Where its weights are dropped, it is explicit; else `fused`."""
    if not module.drops.active:
        return fused(module, query_BHTE, key_BHSE, value_BHSE, mask, scaling=scaling, position_bias=position_bias)
    scores_BHTS = query_BHTE @ key_BHSE.transpose(2, 3) * scaling
    for added in (position_bias, mask):
        if added is not None:
            scores_BHTS = scores_BHTS + added
    mixed_BHTE = module.drops(scores_BHTS.softmax(-1)) @ value_BHSE
    return mixed_BHTE.transpose(1, 2).contiguous(), None


def _config(pretrained, places):
    """The config that the folder has, in our numbers."""
    theirs, order = theirs_of(pretrained, places), pretrained.order
    ids = {key: getattr(theirs, key, None) for key in ("pad_token_id", "eos_token_id", "decoder_start_token_id")}
    if ids["decoder_start_token_id"] is None:
        ids["decoder_start_token_id"] = ids["pad_token_id"]  # as T5 begins; BART's folders say with what
    for key, number in ids.items():
        if number not in order:
            raise DataError(f"{pretrained.folder / CONFIG}: `{key}` = {number} is not an entry of its tokenizer")
        setattr(theirs, key, order.index(number))
    theirs.vocab_size, theirs.use_cache = len(order), False
    return theirs
