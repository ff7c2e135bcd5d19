"""One writer a run: whoever trains holds a lease, renewed while it lives.

After a killed Snakemake its job may still be running; a second job must not write into the same folder. Nor must a
holder go on that was cut off for so long that another has taken its place.
"""

import os
import socket
import threading
import time
from contextlib import suppress

from parascale.errors import TrainingError
from parascale.files import read_json, write_json

RENEW_SECONDS = 5.0
STALE_SECONDS = 20.0  # several renewals, and the delay with which a parallel filesystem shows a change


class Lease:
    """The right to write into a run's work folder, from `acquire` to `release`."""

    def __init__(self, folder):
        self.path = folder / "lease.json"
        self.stopped = threading.Event()
        self.thread = None
        self.taken_by = None  # the description of another holder, once there is one

    def acquire(self):
        """Take the lease, or raise TrainingError that names the living holder.

        Returns the last sign of life (seconds since the epoch) of a holder that died, else None.
        """
        last_sign = self.wait_for_holder()
        self._write()
        self.thread = threading.Thread(target=self._renew, daemon=True)
        self.thread.start()
        return last_sign

    def wait_for_holder(self):
        """The time of the holder's last sign, once it is clear that it is dead; None without a holder.

        Raises TrainingError that names the holder when it gives a sign of life.
        """
        holder = self._holder()
        if holder is None or (holder["host"] == socket.gethostname() and not _is_alive(holder["pid"])):
            return holder and holder["time"]
        watched = time.monotonic()
        while time.monotonic() - watched < STALE_SECONDS:
            if time.time() - holder["time"] > 10 * STALE_SECONDS:
                break  # clocks of nodes agree to far better than this
            time.sleep(0.5)
            now = self._holder()
            if now is None:
                break
            if now["time"] != holder["time"]:
                raise TrainingError(
                    f"{self.path.parent} is being written by {_described(now)}. "
                    "Wait for it, or cancel that job, and start again."
                )
        return holder["time"]

    def check(self):
        """Raise TrainingError where another has taken the lease because it found us dead: the folder is no longer ours."""
        if self.taken_by:
            raise TrainingError(
                f"{self.path.parent} is now written by {self.taken_by}, which had seen no sign of this process for {STALE_SECONDS:.0f} s"
            )

    def release(self):
        """Give the lease back, unless another has it."""
        self.stopped.set()
        self.thread.join()
        if not self.taken_by:
            self.path.unlink(missing_ok=True)

    def _renew(self):
        while not self.stopped.wait(RENEW_SECONDS):
            # A disk that is full, or a file system that hangs, may be well again at the next turn.
            with suppress(OSError):
                holder = self._holder()
                if holder and (holder["host"], holder["pid"]) != (socket.gethostname(), os.getpid()):
                    self.taken_by = _described(holder)
                    return
                self._write()

    def _holder(self):
        """What the lease says of its holder; None where there is none."""
        with suppress(FileNotFoundError):
            return read_json(self.path)

    def _write(self):
        job_id = os.environ.get("SLURM_JOB_ID")
        write_json(self.path, {"host": socket.gethostname(), "pid": os.getpid(), "job_id": job_id, "time": time.time()})


def _described(holder):
    job = f" (job {holder['job_id']})" if holder["job_id"] else ""
    return f"process {holder['pid']} on {holder['host']}{job}"


def _is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
