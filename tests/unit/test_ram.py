"""A dataset in a node's memory is the same data, fits or is refused, and leaves nothing behind."""

from types import SimpleNamespace

import numpy as np
import pytest

from parascale.errors import RequirementError
from parascale.train import ram


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A job of one process whose data is to be staged, on a machine whose memory is a folder."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.bin").write_bytes(b"tokens" * 1000)
    (tmp_path / "ram").mkdir()
    monkeypatch.setattr(ram, "RAM", tmp_path / "ram")
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    workload = SimpleNamespace(data=SimpleNamespace(stage="ram"))
    return SimpleNamespace(run=SimpleNamespace(workload=workload), data=tmp_path / "data", work=tmp_path / "work")


def test_an_open_file_outlives_the_copy_and_nothing_is_left(job):
    with ram.data_folder(job) as folder:
        assert folder.parent == ram.RAM
        tokens = np.memmap(folder / "train.bin", dtype=np.uint8, mode="r")
    assert list(ram.RAM.iterdir()) == []
    assert tokens.tobytes() == (job.data / "train.bin").read_bytes()


def test_data_stays_where_it_lies_unless_asked_for(job):
    job.run.workload.data.stage = "none"
    with ram.data_folder(job) as folder:
        assert folder == job.data


def test_what_does_not_fit_is_refused_with_both_sizes(job, monkeypatch):
    monkeypatch.setattr(ram, "free_bytes", lambda: 5000)
    with (
        pytest.raises(RequirementError, match=r"takes 0 MiB, but .* has room for 0 MiB.*stage: ram"),
        ram.data_folder(job),
    ):
        pass
    assert list(ram.RAM.iterdir()) == []


def test_a_file_that_several_links_lead_to_is_copied_and_counted_once(job, tmp_path, monkeypatch):
    (job.data / "train.bin").rename(tmp_path / "all.bin")
    for split in ("train", "validation", "test"):
        (job.data / f"{split}.bin").symlink_to(tmp_path / "all.bin")
    monkeypatch.setattr(ram, "free_bytes", lambda: 6000)
    with ram.data_folder(job) as folder:
        copies = list(folder.iterdir())
        assert len(copies) == 3 and len({path.stat().st_ino for path in copies}) == 1
        assert not any(path.is_symlink() for path in copies)
        assert copies[0].read_bytes() == (tmp_path / "all.bin").read_bytes()


def test_what_a_killed_attempt_left_is_replaced(job):
    copy = ram.place_in_ram(job.work, first_rank=0)
    copy.mkdir()
    (copy / "old.bin").touch()
    (ram.RAM / f".{copy.name}.abc.partial").mkdir()
    with ram.data_folder(job) as folder:
        assert [path.name for path in folder.iterdir()] == ["train.bin"]
    assert list(ram.RAM.iterdir()) == []


def test_runs_and_nodes_on_one_machine_have_copies_of_their_own(tmp_path):
    places = {ram.place_in_ram(tmp_path / run, first) for run in ("one", "two") for first in (0, 2)}
    assert len(places) == 4
