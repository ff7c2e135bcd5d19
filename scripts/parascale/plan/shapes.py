"""Parameters of a model by formula, without building it.

A model kind that is not listed in `KINDS` has unknown shapes (`None`), and a plan says so; it never counts as 0.
"""

import math
from dataclasses import dataclass

from parascale.plan.convolutions import image_sizes


@dataclass(frozen=True)
class Matrix:
    """A linear layer: `outputs × inputs` weights, and whether tensor parallelism splits its bias as well."""

    outputs: int
    inputs: int
    bias: bool
    columns: bool  # split by output features, so that the bias is split too; else by input features


@dataclass(frozen=True)
class Sizes:
    """Elements of a model's parameters by the place where they stand, a matrix that tensor parallelism splits apart
    from what every rank of a `tp` group holds whole."""

    embedding_split: int
    embedding_whole: int
    block_split: int
    block_whole: int
    layers: int
    norm: int
    head: int  # the output layer, also where it is tied to the embedding
    tied: bool
    unit: float = 1.0  # part of a block that FSDP gathers at once

    @property
    def block(self):
        """One Transformer block."""
        return self.block_split + self.block_whole

    @property
    def count(self):
        """All parameters, a tied matrix once."""
        ends = self.embedding_split + self.embedding_whole + self.norm + (0 if self.tied else self.head)
        return ends + self.layers * self.block


def model_sizes(model, vocabulary, *sizes):
    """The Sizes (ImageSizes) of a config Model with `vocabulary` entries or classes, for samples of `sizes` (a workload's).

    None where its kind is unknown.
    """
    shapes = KINDS.get(model.kind)
    return None if shapes is None else shapes(model, vocabulary, *sizes)


def parameter_shapes(model, vocabulary, *sizes):
    """{name: shape} as `named_parameters()` of the real module gives them; None where the kind is no Transformer of ours."""
    if model.kind not in STACKS:
        return None
    shapes = {}
    for stack, window in zip(STACKS[model.kind], sizes, strict=True):
        shapes |= _stack_shapes(model, stack, vocabulary, window)
    if not model.tied:
        shapes["head.weight"] = (vocabulary, model.dim)
    return shapes


def _stack_shapes(model, stack, vocabulary, window):
    """{name: shape} of one stack of blocks with its embedding and last norm; `stack` begins all names."""
    decoder = stack == "decoder."
    shapes = {} if decoder and model.tied else {f"{stack}embedding.tokens.weight": (vocabulary, model.dim)}
    if model.position == "learned":
        shapes[f"{stack}embedding.positions.weight"] = (window, model.dim)
    norm = {"weight": (model.dim,), **({"bias": (model.dim,)} if _norm_bias(model) else {})}
    norms = ["attention_norm", "feed_forward_norm"] + (["cross_attention_norm"] if decoder else [])
    matrices = block_matrices(model) | (cross_matrices(model) if decoder else {})
    for layer in range(model.layers):
        for name, matrix in matrices.items():
            shapes[f"{stack}blocks.{layer}.{name}.weight"] = (matrix.outputs, matrix.inputs)
            if matrix.bias:
                shapes[f"{stack}blocks.{layer}.{name}.bias"] = (matrix.outputs,)
        for name in norms:
            shapes |= {f"{stack}blocks.{layer}.{name}.{key}": shape for key, shape in norm.items()}
    if model.pre_norm:
        shapes |= {f"{stack}norm.{key}": shape for key, shape in norm.items()}
    return shapes


def cross_matrices(model):
    """Name inside a decoder's block → Matrix, of the attention to the encoder's memory."""
    dim, keys = model.dim, kv_width(model)
    return {
        "cross_attention.q": Matrix(dim, dim, model.bias, columns=True),
        "cross_attention.k": Matrix(keys, dim, bias=False, columns=True),
        "cross_attention.v": Matrix(keys, dim, model.bias, columns=True),
        "cross_attention.o": Matrix(dim, dim, model.bias, columns=False),
    }


def block_matrices(model):
    """Name inside a Transformer block → Matrix."""
    dim, hidden, keys = model.dim, model.hidden_width, kv_width(model)
    matrices = {
        "attention.q": Matrix(dim, dim, model.bias, columns=True),
        "attention.k": Matrix(keys, dim, model.bias and model.position == "rotary", columns=True),
        "attention.v": Matrix(keys, dim, model.bias, columns=True),
        "attention.o": Matrix(dim, dim, model.bias, columns=False),
        "feed_forward.up": Matrix(hidden, dim, model.bias, columns=True),
        "feed_forward.gate": Matrix(hidden, dim, model.bias, columns=True),
        "feed_forward.down": Matrix(dim, hidden, model.bias, columns=False),
    }
    if model.activation != "swiglu":
        del matrices["feed_forward.gate"]
    return matrices


def kv_width(model):
    """Width of keys and of values: smaller than `dim` with grouped-query attention."""
    return (model.kv_heads or model.heads) * (model.dim // model.heads)


def _transformer_lm(model, vocabulary, window):
    matrices = block_matrices(model).values()
    norm = model.dim * (2 if _norm_bias(model) else 1)
    weights = sum(matrix.outputs * matrix.inputs for matrix in matrices)
    split_biases = sum(matrix.outputs for matrix in matrices if matrix.bias and matrix.columns)
    whole_biases = sum(matrix.outputs for matrix in matrices if matrix.bias and not matrix.columns)
    return Sizes(
        embedding_split=vocabulary * model.dim,
        embedding_whole=window * model.dim if model.position == "learned" else 0,
        block_split=weights + split_biases,
        block_whole=whole_biases + 2 * norm,
        layers=model.layers,
        norm=norm if model.pre_norm else 0,
        head=vocabulary * model.dim,
        tied=model.tied,
    )


def _encoder_decoder(model, vocabulary, window, summary_window):
    """A block is here one of the encoder and one of the decoder together."""
    encoder, decoder = (_transformer_lm(model, vocabulary, places) for places in (window, summary_window))
    cross = cross_matrices(model).values()
    weights = sum(matrix.outputs * matrix.inputs for matrix in cross)
    split_biases = sum(matrix.outputs for matrix in cross if matrix.bias and matrix.columns)
    whole_biases = sum(matrix.outputs for matrix in cross if matrix.bias and not matrix.columns)
    norm = model.dim * (2 if _norm_bias(model) else 1)
    return Sizes(
        embedding_split=vocabulary * model.dim * (1 if model.tied else 2),
        embedding_whole=encoder.embedding_whole + decoder.embedding_whole,
        block_split=2 * encoder.block_split + weights + split_biases,
        block_whole=2 * encoder.block_whole + whole_biases + norm,
        layers=model.layers,
        norm=2 * encoder.norm,
        head=vocabulary * model.dim,
        tied=model.tied,
        unit=1 - encoder.block / (2 * encoder.block + weights + split_biases + whole_biases + norm),
    )


def _norm_bias(model):
    return model.norm == "layer" and model.bias


KINDS = {"transformer_lm": _transformer_lm, "encoder_decoder": _encoder_decoder, "xresnet": image_sizes}
# How the names of a kind's stacks of blocks begin, in the order of a workload's sizes.
STACKS = {"transformer_lm": ("",), "encoder_decoder": ("encoder.", "decoder.")}


def share(count, parts):
    """The largest of `parts` nearly equal shares of `count`."""
    return math.ceil(count / parts)
