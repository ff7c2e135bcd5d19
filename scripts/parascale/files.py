"""Atomic file and folder writes, locks and checksums.

A reader never sees half a file: everything is written under a temporary name next to its target, flushed to disk and renamed.
"""

import csv
import errno
import fcntl
import glob
import hashlib
import io
import json
import os
import pwd
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from parascale.errors import DamagedError, DataError, FullDiskError, RequirementError

File = str | os.PathLike[str]
FULL = {errno.ENOSPC, errno.EDQUOT}  # the disk or its quota is full
REMEDY = "make room or choose another place, such as with --root"
SPACE_REMEDY = "Free some space or set another `root` in the configuration."
FLUSH_BYTES = 128 << 20  # written before each flush; with fewer, many small flushes would be slow


def open_flushed(path: File) -> io.BufferedWriter:
    """Open a file for writing that is flushed to disk in the background.

    Otherwise the kernel caches gigabytes, and the disk idles until the flush at the end. A later write or close raises an error of the
    disk.
    """
    return io.BufferedWriter(_FlushedBehind(path))


class _FlushedBehind(io.FileIO):
    def __init__(self, path: File) -> None:
        super().__init__(path, "wb")
        self._pool, self._waiting = ThreadPoolExecutor(1), 0
        self._flush: Future[Any] = self._pool.submit(int)  # nothing yet

    def write(self, data: Any) -> int:
        count = super().write(data)
        self._waiting += count
        if self._waiting >= FLUSH_BYTES and self._flush.done():
            self._flush.result()
            self._flush, self._waiting = self._pool.submit(os.fdatasync, self.fileno()), 0
        return count

    def close(self) -> None:
        if not self.closed:
            try:
                self._flush.result()
            finally:
                self._pool.shutdown()
                super().close()


def make_folder(path: File) -> None:
    """Make a folder and its parents, if they do not exist. Raises RequirementError, which says what to do, if that fails."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        # Some filesystems report "no such file" if nobody can make folders there, as in /proc.
        reason = "no folder can be made here" if error.errno == errno.ENOENT else error.strerror
        raise RequirementError(f"{error.filename}: {reason}; {REMEDY}") from error


@contextmanager
def atomic_path(target: File) -> Iterator[Path]:
    """Yield a temporary path next to `target`. On success it is flushed and renamed to `target`, else removed.

    The body may create a file or a folder at the path. An existing file or folder at `target` is replaced.
    """
    target = Path(target)
    make_folder(target.parent)
    holder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
    partial = holder / target.name
    try:
        yield partial
        sync_tree(partial)
        if target.is_dir() and not target.is_symlink():
            # A folder cannot be renamed over another, so move the old one away first.
            os.rename(target, holder / f"{target.name}.old")
        os.replace(partial, target)
        sync_path(target.parent)
    finally:
        shutil.rmtree(holder, ignore_errors=True)


def write_text(target: File, text: str) -> None:
    """Write `text` (UTF-8) to `target` atomically."""
    with atomic_path(target) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(target: File, value: Any) -> None:
    """Write `value` as indented JSON to `target` atomically. Raises DataError if it contains a file name that is not UTF-8."""
    try:
        write_text(target, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    except UnicodeEncodeError as error:
        text, place = error.object, error.start
        name = text[:place].rpartition('"')[2] + text[place:].partition('"')[0]
        raise DataError(f"{name!a}: a name that is not UTF-8 cannot be recorded in {target}; rename it") from None


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Format mappings as CSV with a header of `columns`; None becomes an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def read_json(path: File) -> Any:
    """Read a JSON file. Raises DamagedError if it is not valid."""
    return _parsed(Path(path).read_bytes(), path)


def read_json_lines(path: File, readable: bool = False) -> list[Any]:
    """Read a JSON Lines file, without a last line that a crash truncated; with `readable`, without any lines that are not JSON."""
    lines = Path(path).read_bytes().split(b"\n")
    values = []
    for number, line in enumerate(lines, 1):
        try:
            values += [_parsed(line, f"{path}, line {number}")] if line or number < len(lines) else []
        except DamagedError:
            if not readable and number < len(lines):
                raise
    return values


def _parsed(content: bytes, place: object) -> Any:
    try:
        return json.loads(content.decode())
    except ValueError as error:  # not JSON, or cut inside a character
        raise DamagedError(f"{place} is damaged: not valid JSON ({error})") from None


def append_line(path: Path, line: str) -> None:
    """Append a line to a file and flush it to disk. It starts on a new line even if a crash truncated the last one."""
    make_folder(path.parent)
    with full_disk_is_an_error(path), open(path, "a+b") as handle:
        size = handle.seek(0, os.SEEK_END)
        if size and os.pread(handle.fileno(), 1, size - 1) != b"\n":
            line = f"\n{line}"
        handle.write(f"{line}\n".encode())
        handle.flush()
        os.fsync(handle.fileno())


def link_or_copy(source: File, target: File) -> None:
    """Hard-link a file, or copy it if the filesystem cannot link here. `target` must not exist."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        shutil.copy2(source, target)


def sync_path(path: File) -> None:
    """Flush one file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(path: File) -> None:
    """Flush a file, or every file and folder below a folder, to disk."""
    path = Path(path)
    for child in path.iterdir() if path.is_dir() else ():
        sync_tree(child)
    if not path.is_symlink():
        sync_path(path)


def sha256(path: File) -> str:
    """The hex sha256 of a file's bytes."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def tree_bytes(path: File) -> int:
    """The bytes of all files below a folder."""
    return sum(entry.stat().st_size for entry in Path(path).rglob("*") if entry.is_file())


def require_space(folder: File, needed_bytes: float, purpose: str, remedy: str = SPACE_REMEDY) -> None:
    """Raise FullDiskError, which says what to do, if the filesystem of `folder` has less than `needed_bytes` free."""
    folder = Path(folder)
    while not folder.exists():
        folder = folder.parent
    if (free := shutil.disk_usage(folder).free) < needed_bytes:
        said = f"{needed_bytes / 2**20:,.0f} MiB are needed, {free / 2**20:,.0f} MiB are free"
        raise FullDiskError(f"not enough room in {folder} for {purpose}: {said}. {remedy}")


@contextmanager
def atomic_folder(target: File) -> Iterator[Path]:
    """Yield a new folder that becomes `target` on success (see `atomic_path`). Raises FullDiskError if the disk is full.

    Removes leftovers of killed attempts next to `target`; living attempts hold a lock on their folder.
    """
    with full_disk_is_an_error(target):
        for left in Path(target).parent.glob(f".{glob.escape(Path(target).name)}.*.partial"):
            with locked(left) as ours:
                if ours:
                    shutil.rmtree(left, ignore_errors=True)
        with atomic_path(target) as partial, locked(partial.parent):
            partial.mkdir()
            yield partial


@contextmanager
def locked(path: File, seconds: float = 0.0) -> Iterator[bool | None]:
    """Hold the lock of a file or folder until the end of the block or of this process; the lock survives exec.

    Yields True; False if another process still holds it after `seconds`; None if the filesystem has no locks, or `path` does not exist.
    """
    handle = None
    try:
        with suppress(FileNotFoundError):
            handle = os.open(path, os.O_RDONLY)
            os.set_inheritable(handle, True)
        yield None if handle is None else _lock(handle, seconds)
    finally:
        if handle is not None:
            os.close(handle)


def _lock(handle: int, seconds: float) -> bool | None:
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(0.02)
        except OSError:
            return None


@contextmanager
def full_disk_is_an_error(target: File) -> Iterator[None]:
    """Raise FullDiskError, with the name of `target`, when an OSError says that the disk or its quota is full."""
    try:
        yield
    except OSError as error:
        if not is_full_disk(error):
            raise
        remedy = "Free some space or set another `root` in the configuration, then run again."
        said = f"the disk or its quota is full ({error.strerror}). Nothing half-written was left there"
        raise FullDiskError(f"{target}: {said}. {remedy}") from error


def is_full_disk(error: BaseException | None) -> bool:
    """True if an exception, or one in its chain of causes, says that the disk or its quota is full."""
    while error is not None:
        if isinstance(error, FullDiskError) or getattr(error, "errno", None) in FULL:
            return True
        error = error.__cause__ or error.__context__
    return False


def user_name(number: int) -> str:
    """The name of a user id, or the id as text if it has no name, as in a container."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
