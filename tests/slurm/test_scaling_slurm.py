"""Scaling studies on a real Slurm measure planted efficiencies, a killed point continues, and a second study trains only new points."""

import csv
import json

import pytest
import yaml
from workflow import Workflow

from parascale.files import read_json

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(1800)]

# Seconds of a step: a serial part, work divided among processes, a delay for each further node. Ranks wait for each other as for gradients.
SERIAL, WORK, DELAY = 0.1, 0.8, 0.04
SCRIPT = f"""
import argparse, os, time
import torch, torch.distributed as dist
from parascale import record

parser = argparse.ArgumentParser()
for name in ("steps", "nodes"):
    parser.add_argument(f"--{{name}}", type=int)
parser.add_argument("--kind")
parser.add_argument("--folder")
options = parser.parse_args()
dist.init_process_group()
share = dist.get_world_size() if options.kind == "strong" else 1
saved = f"{{options.folder}}/step"
done = int(open(saved).read()) if os.path.exists(saved) else 0
end = None
for step in range(done + 1, options.steps + 1):
    # Make up for delays by a busy machine, but not for a slow start.
    end = max(end or 0.0, time.monotonic() - 0.1) + {SERIAL} + {WORK} / share + {DELAY} * (options.nodes - 1)
    time.sleep(max(0.0, end - time.monotonic()))
    dist.barrier()
    record(step=step, loss=1 / step, samples=8 if options.kind == "strong" else 8 * dist.get_world_size())
    if dist.get_rank() == 0:
        with open(saved + ".new", "w") as file:
            file.write(str(step))
        os.replace(saved + ".new", saved)
dist.destroy_process_group()
"""
ARGUMENTS = {"steps": "{steps}", "nodes": "{nodes}", "kind": "{scaling}", "folder": "{work}"}
PLANTED = {"task": "script", "command": "planted.py", "arguments": ARGUMENTS, "steps": 1000}
STUDY = {"run": "planted", "nodes": [1, 2], "steps": 30, "warmup": 10}
OWN = {"run": "ours", "nodes": [1, 2], "steps": 12, "warmup": 4, "kinds": ["strong"]}


@pytest.fixture
def workflow(cluster, tmp_path):
    rows = [{"run": "planted", "workload": "planted"}, {"run": "ours", "gpus_per_node": 2, "dp": 2}]
    with Workflow(cluster, tmp_path / "project", rows) as started:
        folder = started.folder / "box/workloads"
        (folder / "planted.py").write_text(SCRIPT)
        (folder / "planted.yaml").write_text(yaml.safe_dump(PLANTED))
        yield started


def table(workflow, name):
    with open(workflow.root / f"results/scaling/{name}/points.csv", newline="") as file:
        return {(row["kind"], int(row["nodes"])): row for row in csv.DictReader(file)}


def expected(kind, nodes):
    """The planted efficiency."""
    least, step = (SERIAL + WORK / (each if kind == "strong" else 1) + DELAY * (each - 1) for each in (1, nodes))
    return least / step / (nodes if kind == "strong" else 1)


def test_planted_efficiencies_a_killed_point_and_a_second_study(cluster, workflow):
    studies = json.dumps({"planted": STUDY, "ours": OWN})
    workflow.start("scaling", settings=[f"studies={studies}"])
    struck = "planted@2x1-dp2-strong-s30"
    run, jobs = workflow.run(struck), []

    def strike():
        steps = run.work / "steps.jsonl"
        if steps.exists() and steps.read_text().count("\n") >= 15:
            jobs.extend(workflow.jobs(f"train_point/{struck}"))
            cluster.run(["scancel", "--signal=KILL", f"{jobs[0]}.0"])
        return jobs

    workflow.when(strike, "a point is killed")
    workflow.wait(timeout=1200)
    assert [each["outcome"] for each in run.attempts()] == ["killed", "finished"] and run.attempts()[1][
        "first_step"
    ] > 1
    rows = table(workflow, "planted")
    for (kind, nodes), row in rows.items():
        assert float(row["efficiency"]) == pytest.approx(expected(kind, nodes), abs=0.03), (kind, nodes)
    assert len(rows) == 4 and {row["basis"] for row in rows.values()} == {"measured"}
    ours = table(workflow, "ours")
    for (_, nodes), row in ours.items():
        (path,) = (workflow.root / "results/runs").glob(f"ours@{nodes}x2-*")
        lines = workflow.run(path.name).steps()[4:]
        mean = sum(line["seconds"]["total"] for line in lines) / len(lines)
        assert float(row["step_seconds_mean"]) <= mean * 1.001, "its first steps count as the median"
        assert float(row["core_hours"]) == pytest.approx(read_json(path / "summary.json")["core_hours"])
    text = (workflow.root / "results/scaling/planted/study.md").read_text()
    assert "--nodes=2" in text and "--gres=gpu:1" in text
    before = len(workflow.jobs("train_point"))
    wider = json.dumps({"planted": STUDY, "wider": STUDY | {"nodes": [1, 2, 3], "kinds": ["weak"]}})
    workflow.start("scaling", settings=[f"studies={wider}"]).wait(timeout=600)
    assert len(workflow.jobs("train_point")) == before + 1, "three nodes are all that is new"
    assert float(table(workflow, "wider")["weak", 3]["efficiency"]) == pytest.approx(expected("weak", 3), abs=0.03)
