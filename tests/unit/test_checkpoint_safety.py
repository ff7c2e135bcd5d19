"""Nothing that comes with a checkpoint is run: pickles that do more than hold tensors are refused before they act."""

import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from parascale.checkpoint import metadata
from parascale.checkpoint.convert import convert
from parascale.checkpoint.metadata import INDEX, load_tensors, read_index
from parascale.checkpoint.source import open_source
from parascale.errors import CheckpointError
from parascale.settings.config import Checkpoints

from .checkpoints import save_run, seal


class Malicious:
    """A pickle that makes a folder when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.fixture
def checkpoint(tmp_path):
    return save_run(tmp_path / "run")[2]


def test_a_malicious_index_is_refused(checkpoint, tmp_path):
    (checkpoint / INDEX).write_bytes(pickle.dumps(Malicious(tmp_path / "ran")))
    seal(checkpoint)
    for act in (
        lambda: open_source(checkpoint),
        lambda: metadata.tensors(checkpoint),
        lambda: convert(checkpoint, tmp_path / "target", Checkpoints(), ["pt"]),
        lambda: load_tensors({"model.norm.weight": torch.zeros(32)}, checkpoint, no_dist=True),
    ):
        with pytest.raises((CheckpointError, dcp.api.CheckpointException), match=r"refuses to load `posix\.mkdir`"):
            act()
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "target").exists()


def test_an_index_of_another_python_is_read(checkpoint):
    """Python 3.13 pickles paths as `pathlib._local.PosixPath`, other versions as `pathlib.PosixPath`."""
    index = read_index(checkpoint)
    ours, theirs = (f"c{module}\nPosixPath\n".encode() for module in (type(Path()).__module__, "pathlib._local"))
    pickled = pickle.dumps(index, protocol=2)
    assert ours in pickled
    (checkpoint / INDEX).write_bytes(pickled.replace(ours, theirs))
    assert read_index(checkpoint).storage_meta == index.storage_meta


def test_a_malicious_shard_is_refused(checkpoint, tmp_path):
    """The index is honest and points at a shard that is not."""
    shard = checkpoint / "__0_0.distcp"
    torch.save({"weight": Malicious(tmp_path / "ran")}, tmp_path / "bad.pt")
    bad = (tmp_path / "bad.pt").read_bytes()
    index = dcp.FileSystemReader(checkpoint).read_metadata()
    for info in index.storage_data.values():
        info.offset, info.length = 0, len(bad)
    (checkpoint / INDEX).write_bytes(pickle.dumps(index))
    shard.write_bytes(bad)
    seal(checkpoint)
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp: refused, because it holds more than tensors"):
        convert(checkpoint, tmp_path / "target", Checkpoints(), ["pt"])
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_a_malicious_pt_file_is_refused(zipped, tmp_path):
    """What plain `torch.load` would run."""
    (tmp_path / "forms").mkdir()
    path, value = tmp_path / "forms/model.pt", {"weight": Malicious(tmp_path / "ran")}
    torch.save(value, path, _use_new_zipfile_serialization=zipped)
    seal(path.parent)
    with pytest.raises(CheckpointError, match=r"model\.pt: refused, because it holds more than tensors"):
        open_source(path.parent)
    assert not (tmp_path / "ran").exists()
    torch.load(path, weights_only=False)
    assert (tmp_path / "ran").exists(), "the trap"


def test_pickled_objects_in_an_index_are_refused(checkpoint):
    """torch saves what is no tensor as a pickle, and loads it as one; trainings here save tensors alone."""
    shutil.rmtree(checkpoint)
    state = {"model.weight": torch.ones(2), "extra": {"a": 1}}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(checkpoint), no_dist=True)
    seal(checkpoint)
    with pytest.raises(CheckpointError, match="not a tensor but a pickled object"):
        open_source(checkpoint)


@pytest.mark.parametrize("length", [0, 7, 100])
def test_an_index_cut_short_is_damaged(length, checkpoint):
    (checkpoint / INDEX).write_bytes((checkpoint / INDEX).read_bytes()[:length])
    with pytest.raises(CheckpointError, match="is damaged"):
        metadata.tensors(checkpoint)
