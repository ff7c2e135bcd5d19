"""Runs for Weights & Biases: TensorBoard's values while a run trains, one run for all its attempts, and never a training that stops."""

import contextlib
import io
import json
import shutil
import struct
import sys
import time
from types import SimpleNamespace

import pytest

from parascale.settings.config import Monitor
from parascale.train import wandb_run
from parascale.train.events import Events, scalars
from parascale.train.wandb_run import WandbRun
from tests.unit.test_events import line

DESCRIBED = {"run": "ddp", "strategy": "ddp", "settings": {"workload": {"name": "lm-small"}}} | dict.fromkeys(
    ("site", "versions", "code_digest", "git_commit")
)


class Package:
    """Stands for the module `wandb` and for its run: notes what it is told. sent: step that its server has already."""

    Settings = staticmethod(lambda **settings: settings)

    def __init__(self, sent=0, fails=None):
        self.starting_step, self.fails = sent + 1, fails
        self.steps, self.told, self.summary, self.exit_code, self.closed = [], {}, {}, None, False

    def login(self, prompt):
        return prompt or self.fails != "login"

    def init(self, **told):
        self._call("init")
        self.told = told
        return self

    def log(self, values, step):
        self._call("log")
        self.steps.append((step, values))

    def finish(self, exit_code):
        self._call("finish")
        self.exit_code = exit_code

    def teardown(self):
        self.closed = self.exit_code is not None

    def _call(self, name):
        if self.fails == f"{name} hangs":
            time.sleep(5)
        elif self.fails == name:
            raise OSError(f"{name}:\n no network")


@pytest.fixture
def package(monkeypatch):
    """A function that puts a Package in the place of wandb."""

    def put(**options):
        made = Package(**options)
        monkeypatch.setitem(sys.modules, "wandb", made)
        return made

    return put


def attempt(folder, first, last, mode="offline", before=(), outcome="finished"):
    """Do steps first to last of 9 in an attempt; returns what it printed."""
    shutil.rmtree(folder / "wandb", ignore_errors=True)  # as `watch` does
    events, run, said = Events(folder), WandbRun(folder, mode, "a project", DESCRIBED), io.StringIO()
    with contextlib.redirect_stdout(said):
        events.begin(1000.0, 9, before, run)
        for step in range(first, last + 1):
            events.add([line(step)])
        events.close(outcome, {"test_loss": 2.5, "best_step": None})
    return said.getvalue()


def test_it_gets_what_tensorboard_gets(tmp_path, package):
    made = package()
    assert attempt(tmp_path, 1, 9) == ""
    assert made.steps[8] == (9, pytest.approx(dict(scalars(line(9))) | {"training_seconds": 4.5}))
    assert [step for step, _ in made.steps] == list(range(1, 10))
    assert (made.told["mode"], made.summary, made.exit_code) == ("offline", {"test_loss": 2.5}, 0)
    assert made.closed, "what its process still writes would be missing in a copy of the folder"


def test_an_attempt_that_continues_is_the_same_run_and_sends_no_step_twice(tmp_path, package):
    first = package()
    attempt(tmp_path, 1, 6, "live", outcome="stopped")
    again = package(sent=6)
    attempt(tmp_path, 5, 9, "live", before=[line(step) for step in range(1, 5)])
    assert (first.told["id"], first.told["resume"], first.exit_code) == (again.told["id"], "allow", 1)
    assert [step for step, _ in first.steps + again.steps] == list(range(1, 10))


@pytest.mark.parametrize("fails", ["init", "log", "finish", "init hangs", "log hangs", "finish hangs", "not installed"])
def test_no_failure_stops_a_training_and_each_is_said_once(fails, tmp_path, package, monkeypatch):
    if "hangs" in fails:
        monkeypatch.setattr(wandb_run, "END_SECONDS", 0.05)
    package(fails=fails)
    if fails == "not installed":
        monkeypatch.setitem(sys.modules, "wandb", None)
    reason = "it took longer than 0.05 s to end" if "hangs" in fails else f"{fails}: no network"
    reason = wandb_run.MISSING if fails == "not installed" else reason
    assert attempt(tmp_path, 1, 9) == f"ddp: no more curves for Weights & Biases: {reason}. The training goes on\n"


def test_only_the_first_failure_is_said(tmp_path, capsys):
    """The end of the attempt gives up waiting for the thread, which then fails too."""
    run = WandbRun(tmp_path, "offline", "a project", DESCRIBED)
    for reason in ("end", "thread"):
        run._fail(reason)
    assert capsys.readouterr().out.count("no more curves") == 1


def test_without_a_login_nobody_is_asked_for_one(tmp_path, package):
    made = package(fails="login")
    assert "`wandb login`" in attempt(tmp_path, 1, 2, "live")
    assert made.steps == []


def test_curves_of_an_earlier_attempt_are_not_published_as_those_of_the_next(tmp_path):
    (tmp_path / "wandb").mkdir()
    job = SimpleNamespace(work=tmp_path, monitor=Monitor(wandb="none"), run=SimpleNamespace(run="single"))
    assert wandb_run.watch(job, dict) is None
    assert not (tmp_path / "wandb").exists()


def test_the_real_package_writes_one_offline_run_for_all_attempts(tmp_path, monkeypatch):
    monkeypatch.setattr(wandb_run, "END_SECONDS", 60.0)  # a busy machine
    assert attempt(tmp_path, 1, 6, outcome="stopped") == ""
    assert attempt(tmp_path, 5, 9, before=[line(step) for step in range(1, 5)]) == ""
    (record,) = tmp_path.glob("wandb/offline-run-*/run-ddp-*.wandb")
    assert history(record) == [(step, 4 / step) for step in range(1, 10)]


def history(path):
    """(step, loss) of each step in a record of wandb's: records of its protocol in LevelDB's log format, after a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, found, part = path.read_bytes(), 7, [], b""
    while place + 7 <= len(content):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        part += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record, part = Record.FromString(part), b""
            values = {".".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
            if values:
                found.append((json.loads(values["_step"]), json.loads(values["loss"])))
    return found
