"""Conversions that are killed, or meet another that writes the same target: never half a target, and nothing stays for good."""

import glob
import os
import random
import shutil
import signal
import time
import traceback

import pytest

from parascale import lease
from parascale.checkpoint import convert as convert_module
from parascale.checkpoint.convert import convert
from parascale.checkpoint.inspect import inspect
from parascale.errors import TrainingError
from parascale.settings.config import Checkpoints

from ..pace import wait_for
from .checkpoints import save_run


def in_a_child(work):
    """Start `work` in a forked process, which ends with 0 if nothing was raised; its number."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return child


def has_ended(child):
    """Whether a child has ended; it can still be asked how."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def ended(child):
    """The exit code of a child, once it has ended; -SIGKILL where it was killed."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def begun_in(folder):
    """The folders in which a conversion of `target` writes; pathlib's own glob fails where one goes while it looks."""
    return {os.path.dirname(path) for path in glob.glob(".target.*.partial/target/*", root_dir=folder)}


@pytest.mark.parametrize("kills", [4, pytest.param(12, marks=pytest.mark.slow)])
def test_a_conversion_killed_at_any_moment_leaves_no_half_target(kills, tmp_path):
    """Kills (SIGKILL), from the first byte to about the last, half of them over an older target: what stands there is
    whole, the old or the new, or is not there. The next conversion removes what the one before left."""
    _, _, checkpoint = save_run(tmp_path / "run", {"dim": 128, "hidden": 512})
    folder, older = tmp_path / "converted", tmp_path / "older"
    target, forms = folder / "target", ["safetensors", "pt"]
    convert(checkpoint, older, Checkpoints(dtype="bfloat16"), forms)
    settings = Checkpoints(dtype="float32", memory_mb=1)
    usual = []
    for _ in range(3):  # a disk may stall
        started = time.monotonic()
        convert(checkpoint, target, settings, forms)
        usual.append(time.monotonic() - started)
    moments, met = random.Random(5), 0
    for number in range(kills):
        shutil.rmtree(target, ignore_errors=True)
        if number % 2:
            shutil.copytree(older, target)
        before = begun_in(folder)
        child = in_a_child(lambda: convert(checkpoint, target, settings, forms))
        wait_for(lambda: begun_in(folder) - before or has_ended(child))  # noqa: B023
        time.sleep(moments.uniform(number, number + 1) / kills * min(usual))
        os.kill(child, signal.SIGKILL)
        assert ended(child) in (0, -signal.SIGKILL)
        left = begun_in(folder)
        assert not left & before, "what the one before left"
        met += bool(left)
        dtypes = ("float32", "bfloat16") if number % 2 else ("float32",)
        assert any(whole_as(target, dtype) for dtype in dtypes) or not target.exists()
    assert met, "no kill met a writer"
    assert ended(in_a_child(lambda: convert(checkpoint, target, settings, forms))) == 0
    assert whole_as(target, "float32") and [path.name for path in folder.iterdir()] == ["target"]


def whole_as(target, dtype):
    """Whether a target stands there whole, converted to `dtype`; what stands there and is not whole is an error."""
    if not target.exists():
        return False
    found = inspect(target)
    assert found["whole"], found["problem"]
    assert {"safetensors", "pt"} == found["forms"].keys()
    return found["conversion"]["dtype"] == dtype


def test_a_target_has_one_writer(tmp_path, monkeypatch):
    """Who converts into the same target is told which process does, and what that writes stays until it is dead."""
    _, _, checkpoint = save_run(tmp_path / "run")
    folder = tmp_path / "converted"
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.05)

    def convert_and_hang():
        monkeypatch.setattr(convert_module, "_seal", lambda *_: time.sleep(60))
        convert(checkpoint, folder / "target", Checkpoints(), ["pt"])

    child = in_a_child(convert_and_hang)
    try:
        (written,) = wait_for(lambda: list(folder.glob(".target.*.partial/target/model.pt")))
        with pytest.raises(TrainingError, match=rf"is being written by process {child} on "):
            convert(checkpoint, folder / "target", Checkpoints(), ["pt"])
        assert written.exists() and not (folder / "target").exists()
    finally:
        os.kill(child, signal.SIGKILL)
        ended(child)
    convert(checkpoint, folder / "target", Checkpoints(), ["pt"])
    assert inspect(folder / "target")["whole"] and [path.name for path in folder.iterdir()] == ["target"]
