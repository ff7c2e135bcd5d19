"""Runs for Weights & Biases: TensorBoard's values while a run trains, one run for all its attempts, and never a training that stops."""

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from parascale import cli
from parascale.commands.export import log_steps
from parascale.errors import DataError, RequirementError
from parascale.files import read_json_lines
from parascale.settings.config import Monitor
from parascale.train import wandb_run
from parascale.train.events import Events, scalars
from parascale.train.wandb_run import WandbRun
from tests.unit.fake_results import fake, write_results
from tests.unit.test_events import line, read

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
        (told["dir"] / "wandb/logs").mkdir(parents=True)
        (told["dir"] / "wandb/logs/debug-core.log").symlink_to("nowhere")
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
    """An attempt that does steps first to last of 9; what it says of failures."""
    shutil.rmtree(folder / "wandb", ignore_errors=True)  # as `watch` does
    failures, events = [], Events(folder)
    run = WandbRun(folder, mode, "a project", DESCRIBED, failures.append)
    events.begin(1000.0, 9, before, run)
    for step in range(first, last + 1):
        events.add([line(step)])
    events.close(outcome, {"test_loss": 2.5, "best_step": None})
    return failures


def test_it_gets_what_tensorboard_gets(tmp_path, package):
    made = package()
    assert attempt(tmp_path, 1, 9) == []
    assert made.steps[8] == (9, pytest.approx(dict(scalars(line(9))) | {"training_seconds": 4.5}))
    assert [step for step, _ in made.steps] == list(range(1, 10))
    assert (made.told["mode"], made.summary, made.exit_code) == ("offline", {"test_loss": 2.5}, 0)
    assert made.closed, "what its process still writes would be missing in a copy of the folder"
    assert not [path for path in tmp_path.rglob("*") if path.is_symlink()]


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
    (failure,) = attempt(tmp_path, 1, 9)
    assert failure == {"not installed": wandb_run.MISSING}.get(
        fails, "it took longer than 0.05 s to end" if "hangs" in fails else f"{fails}: no network"
    )


def test_a_failure_in_both_threads_at_once_is_said_once(tmp_path):
    """The thread fails while the end of the attempt gives up waiting for it."""
    both, failures = threading.Barrier(2), []

    class Raced(WandbRun):
        def __getattribute__(self, name):
            found = super().__getattribute__(name)
            if name == "failed":
                with suppress(threading.BrokenBarrierError):
                    both.wait(0.2)
            return found

    run = Raced(tmp_path, "offline", "a project", DESCRIBED, failures.append)
    threads = [threading.Thread(target=run._fail, args=[reason]) for reason in ("thread", "end")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failures) == 1


def test_without_a_login_nobody_is_asked_for_one(tmp_path, package):
    made = package(fails="login")
    (failure,) = attempt(tmp_path, 1, 2, "live")
    assert "`wandb login`" in failure and made.steps == []


def test_without_the_package_there_is_no_thread(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    failures = []
    run = WandbRun(tmp_path, "offline", "a project", DESCRIBED, failures.append)
    run.begin(1000.0)
    assert failures == [wandb_run.MISSING] and run.thread.ident is None


def test_curves_of_an_earlier_attempt_are_not_published_as_those_of_the_next(tmp_path):
    (tmp_path / "wandb").mkdir()
    job = SimpleNamespace(work=tmp_path, monitor=Monitor(wandb="none"), run=SimpleNamespace(run="single"))
    assert wandb_run.watch(job, dict) is None
    assert not (tmp_path / "wandb").exists()


def test_a_finished_run_is_exported_with_every_step(tmp_path, package, monkeypatch):
    results, _ = write_results(tmp_path, [fake("single")])
    made = package()
    log_steps(results / "runs/single", tmp_path / "out", "a project")
    lines = read_json_lines(results / "runs/single/steps.jsonl")
    assert [(step, values["loss"]) for step, values in made.steps] == [(line["step"], line["loss"]) for line in lines]
    assert made.steps[-1][1]["training_seconds"] == pytest.approx(sum(line["seconds"]["total"] for line in lines))
    assert made.summary["test_loss"] > 0 and made.told["config"]["settings"]["run"] == "single"
    package(fails="init")
    with pytest.raises(DataError, match=r"runs/single: not exported: init: no network"):
        log_steps(results / "runs/single", tmp_path / "other", "a project")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(RequirementError, match="pip install wandb"):
        log_steps(results / "runs/single", tmp_path / "out", "a project")


def test_without_the_package_an_export_is_refused_in_one_line(tmp_path, monkeypatch, capsys):
    write_results(tmp_path, [fake("single")])
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(SystemExit) as end:
        cli.parascale(["export", "wandb", "--run", "single", "--root", str(tmp_path)], prog_name="parascale")
    assert (capsys.readouterr().err, end.value.code) == (f"error: {wandb_run.MISSING}\n", 1)
    assert not list((tmp_path / "results").glob("wandb/*"))


def test_only_an_export_waits_as_long_as_it_takes_and_a_late_end_is_an_error(tmp_path, package):
    """The package would go on in silence, with what it had sent by then."""
    made = package()
    attempt(tmp_path, 1, 2)
    assert (made.told["settings"]["finish_timeout"], made.told["settings"]["finish_timeout_raises"]) == (10, True)
    results, _ = write_results(tmp_path, [fake("single")])
    log_steps(results / "runs/single", tmp_path / "out", "a project")
    assert made.told["settings"]["finish_timeout"] == 0


def test_the_real_package_writes_one_offline_run_for_all_attempts(tmp_path, monkeypatch):
    monkeypatch.setattr(wandb_run, "END_SECONDS", 60.0)  # a busy machine
    assert attempt(tmp_path, 1, 6, outcome="stopped") == []
    assert attempt(tmp_path, 5, 9, before=[line(step) for step in range(1, 5)]) == []
    (record,) = tmp_path.glob("wandb/offline-run-*/run-ddp-*.wandb")
    assert history(record) == [(step, 4 / step) for step in range(1, 10)]


LIVE = """
import json, sys
from pathlib import Path
from parascale.train import wandb_run
from tests.unit.test_wandb import attempt

wandb_run.BEGIN_SECONDS, wandb_run.END_SECONDS = 3.0, 120.0  # a busy machine
print(json.dumps(attempt(Path(sys.argv[1]), 1, 9, "live")), flush=True)
"""


def test_the_real_package_says_once_that_its_server_does_not_answer(tmp_path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and nobody listens
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "-c", LIVE, tmp_path],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "WANDB_BASE_URL": address, "WANDB_API_KEY": "0123456789" * 4},
            stdout=subprocess.PIPE,
            text=True,
            timeout=300,
        )
    (failure,) = json.loads(done.stdout.splitlines()[-1])
    assert address in failure
    assert [event.step for event in read(tmp_path).Scalars("loss")] == list(range(1, 10)), "the training went on"


def test_the_real_package_exports_anew_past_links_that_lead_nowhere(tmp_path):
    results, _ = write_results(tmp_path, [fake("single")])
    for folder in (results / "runs/single/wandb", results / "wandb/single/wandb"):
        folder.mkdir(parents=True)
        (folder / "latest-run").symlink_to("offline-run-gone")
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.parascale(["export", "wandb", "--run", "single", "--root", str(tmp_path)])
    assert len(list((tmp_path / "results/wandb/single").glob("wandb/offline-run-*/run-*.wandb"))) == 1


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
