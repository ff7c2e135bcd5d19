"""What a workflow shows: errors in our words, one line for each finished job, in a terminal a bar."""

import logging
import types

import pytest
from snakemake_interface_logger_plugins.common import LogEvent

from snakemake_logger_plugin_parascale.view import View, told

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
        (f"{TRACEBACK}KeyError: 'a fault of ours'", f"{TRACEBACK}KeyError: 'a fault of ours'"),
    ],
)
def test_an_error_ends_with_our_words_and_keeps_a_fault_of_ours_whole(text, said):
    assert told(text, WORKFLOW) == said


def test_a_damaged_configuration_is_named(tmp_path, monkeypatch):
    (tmp_path / "bad.yaml").write_text("a: [1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["snakemake", "--configfile", "bad.yaml"])
    assert told("WorkflowError:\nConfig file is not valid JSON or YAML.", None).startswith("error: bad.yaml, line 2")


def record(event, text="", **more):
    made = logging.LogRecord("snakemake", logging.INFO, "", 0, text, None, None)
    made.__dict__ |= {"event": event, **more}
    return made


def test_outside_of_a_terminal_a_finished_job_is_one_line_and_the_rest_of_it_none(capsys, tmp_path):
    given = {"dryrun": False, "stdout": True, "quiet": set(), "debug_dag": False, "printshellcmds": False}
    view = View(types.SimpleNamespace(**given, nocolor=True, show_failed_logs=True))
    view.begin(2, tmp_path)
    view.started({3: "train_ddp ddp · ddp 2 · lm-small"})
    for event in (LogEvent.JOB_INFO, LogEvent.JOB_STARTED, LogEvent.PROGRESS, LogEvent.RUN_INFO):
        view.take(record(event))
    view.take(record(None, "Select jobs to execute..."))
    view.take(record(LogEvent.JOB_FINISHED, job_id=3))
    view.take(record(None, "Nothing to be done"))
    view.end()
    assert capsys.readouterr().out == "train_ddp ddp · ddp 2 · lm-small · 0 s\nNothing to be done\n"
