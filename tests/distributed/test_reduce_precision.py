"""Gradients that ranks sum in bf16: rounded where they travel, once by each rank and in each sum, and nowhere else."""

import pytest
import torch

from .cases import LAYOUTS, ONCE, ZERO_1
from .test_precision import ONE_STEP, gradient

PARTS = 8
# Name → (layout, parts of a step, whether the gradient is a sum in bf16, not one in fp32 of such sums of parts).
REDUCED = {
    "ddp": (LAYOUTS["ddp"], 1, True),
    "ddp, parts": (LAYOUTS["ddp"], PARTS, True),
    "fsdp": (LAYOUTS["fsdp"], 1, True),
    "fsdp, parts": (LAYOUTS["fsdp"], PARTS, False),
    "fsdp, parts once": (LAYOUTS["fsdp"] | ONCE, PARTS, True),
    "hsdp": (LAYOUTS["hsdp"], 1, True),
    "hsdp, parts": (LAYOUTS["hsdp"], PARTS, True),
    "hsdp, ZeRO-1": (LAYOUTS["hsdp"] | ZERO_1, PARTS, True),
    "dp x tp, parts": (LAYOUTS["dp x tp"], PARTS, True),
    "fsdp x tp": (LAYOUTS["fsdp x tp"], 1, True),
    "dp x pp": (LAYOUTS["dp x pp"], 1, True),
    "fsdp x pp": (LAYOUTS["fsdp x pp"], 4, True),
    "cp": (LAYOUTS["cp"], 1, True),
    "fsdp x cp": (LAYOUTS["fsdp x cp"], 1, True),
}


@pytest.mark.parametrize("name", REDUCED)
def test_x(name, make_settings, tmp_path):
    layout, parts, whole = REDUCED[name]
    training = {"steps": 1, "evaluate": False, "global_batch": 32, "accumulate": parts}
    keys = {**ONE_STEP, "training": training}
    out = []
    for p in ("fp32", "bf16"):
        s = make_settings(p, layout, reduce_precision=p, **keys)
        out.append(gradient(tmp_path / f"r{p}", s))
    a, b = out
    d = sum((a[n] - b[n]).square().sum() for n in a)
    e = (d / sum(t.square().sum() for t in a.values())).sqrt().item()
    rep = all(torch.equal(t, t.bfloat16().double()) for t in b.values())
    print(name, "ERR/u", e * 256, rep, whole)
