"""The script of docs/own-script.md in jobs of a real Slurm: asked to stop, or killed, it continues, is charged and shown as other trainings."""

import csv
import re

import pytest
from workflow import ROOT, Workflow

from parascale.files import read_json

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(900)]

ROWS = [
    {"run": "waves-ddp", "workload": "waves", "gpus_per_node": 2, "dp": 2},
    {"run": "waves-nodes", "workload": "waves", "nodes": 2, "dp": 2},
]
HELD = 50  # the step at which the script waits to be struck
WAIT = f"""        import time
        while step == {HELD} and not asked and os.path.exists("box/brake"):
            time.sleep(0.05)
"""


@pytest.fixture
def workflow(cluster, tmp_path):
    text = (ROOT / "docs/own-script.md").read_text("utf-8")
    blocks = dict(reversed(re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL)))
    with Workflow(cluster, tmp_path / "project", ROWS, pause=0.0) as started:
        folder = started.folder / "box/workloads"
        line = "        record(step=step, loss=loss, samples=64)\n"
        (folder / "waves.py").write_text(blocks["python"].replace(line, line + WAIT))
        (folder / "waves.yaml").write_text(blocks["yaml"])
        yield started


def test_it_is_stopped_and_killed_continues_is_charged_and_shown(cluster, workflow):
    """SIGTERM, as at a preemption, to a run on two nodes; SIGKILL to the step of another, which has saved nothing yet."""
    stopped, killed = workflow.run("waves-nodes"), workflow.run("waves-ddp")

    def held(run):
        path = run.work / "steps.jsonl"
        return path.exists() and path.read_text().count("\n") >= HELD

    workflow.start("all")
    workflow.when(lambda: held(stopped) and held(killed), "both are in the middle")
    cluster.run(["scancel", "--signal=TERM", *workflow.jobs("train_multi_node/waves-nodes")])
    cluster.run(["scancel", "--signal=KILL", f"{workflow.jobs('train_ddp/waves-ddp')[0]}.0"])
    workflow.when(lambda: len(workflow.jobs("train_")) == 4, "both are submitted again")
    workflow.full_speed()
    workflow.wait(timeout=600)
    for run, firsts, outcomes in (
        (stopped, [1, HELD + 1], ["stopped", "finished"]),
        (killed, [None, 1], ["killed", "finished"]),
    ):
        attempts = run.attempts()
        assert [line["step"] for line in run.steps()] == list(range(1, 201))
        assert ([each["first_step"] for each in attempts], [each["outcome"] for each in attempts]) == (firsts, outcomes)
        assert all(host.startswith("jrc") for attempt in attempts for host in attempt["hosts"])
    assert len(read_json(stopped.result / "run.json")["hosts"]) == 2
    workflow.assert_all_is_charged()
    with open(workflow.root / "results/report/summary.csv", newline="") as file:
        rows = {row["run"]: row for row in csv.DictReader(file)}
    for row in rows.values():
        assert (row["status"], row["work"], row["attempts"]) == ("done", "12800", "2"), row
        assert float(row["train_loss"]) < 0.1 and float(row["core_hours"]) > 0
    assert all(name in (workflow.root / "results/report/index.html").read_text() for name in rows)
