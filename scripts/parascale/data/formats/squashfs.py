"""SquashFS: one file with a filesystem inside, mounted by squashfuse without root.

Every read goes through another process (FUSE), so it is slower than other formats. The offset of a sample is its number in the
shard; its path is made from its number in the source.
"""

import ctypes
import functools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from multiprocessing import util
from typing import Any

import numpy as np

from parascale.data.formats.base import BLOCK_BYTES, ShardWriter, SplitReader, sample_path
from parascale.data.formats.webdataset import BLOCK, header, padding
from parascale.errors import DataError, RequirementError

SUFFIX = "squashfs"
# No compression, dates or owners, and one thread: the same samples give the same bytes.
OPTIONS = ("-tar", "-noI", "-noD", "-noF", "-noX", "-no-duplicates", "-mkfs-time", "0", "-all-time", "0", "-all-root")
QUIET = ("-quiet", "-no-progress", "-processors", "1")

PROGRAMS = ("squashfuse_ll", "squashfuse")  # the first uses FUSE's faster interface
MOUNT_SECONDS = 20.0
PR_SET_PDEATHSIG = 1  # prctl(2): the signal that a process gets when its parent dies
INSTEAD = "load the module or install squashfuse, ask for FUSE on this machine, or use another format, such as hdf5"


class SquashfsWriter(ShardWriter):
    """Streams a tar into mksquashfs, without a folder of small files."""

    def __init__(self, path, images, data_bytes):
        super().__init__(path, images, data_bytes)
        if shutil.which("mksquashfs") is None:
            raise RequirementError(
                "format `squashfs` needs mksquashfs: install squashfs-tools 4.5 or later, or leave it out"
            )
        command, pipe = ["mksquashfs", "-", str(path), *OPTIONS, *QUIET], subprocess.PIPE
        self._process: Any = subprocess.Popen(command, BLOCK_BYTES, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT)
        self._count = 0

    def append(self, data, label, source):
        self._send(header(sample_path(source), len(data)), data, padding(len(data)))
        self._count += 1

    def finish(self):
        self._send(bytes(2 * BLOCK))
        message, _ = self._process.communicate()
        if self._process.returncode:
            self._fail(message)
        return np.arange(self._count, dtype=np.int64)

    def close(self):
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def _send(self, *parts):
        try:
            self._process.stdin.writelines(parts)
        except BrokenPipeError:
            self._fail(self._process.stdout.read())

    def _fail(self, message):
        raise RequirementError(f"mksquashfs failed for {self.path}: {message.decode(errors='replace').strip()}")


class SquashfsReader(SplitReader):
    """Mounts each shard once per process and reads the files inside."""

    def _acquire(self):
        self._mounts = [Mount(self.folder / shard["file"]) for shard in self._facts]
        self._source = self.samples["source"].data

    def _release(self):
        for mount in self._mounts:
            mount.close()

    def _read(self, i):
        path = f"{self._mounts[self._shard[i]].folder}/{sample_path(self._source[i])}"
        try:
            with open(path, "rb", buffering=0) as file:
                return file.read()
        except OSError as error:
            raise DataError(f"{self.where(i)}: cannot be read through the mount ({error})") from None


Writer, Reader = SquashfsWriter, SquashfsReader


class Mount:
    """Mounts `archive` read-only at `folder`, with FUSE, until `close` or the end of the process."""

    def __init__(self, archive):
        program = require_fuse()
        self.folder = tempfile.mkdtemp(prefix="parascale-mount-")
        die_with_parent = functools.partial(ctypes.CDLL(None).prctl, PR_SET_PDEATHSIG, signal.SIGTERM)
        self._process: Any = subprocess.Popen(
            [program, "-f", str(archive), self.folder],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=die_with_parent,  # a killed process must not leave its mount behind
        )
        # Unlike `atexit`, this also runs at the end of `multiprocessing` children.
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
    """The program that mounts SquashFS here. Raises RequirementError if there is none, or no FUSE."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        raise RequirementError(f"reading `squashfs` needs squashfuse, which is not on the PATH: {INSTEAD}")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise RequirementError(f"reading `squashfs` needs FUSE, and /dev/fuse is missing or not accessible: {INSTEAD}")
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
