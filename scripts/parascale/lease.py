"""A lease on a folder: only its holder, a process that renews it, may train or convert into the folder.

The job of a killed Snakemake may still be running; a second job must not write into the same folder. If a holder was suspended so long
that another process took the lease, it exits when it sees the new lease. If Slurm requeues a job because it lost the node, the job's
earlier start may still be training there: the later start takes the lease, and begins once the earlier one must have seen it.
"""

import json
import os
import shutil
import socket
import sys
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard

import psutil

from parascale import slurm
from parascale.errors import TrainingError
from parascale.files import locked, make_folder, read_json, user_name, write_json
from parascale.paths import LEASE

RENEW_SECONDS = 5.0
STALE_SECONDS = 20.0  # several renewals plus the delay until a parallel filesystem shows a change
LOOK_SECONDS = 0.5
LOCK_SECONDS = 5.0
Holder = dict[str, Any]
KEYS = ("host", "pid", "job_id", "restarts")  # identify a holder


class Lease:
    """The exclusive right to write into a folder of an unfinished run or conversion, from `acquire` to `release`."""

    def __init__(self, folder: Path, remedy: str = "Wait for it, or cancel that job, and start again.") -> None:
        """remedy: the end of the error if another process holds the lease."""
        self.path, self.remedy = folder / LEASE, remedy
        self.since = time.strftime("%F %T")
        self.stopped = threading.Event()
        self.thread: threading.Thread | None = None

    def acquire(self) -> float | None:
        """Take the lease. Raises TrainingError, which names the holder, if that is alive. Returns the same as `wait_for_holder`."""
        holder = self.holder()
        if _is_former_start(holder):
            last_sign: float | None = self._replace(holder)
            self._write()
        else:
            last_sign = self.wait_for_holder()
            while not self._claim(last_sign):
                last_sign = self.wait_for_holder()
        self.thread = thread = threading.Thread(target=self._renew, daemon=True)
        thread.start()
        return last_sign

    def wait_for_holder(self) -> float | None:
        """Return when a dead holder last renewed (seconds since the epoch), or None without one. Raises TrainingError if it is alive."""
        holder = self.holder()
        if holder is None or (holder["host"] == socket.gethostname() and not psutil.pid_exists(holder["pid"])):
            return holder["time"] if holder else None
        if holder["pid"] is None:
            print(
                f"{self.path}: damaged, its holder is unknown; waits up to {STALE_SECONDS:.0f} s for a sign of life",
                flush=True,
            )
        awake = SuspendAwareClock()
        while awake() < STALE_SECONDS:
            if holder["host"] != socket.gethostname() and time.time() - holder["time"] > 10 * STALE_SECONDS:
                break  # nodes' clocks agree far better than this, and this machine may have been suspended
            time.sleep(LOOK_SECONDS)
            now = self.holder()
            if now is None:
                break
            if now["time"] != holder["time"]:
                raise TrainingError(f"{self.path.parent} is being written by {_described(now)}. {self.remedy}")
        return holder["time"]

    def wait(self) -> float | None:
        """Wait until the lease is free; print once who holds it."""
        said = False
        while True:
            try:
                return self.wait_for_holder()
            except TrainingError as error:
                if not said:
                    print(f"waits: {error}", flush=True)
                said = True

    def release(self) -> None:
        """Remove our lease, unless we did already. Exits if another process holds it."""
        if not self._stop():
            return
        with suppress(FileNotFoundError), locked(self.path.parent, LOCK_SECONDS):
            if not self._end_unless_own():
                self.path.unlink()

    def give_up(self, target: Path | None = None) -> None:
        """Remove our lease, and in the same step rename its folder to `target`, or without a target delete it."""
        self._stop()
        if self._end_unless_own():
            return
        folder = self.path.parent
        gone = target or folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
        folder.rename(gone)
        if target is None:
            shutil.rmtree(gone)
        else:
            (gone / self.path.name).unlink(missing_ok=True)

    def _stop(self) -> bool:
        """Stop renewing. Returns False if we were not."""
        self.stopped.set()
        thread, self.thread = self.thread, None
        if thread:
            thread.join()
        return thread is not None

    def _end_unless_own(self) -> bool:
        """Exit if another process holds the lease. (The return value is for tests, in which the process does not exit.)"""
        holder = self.holder()
        if holder and holder["pid"] and not _is_own(holder):
            _end_process(f"{self.path.parent} is now written by {_described(holder)}")
            return True
        return False

    def _claim(self, dead: float | None) -> bool:
        """Write our lease, if there is none but one last renewed at `dead`. True if it is ours; without locks, the next renewal checks."""
        make_folder(self.path.parent)
        with locked(self.path.parent, LOCK_SECONDS):
            now = self.holder()
            if now and now["time"] != dead:
                return False
            self.path.unlink(missing_ok=True)
            try:
                with open(self.path, "x", encoding="utf-8") as file:
                    json.dump(self._sign(), file)
            except FileExistsError:
                return False
            except OSError:  # a full disk; half a lease would make others wait
                self.path.unlink()
                raise
        return True

    def _replace(self, former: Holder) -> float:
        """Take the lease from an earlier start of this job; wait until that must have seen it and ended. Returns its last renewal."""
        print(f"{self.path.parent}: replaces this job's former start, {_described(former)}", flush=True)
        self._write()
        awake, held_since = SuspendAwareClock(), 0.0
        while awake() - held_since < STALE_SECONDS:
            time.sleep(LOOK_SECONDS)
            now = self.holder()
            if now is None or not _is_own(now):
                # The earlier start was just renewing when we wrote. It reads before it writes, so next time it sees our lease.
                former, held_since = now or former, awake.seconds
                self._write()
        return former["time"]

    def _renew(self) -> None:
        while not self.stopped.wait(RENEW_SECONDS):
            # A full disk or an unavailable filesystem may recover before the next renewal.
            with suppress(OSError, TrainingError):
                if self._end_unless_own():
                    return
                self._write()

    def holder(self) -> Holder | None:
        """The holder that the lease names; None without a lease. For a damaged lease only the time is known; a living holder soon rewrites
        it. Raises TrainingError, which names the owner, if we may not read it.
        """
        try:
            written = self.path.stat().st_mtime
            holder = read_json(self.path)
            known = {name: holder[name] for name in KEYS}
            return holder | known | {"pid": int(holder["pid"]), "time": float(holder["time"])}
        except (ValueError, KeyError, TypeError):
            return dict.fromkeys(KEYS) | {"time": written}
        except FileNotFoundError:
            return None
        except PermissionError:
            owner = user_name(self.path.stat().st_uid)
            remedy = "ask them, or choose another place, such as with --root"
            raise TrainingError(f"{self.path}: belongs to the user {owner} and is not readable; {remedy}") from None

    def _write(self) -> None:
        write_json(self.path, self._sign())

    def _sign(self) -> Holder:
        return _own_start() | {"user": user_name(os.getuid()), "since": self.since, "time": time.time()}


def _own_start() -> Holder:
    """KEYS of this process. job_id, restarts: id of its Slurm job and how often Slurm requeued it; None outside a job."""
    return dict(zip(KEYS, (socket.gethostname(), os.getpid(), slurm.job_id(), slurm.restarts()), strict=True))


def _is_own(holder: Holder) -> bool:
    return (holder["host"], holder["pid"]) == (socket.gethostname(), os.getpid())


def _is_former_start(holder: Holder | None) -> TypeGuard[Holder]:
    """True if the holder is an earlier start of this process's Slurm job."""
    own = _own_start()
    if holder is None or holder["job_id"] is None or holder["job_id"] != own["job_id"]:
        return False
    return None not in (holder["restarts"], own["restarts"]) and holder["restarts"] < own["restarts"]


def _end_process(reason: str) -> None:
    """Exit at once, because the training would write into a folder that is now another's."""
    print(f"error: {reason}; this process ends", file=sys.stderr, flush=True)
    os._exit(1)


def _described(holder: Holder) -> str:
    job = f" (job {holder['job_id']})" if holder["job_id"] else ""
    since = f", of {holder['user']} since {holder['since']}" if "user" in holder else ""
    return f"process {holder['pid']} on {holder['host']}{job}{since}"


class SuspendAwareClock:
    """A clock to call in a loop: seconds since it was made, with at most `most` seconds between two calls (a suspended machine)."""

    def __init__(self, most: float = 2.0) -> None:
        self.most, self.seconds, self.called = most, 0.0, time.monotonic()

    def __call__(self) -> float:
        now = time.monotonic()
        self.seconds, self.called = self.seconds + min(now - self.called, self.most), now
        return self.seconds
