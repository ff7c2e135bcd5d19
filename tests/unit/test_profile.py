"""A profile covers the steps that were asked for, wherever an attempt begins, and its operators are the longest first."""

import gzip
import html
import json
import re
import sys
from types import SimpleNamespace

import pytest
import torch

from parascale.errors import ConfigError, RequirementError
from parascale.files import read_json
from parascale.launch.node import Launch
from parascale.report.job import load_job, render_job
from parascale.settings import Run, Workload, make
from parascale.settings.strict import load
from parascale.train.clock import OPERATORS, StepProfiler, profiler
from tests.command import program
from tests.made_up.results import CLUSTER, SITE, fake, write_results


def steps(folder, first, last, asked=(3, 4)):
    """Steps `first` to `last` of a small computation under a StepProfiler."""
    watched = StepProfiler(folder, *asked)
    matrix = torch.ones(64, 64)
    for step in range(first, last + 1):
        watched.begin_step(step)
        matrix = torch.tanh(matrix @ matrix)
        watched.end_step(step)
    return folder


@pytest.mark.parametrize(("first", "calls"), [(1, 2), (4, 1)])
def test_the_steps_that_were_asked_for_are_profiled(tmp_path, first, calls):
    """(4, 1): an attempt that goes on between the steps profiles the rest."""
    folder = steps(tmp_path, first, 6)
    operators = read_json(folder / "operators.json")
    counts = {operator["name"]: operator["calls"] for operator in operators}
    assert counts["aten::mm"] == calls and len(operators) <= OPERATORS
    times = [(operator["device_seconds"], operator["cpu_seconds"]) for operator in operators]
    assert times == sorted(times, reverse=True) and times[0][1] > 0
    with gzip.open(folder / "trace.json.gz") as handle:
        names = [event.get("name") for event in json.load(handle)["traceEvents"]]
    assert names.count("aten::mm") == calls


def test_the_report_of_the_job_shows_what_was_recorded(tmp_path):
    """Every operator of a real profile with its calls and its times, in the profile's order."""
    results, work = write_results(tmp_path, [fake("run", baseline="run", verdict="baseline")])
    operators = read_json(steps(results / "runs/run/profile", 1, 6) / "operators.json")
    page = render_job(load_job(results, work, "run"))
    section = page.partition('<section id="operators"')[2].partition("</section>")[0]
    assert "aten::mm" in section
    names = re.findall('<th scope="row"[^>]*>(.*?)</th>', section)
    assert names == [html.escape(operator["name"]) for operator in operators]
    for name in ("calls", "cpu_seconds", "device_seconds"):
        shown = re.findall(f'data-figure="{name}" data-value="(.*?)"', section)
        assert [float(value) for value in shown] == [operator[name] for operator in operators]


def test_steps_that_are_over_leave_no_profile(tmp_path):
    assert list(steps(tmp_path, 5, 6).iterdir()) == []


@pytest.mark.parametrize(
    ("asked", "lead", "there"), [("3-4", True, True), ("3", True, True), ("3", False, False), (None, True, False)]
)
def test_the_first_rank_profiles_where_it_is_asked_to(tmp_path, asked, lead, there):
    job = SimpleNamespace(run=Run("run", make(Workload, name="tiny"), profile=asked), work=tmp_path)
    assert (profiler(job, lead) is not None) == there


def test_nsight_collects_the_steps_that_were_asked_for_on_every_rank(monkeypatch):
    """A stand-in notes what CUDA's profiler is told; no GPU was seen."""
    told = []
    asked = SimpleNamespace(start=lambda: told.append("start"), stop=lambda: told.append("stop"))
    monkeypatch.setattr(torch.cuda, "profiler", asked)
    run = Run("run", make(Workload, name="tiny"), profile="3-4", profiler="nsight")
    watched = profiler(SimpleNamespace(run=run, site=CLUSTER), lead=False)
    for step in range(1, 7):
        watched.begin_step(step)
        told.append(step)
        watched.end_step(step)
    assert told == [1, 2, "start", 3, 4, "stop", 5, 6]
    with pytest.raises(RequirementError, match="needs GPUs"):
        profiler(SimpleNamespace(run=run, site=SITE), lead=True)


def test_the_launcher_puts_nsight_before_each_process_or_says_what_is_missing(tmp_path, monkeypatch):
    launch = Launch(("train.py", "--run", "x"), 1, 2, CLUSTER, 60.0, 10.0, "logs", 8, nsight=True)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RequirementError, match="nsys"):
        _ = launch.python_command
    program(tmp_path / "nsys", "")
    command = launch.python_command
    assert command[:2] == [str(tmp_path / "nsys"), "profile"] and "--capture-range=cudaProfilerApi" in command
    assert command[-5:] == [sys.executable, "-u", "train.py", "--run", "x"]


@pytest.mark.parametrize("wrong", ["0", "a-b", "5-", "-5", "5-3", "5:7"])
def test_steps_that_are_none_are_refused(wrong):
    values = {"run": "run", "workload": {"name": "tiny", "training": {"steps": 9}}, "profile": wrong}
    with pytest.raises(ConfigError, match="profile = `"):
        load(Run, values, "test").check()
