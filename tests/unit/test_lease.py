"""One writer a run: a living holder is respected, a dead one replaced, and one that was thought dead gives way."""

import os
import socket
import time

import pytest

from parascale.errors import TrainingError
from parascale.files import read_json, write_json
from parascale.train import lease as module
from parascale.train.lease import Lease


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(module, "STALE_SECONDS", 1.0)


def holder(**changed):
    return {"host": "elsewhere", "pid": 1, "job_id": "17", "time": time.time(), **changed}


def test_a_living_holder_is_named(tmp_path):
    first = Lease(tmp_path)
    assert first.acquire() is None
    with pytest.raises(TrainingError, match=rf"is being written by process {os.getpid()} on {socket.gethostname()}"):
        Lease(tmp_path).acquire()
    first.release()
    second = Lease(tmp_path)
    assert second.acquire() is None
    second.release()
    assert not second.path.exists()


def test_a_dead_process_of_this_host_is_seen_at_once(tmp_path):
    number = os.spawnlp(os.P_NOWAIT, "true", "true")
    os.waitpid(number, 0)
    last_sign = time.time() - 3
    write_json(tmp_path / "lease.json", holder(host=socket.gethostname(), pid=number, time=last_sign))
    started = time.monotonic()
    lease = Lease(tmp_path)
    assert lease.acquire() == last_sign
    assert time.monotonic() - started < module.STALE_SECONDS
    lease.release()


def test_a_holder_on_another_host_is_dead_when_it_gives_no_sign(tmp_path):
    last_sign = time.time()
    write_json(tmp_path / "lease.json", holder(time=last_sign))
    lease = Lease(tmp_path)
    assert lease.acquire() == last_sign
    lease.release()


def test_who_was_thought_dead_stops_and_leaves_the_other_alone(tmp_path):
    """As when a node hangs for longer than the others wait."""
    lease = Lease(tmp_path)
    lease.acquire()
    lease.check()
    write_json(lease.path, holder())
    deadline = time.monotonic() + 5
    while not lease.taken_by and time.monotonic() < deadline:
        write_json(lease.path, holder())  # the other renews as well, and may have been overwritten once
        time.sleep(0.02)
    with pytest.raises(TrainingError, match=r"now written by process 1 on elsewhere \(job 17\)"):
        lease.check()
    lease.release()
    assert read_json(lease.path)["host"] == "elsewhere"


def test_a_disk_that_is_full_for_a_while_does_not_end_the_lease(tmp_path, monkeypatch):
    lease = Lease(tmp_path)
    lease.acquire()
    before, real = read_json(lease.path)["time"], module.write_json

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_json", full)
    time.sleep(0.3)
    monkeypatch.setattr(module, "write_json", real)
    deadline = time.monotonic() + 5
    while read_json(lease.path)["time"] == before:
        assert time.monotonic() < deadline, "it was never renewed again"
        time.sleep(0.02)
    lease.release()
