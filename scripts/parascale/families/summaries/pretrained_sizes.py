"""T5 and BART by formula, from the `config.json` of their folder.

Their modules are those of `transformers`, not kernels of ours: T5's norm and `gelu_new` are several operations on every device, and
attention takes masks of numbers; with T5's trained relative positions these have values for each head.
"""

from dataclasses import replace
from types import SimpleNamespace

from parascale.errors import DataError, ParascaleError
from parascale.families.language.sizes import TransformerSizes, is_explicit, mixed_width
from parascale.families.summaries.sizes import EncoderDecoderSizes
from parascale.pretrained import CONFIG, Pretrained

ROWS_BEFORE = 2  # of BART's table of positions, that no place has


def _t5(theirs, half):
    """A half of a T5 in the words of our Transformer. rows: of its table of positions."""
    layers = "num_layers" if theirs.get("num_decoder_layers") is None or half == "encoder" else "num_decoder_layers"
    feed_forward = theirs.get("feed_forward_proj", "relu")
    return {
        "layers": _count(theirs, layers),
        "heads": _count(theirs, "num_heads"),
        "head_width": _count(theirs, "d_kv"),
        "hidden_width": _count(theirs, "d_ff"),
        "activation": _known("feed_forward_proj", feed_forward, {"relu": "relu", "gated-gelu": "swiglu"}),
        "position": "relative",
        "rows": _count(theirs, "relative_attention_num_buckets"),
        "norm": "rms",
        "pre_norm": True,
        "bias": False,
    }


def _bart(theirs, half):
    """A half of a BART in the words of our Transformer. rows: of its table of positions."""
    heads = _count(theirs, f"{half}_attention_heads")
    return {
        "layers": _count(theirs, f"{half}_layers"),
        "heads": heads,
        "head_width": _count(theirs, "d_model") // heads,
        "hidden_width": _count(theirs, f"{half}_ffn_dim"),
        "activation": _known("activation_function", theirs.get("activation_function", "gelu"), {"gelu": "gelu"}),
        "position": "learned",
        "rows": _count(theirs, "max_position_embeddings") + ROWS_BEFORE,
        "norm": "layer",
        "pre_norm": False,
        "bias": True,
    }


def _count(theirs, key):
    value = theirs.get(key)
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"`{key}` = {value}")
    return value


def _known(key, value, words):
    if str(value) not in words:
        raise ValueError(f"`{key}` = {value}")
    return words[value]


def _described(model):
    """The folder of a config Model, with the attributes of a Transformer's settings. Raises DataError where no formula fits it."""
    pretrained = Pretrained(model.pretrained)
    theirs = pretrained.config
    try:
        read = _known("model_type", theirs.get("model_type"), {"t5": _t5, "bart": _bart})
        encoder, decoder = (read(theirs, half) for half in ("encoder", "decoder"))
        if encoder != decoder:
            raise ValueError("two unlike halves")
        ours = {"dim": _count(theirs, "d_model"), "tied": theirs.get("tie_word_embeddings") is not False}
    except ValueError as error:
        raise DataError(f"{pretrained.folder / CONFIG}: no formula for a model with {error}") from None
    return SimpleNamespace(**encoder, **ours, kv_heads=None, dropout=model.dropout, dropout_masks=model.dropout_masks)


class PretrainedHalf(TransformerSizes):
    def __init__(self, model, vocabulary, window, causal):
        super().__init__(model, vocabulary, window, causal)
        self.relative = model.position == "relative"
        if self.relative:  # the first block has the table
            self.block_whole += model.rows * model.heads / model.layers
        else:
            self.block_split += model.dim  # the bias of keys
            self.embedding_whole = (model.rows + 2) * model.dim  # with a norm

    def block_bytes(self, batch):
        """Our block's, with masks. Of T5's relu the result alone is kept, of `gelu_new` three more; either is dropped as well."""
        model, kept = self.model, super().block_bytes(batch) + self.mask_bytes(batch, self.window)
        more = 3 if model.activation == "swiglu" else 0 if model.dropout else -1
        inner = more * batch.compute + bool(model.dropout) if self.relative else 0
        return kept + self.tokens(batch) * model.hidden_width * inner

    def mask_bytes(self, batch, places):
        """Kept of the mask by an attention to `places` that is not explicit. On CPUs the weights are kept for T5's: its mask is trained."""
        if is_explicit(self.model, batch):
            return 0
        heads, exact = (self.model.heads, batch.device == "cpu") if self.relative else (1, False)
        return self.tokens(batch) * places * heads * max(batch.compute, 4 * exact)

    def working_bytes(self, batch):
        """Ours, or the gradient of a mask."""
        return max(super().working_bytes(batch), self.boundary_bytes(batch) + self.mask_bytes(batch, self.window))

    def forward_bytes(self, batch):
        """Ours or, in T5, attention with its mask, made twice; beside it the half's input, the stream, and the mask of all layers."""
        model, attention = self.model, 0
        if self.relative:
            attention = model.dim + 3 * mixed_width(model) + 2 * model.heads * self.window
        beside = 2 * model.dim + (self.window if model.dropout else 0)
        held, element = super().forward_bytes(batch), self.tokens(batch) * batch.compute
        return max(held, attention * element) + beside * element

    def ends_bytes(self, batch):
        """Ours, and BART's norm of the embedding."""
        return super().ends_bytes(batch) + (0 if self.relative else self.norm_bytes(batch))

    def norm_bytes(self, batch):
        """As on CPUs, where RMSNorm is not one kernel."""
        return super().norm_bytes(replace(batch, device="cpu"))


class PretrainedSizes(EncoderDecoderSizes):
    """A T5 or BART as its folder describes it. It makes all logits itself."""

    half = PretrainedHalf

    def __init__(self, model, vocabulary, window, summary_window):
        super().__init__(_described(model), vocabulary, window, summary_window)
        encoder, _ = self.halves
        self.embedding_split = self.head  # one for both halves
        self.block_split += 0 if encoder.relative else self.model.dim  # the bias of keys of the attention across
        self.unit = 1 - encoder.block / self.block

    @staticmethod
    def unknown(model, outputs, *places):
        """What is wrong with the folder: it may be on another machine."""
        try:
            _described(model)
        except ParascaleError as error:
            return str(error)
        return None

    def block_bytes(self, batch):
        """With the mask of the attention across."""
        encoder, decoder = self.halves
        return super().block_bytes(batch) + decoder.mask_bytes(batch, encoder.window)

    def loss_bytes(self, batch):
        return None
