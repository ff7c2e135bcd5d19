"""Floating-point operations of training, by formula.

Chowdhery et al. 2022 (PaLM), arXiv:2204.02311, appendix B: 6 N + 12 L T D operations a token (forward and backward), with
N the elements of matrices that tokens pass through, L layers, T window, D width. Attention is counted in full, as if
not causal, so that figures can be set beside others'. Recomputation is not counted as useful work; it takes time though.
"""

from parascale.plan.shapes import block_matrices

BACKWARD = 2  # a backward pass costs twice a forward pass: gradients of inputs and of weights


def block_forward(model, window):
    """Operations a token of one block's forward pass."""
    weights = sum(matrix.outputs * matrix.inputs for matrix in block_matrices(model).values())
    return 2 * weights + 4 * window * model.dim


def head_forward(model, vocabulary):
    """Operations a token of the output layer's forward pass."""
    return 2 * vocabulary * model.dim


def training_flops_per_token(model, vocabulary, window):
    """Useful operations to train on one token, over the whole model."""
    forward = model.layers * block_forward(model, window) + head_forward(model, vocabulary)
    return (1 + BACKWARD) * forward
