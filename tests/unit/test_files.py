"""Files appear whole or not at all, whatever interrupts the writing, and a reader takes no half record for a whole one."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parascale import files as files_module
from parascale.errors import DamagedError, RequirementError
from parascale.files import atomic_path, locked, open_flushed, read_json, read_json_lines, require_space, write_json


class Crash(BaseException):
    """What ends a body in the middle; as KeyboardInterrupt, no Exception."""


def write_file(path, content):
    path.write_text(content)


def write_folder(path, content):
    (path / "inner").mkdir(parents=True)
    (path / "inner/file.txt").write_text(content)
    (path / content).write_text("a name of its own")


def content_of(path):
    """Relative path → text, for a file or for all files below a folder."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return {str(each.relative_to(path.parent)): each.read_text() for each in files}


both_kinds = pytest.mark.parametrize("write", [write_file, write_folder])


@both_kinds
@pytest.mark.parametrize("old", [True, False])
def test_a_crash_in_the_middle_changes_nothing(tmp_path, write, old):
    """Until the end, readers see the old, or nothing; then the new as a whole."""
    target = tmp_path / "deep/target"
    if old:
        target.parent.mkdir()
        write(target, "old")
    before = content_of(tmp_path)
    with pytest.raises(Crash), atomic_path(target) as partial:
        write(partial, "half")
        assert partial.parent.parent == target.parent, "a rename is atomic only within one filesystem"
        assert target.exists() == old
        raise Crash
    with pytest.raises(FileNotFoundError), atomic_path(target):
        pass
    assert content_of(tmp_path) == before
    with atomic_path(target) as partial:
        write(partial, "new")
    assert [each.name for each in target.parent.iterdir()] == ["target"]
    assert "old" not in content_of(target).values() and "new" in content_of(target).values()
    assert not any(name.endswith("old") for name in content_of(target))


def test_everything_is_on_disk_before_the_rename(tmp_path, monkeypatch):
    """Protects against a machine that loses power: a name must not reach the disk before its content does."""
    events = []
    fsync, replace = os.fsync, os.replace
    noted = lambda handle: (events.append(os.readlink(f"/proc/self/fd/{handle}")), fsync(handle))  # noqa: E731
    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "replace", lambda source, target: (events.append("rename"), replace(source, target)))
    with atomic_path(tmp_path / "target") as partial:
        write_folder(partial, "new")
    before, after = events[: events.index("rename")], events[events.index("rename") + 1 :]
    assert {path.rpartition("/target/")[2] for path in before} >= {"inner", "inner/file.txt", "new"}
    assert after == [str(tmp_path)]


def test_a_kill_in_the_middle_leaves_no_broken_target(tmp_path):
    """No cleaning up runs after SIGKILL: the old file stays, and the next write is not disturbed by what is left over."""
    target = tmp_path / "target.json"
    write_json(target, "old")
    body = (
        "import os, signal, sys\n"
        "from parascale.files import atomic_path\n"
        "with atomic_path(sys.argv[1]) as partial:\n"
        "    partial.write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", body, str(target)], check=False).returncode == -signal.SIGKILL
    assert read_json(target) == "old"
    write_json(target, "new")
    assert read_json(target) == "new"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def test_a_file_is_flushed_while_it_is_written(tmp_path, monkeypatch):
    """Everything arrives, in order, and the disk is at work long before the end."""
    flushed, flush = [], os.fdatasync
    monkeypatch.setattr(files_module, "FLUSH_BYTES", 1 << 20)
    monkeypatch.setattr(os, "fdatasync", lambda handle: flushed.append(os.fstat(handle).st_size) or flush(handle))
    with open_flushed(tmp_path / "large") as handle:
        for number in range(250):
            handle.write(bytes([number]) * 300_000)
        assert handle.tell() == 75_000_000
    assert (tmp_path / "large").read_bytes() == b"".join(bytes([number]) * 300_000 for number in range(250))
    assert flushed and flushed[0] < 37_500_000


def test_an_error_of_the_disk_behind_a_write_is_raised(tmp_path, monkeypatch):
    """Although the next flush would be without error."""
    failures = [OSError(errno.ENOSPC, "No space left on device")]

    def flush(handle):
        if failures:
            raise failures.pop()

    monkeypatch.setattr(files_module, "FLUSH_BYTES", 1 << 20)
    monkeypatch.setattr(os, "fdatasync", flush)
    with pytest.raises(OSError, match="No space left"), open_flushed(tmp_path / "large") as handle:
        handle.write(bytes(2_000_000))
        handle.raw._flush.exception()  # waits for it
        handle.write(bytes(2_000_000))


@settings(max_examples=50)
@given(st.lists(values, max_size=4), st.data())
def test_json_lines_cut_anywhere_give_all_whole_lines_before_the_cut(tmp_path_factory, written, data):
    path = tmp_path_factory.getbasetemp() / "cut.jsonl"
    lines = [json.dumps({"value": value}, ensure_ascii=False).encode() + b"\n" for value in written]
    content = b"".join(lines)
    cut = data.draw(st.integers(0, len(content)))
    path.write_bytes(content[:cut])
    whole = content[:cut].count(b"\n")
    # The last line is whole as soon as its closing brace is there, with or without the end of the line.
    whole += whole < len(lines) and cut == sum(map(len, lines[: whole + 1])) - 1
    assert read_json_lines(path) == [{"value": value} for value in written[:whole]]


def test_a_broken_line_before_the_last_is_an_error(tmp_path):
    (tmp_path / "steps.jsonl").write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(DamagedError, match="line 2 is damaged"):
        read_json_lines(tmp_path / "steps.jsonl")


def test_a_figure_that_json_has_no_word_for_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "summary.json", {"loss": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_a_lock_is_waited_for_as_long_as_asked(tmp_path, monkeypatch):
    slept = []
    monkeypatch.setattr(files_module, "time", SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append))
    with locked(tmp_path, 5.0) as first, locked(tmp_path, 5.0) as second:
        assert (first, second) == (True, False) and 5.0 <= sum(slept) < 5.1


@pytest.mark.parametrize("folder", [".", "not/there/yet"])
def test_too_little_room_is_said_before_anything_is_written(tmp_path, monkeypatch, folder):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10 * 2**20, 0, 3 * 2**20))
    require_space(tmp_path / folder, 3 * 2**20, "the tokens")
    with pytest.raises(RequirementError, match=r"for the tokens: 4 MiB are needed, 3 MiB are free.*`root`"):
        require_space(tmp_path / folder, 4 * 2**20, "the tokens")
