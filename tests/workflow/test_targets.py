"""Each stage has a target of its own, whose jobs carry its name; a target that stands for nothing is an error."""

import re
import subprocess
import sys

import pytest

from .small_project import link_project

# Target → what it stands for in config/runs-strategies.tsv: run → rule that trains it.
TARGETS = {
    "single_gpu": dict.fromkeys(("single", "waste", "summary-single", "images-single"), "train_single"),
    "ddp": dict.fromkeys(("ddp", "ddp-fp16", "ddp-powersgd", "images-own-norm"), "train_ddp"),
    "multi_node": dict.fromkeys(("multi-node", "summary-multi-node", "images-multi-node"), "train_multi_node"),
    "fsdp": {
        **dict.fromkeys(("fsdp", "summary-fsdp", "images-fsdp"), "train_fsdp"),
        **dict.fromkeys(("hsdp", "summary-hsdp", "images-hsdp"), "train_hsdp"),
    },
    "tp": dict.fromkeys(("tp", "summary-tp"), "train_tp"),
    "pp": {"pp": "train_pp", "naive": "train_naive"},
    "hybrid": dict.fromkeys(("fsdp-tp", "summary-fsdp-tp"), "train_hybrid"),
    "three_d": {"three-d": "train_three_d"},
    "lightning": dict.fromkeys(("lightning", "images-lightning"), "train_lightning"),
    "local_sgd": dict.fromkeys(("local-sgd", "gossip", "server"), "train_local_sgd"),
}
MORE = ("parity", "communication", "results/comparisons/ddp-vs-single.svg")


@pytest.fixture
def dry_run(tmp_path):
    """A function that plans in an empty folder, where nothing is done yet; returns exit code and output."""
    link_project(tmp_path)

    def plan(*arguments):
        command = [sys.executable, "-m", "snakemake", "--profile", "profiles/local", "-n", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    return plan


def jobs_in(output):
    """(rule, its lines' values by key) of each job that a dry run lists."""
    for name, lines in re.findall(r"^(?:local)?rule (\w+):\n((?: {4}.*\n)+)", output, re.MULTILINE):
        yield name, dict(re.findall(r"^ {4}(\w+): (.*)$", lines, re.MULTILINE))


def test_targets_stand_for_their_runs_under_rule_names_of_their_own(dry_run):
    code, output = dry_run("-p", "--configfile", "config/strategies.yaml", "--", *TARGETS, *MORE)
    assert code == 0, output
    commands = re.findall(r"^Shell command: (.*)$", output, re.MULTILINE)
    assert len(commands) > 50 and max(map(len, commands)) < 500, "a command has names and paths, settings are in files"
    assert not [command for command in commands if "{" in command]
    jobs = list(jobs_in(output))
    inputs = {name: values.get("input", "") for name, values in jobs}
    trained = {values["wildcards"].removeprefix("run="): name for name, values in jobs if name.startswith("train_")}
    found = {
        target: {run: trained[run] for run in re.findall(r"results/runs/([\w-]+)/summary\.json", inputs[target])}
        for target in TARGETS
    }
    assert found == TARGETS
    several = {run for target, runs in TARGETS.items() for run in runs if target != "single_gpu"}
    judged = set(re.findall(r"results/parity/([\w-]+)/verdict\.json", inputs["parity"]))
    assert several <= judged
    assert set(re.findall(r"results/communication/([\w-]+)\.csv", inputs["communication"])) <= several
    assert inputs["communication"]
    compared = ["results/runs/ddp/summary.json", "results/runs/single/summary.json"]
    assert inputs["compare_checkpoints"].split(", ") == compared


def test_a_target_without_runs_is_an_error_that_says_what_to_add(dry_run):
    code, output = dry_run("lightning")
    assert code != 0
    assert "no run for the target `lightning`: config/runs.tsv has no such row" in output
