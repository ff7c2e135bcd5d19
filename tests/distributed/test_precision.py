"""Which arithmetic a run computes in: the one that it names, in every layout."""

import pytest
import torch

from .examine import look_at_session
from .harness import run_on_ranks


def rounding(settings):
    """Whether convolutions and matrix products of a training round to TF32, which torch's own defaults say differently."""
    return look_at_session(settings, lambda _: (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32))


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_tf32_is_for_those_who_name_it(precision, make_settings, tmp_path):
    (found,) = run_on_ranks(rounding, 1, tmp_path, make_settings("case", precision=precision))
    assert set(found) == {precision == "tf32"}
