"""The table of cases: every strategy, with sizes that do not divide, and options that change the computation."""

import math
from dataclasses import dataclass, field

import pytest

from parascale.settings.layout import DEGREES


@dataclass(frozen=True)
class Case:
    """A layout, and what differs from the tiny workload. fp32, bf16: compared in that as well, where bf16 in float8 too; fp64 is the proof
    for all. sums: also in fp32 with gradients that ranks sum in bf16."""

    layout: dict
    model: dict = field(default_factory=dict)
    training: dict = field(default_factory=dict)
    optim: dict = field(default_factory=dict)
    fp32: bool = False
    bf16: bool = False
    sums: bool = False


def pp(degree, micro_batches, schedule, **more):
    return {"pp": degree, "micro_batches": micro_batches, "schedule": schedule, **more}


TIED = {"tied": True}
LLAMA = {"norm": "rms", "position": "rotary", "activation": "swiglu", "bias": False, "kv_heads": 2}
PUBLISHED = {"pre_norm": False, "position": "sinusoidal", "activation": "relu"}  # Vaswani et al. 2017
CYCLES = {
    "schedule": "one_cycle",
    "warmup_steps": 0,
    "cycles": [{"length": 1, "rise": 0.99}, {"length": 6, "peak": 0.5, "start": 0.2, "rise": 0.3}],
    "swing": 0.05,
}
FLOAT8 = {"dim": 64, "hidden": 128}  # ranks' parts are multiples of 16
# At the usual rate of 3e-3 one process that takes its batch in three parts is off by 24 % of a gradient's norm at step 7, at 1e-3 by 1.6 % at
# most: a training that magnifies its own rounding says nothing of layouts.
CALM = {"lr": 1e-3}
SELECTIVE = {"activation_checkpointing": "selective"}
ONCE = {"reduce": "step"}
ZERO_1 = {"reshard_after_forward": False, **ONCE}
UNEVEN = {"global_batch": 13}  # ranks have shares of 6 and 7 samples

CASES = {
    "ddp 2": Case({"dp": 2}, fp32=True, bf16=True, sums=True),
    "ddp 4": Case({"dp": 4}),
    "ddp 2 accumulated": Case({"dp": 2}, training={"accumulate": 3}),
    "ddp 2 uneven accumulated": Case({"dp": 2}, training={**UNEVEN, "accumulate": 2}, sums=True),
    "ddp 2 tied": Case({"dp": 2}, TIED, UNEVEN),
    "ddp 2 without clipping": Case({"dp": 2}, optim={"clip_norm": None}),
    "ddp 2 compile": Case({"dp": 2, "compile": True}, bf16=True),
    "ddp 2 checkpointing compile": Case({"dp": 2, "activation_checkpointing": True, "compile": True}, bf16=True),
    "ddp 2 selective compile": Case({"dp": 2, **SELECTIVE, "compile": True}, bf16=True),
    "ddp 2 sgd uneven accumulated": Case({"dp": 2}, PUBLISHED, {**UNEVEN, "accumulate": 2}, {"name": "sgd", "lr": 0.1}),
    "fsdp 2": Case({"fsdp": 2}, fp32=True, bf16=True, sums=True),
    "fsdp 2 sgd": Case({"fsdp": 2}, optim={"name": "sgd", "lr": 0.1}),
    "fsdp 4": Case({"fsdp": 4}),
    "fsdp 2 tied": Case({"fsdp": 2}, TIED),
    "fsdp 2 kept gathered": Case({"fsdp": 2, "reshard_after_forward": False}),
    "fsdp 2 uneven accumulated in two cycles": Case({"fsdp": 2}, training={**UNEVEN, "accumulate": 2}, optim=CYCLES),
    "fsdp 2 checkpointing": Case({"fsdp": 2, "activation_checkpointing": True}),
    "fsdp 2 checkpointing compile": Case({"fsdp": 2, "activation_checkpointing": True, "compile": True}),
    "hsdp 2x2 selective": Case({"dp": 2, "fsdp": 2, **SELECTIVE}, training=UNEVEN, bf16=True, sums=True),
    "fsdp 2 reduced once": Case({"fsdp": 2, **ONCE}, training={"accumulate": 3}, fp32=True, bf16=True, sums=True),
    "fsdp 2 ZeRO-1": Case({"fsdp": 2, **ZERO_1}, training={**UNEVEN, "accumulate": 3}, fp32=True, bf16=True),
    "fsdp 2 ZeRO-1 selective": Case({"fsdp": 2, **ZERO_1, **SELECTIVE}, TIED, training={"accumulate": 2}),
    "hsdp 2x2 ZeRO-1": Case({"dp": 2, "fsdp": 2, **ZERO_1}, LLAMA, training={"accumulate": 2}, bf16=True, sums=True),
    "hsdp 2x2 accumulated": Case({"dp": 2, "fsdp": 2}, training={**UNEVEN, "accumulate": 2}, bf16=True, sums=True),
    "hsdp 2x2 reduced once": Case({"dp": 2, "fsdp": 2, **ONCE}, training={**UNEVEN, "accumulate": 2}),
    "tp 2": Case({"tp": 2}, fp32=True, bf16=True),
    "tp 2 whole sequence": Case({"tp": 2, "sequence_parallel": False}),
    "tp 2 whole logits": Case({"tp": 2, "loss_parallel": False}),
    "tp 2 whole sequence and logits": Case({"tp": 2, "sequence_parallel": False, "loss_parallel": False}),
    "tp 2 tied": Case({"tp": 2}, TIED),
    "tp 2 published selective": Case({"tp": 2, **SELECTIVE}, PUBLISHED),
    "tp 2 llama": Case({"tp": 2}, LLAMA, bf16=True),
    "tp 2 accumulated checkpointing": Case(
        {"tp": 2, "activation_checkpointing": True}, training={"accumulate": 2}, bf16=True
    ),
    "tp 2 selective compile": Case({"tp": 2, **SELECTIVE, "compile": True}, bf16=True),
    "tp 2 whole sequence selective": Case({"tp": 2, "sequence_parallel": False, **SELECTIVE}, fp32=True),
    "tp 4": Case({"tp": 4}),
    "tp 4 whole sequence and logits": Case({"tp": 4, "sequence_parallel": False, "loss_parallel": False}),
    "pp 2 GPipe": Case(pp(2, 4, "GPipe")),
    "pp 2 1F1B": Case(pp(2, 4, "1F1B"), fp32=True, bf16=True),
    "pp 2 1F1B uneven blocks selective": Case(pp(2, 3, "1F1B", **SELECTIVE), {"layers": 3}),
    "pp 2 interleaved": Case(pp(2, 4, "Interleaved1F1B")),
    "pp 2 looped": Case(pp(2, 4, "LoopedBFS")),
    "pp 2 zero bubble": Case(pp(2, 4, "InterleavedZeroBubble"), bf16=True),
    "pp 2 V": Case(pp(2, 4, "ZBVZeroBubble")),
    "pp 2 tied": Case(pp(2, 4, "1F1B"), TIED, fp32=True),
    "pp 2 V tied": Case(pp(2, 4, "ZBVZeroBubble"), TIED),
    "pp 2 naive": Case(pp(2, 1, "1F1B")),
    "pp 2 accumulated": Case(pp(2, 2, "1F1B"), training={"accumulate": 3}),
    "pp 4 GPipe": Case(pp(4, 4, "GPipe")),
    "dp 2 x tp 2": Case({"dp": 2, "tp": 2}, training=UNEVEN, bf16=True),
    "dp 2 x tp 2 accumulated": Case({"dp": 2, "tp": 2}, training={"accumulate": 3}, bf16=True, sums=True),
    "fsdp 2 x tp 2 reduced once": Case({"fsdp": 2, "tp": 2, **ONCE}, training={"accumulate": 2}),
    "fsdp 2 x tp 2 ZeRO-1": Case({"fsdp": 2, "tp": 2, **ZERO_1}, training={"accumulate": 2}, bf16=True),
    "fsdp 2 x tp 2": Case({"fsdp": 2, "tp": 2}, training=UNEVEN, fp32=True, bf16=True, sums=True),
    "dp 2 x pp 2": Case({"dp": 2, **pp(2, 2, "1F1B")}, bf16=True),
    "dp 2 x pp 2 accumulated": Case({"dp": 2, **pp(2, 2, "1F1B")}, training={"accumulate": 3}, bf16=True, sums=True),
    "fsdp 2 x pp 2 tied": Case({"fsdp": 2, **pp(2, 2, "1F1B")}, TIED, bf16=True, sums=True),
    # At the usual rate of 3e-3 this batch trains so that rounding grows to 15 % of a gradient's norm, in one process with 2 parts as well.
    "fsdp 2 x pp 2 V accumulated": Case(
        {"fsdp": 2, **pp(2, 4, "ZBVZeroBubble")},
        training={"accumulate": 2, "global_batch": 16},
        optim={"lr": 1e-3},
        bf16=True,
    ),
    "tp 2 x pp 2": Case({"tp": 2, **pp(2, 2, "1F1B")}, bf16=True),
    "tp 2 x pp 2 tied": Case({"tp": 2, **pp(2, 2, "1F1B")}, TIED),
    "fsdp 2 x tp 2 x pp 2 selective": Case({"fsdp": 2, "tp": 2, **pp(2, 2, "1F1B"), **SELECTIVE}, LLAMA, bf16=True),
    "dp 2 x tp 2 x pp 2": Case({"dp": 2, "tp": 2, **pp(2, 2, "1F1B")}, bf16=True),
    "fsdp 2 x tp 2 x pp 2 tied": Case({"fsdp": 2, "tp": 2, **pp(2, 2, "1F1B")}, TIED, fp32=True, bf16=True, sums=True),
    "cp 2": Case({"cp": 2}, training=UNEVEN, fp32=True, bf16=True),
    "cp 2 llama": Case({"cp": 2}, LLAMA, fp32=True),
    "cp 2 published tied accumulated": Case({"cp": 2}, PUBLISHED | TIED, {**UNEVEN, "accumulate": 2}),
    "cp 2 checkpointing": Case({"cp": 2, "activation_checkpointing": True}),
    "cp 2 selective": Case({"cp": 2, **SELECTIVE}, LLAMA, fp32=True, bf16=True),
    # Not of rotary positions: compiled, one process rounds their angles, which are in fp32, in another way as well.
    "cp 2 compile": Case({"cp": 2, "compile": True}, {"kv_heads": 2}, bf16=True),
    "cp 2 selective compile": Case({"cp": 2, **SELECTIVE, "compile": True}, fp32=True),
    "cp 4": Case({"cp": 4}, fp32=True),
    "cp 4 llama tied": Case({"cp": 4}, LLAMA | TIED, fp32=True),
    "dp 2 x cp 2": Case({"dp": 2, "cp": 2}, LLAMA, UNEVEN, fp32=True, bf16=True),
    "fsdp 2 x cp 2": Case({"fsdp": 2, "cp": 2}, TIED, UNEVEN, fp32=True, bf16=True, sums=True),
    "fsdp 2 x cp 2 llama accumulated": Case({"fsdp": 2, "cp": 2}, LLAMA, {**UNEVEN, "accumulate": 2}),
    "fsdp 2 x cp 2 ZeRO-1": Case({"fsdp": 2, "cp": 2, **ZERO_1}, training={"accumulate": 2}),
    "hsdp 2x2 x cp 2": Case({"dp": 2, "fsdp": 2, "cp": 2}, training=UNEVEN, bf16=True),
    "tp 2 x cp 2": Case({"tp": 2, "cp": 2}, LLAMA, UNEVEN, fp32=True, bf16=True),
    "tp 2 x cp 2 whole sequence and logits": Case(
        {"tp": 2, "cp": 2, "sequence_parallel": False, "loss_parallel": False}, fp32=True
    ),
    "fsdp 2 x tp 2 x cp 2": Case({"fsdp": 2, "tp": 2, "cp": 2}, TIED, bf16=True),
    "cp 2 x pp 2": Case({"cp": 2, **pp(2, 2, "1F1B")}, LLAMA, fp32=True, bf16=True),
    "cp 2 x pp 2 V tied": Case({"cp": 2, **pp(2, 4, "ZBVZeroBubble")}, TIED),
    "fsdp 2 x cp 2 x pp 2": Case({"fsdp": 2, "cp": 2, **pp(2, 2, "1F1B")}, TIED, bf16=True),
    "tp 2 x cp 2 x pp 2": Case({"tp": 2, "cp": 2, **pp(2, 2, "1F1B")}, LLAMA, bf16=True),
}


# Name → layout of each way to spread, as small as it can be.
LAYOUTS = {
    "single": {},
    "ddp": {"dp": 2},
    "fsdp": {"fsdp": 2},
    "hsdp": {"dp": 2, "fsdp": 2},
    "ZeRO-1": {"fsdp": 2, **ZERO_1},
    "tp": {"tp": 2},
    "pp": pp(2, 4, "1F1B"),
    "dp x tp": {"dp": 2, "tp": 2},
    "fsdp x tp": {"fsdp": 2, "tp": 2},
    "dp x pp": {"dp": 2, **pp(2, 2, "1F1B")},
    "fsdp x pp": {"fsdp": 2, **pp(2, 2, "1F1B")},
    "tp x pp": {"tp": 2, **pp(2, 2, "1F1B")},
    "dp x tp x pp": {"dp": 2, "tp": 2, **pp(2, 2, "1F1B")},
    "fsdp x tp x pp": {"fsdp": 2, "tp": 2, **pp(2, 2, "1F1B")},
    "cp": {"cp": 2},
    "dp x cp": {"dp": 2, "cp": 2},
    "fsdp x cp": {"fsdp": 2, "cp": 2},
    "tp x cp": {"tp": 2, "cp": 2},
    "cp x pp": {"cp": 2, **pp(2, 2, "1F1B")},
}


def ranks_of(layout):
    """Processes of a layout."""
    return math.prod(layout.get(axis, 1) for axis in DEGREES)


def axes_of(layout):
    """The axes that a layout spreads over."""
    return {axis for axis in DEGREES if layout.get(axis, 1) > 1}


# Each axis and each way to shard is in one of these, which are quick in fp64.
QUICK = (
    *("ddp 2 sgd uneven accumulated", "fsdp 2 ZeRO-1", "hsdp 2x2 selective", "tp 2 llama", "pp 2 1F1B", "pp 2 V tied"),
    *("cp 2 llama", "fsdp 2 x tp 2"),
)


SUMS = "fp32, sums in bf16"


def comparisons(cases, quick=QUICK):
    """(name, precision) of every case in fp64 and of some in fp32, bf16, float8 and with SUMS; all but a few are slow."""
    flags = {"fp32": "fp32", "bf16": "bf16", "float8": "bf16"}
    wanted = [(name, "fp64") for name in cases]
    wanted += [(name, kind) for kind in flags for name, case in cases.items() if getattr(case, flags[kind])]
    wanted += [(name, SUMS) for name, case in cases.items() if case.sums]
    fast = [*((name, "fp64") for name in quick), ("ddp 2 uneven accumulated", SUMS), ("tp 2 llama", "float8")]
    return [pytest.param(*pair, marks=[pytest.mark.slow] * (pair not in fast)) for pair in wanted]


def but_slow(names, slow):
    """Parameters of a test; those named in `slow` take long and add least."""
    return [pytest.param(name, marks=[pytest.mark.slow] * (name in slow)) for name in names]
