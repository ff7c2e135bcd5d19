"""What a workflow shows: errors in our words, one line for each finished job, in a terminal a bar."""

import json
import logging
import types

import pytest
from snakemake import logging as snakemake
from snakemake_interface_logger_plugins.common import LogEvent

from parascale.files import write_json
from parascale.plan import budget
from parascale.plan.hours import Job
from parascale.plan.planner import Planner
from snakemake_logger_plugin_parascale.handler import LogHandler
from snakemake_logger_plugin_parascale.live import Ledger
from snakemake_logger_plugin_parascale.view import View, user_message
from tests.made_up.project import changed, jobs, project
from tests.made_up.results import write_lines
from tests.unit.test_watch import under_way

RULES = [types.SimpleNamespace(name=name, has_wildcards=lambda: False) for name in ("fsdp", "ddp")]
WORKFLOW = types.SimpleNamespace(rules=RULES)
TRACEBACK = 'Traceback (most recent call last):\n\n  File "x.py", line 12, in load\n    open(path)\n\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'ConfigError in file "/p/rules/common.smk", line 57:\nx: no such folder\n  File "/p/a.py", line 5, in load',
            "error: x: no such folder",
        ),
        ("WorkflowError:\nthe budget is spent", "error: the budget is spent"),
        (
            "MissingRuleException:\nNo rule to produce fdsp (if you use input functions make sure …).",
            "error: no target or file is called `fdsp`; did you mean `fsdp`? Allowed: fsdp, ddp",
        ),
        (
            f"{TRACEBACK}FileNotFoundError: [Errno 2] No such file or directory: 'nope.yaml'\n",
            "error: nope.yaml: no such file or directory",
        ),
        (
            f"{TRACEBACK.replace('x.py', '/lib/sourcecache.py')}PermissionError: [Errno 13] Permission denied: '/none'\n",
            "error: /none: permission denied; Snakemake keeps its cache there: set XDG_CACHE_HOME to a folder of yours",
        ),
        (f"{TRACEBACK}KeyError: 'a fault of ours'", f"{TRACEBACK}KeyError: 'a fault of ours'"),
    ],
)
def test_an_error_ends_with_our_words_and_keeps_a_fault_of_ours_whole(text, said):
    assert user_message(text, WORKFLOW) == said


def test_a_damaged_configuration_is_named(tmp_path, monkeypatch):
    (tmp_path / "bad.yaml").write_text("a: [1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["snakemake", "--configfile", "bad.yaml"])
    said = user_message("WorkflowError:\nConfig file is not valid JSON or YAML.", None)
    assert said.startswith("error: bad.yaml, line 2")


def record(event, text="", **more):
    made = logging.LogRecord("snakemake", logging.INFO, "", 0, text, None, None)
    made.__dict__ |= {"event": event, **more}
    return made


GIVEN = {"dryrun": False, "stdout": True, "quiet": set(), "debug_dag": False, "printshellcmds": False}


def view():
    """A View that writes to the captured output, which is no terminal."""
    return View(types.SimpleNamespace(**GIVEN, nocolor=True, show_failed_logs=True))


def test_outside_of_a_terminal_a_finished_training_and_a_verdict_are_a_line_each(tmp_path, capsys):
    shown = view()
    shown.begin(3)
    shown.started({3: ("ddp 2 · lm-small", tmp_path), 4: ("prepare prose", None), 5: ("parity_verdict · ddp 2", None)})
    for event in (LogEvent.JOB_INFO, LogEvent.JOB_STARTED, LogEvent.PROGRESS, LogEvent.RUN_INFO):
        shown.take(record(event))
    shown.take(record(None, "Select jobs to execute..."))
    shown.take(record(LogEvent.JOB_FINISHED, job_id=3))
    shown.finished(3)
    shown.finished(4)
    shown.finished(5, "same")
    shown.take(record(None, "Nothing to be done"))
    shown.end()
    said = "ddp 2 · lm-small · 0 s\nparity_verdict · ddp 2 · 0 s · same\nNothing to be done\n"
    assert capsys.readouterr().out == said


def test_outside_of_a_terminal_what_is_left_is_said_once_a_minute_and_at_the_end(capsys, monkeypatch):
    clock = iter(range(0, 600, 25))
    monkeypatch.setattr("snakemake_logger_plugin_parascale.view.time.time", lambda: next(clock))
    shown = view()
    for done in range(8):
        shown.left(f"{done} jobs done")
    shown.left("9 jobs done", last=True)
    shown.left("9 jobs done", last=True)
    assert capsys.readouterr().out.split(" jobs done\n") == ["0", "3", "6", "9", ""]


@pytest.mark.parametrize("verbose", [False, True])
def test_with_verbose_all_lines_are_snakemakes_own(verbose, capsys):
    """The handler then makes no view, leaves the stream to Snakemake, and hands its own lines to it."""
    settings = types.SimpleNamespace(**GIVEN, verbose=verbose, nocolor=True, show_failed_logs=True)
    handler, passed = LogHandler(settings, None), []
    listener = logging.Handler()
    listener.emit = lambda each: passed.append(each.getMessage())
    snakemake.logger.addHandler(listener)
    level = snakemake.logger.level
    try:
        snakemake.logger.setLevel(logging.INFO)
        handler.emit(record(LogEvent.ERROR, "WorkflowError:\nthe budget is spent"))
        handler.say("2 of 4 core-h are left")
    finally:
        snakemake.logger.removeHandler(listener)
        snakemake.logger.setLevel(level)
    ours = "error: the budget is spent\n2 of 4 core-h are left\n"
    assert (handler.view is None, handler.writes_to_stream) == (verbose, not verbose)
    assert (capsys.readouterr().out, passed) == (("", ["2 of 4 core-h are left"]) if verbose else (ours, []))


def test_what_runs_now_has_its_step_and_its_loss(tmp_path):
    """From the files of the training: before its first step its name alone, as of a job that trains nothing."""
    folder = under_way(tmp_path) / "runs/ddp"
    shown = view()
    shown.started({1: ("ddp 4 · lm-small", folder), 2: ("prepare prose", None), 3: ("tp 2 · lm-small", tmp_path)})
    steps = folder / "steps.jsonl"
    *before, last = steps.read_text().splitlines()
    write_lines(steps, [*map(json.loads, before), json.loads(last) | {"loss": 123.45678}])
    expected = ["ddp 4 · lm-small · step 30/60 · loss 123.4568", "prepare prose", "tp 2 · lm-small"]
    assert str(shown.now()).splitlines() == expected
    shown.started(dict.fromkeys(range(4, 8), ("more", None)))
    assert str(shown.now()).splitlines()[-2:] == ["more", "and 3 more"]


def handler_of(tmp_path, baseline):
    """A LogHandler that follows a download, a preparation, two trainings, and the parity run of one with the job that compares it."""
    planner = Planner(found := project(tmp_path))
    found.runs["ddp-8"] = changed(found.runs["ddp-8"], baseline=baseline)
    parity = Job(8, "parity_run", {"run": "ddp-8"}, kind="parity")
    verdict = Job(9, "parity_verdict", {"run": "ddp-8"}, nodes=0, after=(8,))
    made = object.__new__(LogHandler)
    made.planner, made.view, made.shown, made.failed = planner, view(), None, False
    made.workflow = types.SimpleNamespace(dag=None)
    made.ledger = Ledger(budget.make_plan([*jobs(), parity, verdict], planner), planner)
    return made


@pytest.mark.parametrize(
    ("order", "baseline", "said"),
    [
        ((8, 9, 4), "single", ["parity_verdict · T · 0 s · same", "T · 0 s · same"]),
        ((4, 8, 9), "single", ["T · 0 s", "parity_verdict · T · 0 s · same"]),
        # With itself alone: the verdict that lies there is of an earlier table.
        ((8, 9, 4), "ddp-8", ["T · 0 s · not comparable"]),
    ],
)
def test_a_training_is_called_by_its_layout_and_ends_with_its_parity(order, baseline, said, tmp_path, capsys):
    """Where it is known: a verdict that lies there from before is not told while it is still to be made anew."""
    handler = handler_of(tmp_path, baseline)
    write_json(handler.planner.project.paths.parity("ddp-8") / "verdict.json", {"verdict": "same"})
    for number in (1, *order):
        handler.emit(record(LogEvent.JOB_STARTED, jobs=[number]))
        handler.emit(record(LogEvent.JOB_FINISHED, job_id=number))
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("parascale:")]
    assert [line.replace("ddp-8 · multi_node 8 · w", "T") for line in lines] == said
