"""The budget plugin in another workflow, beside a real accounting. What our own jobs are charged, `assert_all_is_charged` compares."""

import json
import re
import subprocess
import sys
import time

import pytest

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

CORES = 128  # of a node of the box, as of JURECA
# Somebody else's workflow and profile: nothing of ours but the plugin.
SNAKEFILE = """
rule all:
    input: "sum.txt"
    localrule: True
    resources: nodes=0

rule simulate:
    output: "a.txt"
    resources: nodes=2, tasks=2, mpi="srun", tasks_per_gpu=0, cpus_per_task=128, gres="gpu:4", runtime=30
    shell: "sleep 9; touch {output}"

rule collect:
    input: "a.txt"
    output: "sum.txt"
    resources: runtime=15, slurm_partition="dc-cpu"
    shell: "touch {output}"
"""
PROFILE = """
executor: slurm
logger: [budget]
logger-budget-cores-per-node: 128
jobs: 4
slurm-qos: course
slurm-status-command: squeue
slurm-init-seconds-before-status-checks: 3
default-resources: {slurm_account: training, slurm_partition: dc-gpu, mem_mb: 0, disk_mb: 0}
"""


def test_another_workflow_is_counted_by_the_budget_plugin_and_runs_under_its_qos(cluster, tmp_path):
    """Before: 2 nodes for at most half an hour and one for a quarter. At the end: at least what the accounting says, at most the wall time."""
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    (tmp_path / "profile").mkdir()
    (tmp_path / "profile/config.yaml").write_text(PROFILE)

    def snakemake(*words):
        command = cluster.on_login([sys.executable, "-m", "snakemake", "--profile", "profile", *words], cwd=tmp_path)
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    planned = snakemake("-n")
    assert re.search(r"^ *total  +3 .*  1\.25  +160\.00  +4\.00$", planned, re.MULTILINE), planned
    began = time.monotonic()
    said = snakemake()
    wall, jobs = time.monotonic() - began, re.findall(r"SLURM jobid (\d+)", said)
    records = [cluster.sacct(job) for job in dict.fromkeys(jobs)]
    lasted = [int(record["ElapsedRaw"]) for record in records]
    seen = [json.loads(line) for line in (tmp_path / ".snakemake/budget.jsonl").read_text().splitlines()]
    assert [line["rule"] for line in seen] == ["simulate", "collect"]
    assert all(seconds - 1 <= line["seconds"] <= wall for seconds, line in zip(lasted, seen, strict=True))
    node_hours = (2 * seen[0]["seconds"] + seen[1]["seconds"]) / 3600
    used = re.findall(
        r"budget: 2 jobs ended, ([\d.]+) node-h, ([\d.]+) core-h, ([\d.]+) GPU-h used.*; 0 under way", said
    )
    figures = (node_hours, CORES * node_hours, 8 * seen[0]["seconds"] / 3600)
    assert used == [tuple(f"{value:.2f}" for value in figures)], said
    command = ["sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={','.join(jobs)}", "--format=QOS"]
    assert cluster.run(command).stdout.split() == ["course", "course"]
