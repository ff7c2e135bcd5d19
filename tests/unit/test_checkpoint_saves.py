"""Saves: in the background they hold the state of their moment; one that fails says why on every rank and leaves no files."""

import shutil
import threading
from types import SimpleNamespace

import pytest
import torch
import torch.distributed.checkpoint as dcp

from parascale.checkpoint import metadata, store
from parascale.errors import CheckpointError, FullDiskError, RequirementError

from .checkpoints import ALONE


def model_of(module):
    return SimpleNamespace(parts=[module], mesh=ALONE, tied={}, ranks_differ=False)


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
    saver, places = Held(ALONE, True), []
    for step in (1, 2):
        saver.gate = threading.Event()
        with torch.no_grad():
            if device == "cuda":
                torch.cuda._sleep(10**8)  # cycles: the step is still under way
            module.weight.fill_(step)
            saver.save(tmp_path / f"step-{step}", model_of(module), [], {"step": step})
            module.weight.fill_(-1)
        copy = saver.copies["model.weight"]
        assert copy.is_pinned() == (device == "cuda")
        places.append(copy.data_ptr())
        saver.gate.set()
        saver.wait()
        saved = metadata.read(tmp_path / f"step-{step}", ["model.weight"])["model.weight"]
        assert torch.equal(saved, torch.full((512, 512), float(step)))
    assert places[0] == places[1]


def test_copies_share_buffers_that_pinning_makes_no_larger(monkeypatch):
    """The states of a small Llama in buffers of 1 MiB: together hardly more than the tensors, where each by itself would be half as much again."""
    monkeypatch.setattr(store, "BUFFER", 2**20)
    shapes = [(1376, 64), (64, 64), (64, 64), (64,), (100, 64, 3, 3), ()] * 40
    state = {str(number): torch.randn(shape) for number, shape in enumerate(shapes)}
    state["4"] = state["4"].to(memory_format=torch.channels_last)
    state["double"] = torch.randn(3, dtype=torch.float64)
    state["number"] = torch.tensor(7)
    made, empty = [], torch.empty
    monkeypatch.setattr(torch, "empty", lambda size, **how: made.append(size) or empty(size, **how))
    places = store.host_places(state)

    def pinned(sizes):
        return sum(1 << (size - 1).bit_length() for size in sizes)

    held = sum(value.nbytes for value in state.values())
    assert pinned(made) < 1.1 * held < 1.3 * held < pinned(value.nbytes for value in state.values())
    for name, value in state.items():
        places[name].copy_(value)
    for name, value in state.items():
        assert torch.equal(places[name], value) and places[name].dtype == value.dtype
        assert places[name].untyped_storage().nbytes() == value.nbytes  # a larger one is copied once more to be saved
        assert places[name].stride() == value.stride()


def full_disk(*_, **__):
    """What `dcp.save` raises on a full disk: no Exception, and a traceback for a text."""
    raise dcp.api.CheckpointException("write", {0: (OSError(28, "No space left on device"), [])})


def test_a_failed_save_leaves_no_files(tmp_path, monkeypatch):
    """A full disk is an error of its own: a retry would find it as full, so the workflow makes none."""
    model, saver = model_of(torch.nn.Linear(2, 2)), store.Saver(ALONE, asynchronous=False)
    saver.save(tmp_path / "step-000000001", model, [], {"step": 1})
    with monkeypatch.context() as patch:
        patch.setattr(store.dcp, "save", full_disk)
        with pytest.raises(FullDiskError, match=r"could not be written: rank 0: OSError: .*No space left"):
            saver.save(tmp_path / "step-000000002", model, [], {"step": 2})
        patch.setattr(store.dcp, "save", lambda *_, **__: (tmp_path / "no/file").touch())
        with pytest.raises(CheckpointError, match=r"could not be written: rank 0: FileNotFoundError: .*no/file"):
            saver.save(tmp_path / "step-000000002", model, [], {"step": 2})
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(store.dcp, "save", lambda *_, **__: pytest.fail("it began"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=15))
    with pytest.raises(RequirementError, match=r"not enough room in .* for a checkpoint"):
        saver.save(tmp_path / "step-000000003", model, [], {"step": 3})
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]
