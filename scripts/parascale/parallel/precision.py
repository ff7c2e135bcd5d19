"""The precision policy: one arithmetic for every layout."""

import torch


def set_arithmetic(run):
    """Choose the kernels of a run's process: deterministic ones where it wants them, and TF32 where it names it.

    TF32 rounds what convolutions and matrix products of fp32 get to 10 bits. torch's own default is on for the ones and off for
    the others.
    """
    torch.use_deterministic_algorithms(run.deterministic)
    torch.backends.cudnn.benchmark = not run.deterministic
    tf32 = run.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
