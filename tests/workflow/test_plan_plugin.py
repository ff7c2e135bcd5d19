"""The logger plugin in real invocations of Snakemake, on a small workflow of the shape of ours."""

import contextlib
import json
import os
import re
from pathlib import Path

import pytest
from snakemake.settings.enums import Quietness

from parascale.plan.planner import Planner
from parascale.plan.predict import worst_seconds
from parascale.settings import load_project_file
from tests.command import program
from tests.made_up.project import table, write_files

from .programs import call

ROOT = Path(__file__).parents[2]
SNAKEFILE = Path(__file__).with_name("plan_plugin.smk").read_text()
SITE = """
device: cuda
cores_per_node: 128
gpus_per_node: 4
gpu_memory_gb: 42.9
peak_tflops: {fp32: 19.5}
memory_gigabytes_per_second: 1555
partitions: [{name: dc-gpu, max_hours: 24, max_nodes: 192}]
"""
WORKLOAD = """
data: {source: {kind: builtin, name: documentation}, expected: {vocabulary: 5000}}
training: {steps: 2000}
"""
# Every word that Snakemake's `--quiet` takes: alone, together, and none at all.
WORDS = sorted(word.name.lower() for word in Quietness)
OTHERS = [word for word in WORDS if word != "all"]
QUIET = [
    ["all"],
    *(pytest.param(words, marks=pytest.mark.slow) for words in (OTHERS, [], *([word] for word in OTHERS))),
]
HEADER = "run workload nodes gpus_per_node dp"
RUNS = {"single": (1, 1), "ddp-4": (1, 4), "ddp-8": (2, 4)}


@pytest.fixture
def workflow(tmp_path):
    """A function that runs Snakemake with our plugin in a fresh folder; returns (exit code, both streams).

    tools: a folder of programs that are found first.
    """
    write_project(tmp_path, RUNS)

    def run(*arguments, tools=None):
        words = ["snakemake", "--cores", "2", "--retries", "1", "--logger", "parascale", *arguments]
        path = {"PATH": f"{tools}:{os.environ['PATH']}"} if tools else None
        return call(words, tmp_path, tmp_path / "printed.txt", path)

    run.folder = tmp_path
    return run


def write_project(folder, runs):
    """A Snakefile, a configuration and a run table of name → (nodes, GPUs on each)."""
    rows = (f"{name} w {nodes} {gpus} {nodes * gpus}" for name, (nodes, gpus) in runs.items())
    files = {"Snakefile": SNAKEFILE, "config.yaml": "site: jureca\n", "config/runs.tsv": table(HEADER, *rows)}
    write_files(folder, files | {"config/sites/jureca.yaml": SITE, "config/workloads/w.yaml": WORKLOAD})


def plan(folder):
    """What the plugin wrote."""
    return json.loads((folder / "results/plan/plan.json").read_text())


def planned(folder):
    """Rule → planned jobs that have a command."""
    rules = [job["rule"] for job in plan(folder)["jobs"] if job["rule"] != "all"]
    return {rule: rules.count(rule) for rule in rules}


def executed(folder):
    """Rule → executed jobs, as the jobs themselves said; and forget them."""
    path = folder / "executed.txt"
    rules = path.read_text().split() if path.exists() else []
    path.unlink(missing_ok=True)
    return {rule: rules.count(rule) for rule in rules}


def test_planned_jobs_are_the_executed_ones(workflow):
    """Fresh, partial and forced: the dry run counts exactly what then runs."""
    folder = workflow.folder
    for prepare, arguments in (
        (lambda: None, []),
        (lambda: (folder / "results/train_any/ddp-4.txt").unlink(), []),
        (lambda: None, ["-F"]),
    ):
        prepare()
        code, text = workflow("-n", *arguments)
        assert code == 0, text
        expected = planned(folder)
        code, text = workflow(*arguments)
        assert code == 0, text
        assert executed(folder) == expected


def test_the_table_is_the_count_by_hand(workflow):
    """Nodes × 128 cores × hours for each run and its parity run; at worst what 95 of 100 take; local jobs free."""
    code, text = workflow("-n", "--executor", "slurm", "--jobs", "3")
    assert code == 0 and "This was a dry-run" in text, text
    values = plan(workflow.folder)
    planner = Planner(load_project_file_in(workflow.folder))
    expected = worst = 0.0
    for name, (nodes, _) in RUNS.items():
        for kind in ("run", "parity"):
            predicted = planner.prediction(name, kind)
            expected += nodes * 128 * predicted.wall_seconds / 3600
            worst += nodes * 128 * worst_seconds(predicted, planner.run(name, kind), planner.site) / 3600
    assert values["totals"]["core_hours_expected"] == pytest.approx(expected)
    assert values["totals"]["core_hours_worst"] == pytest.approx(worst + 128 * 0.5)
    assert values["totals"]["jobs"] == 10 and values["capacity"] == 3
    (unknown,) = values["unknown"]
    assert unknown.startswith("prepare:")
    table = text[text.index("Plan for jureca") :]
    assert re.search(rf"total +10 .*{expected:,.2f} \+ 1\? +{worst + 64:,.2f}", table)
    assert "train_any" in table and "local jobs" in table
    assert 'data-run="train_any"' in (workflow.folder / "results/plan/plan.html").read_text()


def test_jobs_that_run_here_hold_no_nodes_which_a_dry_run_hides(workflow):
    assert workflow("-n")[0] == 0
    nodes = {job["rule"]: job["nodes"] for job in plan(workflow.folder)["jobs"]}
    assert (nodes["download"], nodes["report"], nodes["all"], nodes["prepare"]) == (0, 0, 0, 1)


def load_project_file_in(folder):
    """The project of a folder, read from there."""
    with contextlib.chdir(folder):
        return load_project_file("config.yaml", bases=["config"])


def test_a_plan_of_other_targets_changes_nothing(workflow):
    for arguments in (["prepare"], []):
        code, text = workflow("-n", *arguments)
        assert code == 0 and "Since the last plan" not in text, text
    assert plan(workflow.folder)["targets"] == []


def test_planning_makes_nothing_stale(workflow):
    assert workflow()[0] == 0
    for _ in range(2):
        code, text = workflow("-n")
        assert code == 0 and "Nothing to be done" in text and "Nothing has to run: 0 core-h." in text
    assert plan(workflow.folder)["totals"]["core_hours_expected"] == 0


def test_over_budget_is_refused_before_the_first_job(workflow):
    """Exit code not 0, with the table, and no job started; a dry run still shows the plan."""
    code, text = workflow("--config", "budget={core_hours: 0.001}")
    assert code != 0 and "more than budget.core_hours = 0.001" in text and "train_any" in text
    assert executed(workflow.folder) == {}
    code, text = workflow("-n", "--config", "budget={core_hours: 0.001}")
    assert code == 0 and "of 0.001 core-h" in text


def test_impossible_jobs_are_refused_before_the_first_job(workflow):
    """A time limit that somebody set by hand above the partition's is found, though the scheduler would take it."""
    code, text = workflow("--set-resources", "train_any:runtime=1500")
    assert code != 0 and "ends jobs after 24 h" in text
    assert executed(workflow.folder) == {}


def test_a_cluster_limits_only_what_is_sent_to_it(workflow):
    """On a login node with a default partition of ten minutes: `prepare` asks for thirty. A dry run knows where jobs would go."""
    site = workflow.folder / "config/sites/jureca.yaml"
    site.write_text("\n".join(line for line in SITE.splitlines() if "partitions" not in line))
    tools = program(workflow.folder / "tools/scontrol", "echo PartitionName=devel Default=YES MaxTime=00:10:00")
    for arguments, refused in ((["--jobs", "3"], False), (["--jobs", "3", "--executor", "slurm"], True)):
        code, text = workflow("-n", "-q", "rules", *arguments, tools=tools)
        assert code == 0 and ("prepare: asks for 0.5 h; partition devel of jureca" in text) == refused, text
        assert plan(workflow.folder)["capacity_is_cores"] == (not refused)


@pytest.mark.parametrize("quiet", QUIET)
def test_quiet_runs_keep_count_and_the_page_of_the_last_plan(workflow, quiet):
    """However little Snakemake prints, a dry run plans, the ledger is whole, and a plan of nothing leaves the page of what ran."""
    code, text = workflow("-n", "-q", *quiet)
    assert code == 0 and plan(workflow.folder)["totals"]["jobs"] == 10 and "Plan for jureca" in text, text
    code, text = workflow("-q", *quiet)
    assert code == 0, text
    events = [json.loads(line) for line in (workflow.folder / "results/plan/events.jsonl").read_text().splitlines()]
    assert sum(event["event"] == "finished" for event in events) == 10
    assert "Finished jobid" not in text
    page = (workflow.folder / "results/plan/plan.html").read_text()
    workflow("-n")
    assert (workflow.folder / "results/plan/plan.html").read_text() == page and "train_any" in page


def test_real_runs_keep_count(workflow):
    """What is left at the start and the end, and an event for both of each job, from which the next plan knows its rules."""
    code, text = workflow()
    assert code == 0 and re.search(r"parascale: 0 of 10 jobs done, 0.00 core-h used, at least .* left", text), text
    assert "parascale: 10 of 10 jobs done" in text and text.count("10 of 10 jobs done") == 1
    events = [json.loads(line) for line in (workflow.folder / "results/plan/events.jsonl").read_text().splitlines()]
    for kind in ("started", "finished"):
        assert sum(event["event"] == kind for event in events) == 10
    workflow("-n", "-F")
    assert plan(workflow.folder)["unknown"] == []


def test_errors_show_no_plan(workflow):
    """A workflow that cannot be built has no price."""
    code, text = workflow("-n", "nowhere")
    assert code != 0 and "Plan for" not in text
