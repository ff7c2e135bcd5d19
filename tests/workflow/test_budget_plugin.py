"""The plugin in a workflow that knows nothing of it, against counts by hand."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from snakemake_interface_common.exceptions import WorkflowError

from snakemake_logger_plugin_budget import Times

from .programs import call

PLUGIN = Path(__file__).parents[2] / "scripts/snakemake_logger_plugin_budget"
SNAKEFILE = """
rule all:
    input: "sum.txt"
    localrule: True
    resources: nodes=0

rule simulate:
    output: "{sample}.txt"
    threads: 4
    resources: nodes=2, tasks=2, cpus_per_task=48, gres="gpu:a100:4", runtime=30
    shell: "touch {output}"

rule collect:
    input: "a.txt", "b.txt"
    output: "sum.txt"
    threads: 8
    resources: runtime=15
    shell: "touch {output}"
"""
CAP = """
from snakemake_logger_plugin_budget import check

onstart:
    check(workflow, core_hours={cap})
"""


@pytest.fixture
def snakemake(tmp_path):
    """A function that runs Snakemake with the plugin in a folder of its own; returns (exit code, both streams).

    python: of another environment, where the plugin is installed.
    """
    (tmp_path / "Snakefile").write_text(SNAKEFILE)

    def run(*arguments, python=None):
        words = ["snakemake", "--cores", "8", "--logger", "budget", *arguments]
        if python is None:
            return call(words, tmp_path, tmp_path / "printed.txt")
        done = subprocess.run(
            [python, "-m", *words], cwd=tmp_path, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True
        )
        return done.returncode, done.stdout + done.stderr

    run.folder = tmp_path
    return run


def rows(said):
    """Rule → the cells of its line."""
    return {words[0]: words[1:] for line in said.splitlines() if (words := re.split(r"\s{2,}", line.strip()))[1:]}


def test_a_dry_run_says_what_jobs_cost(snakemake):
    """Two jobs on 2 nodes with 48 cores and 4 GPUs each for at most 0.5 h, and one of 8 cores for 0.25 h."""
    code, said = snakemake("-n")
    assert code == 0, said
    assert rows(said)["simulate"] == ["2", *["0.00 + 2?"] * 3, "2.00", "96.00", "8.00"], said
    assert rows(said)["total"] == ["4", *["0.00 + 3?"] * 3, "2.25", "98.00", "8.00"]
    assert said.count("a dry run does not say which rules are local, and checks no cap") == 1
    _, said = snakemake("-n", "--logger-budget-cores-per-node", "128")
    assert rows(said)["total"][-3:] == ["2.25", "288.00", "8.00"]
    assert rows(snakemake("-n", "-q", "all")[1])["total"][-3:] == ["2.25", "98.00", "8.00"]


def test_times_come_from_a_file_and_from_earlier_runs(snakemake):
    predictions = [
        {"rule": "simulate", "wildcards": {"sample": "a"}, "hours_expected": 0.1},
        {"rule": "simulate", "wildcards": {}, "hours_expected": 0.2},
        {"rule": "collect", "wildcards": {}, "hours_expected": None},
    ]
    (snakemake.folder / "times.json").write_text(json.dumps({"jobs": predictions}))
    (snakemake.folder / "seen.jsonl").write_text('{"rule": "collect", "seconds": 360}\n')
    more = ("--logger-budget-times", "times.json", "--logger-budget-history", "seen.jsonl")
    _, said = snakemake("-n", *more)
    assert rows(said)["simulate"][1:4] == ["0.60", "28.80", "2.40"]
    assert rows(said)["collect"][1:4] == ["0.10", "0.80", "0.00"]


def test_a_line_of_the_history_that_was_cut_short_is_passed_over(snakemake):
    """A crash tears the last line; the next job's goes on behind it."""
    whole, torn = '{"rule": "collect", "seconds": 360}\n', '{"rule": "coll'
    (snakemake.folder / "seen.jsonl").write_text(whole + torn + whole + whole + torn)
    code, said = snakemake("-n", "--logger-budget-history", "seen.jsonl")
    assert code == 0 and rows(said)["collect"][1] == "0.10", said


@pytest.mark.parametrize("text", ["[]", "{}", '{"jobs": [1]}', '{"jobs": [{"hours_expected": 1}]}', "{", None])
def test_a_bad_file_of_times_is_named(tmp_path, text):
    path = tmp_path / "times.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(WorkflowError, match="no file of times"):
        Times(path, None)


def test_a_real_run_counts_and_remembers(snakemake):
    code, said = snakemake()
    assert code == 0 and "budget: 3 jobs ended" in said and "0 under way" in said, said
    seen = (snakemake.folder / ".snakemake/budget.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["rule"] for line in seen) == ["collect", "simulate", "simulate"]


@pytest.mark.parametrize(("cap", "starts"), [(99, True), (97, False)])
def test_one_line_in_the_snakefile_keeps_a_cap(snakemake, cap, starts):
    (snakemake.folder / "Snakefile").write_text(SNAKEFILE + CAP.format(cap=cap))
    code, said = snakemake()
    assert (code == 0) == starts == (snakemake.folder / "sum.txt").exists(), said
    assert starts or "98.0 core-h at worst, more than 97" in said


def oldest():
    """The oldest versions that the plugin names, as pip takes them: Snakemake's in the README, its interfaces' in the metadata."""
    snakemake = re.search(r"Snakemake (\d+\.\d+\.\d+), the first", (PLUGIN / "README.md").read_text())[1]
    named = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]["dependencies"]
    assert all(">=" in name for name in named)
    return [f"snakemake=={snakemake}", *(name.replace(">=", "==") for name in named)]


@pytest.mark.slow
def test_the_oldest_versions_that_are_named_plan_and_run(snakemake, tmp_path):
    """The plugin as it is installed, beside those versions and whatever pip finds for the rest."""
    shutil.copytree(PLUGIN, tmp_path / "plugin", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "old"], check=True)
    python = tmp_path / "old/bin/python"
    command = [python, "-m", "pip", "install", "--retries", "1", *oldest(), tmp_path / "plugin"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True)
    if "from versions: none" in done.stderr:
        pytest.skip("no package index answers")
    assert done.returncode == 0, done.stdout + done.stderr
    (snakemake.folder / "Snakefile").write_text(SNAKEFILE + CAP.format(cap=99))
    code, said = snakemake("-n", python=python)
    assert code == 0 and rows(said)["total"][-3:] == ["2.25", "98.00", "8.00"], said
    code, said = snakemake(python=python)
    assert code == 0 and "budget: 3 jobs ended" in said and (snakemake.folder / "sum.txt").exists(), said
