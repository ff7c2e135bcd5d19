"""Users' scripts in jobs of a real Slurm, one of them from docs/own-script.md: stopped or killed, they continue, and are charged, shown
and priced like other trainings."""

import contextlib
import csv
import re

import pytest
import yaml
from tests.foreign_scripts import SCRIPTS, write_script
from tests.own_environment import OLDEST, oldest_environment
from workflow import ROOT, Workflow

from parascale.files import read_json, read_json_lines
from parascale.plan.planner import Planner
from parascale.settings import load_project_file

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(1200)]

FOREIGN = ("trainer", "accelerate", "lightning", "fields")
STRIKES = {  # run → (signal, outcome of the first attempt, whether it uses a retry)
    "waves-nodes": ("TERM", "stopped", False),
    "waves-ddp": ("KILL", "killed", True),
    "trainer": ("TERM", "stopped", True),  # it neither handles the signal nor records: nobody knows if it continues
    "accelerate": ("KILL", "killed", True),
    "lightning": ("TERM", "stopped", False),
    "fields": ("TERM", "stopped", False),  # it does not handle the signal either
}
ROWS = [
    {"run": "waves-nodes", "workload": "waves", "nodes": 2, "dp": 2},
    {"run": "waves-ddp", "workload": "waves", "gpus_per_node": 2, "dp": 2},
    *({"run": name, "workload": name, "gpus_per_node": 2, "dp": 2} for name in FOREIGN),
]
HELD = 50  # step at which the document's script waits for the strike
WAIT = f"""        import time
        while step == {HELD} and not asked and os.path.exists("box/brake"):
            time.sleep(0.05)
"""


def write_waves(folder):
    """Write the document's script, with a wait at HELD, and its workload."""
    text = (ROOT / "docs/own-script.md").read_text("utf-8")
    blocks = dict(reversed(re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL)))
    line = "        record(step=step, loss=loss, samples=64)\n"
    (folder / "waves.py").write_text(blocks["python"].replace(line, line + WAIT))
    (folder / "waves.yaml").write_text(blocks["yaml"])


@pytest.fixture
def workflow(cluster, tmp_path):
    with Workflow(cluster, tmp_path / "project", ROWS, pause=0.0) as started:
        folder = started.folder / "box/workloads"
        write_waves(folder)
        for name in FOREIGN:
            write_script(folder, name)
        yield started


def test_they_are_stopped_and_killed_continue_are_charged_shown_and_priced(cluster, workflow):
    """Strike each run with SIGTERM, as at a preemption, or SIGKILL to the step, on one node or two, after it has saved or at HELD."""
    runs, jobs = {name: workflow.run(name) for name in STRIKES}, {}

    def strike():
        for name, run in runs.items():
            steps = run.work / "steps.jsonl"
            saved = name in SCRIPTS and list((run.work / "files").glob(SCRIPTS[name][1]))
            held = name not in SCRIPTS and steps.exists() and steps.read_text().count("\n") >= HELD
            if name not in jobs and (saved or held):
                (jobs[name],) = workflow.jobs(rf"train_\w+/{name}")
                how = STRIKES[name][0]
                cluster.run(["scancel", f"--signal={how}", jobs[name] + ".0" * (how == "KILL")])
        return len(jobs) == len(runs)

    workflow.start("all")
    workflow.when(strike, "all are struck")
    workflow.when(lambda: len(workflow.jobs("train_")) == 2 * len(runs), "all are submitted again")
    workflow.full_speed()
    workflow.wait(timeout=600)
    with open(workflow.root / "results/report/summary.csv", newline="") as file:
        rows = {row["run"]: row for row in csv.DictReader(file)}
    page = (workflow.root / "results/report/index.html").read_text()
    for name, run in runs.items():
        _, outcome, retry = STRIKES[name]
        attempts, row = run.attempts(), rows[name]
        assert [each["outcome"] for each in attempts] == [outcome, "finished"], name
        assert all(host.startswith("jrc") for attempt in attempts for host in attempt["hosts"])
        assert bool(re.search(rf"job {jobs[name]} of \w+ was stopped, and has not failed", workflow.log)) != retry, name
        assert (row["status"], row["attempts"]) == ("done", "2") and float(row["core_hours"]) > 0, row
        assert name in page
    for name, steps, work, loss in (
        ("waves-nodes", 200, "12800", 0.1),
        ("waves-ddp", 200, "12800", 0.1),
        ("fields", 60, "480", 0.2),
    ):
        assert [line["step"] for line in runs[name].steps()] == list(range(1, steps + 1))
        assert rows[name]["work"] == work and float(rows[name]["train_loss"]) < loss < float(rows[name]["rate"])
    firsts = {name: [each["first_step"] for each in run.attempts()] for name, run in runs.items()}
    assert firsts["waves-nodes"] == [1, HELD + 1]
    assert firsts["waves-ddp"] == [None, 1], "the killed one had saved nothing yet"
    assert firsts["fields"][0] == 1 < firsts["fields"][1] and firsts["fields"][1] % 10 == 1
    for name in ("trainer", "accelerate", "lightning"):  # without a line of ours
        row = rows[name]
        assert (row["work"], row["rate"], row["train_loss"], firsts[name]) == ("", "", "", [None, None])
        assert row["seconds"] == row["wall_seconds"] and "records no steps" in row["stands_out"]
        assert list((runs[name].result / "checkpoint").glob(SCRIPTS[name][1]))
    assert len(read_json(runs["waves-nodes"].result / "run.json")["hosts"]) == 2
    workflow.assert_all_is_charged()
    assert_a_probe_prices(workflow, "fields")


def assert_a_probe_prices(workflow, name):
    """A longer training of the script has a price after a probe of it has run, but not before."""
    table = (workflow.folder / "box/runs.tsv").read_text().splitlines()
    kept = [line for line in table if line.startswith((table[0], f"{name}\t"))]
    (workflow.folder / "box/runs.tsv").write_text("\n".join(kept) + "\n")
    path = workflow.folder / f"box/workloads/{name}.yaml"
    path.write_text(path.read_text().replace("steps: 60", "steps: 6000"))
    values = {"root": str(workflow.root), "sites": "box/sites", "workloads": "box/workloads", "runs": "box/runs.tsv"}

    def predicted():
        with contextlib.chdir(workflow.folder):
            return Planner(load_project_file("config/jureca.yaml", overrides=values)).prediction(name)

    assert predicted().unknown
    workflow.start("calibrate").wait(timeout=200)
    known = predicted()
    assert (known.basis, known.steps, known.unknown) == ("probe", 6000, None)
    assert 6000 * 0.05 < known.seconds < known.wall_seconds and known.core_hours > 128 * known.seconds / 3600


@pytest.mark.parametrize("kind", ["sleeps", "sleeps-bare"])
def test_a_script_that_hangs_on_one_of_two_nodes_is_named_and_its_job_ends(kind, cluster, tmp_path):
    """Each launcher watches its own rank. The job ends long before its limit and torch's own timeout; without `record`, nobody knows if
    the script computes, and its user ends it."""
    rows = [{"run": "hangs", "workload": "hangs", "nodes": 2, "dp": 2}]
    with Workflow(cluster, tmp_path / "project", rows, pause=0.0) as workflow:
        program = (ROOT / "tests/distributed/silent_scripts.py").read_text()
        call = "train(sys.argv[1], float(sys.argv[2]))"
        assert program.count(call) == 1
        folder, timeout = workflow.folder / "box/workloads", 45 if kind == "sleeps" else 20
        (folder / "hangs.py").write_text(program.replace(call, f"train({kind!r}, 0.0)"))
        (folder / "hangs.yaml").write_text("task: script\ncommand: hangs.py\n")
        run = workflow.run("hangs")

        def attempt():
            return read_json_lines(run.work / "attempts.jsonl")[-1]

        workflow.start(run.target, options=["--retries", "0"], settings=[f"timeout_seconds={timeout}"])
        if kind != "sleeps":
            workflow.when(lambda: run.begun() and attempt().get("cause"), "it is named", timeout=900)
            named = attempt()["cause"]
            cluster.run(["scancel", "--signal=TERM", workflow.jobs()[0]])
        workflow.wait(timeout=900, succeeds=False)
        if kind == "sleeps":
            named = attempt()["cause"]
            assert attempt()["outcome"] == "failed" and f"hang: {named}" in workflow.story()
        else:
            assert f"warning: nothing was computed for {timeout} s: {named}" in workflow.story()
        assert re.match(r"rank 1 on jrc\w+ did not join .*, where rank 0 on jrc.*: idle at .* \(sleeps\)", named)
        workflow.assert_all_is_charged()


def test_one_in_an_environment_of_its_users_own_is_stopped_continues_and_is_priced(cluster, tmp_path, request):
    """With the oldest torch, set in the site's file, on one node and two. A script that cannot start fails without a retry."""
    python = oldest_environment(request.config) / "bin/python"
    rows = [*ROWS[:2], {"run": "lost", "workload": "lost"}]
    with Workflow(cluster, tmp_path / "project", rows, pause=0.0) as workflow:
        write_waves(workflow.folder / "box/workloads")
        lost = "task: script\ncommand: waves.py\npython: /no/python\n"
        (workflow.folder / "box/workloads/lost.yaml").write_text(lost)
        with open(workflow.folder / "box/sites/jureca.yaml", "a") as file:
            file.write(yaml.safe_dump({"script": {"python": str(python)}}))
        runs = {name: workflow.run(name) for name in ("waves-nodes", "waves-ddp")}

        def strike():
            for name, run in runs.items():
                steps = run.work / "steps.jsonl"
                if name not in jobs and steps.exists() and steps.read_text().count("\n") >= HELD:
                    (jobs[name],) = workflow.jobs(rf"train_\w+/{name}")
                    cluster.run(["scancel", "--signal=TERM", jobs[name]])
            return len(jobs) == len(runs)

        jobs = {}
        workflow.start(*(run.target for run in runs.values()))
        workflow.when(strike, "all are struck")
        workflow.full_speed()
        workflow.wait(timeout=600)
        for name, run in runs.items():
            found = [(each["first_step"], each["outcome"]) for each in run.attempts()]
            assert found == [(1, "stopped"), (HELD + 1, "finished")]
            assert [line["step"] for line in run.steps()] == list(range(1, 201))
            described = read_json(run.result / "run.json")
            assert described["versions"]["torch"].startswith(OLDEST) and len(described["hosts"]) == 1 + (
                name == "waves-nodes"
            )
        workflow.start(workflow.run("lost").target)
        workflow.wait(timeout=300, succeeds=False)
        assert len(workflow.jobs(r"train_\w+/lost")) == 1 and "`/no/python` cannot be started" in workflow.story()
