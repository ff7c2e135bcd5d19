"""A save that fails says why in one line, on every rank, and leaves nothing that would fill the disk further."""

import shutil
from types import SimpleNamespace

import pytest
import torch
import torch.distributed.checkpoint as dcp

from parascale.checkpoint import store
from parascale.checkpoint.ranks import together
from parascale.errors import CheckpointError, FullDiskError, RequirementError

MESH = SimpleNamespace(devices=None, rank=0, world_size=1)


def full_disk(*_, **__):
    """What `dcp.save` raises on a full disk: no Exception, and a traceback for a text."""
    raise dcp.api.CheckpointException("write", {0: (OSError(28, "No space left on device"), [])})


def failing_disk():
    raise OSError(5, "Input/output error")


def test_an_error_of_the_library_becomes_ours_with_its_cause():
    """A full disk is one of its own: a retry would find it as full, so the workflow makes none."""
    with pytest.raises(FullDiskError, match=r"could not be written: rank 0: OSError: .*No space left on device$"):
        together(MESH, full_disk, "could not be written")

    with pytest.raises(CheckpointError, match=r"could not be written: rank 0: OSError: .*Input/output error$"):
        together(MESH, failing_disk, "could not be written")


def test_a_failed_save_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "state_dict", lambda model, optimizers: {"model.weight": torch.ones(4)})
    saver = store.Saver(MESH, asynchronous=False, timeout_seconds=10)
    saver.save(tmp_path / "step-000000001", None, [], {"step": 1})
    monkeypatch.setattr(store.dcp, "save", full_disk)
    with pytest.raises(FullDiskError, match="No space left"):
        saver.save(tmp_path / "step-000000002", None, [], {"step": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]


def test_a_disk_without_room_is_seen_before_a_save_begins(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(store, "state_dict", lambda model, optimizers: {"model.weight": torch.ones(4)})
    monkeypatch.setattr(store.dcp, "save", lambda *_, **__: pytest.fail("it began"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=15))
    with pytest.raises(RequirementError, match=r"not enough room in .* for a checkpoint"):
        store.Saver(MESH, asynchronous=False, timeout_seconds=10).save(tmp_path / "step-1", None, [], {"step": 1})
    assert list(tmp_path.iterdir()) == []
