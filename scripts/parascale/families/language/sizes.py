"""Formulas for the sizes of our decoder, a stack of Transformer blocks.

Activations kept by the forward pass are counted tensor by tensor as in Korthikanti et al. 2022, "Reducing Activation Recomputation
in Large Transformer Models", arXiv:2205.05198, section 4, adapted to PyTorch's operators: flash attention keeps no scores (their
section 4.1, selective recomputation), there are no masks without dropout, and grouped-query and gated layers count by their widths.
With dropout, attention is explicit (`is_explicit`): its weights are kept, and all positions are computed, causal or not.
"""

from dataclasses import dataclass

from parascale.families.sizes import Operations, Product, Sizes, loss_bytes, repeats, share

STATISTIC_BYTES = 4  # norms and attention keep their statistics in fp32
MASK_BLOCK, LEAST_FLEX = 128, 16  # for `flex_attention`: side of a mask block in positions; minimum head width
# Per element with dropout: its hash is seven 32-bit integer operations that each read and write; compiled, only its mask is written.
HASH_BYTES, HASH_KERNELS, MASK_BYTES = 46, 18, 2


@dataclass(frozen=True)
class Matrix:
    """A linear layer with `outputs × inputs` weights.

    again: selective recomputation repeats its product; None: no recomputation does. Results computed once are kept, except the last.
    """

    outputs: int
    inputs: int
    bias: bool
    columns: bool  # tensor parallelism splits output features, and with them the bias; False: input features
    again: bool | None

    @property
    def weights(self):
        """Elements without the bias."""
        return self.outputs * self.inputs


def block_matrices(model, fused=True):
    """Matrices of a block: queries, keys, values and output of attention, then the feed-forward layer. The last one's result is only needed
    by a following norm or by dropout that is not fused."""
    dim, mixed, keys = model.dim, mixed_width(model), kv_width(model)
    last = None if model.pre_norm and (fused or not model.dropout) else True
    gate = [True] if model.activation == "swiglu" else []
    return [
        Matrix(mixed, dim, model.bias, columns=True, again=False),
        Matrix(keys, dim, model.bias and model.position == "rotary", columns=True, again=True),
        Matrix(keys, dim, model.bias, columns=True, again=False),
        Matrix(dim, mixed, model.bias, columns=False, again=True),
        *(Matrix(model.hidden_width, dim, model.bias, columns=True, again=again) for again in (False, *gate)),
        Matrix(dim, model.hidden_width, model.bias, columns=False, again=last),
    ]


def mixed_width(model):
    """Width of queries and of attention's result, over all heads; equals `dim` in our own models."""
    return model.heads * model.head_width


def kv_width(model):
    """Width of keys and of values; with grouped-query attention smaller than that of queries."""
    return (model.kv_heads or model.heads) * model.head_width


def products_of(matrices, tokens, tp):
    """The Products of matrices with `tokens` rows on one of `tp` ranks."""
    return tuple(
        Product(
            tokens, each.inputs / (1 if each.columns else tp), each.outputs / (tp if each.columns else 1), each.again
        )
        for each in matrices
    )


def shared_width(model, batch):
    """Width of keys and of values as ranks exchange them: repeated if there are too few heads for all ranks."""
    return kv_width(model) * (repeats(batch.cp, (model.kv_heads or model.heads) // batch.tp) if batch.cp > 1 else 1)


def is_explicit(model, batch):
    """True if attention in training is not fused: no fused kernel supports layout-independent dropout masks, on CPUs none supports
    dropout, and on GPUs none supports fp64."""
    return without_kernel(batch) or (model.dropout > 0 and (model.dropout_masks == "same" or batch.device == "cpu"))


def without_kernel(batch):
    """True if torch has no fused attention for a batch at all."""
    return batch.device != "cpu" and batch.compute == 8


def has_dense_mask(model, batch):
    """True if separate documents need a dense mask, because `flex_attention`, which skips mask blocks, cannot be used."""
    return batch.separate and (
        batch.device == "cpu" or batch.compute == 8 or model.dropout > 0 or model.head_width < LEAST_FLEX
    )


def weight_bytes(model, batch):
    """(bytes per explicit attention weight, its mask and the masked weight; further bytes for gradients in the backward pass).

    With per-rank masks on CPUs, torch's own attention computes in fp32 and holds four gradients; without dropout two.
    """
    if not model.dropout:
        return batch.compute, 2 * batch.compute
    if model.dropout_masks == "same":
        return 2 * batch.compute + 1, max(batch.compute, 7 - batch.compute)
    exact = max(4, batch.compute)
    return 2 * exact + 1, 4 * exact


def attention_bytes(model, batch, tokens, window):
    """Kept by attention of `tokens`: queries, keys, values, result and statistics. With context parallelism these are exchanged, and the
    result is kept again as the next layer's input.

    Explicit, and on GPUs in fp32, keys are repeated per query head. Explicit attention keeps weights, mask and masked weights.
    """
    heads, keys, statistics = tokens * model.heads // batch.tp, shared_width(model, batch), STATISTIC_BYTES
    again = tokens * mixed_width(model) // batch.tp * batch.compute if batch.cp > 1 else 0
    if batch.device != "cpu" and batch.compute >= 4:
        keys = mixed_width(model)
    if is_explicit(model, batch):
        keys, statistics = mixed_width(model), window * weight_bytes(model, batch)[0]
    return 2 * tokens * (mixed_width(model) + keys) // batch.tp * batch.compute + heads * statistics + again


def attention_operations(model, batch, tokens, places, fused):
    """Operations of attention from `tokens` to preceding ones among `places` each, without the projections."""
    rows, width = tokens * model.heads / batch.tp, model.head_width
    if not is_explicit(model, batch):
        # On average a token sees half of the positions, those before it; CPUs' kernel skips only whole tiles of 512, and none with a mask.
        # Boundaries of separate documents are unknown: for them this is an upper bound.
        tile = min(512, places) if batch.device == "cpu" else 0
        seen = 1.0 if has_dense_mask(model, batch) else 0.5 + tile / (2 * places)
        return Operations(attention=4 * rows * places * width * seen, element=batch.compute)
    products = Product(rows, width, places, weighs=False), Product(rows, places, width, weighs=False)
    # Mask, softmax, dropout: 8 accesses per weight and 9 in the backward pass, compiled 3 and 3. Without dropout 4 and 3.
    moved = rows * places * (2 if fused or not model.dropout else 6) * batch.compute
    if not model.dropout:
        return Operations(products, 0.0, moved, 6, batch.compute)
    drawn = rows * places * (MASK_BYTES if fused else HASH_BYTES)
    return Operations(products, 0.0, moved, 3 if fused else 6 + HASH_KERNELS, batch.compute, drawn)


def sublayer_operations(model, batch, stream, fused):
    """Operations on the residual stream around a layer: norm, dropout and addition."""
    accesses = 4 if fused else 5 + 2.5 * bool(model.dropout)
    drawn = (MASK_BYTES if fused else HASH_BYTES) if model.dropout else 0
    kernels = HASH_KERNELS if model.dropout and not fused else 0
    elements = stream * model.dim
    return Operations((), 0.0, elements * accesses * batch.compute, kernels, batch.compute, elements * drawn)


class TransformerSizes(Sizes):
    """Sizes of the language model for samples of `window` tokens."""

    def __init__(self, model, vocabulary, window):
        self.model, self.vocabulary, self.window = model, vocabulary, window
        matrices, norm = block_matrices(model), model.dim * (2 if model.norm == "layer" and model.bias else 1)
        self.cut = True
        self.layers, self.tied, self.targets = model.layers, model.tied, window
        self.embedding_split = self.head = vocabulary * model.dim
        self.embedding_whole = window * model.dim if model.position == "learned" else 0
        # Tensor parallelism splits matrices and biases of columns; each rank holds all other parameters.
        weights = sum(matrix.weights for matrix in matrices)
        self.block_split = weights + sum(matrix.outputs for matrix in matrices if matrix.bias and matrix.columns)
        self.block_whole = 2 * norm + sum(matrix.outputs for matrix in matrices if matrix.bias and not matrix.columns)
        self.norm = norm if model.pre_norm else 0
        self.block_flops = window * (2 * weights + 4 * window * mixed_width(model))
        self.ends_flops = 2 * self.head * window

    def tokens(self, batch):
        """Tokens on a rank. Attention goes from these to all tokens or, equivalently, from all tokens with fewer heads."""
        return batch.samples * self.window // batch.cp

    def stream(self, batch):
        """Tokens of the residual stream on a rank."""
        return self.tokens(batch) // batch.tp if batch.sequence_parallel else self.tokens(batch)

    def block_operations(self, batch, fused):
        """Operations of both layers and the stream around them, including memory traffic of activation and rotary positions."""
        model, tokens = self.model, self.tokens(batch)
        gated, rotary = model.activation == "swiglu", model.position == "rotary"
        inner = model.hidden_width * ((3 if fused else 5) if gated else 2)
        turned = (mixed_width(model) + kv_width(model)) * (2 if fused else 8) if rotary else 0
        moved = tokens * (inner + turned + 4 * model.dim) // batch.tp * batch.compute
        products = products_of(block_matrices(model, fused), tokens, batch.tp)
        others = 8 + 3 * gated + 8 * rotary
        layers = Operations(products, 0.0, moved, len(products) + (4 if fused else others), batch.compute)
        sublayer = sublayer_operations(model, batch, self.stream(batch), fused)
        attention = attention_operations(model, batch, tokens, self.window, fused)
        return layers.plus(attention).plus(sublayer).plus(sublayer)

    def ends_operations(self, batch, fused):
        """Output layer and loss. In eager mode logits are copied to fp32, then read and written for logarithms and gradients."""
        tokens, width = self.tokens(batch), self.vocabulary / batch.tp
        element = 2 * batch.compute if fused else batch.compute + 8
        moved = tokens * width * element + 6 * self.stream(batch) * self.model.dim * batch.compute
        return Operations((Product(tokens, self.model.dim, width),), 0.0, moved, 6 if fused else 12, batch.compute)

    def block_bytes(self, batch):
        """Its norms, inputs of products, attention, and feed-forward layer."""
        model, tokens, tp = self.model, self.tokens(batch), batch.tp
        gated = model.activation == "swiglu"
        products = 2 * tokens * model.dim * batch.compute
        attention = attention_bytes(model, batch, tokens, self.window)
        if model.position == "rotary":
            attention += 4 * (batch.samples if batch.separate else 1) * self.window * model.head_width * batch.compute
        inner = (4 if gated else 2) * tokens * model.hidden_width // tp * batch.compute
        masks = 2 * self.stream(batch) * model.dim if model.dropout else 0
        return 2 * self.norm_bytes(batch) + products + attention + inner + masks

    def shared_bytes(self, batch):
        """The mask of separate documents: dense, or four numbers per mask block."""
        dense = has_dense_mask(self.model, batch)
        side, element = (self.window, batch.compute) if dense else (share(self.window, MASK_BLOCK), 16)
        return batch.separate * batch.samples * side**2 * element

    def selective_bytes(self, batch):
        """Queries, values, one side of the feed-forward layer, result and statistics of fused attention, and the sum over ranks."""
        model, tokens, statistics = self.model, self.tokens(batch), 0
        kept = tokens * sum(matrix.outputs for matrix in block_matrices(model) if matrix.columns and not matrix.again)
        if not is_explicit(model, batch):
            kept, statistics = kept + tokens * mixed_width(model), tokens * model.heads // batch.tp * STATISTIC_BYTES
        summed = self.stream(batch) * model.dim if batch.tp > 1 else 0
        return (kept // batch.tp + summed) * batch.compute + statistics

    def norm_bytes(self, batch):
        """Kept by one norm: input and statistics. On CPUs RMSNorm is several kernels and keeps input and result in fp32."""
        element, statistics = batch.compute, 2
        if self.model.norm == "rms":
            element, statistics = 2 * max(4, batch.compute) if batch.device == "cpu" else batch.compute, 1
        return self.stream(batch) * (self.model.dim * element + statistics * STATISTIC_BYTES)

    def boundary_bytes(self, batch):
        """The residual stream."""
        return self.stream(batch) * self.model.dim * batch.compute

    def working_bytes(self, batch):
        """Gradients of feed-forward layer and stream, or of explicit attention weights, or memory for drawing their masks."""
        inner = self.tokens(batch) * (self.model.hidden_width // batch.tp + self.model.dim) * batch.compute
        if is_explicit(self.model, batch):
            weights = self.tokens(batch) * self.window * self.model.heads // batch.tp
            inner = max(inner, weights * weight_bytes(self.model, batch)[1])
        return inner + self.boundary_bytes(batch)

    def forward_bytes(self, batch):
        """The stream, its norm, and the feed-forward layer: input and result of its activation, or gate, up and product."""
        inner = (
            (3 if self.model.activation == "swiglu" else 2) * self.tokens(batch) * self.model.hidden_width // batch.tp
        )
        if without_kernel(batch):  # two tensors of the width of all heads, and scores before and after softmax
            scores = 2 * (mixed_width(self.model) + self.window * self.model.heads)
            inner = max(inner, self.tokens(batch) * scores // batch.tp)
        if batch.cp > 1:  # queries, keys and values of the rank's positions, the send buffer, and the receive buffer
            inner = max(inner, 3 * self.exchanged_bytes(batch) // batch.compute)
        stream = self.boundary_bytes(batch) + self.shared_bytes(batch)
        return stream + (self.tokens(batch) * self.model.dim + inner) * batch.compute

    def exchanged_bytes(self, batch):
        width = 2 * (mixed_width(self.model) + shared_width(self.model, batch))
        return self.tokens(batch) * width // batch.tp * batch.compute

    def ends_bytes(self, batch):
        """The last norm's bytes, and the output layer's input."""
        return (self.norm_bytes(batch) if self.model.pre_norm else 0) + self.split_bytes(batch)

    def logits_bytes(self, batch, loss_parallel):
        """Logits over the vocabulary or a rank's part of it."""
        width = share(self.vocabulary, batch.tp) if loss_parallel else self.vocabulary
        return self.tokens(batch) * width * max(4, batch.compute)

    def loss_bytes(self, batch):
        return loss_bytes(batch, self.tokens(batch), self.vocabulary, self.model.dim)

    def split_bytes(self, batch):
        """The whole residual stream, the input of matrix products."""
        return self.tokens(batch) * self.model.dim * batch.compute
