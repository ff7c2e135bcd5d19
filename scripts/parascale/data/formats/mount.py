"""A SquashFS file mounted through FUSE for as long as this process lives."""

import ctypes
import functools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from multiprocessing import util

from parascale.errors import RequirementError

PROGRAMS = ("squashfuse_ll", "squashfuse")  # the first uses FUSE's faster interface
MOUNT_SECONDS = 20.0
PR_SET_PDEATHSIG = 1  # prctl(2): the signal that a process gets when its parent dies
INSTEAD = "load the module or install squashfuse, ask for FUSE on this machine, or use another format, such as hdf5"


class Mount:
    """`folder` shows the content of `archive`, read-only, until `close` or the end of the process."""

    def __init__(self, archive):
        program = require_fuse()
        self.folder = tempfile.mkdtemp(prefix="parascale-mount-")
        die_with_parent = functools.partial(ctypes.CDLL(None).prctl, PR_SET_PDEATHSIG, signal.SIGTERM)
        self._process = subprocess.Popen(
            [program, "-f", str(archive), self.folder],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=die_with_parent,  # a worker that is killed must not leave its mount behind
        )
        # Runs at the end of a worker process too, where `atexit` does not.
        self.close = util.Finalize(self, _unmount, (self._process, self.folder), exitpriority=10)
        self._wait(archive)

    def _wait(self, archive):
        deadline = time.monotonic() + MOUNT_SECONDS
        while not os.path.ismount(self.folder):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                message = self._process.stderr.read().decode(errors="replace").strip()
                self.close()
                raise RequirementError(f"{archive} could not be mounted: {message or 'no answer'}. Either {INSTEAD}.")
            time.sleep(0.005)


def require_fuse():
    """The program that mounts SquashFS here. Raises RequirementError where there is none, or no FUSE."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        raise RequirementError(f"reading `squashfs` needs squashfuse, which is not on the PATH: {INSTEAD}")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise RequirementError(f"reading `squashfs` needs FUSE, and /dev/fuse is missing or closed to you: {INSTEAD}")
    return program


def _unmount(process, folder):
    process.terminate()
    try:
        process.wait(MOUNT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stderr.close()
    if os.path.ismount(folder):
        subprocess.run(["fusermount", "-u", "-z", folder], check=False)
    os.rmdir(folder)
