"""One writer a run: a living holder is respected, a dead one replaced, and one that was thought dead gives way."""

import json
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from parascale import lease as module
from parascale.errors import TrainingError
from parascale.files import read_json, user_name, write_json
from parascale.lease import Lease
from tests.made_up import FULL_DISK, failing
from tests.pace import wait_for


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A living holder has long for its sign: a busy disk may keep one for seconds."""
    monkeypatch.setattr(module, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(module, "STALE_SECONDS", 60.0)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.1)


@pytest.fixture
def given_up_soon(monkeypatch):
    """For those who wait until a holder counts as dead."""
    monkeypatch.setattr(module, "STALE_SECONDS", 1.0)


def holder(**changed):
    return {"host": "elsewhere", "pid": 1, "job_id": "17", "restarts": 0, "time": time.time(), **changed}


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


def test_a_lease_that_may_not_be_read_names_its_owner_or_the_number_of_a_user_without_a_name(tmp_path, monkeypatch):
    (tmp_path / "lease.json").touch()
    os.chown(tmp_path / "lease.json", 54321 if os.getuid() == 0 else -1, -1)
    monkeypatch.setattr(module, "read_json", failing(PermissionError()))
    owner = "54321" if os.getuid() == 0 else user_name(os.getuid())
    with pytest.raises(TrainingError, match=f"belongs to the user {owner} and is not readable.*--root"):
        Lease(tmp_path).acquire()


def test_who_waits_goes_on_when_the_holder_has_ended(tmp_path, capfd, monkeypatch):
    first, second, signs = Lease(tmp_path), Lease(tmp_path), []

    def look():
        try:
            return Lease.wait_for_holder(second)
        except TrainingError:
            signs.append(1)
            if len(signs) == 3:
                first.release()
            raise

    monkeypatch.setattr(second, "wait_for_holder", look)
    first.acquire()
    assert second.wait() is None and len(signs) == 3
    assert capfd.readouterr().out.count("waits: ") == 1


def test_a_dead_process_of_this_host_is_seen_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOOK_SECONDS", None)  # nobody may wait for a sign
    number = os.spawnlp(os.P_NOWAIT, "true", "true")
    os.waitpid(number, 0)
    last_sign = time.time() - 3
    write_json(tmp_path / "lease.json", holder(host=socket.gethostname(), pid=number, time=last_sign))
    lease = Lease(tmp_path)
    assert lease.acquire() == last_sign
    lease.release()


def test_a_machine_that_slept_gives_a_holder_on_it_time_for_a_sign(tmp_path):
    lease, said = tmp_path / "lease.json", {"host": socket.gethostname(), "pid": os.getpid()}
    write_json(lease, holder(**said, time=time.time() - 3600))
    threading.Timer(0.3, write_json, (lease, holder(**said))).start()
    with pytest.raises(TrainingError, match="is being written by"):
        Lease(tmp_path).acquire()


def test_a_holder_on_another_host_is_dead_when_it_gives_no_sign(tmp_path, given_up_soon):
    last_sign = time.time()
    write_json(tmp_path / "lease.json", holder(time=last_sign))
    lease = Lease(tmp_path)
    assert lease.acquire() == last_sign
    lease.release()


DAMAGED = ["", '{"host": "else', "[]", '{"time": 1}']


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_lease_is_its_holders_as_long_as_that_lives(content, tmp_path, capsys):
    """Who holds it is not known until it is renewed."""
    first = Lease(tmp_path)
    first.acquire()
    first.path.write_text(content)
    with pytest.raises(TrainingError, match=rf"is being written by process {os.getpid()}"):
        Lease(tmp_path).acquire()
    first.release()
    assert capsys.readouterr().out.count("its holder is unknown") == 1


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_lease_that_nobody_renews_is_free(content, tmp_path, given_up_soon):
    lease = Lease(tmp_path)
    lease.path.write_text(content)
    written = lease.path.stat().st_mtime
    assert lease.acquire() == written
    lease.release()


def test_a_full_disk_leaves_no_lease(tmp_path, monkeypatch):
    """Half of one would keep the next start waiting."""
    monkeypatch.setattr(module.json, "dump", failing(FULL_DISK))
    with pytest.raises(OSError, match="No space left"):
        Lease(tmp_path).acquire()
    assert not Lease(tmp_path).holder()


def test_who_was_thought_dead_ends_and_leaves_the_other_alone(tmp_path, monkeypatch):
    """As when a node hangs for longer than the others wait."""
    reasons = []
    monkeypatch.setattr(module, "_end_process", reasons.append)
    lease = Lease(tmp_path)
    lease.acquire()
    # The other renews as well, and may have been overwritten once.
    wait_for(lambda: lease.path.write_text(json.dumps(holder())) and reasons)
    lease._stop()  # before its thread finds what ends a process again
    assert reasons == [f"{tmp_path} is now written by process 1 on elsewhere (job 17)"]
    time.sleep(3 * module.RENEW_SECONDS)
    assert read_json(lease.path)["host"] == "elsewhere"


# A former start of a job: it holds the lease of a folder, and would write there until someone ends it.
FORMER = """
import sys, time
from pathlib import Path
from parascale import lease
lease.RENEW_SECONDS = 0.05
lease.Lease(Path(sys.argv[1])).acquire()
print("holds", flush=True)
steps = Path(sys.argv[1], "steps")
while True:
    steps.with_suffix(".new").write_text(str(time.time()))
    steps.with_suffix(".new").replace(steps)
    time.sleep(0.01)
"""


@pytest.fixture
def former(tmp_path):
    """A living process that was job 17 before Slurm began that anew."""
    environment = {**os.environ, "SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "0"}
    command = [sys.executable, "-c", FORMER, str(tmp_path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        assert process.stdout.readline() == "holds\n"
        yield process
        process.kill()


def test_a_job_that_began_anew_takes_the_place_of_its_former_start(tmp_path, monkeypatch, former):
    """Also where that is alive, as on a node that Slurm has lost: when the later one begins, the former has ended."""
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    monkeypatch.setattr(module, "STALE_SECONDS", 4.0)
    lease = Lease(tmp_path)
    sign = read_json(lease.path)["time"]
    assert sign <= lease.acquire() <= time.time() - module.STALE_SECONDS
    assert former.poll() == 1
    assert f"is now written by process {os.getpid()}" in former.stderr.read()
    assert read_json(lease.path)["restarts"] == 1
    lease.release()
    assert not lease.path.exists()


@pytest.mark.parametrize(
    ("job", "restarts"), [("18", "1"), ("17", "0"), ("17", None), (None, None)], ids=["other", "same", "unsaid", "none"]
)
def test_only_a_later_start_of_the_same_job_takes_a_living_holders_place(job, restarts, tmp_path, monkeypatch, former):
    for name, value in (("SLURM_JOB_ID", job), ("SLURM_RESTART_COUNT", restarts)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    with pytest.raises(TrainingError, match=rf"is being written by process {former.pid} on .* \(job 17\)"):
        Lease(tmp_path).acquire()
    assert former.poll() is None


@pytest.mark.parametrize(("name", "error"), [("write_json", FULL_DISK), ("read_json", PermissionError())])
def test_a_file_system_that_fails_for_a_while_does_not_end_the_lease(name, error, tmp_path, monkeypatch):
    lease = Lease(tmp_path)
    lease.acquire()
    before, real = read_json(lease.path)["time"], getattr(module, name)
    monkeypatch.setattr(module, name, failing(error))
    time.sleep(0.3)
    monkeypatch.setattr(module, name, real)
    wait_for(lambda: read_json(lease.path)["time"] != before, "it to be renewed again")
    lease.release()


@pytest.mark.parametrize("how", ["release", "give_up"])
def test_who_ends_after_it_was_replaced_leaves_its_successors_lease_and_folder(how, tmp_path, monkeypatch):
    """As after a SIGSTOP: it wakes up at its end."""
    reasons = []
    monkeypatch.setattr(module, "_end_process", reasons.append)
    monkeypatch.setattr(module, "RENEW_SECONDS", 60.0)
    lease = Lease(tmp_path / "run")
    lease.acquire()
    write_json(lease.path, holder())
    getattr(lease, how)()
    assert read_json(lease.path)["host"] == "elsewhere" and len(reasons) == 1


def test_a_folder_goes_with_its_lease(tmp_path):
    for target in (None, tmp_path / "aside"):
        lease = Lease(tmp_path / "run")
        lease.acquire()
        (tmp_path / "run/steps").touch()
        lease.give_up(target)
        lease.release()
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["aside", "aside/steps"]


def test_of_many_that_find_a_dead_holder_one_takes_its_place(tmp_path, monkeypatch):
    """Also where each looked before any of them wrote."""
    monkeypatch.setattr(module, "RENEW_SECONDS", 60.0)
    lost, together = [], threading.Barrier(8)
    write_json(tmp_path / "lease.json", holder(time=0.0))
    wait = Lease.wait_for_holder

    def wait_together(self):
        if self in lost:
            raise TrainingError("another holds it")
        lost.append(self)
        found = wait(self)
        together.wait(60)
        return found

    monkeypatch.setattr(Lease, "wait_for_holder", wait_together)
    won = []

    def start():
        try:
            lease = Lease(tmp_path)
            lease.acquire()
            won.append(lease)
        except TrainingError:
            pass

    threads = [threading.Thread(target=start) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(won) == 1
    won[0].release()


def test_a_lease_that_another_wrote_in_between_is_not_ours(tmp_path, monkeypatch):
    """Where the file system has no locks, two may find the same dead holder: the later one must not believe it holds the lease."""
    (tmp_path / "work").mkdir()
    lease = Lease(tmp_path / "work")
    lease._write()
    dead = lease.holder()["time"]
    monkeypatch.setattr(type(lease.path), "unlink", lambda *_, **__: None)  # the other's stands there again
    assert lease._claim(dead) is False
