"""Floating-point operations of training, by formula.

Chowdhery et al. 2022 (PaLM), arXiv:2204.02311, appendix B: 6 N + 12 L T D operations a token (forward and backward), with
N the elements of matrices that tokens pass through, L layers, T window, D width. Attention is counted in full, as if
not causal, so that figures can be set beside others'. Recomputation is not counted as useful work; it takes time though.
"""

from parascale.plan.convolutions import image_sizes
from parascale.plan.shapes import block_matrices, cross_matrices

BACKWARD = 2  # a backward pass costs twice a forward pass: gradients of inputs and of weights


def block_forward(model, window, summary_window=None):
    """Operations of one block's forward pass for each of the `window` places of a sample.

    With a `summary_window`, a block is one of the encoder and one of the decoder, whose operations on a summary are dealt
    to the places of the document too.
    """
    weights = _elements(block_matrices(model))
    forward = 2 * weights + 4 * window * model.dim
    if summary_window is None:
        return forward
    cross = cross_matrices(model)
    memory = sum(cross[name].outputs * cross[name].inputs for name in ("cross_attention.k", "cross_attention.v"))
    own = 2 * weights + 4 * summary_window * model.dim
    across = 2 * (_elements(cross) - memory) + 4 * window * model.dim
    return forward + 2 * memory + (own + across) * summary_window / window


def _elements(matrices):
    return sum(matrix.outputs * matrix.inputs for matrix in matrices.values())


def head_forward(model, vocabulary, window, summary_window=None):
    """Operations of the output layer's forward pass for each of the `window` places of a sample."""
    return 2 * vocabulary * model.dim * (1 if summary_window is None else summary_window / window)


def training_flops_per_token(model, vocabulary, *sizes):
    """Useful operations to train on one target token, or one image, over the whole model; padding counts as if it were tokens."""
    if model.kind == "xresnet":
        return (1 + BACKWARD) * image_sizes(model, vocabulary, *sizes).forward_flops
    forward = model.layers * block_forward(model, *sizes) + head_forward(model, vocabulary, *sizes)
    return (1 + BACKWARD) * forward * sizes[0] / sizes[-1]
