"""Checkpoints saved in the background hold the state of the moment at which they were asked for."""

import threading
from types import SimpleNamespace

import pytest
import torch

from parascale.checkpoint import read, store

from .checkpoints import ALONE


class Held(store.Saver):
    """A Saver that writes when it is let go."""

    gate = None

    def _write(self, *arguments):
        assert self.gate.wait(60)
        super()._write(*arguments)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_what_is_saved_is_the_state_at_that_moment(device, tmp_path):
    """Steps that were started before are waited for, and those that follow change nothing. The memory of one save serves the next."""
    module = torch.nn.Linear(512, 512, device=device)
    model = SimpleNamespace(parts=[module], mesh=ALONE, tied={}, ranks_differ=False)
    saver, places = Held(ALONE, True, 10), []
    for step in (1, 2):
        saver.gate = threading.Event()
        with torch.no_grad():
            if device == "cuda":
                torch.cuda._sleep(10**8)  # cycles: the step is still under way
            module.weight.fill_(step)
            saver.save(tmp_path / f"step-{step}", model, [], {"step": step})
            module.weight.fill_(-1)
        copy = saver.copies["model.weight"]
        assert copy.is_pinned() == (device == "cuda")
        places.append(copy.data_ptr())
        saver.gate.set()
        saver.wait()
        saved = read.read(tmp_path / f"step-{step}", ["model.weight"])["model.weight"]
        assert torch.equal(saved, torch.full((512, 512), float(step)))
    assert places[0] == places[1]
