"""What the forward pass keeps for the backward pass, in bytes on one rank.

Counted tensor by tensor as in Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models",
arXiv:2205.05198, section 4, but for what PyTorch's operators keep here: flash attention keeps no scores (its section
4.1, selective recomputation), there are no masks without dropout, and widths of grouped-query and gated layers count.
"""

from dataclasses import dataclass, replace

from parascale.plan.shapes import block_matrices, cross_matrices, kv_width, share

STATISTIC_BYTES = 4  # norms and attention keep their statistics in fp32


@dataclass(frozen=True)
class Kinds:
    """Bytes of an element, by what it is used for."""

    parameter: int
    compute: int  # inputs and outputs of matrix products
    residual: int  # the stream between blocks, and what norms give
    autocast: bool  # operators cast what they get: copies of weights and of inputs

    @classmethod
    def of(cls, run):
        """The Kinds of a run: bf16 is FSDP's own policy where FSDP holds the parameters, else autocast."""
        if run.precision != "bf16":
            size = {"fp32": 4, "fp64": 8}[run.precision]
            return cls(size, size, size, autocast=False)
        return cls(4, 2, 2, autocast=False) if run.layout.uses_fsdp else cls(4, 2, 4, autocast=True)


@dataclass(frozen=True)
class Shape:
    """Tokens that a rank computes at once, and how tensor parallelism splits them. summary_window: of an encoder-decoder."""

    samples: int
    window: int
    tp: int
    sequence_parallel: bool
    summary_window: int | None = None

    @classmethod
    def of(cls, run):
        """The Shape of one micro-batch on a rank of `run`."""
        layout, training = run.layout, run.workload.training
        parts = layout.data_parallel * layout.micro_batches * training.accumulate
        split = layout.tp > 1 and layout.sequence_parallel
        summary_window = training.summary_window if run.workload.of_pairs else None
        return cls(share(run.global_batch, parts), training.window, layout.tp, split, summary_window)

    @property
    def of_targets(self):
        """The Shape of the stack that ends in the logits: the decoder's."""
        return self if self.summary_window is None else replace(self, window=self.summary_window, summary_window=None)

    @property
    def tokens(self):
        """Tokens of a micro-batch."""
        return self.samples * self.window

    @property
    def stream(self):
        """Tokens of the residual stream that this rank holds."""
        return self.tokens // self.tp if self.sequence_parallel else self.tokens


def block_bytes(model, shape, kinds, device):
    """Kept by one Transformer block for one micro-batch; autocast's copies of weights apart.

    Of an encoder-decoder, by a block of each half (see `shapes`).
    """
    if shape.summary_window is not None:
        halves = (replace(shape, summary_window=None), shape.of_targets)
        return sum(block_bytes(model, half, kinds, device) for half in halves) + _cross_bytes(
            model, *halves, kinds, device
        )
    dim, hidden, keys = model.dim, model.hidden_width, kv_width(model)
    inputs = 3 + (2 if model.activation == "swiglu" else 1) if kinds.autocast else 2
    norms = 2 * _norm_bytes(model, shape, kinds, device)
    products = inputs * shape.tokens * dim * kinds.compute
    attention = shape.tokens * (2 * dim + 2 * keys) // shape.tp * kinds.compute
    attention += shape.tokens * model.heads // shape.tp * STATISTIC_BYTES
    if model.position == "rotary":
        attention += 4 * shape.window * (dim // model.heads) * kinds.compute
    if model.dropout and device == "cpu":
        scores = shape.tokens * shape.window * model.heads // shape.tp
        attention += scores * (
            2 * kinds.compute + 1
        )  # no flash attention with dropout there: softmax, its mask, product
    inner = (4 if model.activation == "swiglu" else 2) * shape.tokens * hidden // shape.tp * kinds.compute
    masks = 2 * shape.stream * dim if model.dropout else 0
    return norms + products + attention + inner + masks


def _cross_bytes(model, documents, summaries, kinds, device):
    """Kept by the attention from summaries to documents: its norm, query, keys, values and result. The memory comes extra."""
    keys = kv_width(model)
    inputs = (2 * summaries.tokens + 2 * documents.tokens if kinds.autocast else summaries.tokens) * model.dim
    mixed = (2 * summaries.tokens * model.dim + 2 * documents.tokens * keys) // summaries.tp
    statistics = summaries.tokens * model.heads // summaries.tp * STATISTIC_BYTES
    masks = summaries.stream * model.dim if model.dropout else 0
    return _norm_bytes(model, summaries, kinds, device) + (inputs + mixed) * kinds.compute + statistics + masks


def boundary_bytes(model, shape, kinds):
    """The residual stream between two blocks: what checkpointing keeps of a block, and what a pipeline sends."""
    places = shape.stream + (shape.of_targets.stream if shape.summary_window is not None else 0)
    return places * model.dim * kinds.residual


def ends_bytes(model, shape, kinds, device):
    """Kept by the last norm and the output layer, logits apart; of an encoder-decoder also the memory and its norm."""
    targets = shape.of_targets
    norm = _norm_bytes(model, targets, kinds, device) if model.pre_norm else 0
    kept = norm + targets.tokens * model.dim * kinds.compute
    if shape.summary_window is not None:
        kept += ends_bytes(model, replace(shape, summary_window=None), kinds, device)
    return kept


def logits_bytes(vocabulary, shape, kinds, loss_parallel):
    """Logits of one micro-batch in the precision of the loss, fp32 at least."""
    width = share(vocabulary, shape.tp) if loss_parallel else vocabulary
    return shape.of_targets.tokens * width * max(4, kinds.compute)


def _norm_bytes(model, shape, kinds, device):
    """Kept by one norm: its input and statistics. On CPUs RMSNorm is not one kernel: input and result are kept in fp32."""
    if model.norm == "rms":
        element = 2 * max(4, kinds.residual) if device == "cpu" else kinds.residual
        return shape.stream * (model.dim * element + STATISTIC_BYTES)
    return shape.stream * (model.dim * kinds.residual + 2 * STATISTIC_BYTES)


def weight_copies(model, shape, kinds):
    """Autocast's bf16 copies of a block's weights: made once a step, alive until its backward pass is over."""
    if not kinds.autocast:
        return 0
    matrices = list(block_matrices(model).values())
    if shape.summary_window is not None:
        matrices += [*matrices, *cross_matrices(model).values()]
    elements = sum(matrix.outputs * (matrix.inputs + matrix.bias) for matrix in matrices)
    return elements // shape.tp * kinds.compute


def working_bytes(model, shape, kinds):
    """Gradients of activations that the backward pass of a block holds at once: of its feed-forward layer and stream."""
    if shape.summary_window is not None:
        shape = max(shape.of_targets, replace(shape, summary_window=None), key=lambda half: half.window)
    return shape.tokens * (model.hidden_width // shape.tp + model.dim) * kinds.compute + boundary_bytes(
        model, shape, kinds
    )
