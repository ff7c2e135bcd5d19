"""What a training step costs beside its arithmetic, counted: waits of the host for the device."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from parascale.train import loop, optim

from .cases import pp, ranks_of
from .examine import train_settings
from .harness import run_on_ranks

LAYOUTS = {"single": {}, "ddp": {"dp": 2}, "fsdp": {"fsdp": 2}, "tp": {"tp": 2}, "pp": pp(2, 4, "1F1B")}


class Waits(TorchDispatchMode):
    """Counts reads of tensors' values by the host, each of which would wait for a GPU."""

    READERS = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__")

    def __init__(self):
        super().__init__()
        self.calls, self.reading = 0, False

    def __enter__(self):
        self.originals = {name: getattr(torch.Tensor, name) for name in self.READERS}
        for name, original in self.originals.items():
            setattr(torch.Tensor, name, self._counted(original))
        return super().__enter__()

    def __exit__(self, *error):
        for name, original in self.originals.items():
            setattr(torch.Tensor, name, original)
        return super().__exit__(*error)

    def _counted(self, original):
        def reader(tensor, *arguments):
            before, self.reading = self.reading, True  # a reader may call another one, or an operator
            self.calls += not before
            try:
                return original(tensor, *arguments)
            finally:
                self.reading = before

        return reader

    def __torch_dispatch__(self, function, kinds, arguments=(), keywords=None):
        # Sizes that an operator computes are read by the host as well.
        if function in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            self.calls += not self.reading
        return function(*arguments, **(keywords or {}))


def train_and_count_waits(settings):
    """Train; the reads of tensors' values in each step, and after it, as two lists."""
    counts = [], []

    def counting(function, into):
        def counted(*arguments, **keywords):
            with Waits() as waits:
                result = function(*arguments, **keywords)
            into.append(waits.calls)
            return result

        return counted

    optim._at_hand = lambda number: False  # as on a GPU
    loop.Stepper.step = counting(loop.Stepper.step, counts[0])
    loop.Session.end_step = counting(loop.Session.end_step, counts[1])
    loop.RunState.checkpoint = lambda *_: {}
    loop.RunState.publish = lambda state: None
    train_settings(settings)
    return counts


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_host_waits_for_numbers_once_a_step_at_most(layout, make_settings, tmp_path):
    """For what the ranks have agreed on; a process alone waits for nothing within a step. The numbers of the step before are read
    once, after the step has been started."""
    settings = make_settings("run", LAYOUTS[layout], training={"steps": 6, "evaluate": False})
    ranks = run_on_ranks(train_and_count_waits, ranks_of(LAYOUTS[layout]), tmp_path / "ranks", settings)
    for within, after in ranks:
        # Stages tell each other in the first step what they will send.
        assert within[1:] == [0 if layout == "single" else 1] * 5
        assert after == [0, 1, 1, 1, 1, 2]  # the last step's own numbers are due at once
