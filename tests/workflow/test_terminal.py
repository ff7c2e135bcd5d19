"""What somebody sees while the workflow runs: in a terminal what runs now and a bar, in a log few lines."""

import atexit
import contextlib
import itertools
import logging
import os
import pty
import re
import struct
import termios
import threading
import time
import types
from fcntl import ioctl

import pytest
from snakemake.settings.types import Quietness
from snakemake_interface_logger_plugins.common import LogEvent

from parascale.files import write_text
from parascale.plan import budget
from parascale.plan.planner import Planner
from parascale.settings import load_project_file
from snakemake_logger_plugin_parascale.handler import LogHandler, follow, plan_of
from snakemake_logger_plugin_parascale.live import Ledger
from snakemake_logger_plugin_parascale.view import View
from tests.made_up.project import jobs, link_project, project
from tests.unit.test_watch import under_way

from .dry_runs import FinishedProject

GIVEN = {"dryrun": False, "stdout": True, "quiet": set(), "debug_dag": False, "printshellcmds": False, "verbose": False}
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A terminal of 120 columns, and all that was written to it. stream: what a program writes to."""

    def __init__(self):
        self.ours, theirs = pty.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.stream, self.written = os.fdopen(theirs, "w"), ""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        try:
            while piece := os.read(self.ours, 65536):
                self.written += piece.decode(errors="replace")
        except OSError:  # the other end was closed
            os.close(self.ours)

    def shows(self, pattern):
        """The first match in what was written, once it is there."""
        deadline = time.monotonic() + 120
        while not (found := re.search(pattern, CONTROL.sub("", self.written))):
            assert time.monotonic() < deadline, (pattern, CONTROL.sub("", self.written))
            time.sleep(0.05)
        return found


@pytest.fixture
def terminal(monkeypatch):
    """A Terminal; `sys.stdout` writes to it while a test says so (pytest has an own one for each phase)."""
    made = Terminal()
    for name, value in {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}.items():
        monkeypatch.setenv(name, value)
    yield made
    made.stream.close()


def handler_of(planner, plan, dag=None):
    """A LogHandler that follows a plan whose first job is about to start."""
    handler = LogHandler(types.SimpleNamespace(**GIVEN, nocolor=True, show_failed_logs=True), None)
    handler.planner, handler.ledger = planner, Ledger(plan, planner)
    handler.workflow = handler.view.workflow = types.SimpleNamespace(dag=dag or object(), rules=[])
    handler.view.begin(len(plan.jobs))
    handler.show()
    return handler


def tell(handler, event, text="", **more):
    """An event of Snakemake's."""
    record = logging.LogRecord("snakemake", logging.INFO, "", 0, text, None, None)
    record.__dict__ |= {"event": event, **more}
    handler.emit(record)


def test_a_terminal_shows_what_runs_now_what_is_left_what_ended_and_where_the_report_is(tmp_path, terminal):
    planner = Planner(project(tmp_path))
    with contextlib.redirect_stdout(terminal.stream):
        handler = handler_of(planner, budget.make_plan(jobs(), planner))
    place = planner.project.paths.places("run")[1]("ddp-8")
    place.parent.mkdir(parents=True, exist_ok=True)
    under_way(tmp_path / "other").joinpath("runs/ddp").rename(place)
    for number in (1, 2):
        tell(handler, LogEvent.JOB_STARTED, jobs=[number])
        tell(handler, LogEvent.JOB_FINISHED, job_id=number)
    tell(handler, LogEvent.JOB_STARTED, jobs=[3, 4])
    terminal.shows(r"ddp-8 · multi_node 8 · \w+ · step 30/60 · loss \d")
    bar = terminal.shows(r"━+ +2/4 ([\d.,]+ core-h used, about [\d.,]+.* left, [^\r\n]*: done around [^\r\n]*)")
    assert "queue" not in bar[0]
    tell(handler, LogEvent.JOB_FINISHED, job_id=4)
    terminal.shows(r"ddp-8 · multi_node 8 · \w+ · \d s")
    tell(handler, LogEvent.JOB_FINISHED, job_id=3)
    write_text(planner.project.paths.report / "index.html", "a page")
    write_text(planner.project.paths.report / "verdict.txt", "the verdict\n")
    handler.close()
    terminal.shows(rf"4/4 [^━]*the verdict\r?\nThe report: {re.escape(str(tmp_path))}/results/report/index\.html")


@pytest.mark.parametrize(
    ("quiet", "handlers", "said"), [(None, (), True), ({Quietness.ALL}, (), False), (set(), (1,), False)]
)
def test_a_dry_run_without_the_plugin_says_which_profiles_show_costs(quiet, handlers, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "profiles/here/config.yaml", "")
    told, given = (
        [],
        types.SimpleNamespace(**GIVEN | {"dryrun": True, "quiet": quiet}, nocolor=True, show_failed_logs=True),
    )
    monkeypatch.setattr(atexit, "register", lambda _, text, **__: told.append(text))
    found = [LogHandler(given, None) for _ in handlers]
    logs = types.SimpleNamespace(get_log_handlers=lambda: found)
    follow(types.SimpleNamespace(output_settings=given, logger_manager=logs), None)
    assert [("profiles/NAME` (here)" in text, "--logger parascale" in text) for text in told] == [(True, True)] * said


def test_a_log_of_the_default_matrix_has_at_most_40_lines(tmp_path, capsys, monkeypatch):
    """Beside the tables of its page, with ten each, and four of Snakemake's; where it takes ten minutes and more."""
    seconds = itertools.count(time.time(), 2)
    for module in (LogHandler.__module__, View.__module__):
        monkeypatch.setattr(f"{module}.time", types.SimpleNamespace(time=lambda: next(seconds)))
    link_project(tmp_path)
    with FinishedProject(tmp_path, ["all"])._workflow() as workflow:
        planner = Planner(load_project_file("config/config.yaml"))
        plan = plan_of(workflow, planner)
        capsys.readouterr()
        handler = handler_of(planner, plan, workflow.dag)
        for done, job in enumerate(plan.jobs, 1):
            tell(handler, None, "Select jobs to execute...")
            tell(handler, LogEvent.JOB_INFO, "rule\n    input: …\n", jobid=job.id)
            tell(handler, LogEvent.SHELLCMD, "parascale …", jobid=job.id)
            tell(handler, LogEvent.JOB_STARTED, jobs=[job.id])
            tell(handler, LogEvent.JOB_FINISHED, f"Finished jobid: {job.id}", job_id=job.id)
            tell(handler, LogEvent.PROGRESS, done=done, total=len(plan.jobs))
        handler.close()
    said = capsys.readouterr().out.splitlines()
    trainings = sum(job.kind == "run" for job in plan.jobs)  # a parity run is the verdict that follows
    assert len(plan.jobs) >= 70 and next(seconds) - time.time() > 600 and len(said) <= 40, said
    assert sum(line.endswith(" s") for line in said) == trainings
