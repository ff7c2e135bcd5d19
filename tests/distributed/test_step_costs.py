"""What a training step costs beside its arithmetic, counted: waits of the host for the device, and for Python's garbage."""

import gc
import math
import re
import sys
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from parascale.settings import Layout
from parascale.train import loop

from . import tasks
from .cases import LAYOUTS, ONCE, ZERO_1, but_slow, ranks_of
from .examine import train_and_look, train_settings
from .harness import run_on_ranks


class Waits(TorchDispatchMode):
    """Counts reads of tensors' values by the host, each of which would wait for a GPU. device: the run's own; any other `torch.device`
    that a tensor is sent to is the host's."""

    READERS = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__")

    def __init__(self, device):
        super().__init__()
        self.device, self.calls, self.reading = device, 0, False

    def __enter__(self):
        self.originals = {name: getattr(torch.Tensor, name) for name in (*self.READERS, "to")}
        for name, original in self.originals.items():
            setattr(torch.Tensor, name, self._counted(original))
        return super().__enter__()

    def __exit__(self, *error):
        for name, original in self.originals.items():
            setattr(torch.Tensor, name, original)
        return super().__exit__(*error)

    def _counted(self, original):
        def reader(tensor, *arguments, **keywords):
            if original.__name__ == "to" and not self._leaves(arguments, keywords, sys._getframe(1)):
                return original(tensor, *arguments, **keywords)
            before, self.reading = self.reading, True  # a reader may call another one, or an operator
            self.calls += not before
            try:
                return original(tensor, *arguments, **keywords)
            finally:
                self.reading = before

        return reader

    def _leaves(self, arguments, keywords, caller):
        """Whether `to` names another place than the run's device; torch's own code names that of its tensors."""
        places = (each for each in (*arguments, *keywords.values()) if isinstance(each, (str, torch.device)))
        return not caller.f_globals["__name__"].startswith("torch.") and any(
            place is not self.device for place in places
        )

    def __torch_dispatch__(self, function, kinds, arguments=(), keywords=None):
        # Sizes that an operator computes are read by the host as well.
        if function in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            self.calls += not self.reading
        return function(*arguments, **(keywords or {}))


READS = {"item": lambda loss: loss.item(), "condition": lambda loss: not loss, "copy": lambda loss: loss.to("cpu")}


def train_and_count_waits(settings, planted=None):
    """Train; the reads of tensors' values in each step, and after it, as two lists. planted: one of READS, done to each loss."""
    counts = [], []
    if planted:
        compute = loop.GlobalLoss.__call__
        loop.GlobalLoss.__call__ = lambda *batch: (loss := compute(*batch), READS[planted](loss))[0]

    def counting(function, into):
        def counted(*arguments, **keywords):
            with Waits(arguments[0].mesh.device) as waits:
                result = function(*arguments, **keywords)
            into.append(waits.calls)
            return result

        return counted

    loop.Stepper.step = counting(loop.Stepper.step, counts[0])
    loop.Session.end_step = counting(loop.Session.end_step, counts[1])
    loop.RunState.checkpoint = lambda *_: {}
    loop.RunState.publish = lambda state: None
    train_settings(settings)
    return counts


OTHERS = {
    "fp16": ("ddp", {"precision": "fp16"}),
    "fp16, sgd": ("single", {"precision": "fp16", "optim": {"name": "sgd"}}),
    "fp16, products": ("fsdp x tp x pp", {"precision": "fp16"}),
    "summaries": ("fsdp", {"task": "summarisation", **tasks.SUMMARISATION}),
    "images": ("fsdp", {"task": "classification", **tasks.CLASSIFICATION}),
    "images, single": ("single", {"task": "classification", **tasks.CLASSIFICATION}),
}
WAITS = {name: (name, {}) for name in LAYOUTS} | OTHERS
DATA = {"summarisation": "pairs", "classification": "images"}
QUICK = {"tp", "pp", "fp16", "images"}  # fp16 is of DDP, images of FSDP


@pytest.mark.parametrize("name", but_slow(WAITS, {*WAITS} - QUICK))
def test_the_host_waits_for_numbers_once_a_step_at_most(name, make_settings, tmp_path, request):
    """For what the ranks have agreed on; a process alone waits for nothing within a step, and whether a step of fp16 is skipped is for
    the device to know. The numbers of the step before are read once, after the step has been started."""
    layout, keys = WAITS[name]
    data = {"data": request.getfixturevalue(DATA[keys["task"]])} if "task" in keys else {}
    training = keys.get("training", {}) | {"steps": 6, "evaluate": False}
    settings = make_settings("run", LAYOUTS[layout], **keys | data | {"training": training})
    ranks = run_on_ranks(train_and_count_waits, ranks_of(LAYOUTS[layout]), tmp_path / "ranks", settings)
    for within, after in ranks:
        # Stages tell each other in the first step what they will send.
        assert within[1:] == [0 if len(ranks) == 1 else 1] * 5
        assert after == [0, 1, 1, 1, 1, 2]  # the last step's own numbers are due at once


@pytest.mark.parametrize("planted", but_slow(READS, {"condition"}))
def test_a_read_of_the_loss_is_seen(planted, make_settings, tmp_path):
    settings = make_settings("run", training={"steps": 4, "evaluate": False})
    ((within, _),) = run_on_ranks(train_and_count_waits, 1, tmp_path / "ranks", settings, planted)
    assert within == [1, 1, 1, 1]


# Strategy → how often a step of 1 and of 4 parts gathers the parameters of each block over shards, scatters each gradient over them and
# sums it over replicas: the least there is.
MOVED = {
    "single": ((0, 0, 0), (0, 0, 0)),
    "ddp": ((0, 0, 1), (0, 0, 1)),
    "fsdp": ((2, 1, 0), (8, 4, 0)),
    "fsdp, once": ((2, 1, 0), (8, 1, 0)),
    "fsdp, kept": ((1, 1, 0), (1, 4, 0)),
    "fsdp, ZeRO-1": ((1, 1, 0), (1, 1, 0)),
    "hsdp": ((2, 1, 1), (8, 4, 1)),
    "hsdp, once": ((2, 1, 1), (8, 1, 1)),
    "hsdp, ZeRO-1": ((1, 1, 1), (1, 1, 1)),
    "tp": ((0, 0, 0), (0, 0, 0)),
    "pp": ((0, 0, 0), (0, 0, 0)),
    "dp x tp": ((0, 0, 1), (0, 0, 1)),
    "fsdp x tp": ((2, 1, 0), (8, 4, 0)),
    "fsdp x tp, once": ((2, 1, 0), (8, 1, 0)),
    "fsdp x tp, ZeRO-1": ((1, 1, 0), (1, 1, 0)),
    "dp x pp": ((0, 0, 1), (0, 0, 1)),
    "fsdp x pp": ((1, 1, 0), (1, 1, 0)),
    "fsdp x pp, looped": ((1, 1, 0), (1, 1, 0)),
    "fsdp x pp, V": ((1, 1, 0), (1, 1, 0)),
    "tp x pp": ((0, 0, 0), (0, 0, 0)),
    "dp x tp x pp": ((0, 0, 1), (0, 0, 1)),
    "fsdp x tp x pp": ((1, 1, 0), (1, 1, 0)),
    "cp": ((0, 0, 1), (0, 0, 1)),
    "dp x cp": ((0, 0, 1), (0, 0, 1)),
    "tp x cp": ((0, 0, 1), (0, 0, 1)),
    "cp x pp": ((0, 0, 1), (0, 0, 1)),
    "fsdp x cp": ((2, 1, 0), (8, 4, 0)),
}
OFTEN = {"–": (0, 0), "twice a part": (2, 8), "once a part": (1, 4), "once a step": (1, 1)}


def test_documents_say_how_often_parameters_and_gradients_move():
    text = (Path(__file__).parents[2] / "docs/how-it-works.md").read_text()
    often = "(–|once a part|once a step|twice a part)"
    rows = re.findall(rf"^\| (.*) \| {often} \| {often} \| {often} \|$", text, re.M)
    said = {
        name.replace("×", "x"): tuple(zip(*map(OFTEN.get, times), strict=True))
        for names, *times in rows
        for name in re.findall("`([^:`]+)`", names)
    }
    assert said == MOVED


OTHERWISE = {
    "": {},
    "once": ONCE,
    "kept": {"reshard_after_forward": False},
    "ZeRO-1": ZERO_1,
    "looped": {"schedule": "Interleaved1F1B", "micro_batches": 4},
    "V": {"schedule": "ZBVZeroBubble", "micro_batches": 4},
}
QUICK_MOVED = {("ddp", 4, "fp32"), ("fsdp, ZeRO-1", 4, "fp32"), ("hsdp", 4, "bf16")}


@pytest.mark.parametrize(
    ("name", "parts", "sums"),
    [
        pytest.param(name, parts, sums, marks=[pytest.mark.slow] * ((name, parts, sums) not in QUICK_MOVED))
        for name in MOVED
        for parts in (1, 4)
        for sums in ("fp32", "bf16")[: 1 + (MOVED[name][0][1:] != (0, 0))]
    ],
)
def test_parameters_and_gradients_move_as_seldom_as_can_be(name, parts, sums, make_settings, tmp_path):
    """Calls, one a unit of FSDP or bucket of DDP, and bytes, of which a rank scatters all that it computed and sums what it holds. What
    stands before and after the blocks is gathered once a part where those are gathered twice."""
    strategy, _, how = name.partition(", ")
    layout = LAYOUTS[strategy] | OTHERWISE[how]
    training = {"steps": 2, "global_batch": 32, "accumulate": parts, "evaluate": False}
    settings = make_settings("run", layout, optim={"warmup_steps": 0}, training=training, reduce_precision=sums)
    # The first rank's shards are padded by nothing.
    rank = run_on_ranks(train_and_look, ranks_of(layout), tmp_path / "ranks", settings)[0]
    gathers, scatters, summed = MOVED[name][parts > 1]
    units, held, shards = max(1, rank["sharded_units"]), rank["parameter_bytes"], Layout(**layout).of_parameters.fsdp
    ends = 4 * sum(math.prod(shape) for name, shape in rank["parameters"].items() if not name.startswith("blocks."))
    twice, reduced = gathers // 2, held * {"fp32": 4, "bf16": 2}[sums] // 4
    assert rank["moved"] == {
        "all_gather": [gathers * units - twice * 2, shards * (gathers * held - twice * ends)],
        "reduce_scatter": [scatters * units, scatters * shards * reduced],
        "all_reduce": [summed * units, summed * reduced],
    }


def train_and_note_collections(settings):
    """Train where garbage is due every second step; the steps in which Python collected any."""
    collected, make_steps = [], loop.make_steps_of_engine

    def noting(session):
        gc.callbacks.append(lambda moment, _: collected.append(session.number) if moment == "start" else None)
        make_steps(session)
        gc.callbacks.pop()

    def begin_step(session, step):
        session.number = step
        begin(session, step)

    loop.GARBAGE_STEPS, loop.make_steps_of_engine = 2, noting
    begin, loop.Session.begin_step = loop.Session.begin_step, begin_step
    train_settings(settings)
    return collected


def test_garbage_is_collected_between_the_same_steps_on_all_ranks(make_settings, tmp_path):
    """Ranks wait for one another in each step: each that stopped for its garbage alone would stop all."""
    settings = make_settings("run", {"dp": 2}, training={"steps": 6, "evaluate": False})
    assert run_on_ranks(train_and_note_collections, 2, tmp_path / "ranks", settings) == [[2, 4, 6]] * 2
