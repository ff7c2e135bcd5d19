"""Settings of the Transformer language model, and settings that all our Transformers share."""

from typing import Literal

from parascale.errors import ConfigError
from parascale.settings.options import RECIPE, Number, option, settings
from parascale.settings.run import FLOAT8_MULTIPLE
from parascale.settings.workload import Model


@settings(RECIPE)
class Transformer(Model):
    """Sizes and switches of a Transformer."""

    dim: int = option("width of the hidden states", default=128, low=1, high=10**6)
    heads: int = option("attention heads; must divide `dim`", default=4, low=1)
    kv_heads: int | None = option(
        "key and value heads (grouped-query attention); default: `heads`", default=None, low=1
    )
    layers: int = option("Transformer blocks; in an encoder-decoder, blocks of each half", default=2, low=1, high=10**4)
    hidden: int | None = option("width of the feed-forward layer; default: 4 × `dim`", default=None, low=1)
    dropout: Number = option("dropout probability", default=0.0, low=0.0, high=0.99)
    dropout_masks: Literal["same", "per-rank"] = option(
        "`same`: dropout's masks are the same in every layout, for which attention is not fused in training; `per-rank`: each rank draws "
        "those of attention within torch's kernels, fused on GPUs, and layouts cannot be compared",
        default="same",
        before="same",
    )
    tied: bool = option("input embedding and output layer share one matrix", default=False)
    norm: Literal["layer", "rms"] = option("`layer`: LayerNorm; `rms`: RMSNorm", default="layer")
    norm_eps: Number = option("epsilon of the norms", default=1e-5, above=0.0)
    pre_norm: bool = option(
        "normalise before each sublayer (otherwise after it, as in the original Transformer)", default=True
    )
    position: Literal["learned", "sinusoidal", "rotary"] = option("encoding of positions", default="learned")
    activation: Literal["gelu", "gelu_tanh", "relu", "swiglu"] = option(
        "activation of the feed-forward layer; `swiglu` adds a gate matrix, `gelu_tanh` is GPT-2's", default="gelu"
    )
    bias: bool = option("linear layers and norms have biases", default=True)

    @property
    def head_width(self):
        return self.dim // self.heads

    @property
    def hidden_width(self):
        return self.hidden or 4 * self.dim

    def check_sizes(self, run):
        """Raise ConfigError if heads, widths, positions or a run's degrees are incompatible."""
        layout, kv_heads = run.layout, self.kv_heads or self.heads
        if self.dim % self.heads:
            raise ConfigError(f"model.dim = {self.dim} is not a multiple of model.heads = {self.heads}")
        if self.position == "rotary" and self.dim // self.heads % 2:
            raise ConfigError(
                f"position rotary turns pairs of numbers, but model.dim / model.heads = {self.dim // self.heads} is odd"
            )
        if self.heads % kv_heads:
            raise ConfigError(f"model.heads = {self.heads} is not a multiple of model.kv_heads = {kv_heads}")
        for name, value in (("heads", self.heads), ("kv_heads", kv_heads), ("hidden", self.hidden_width)):
            if value % layout.tp:
                raise ConfigError(f"tp = {layout.tp} does not divide model.{name} = {value}")
        if layout.tp > 1 and layout.sequence_parallel:
            for name, size in zip(("window", "summary_window"), run.workload.sizes, strict=False):
                if size % layout.tp:
                    raise ConfigError(
                        f"sequence_parallel needs training.{name} = {size} to be a multiple of tp = {layout.tp}"
                    )
        keys = self.dim // self.heads * kv_heads
        for name, size in (("dim", self.dim), ("dim / heads × kv_heads", keys), ("hidden", self.hidden_width)):
            if run.precision == "float8" and size % (FLOAT8_MULTIPLE * layout.tp):
                raise ConfigError(
                    f"precision float8 needs multiples of {FLOAT8_MULTIPLE} × tp = {FLOAT8_MULTIPLE * layout.tp}, but model.{name} = {size}"
                )
        self._check_context(run)
        if layout.stages > self.layers:
            raise ConfigError(f"{layout.stages} pipeline stages, but model.layers = {self.layers}")

    def _check_context(self, run):
        """Raise ConfigError if context parallelism cannot exchange equal parts."""
        layout = run.layout
        if self.heads // layout.tp % layout.cp:
            raise ConfigError(f"cp = {layout.cp} does not divide model.heads / tp = {self.heads // layout.tp}")
        ranks = layout.cp * layout.tp
        if layout.cp > 1 and layout.tp > 1 and layout.sequence_parallel and run.workload.training.window % ranks:
            raise ConfigError(
                f"cp × tp = {ranks}, with sequence_parallel, does not divide training.window = {run.workload.training.window}"
            )


@settings(RECIPE)
class TransformerLM(Transformer):
    """A decoder: GPT-2, Llama and the original by settings."""

    kind: str = option(
        "`transformer_lm`, or your own class by its path (`small.py:SmallModel`)", default="transformer_lm", path=True
    )

    @property
    def has_linear_blocks(self):
        return not self.is_own
