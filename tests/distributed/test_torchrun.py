"""A training is a plain distributed program: torchrun starts it as our own launcher does, on one node and on several."""

import json
import os
import subprocess
import sys

import pytest

from parascale.files import read_json, read_json_lines
from tests.workflow.small_project import CONFIG, WORKLOAD

from ..command import COMMAND
from ..ports import free_port

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
# argparse of earlier Pythons refuses `--run` as ambiguous with torchrun's own `--run-path`.
NEEDS_DASHES = sys.version_info < (3, 12, 7) or (3, 13) <= sys.version_info < (3, 13, 1)
RUNS = "run\tworkload\tnodes\tgpus_per_node\tdp\nsingle\ttiny\t1\t1\t1\nthere\ttiny\t2\t1\t2\n"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The folder of a project with prepared data, and with characters that shells and programs trip over."""
    folder = tmp_path_factory.mktemp("torchrun") / "Anna's Übung 1"
    for place, text in (
        ("Snakefile", ""),
        ("config/config.yaml", CONFIG),
        ("config/tiny.tsv", RUNS),
        ("config/workloads/tiny.yaml", WORKLOAD),
        ("config/sites/local.yaml", json.dumps({"cores_per_node": 2})),
        *((f"text/{split}.txt", "a b c d e f g\n" * 60) for split in ("train", "validation", "test")),
    ):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text)
    for verb in ("download", "prepare"):
        subprocess.run([*COMMAND, "data", verb, "--dataset", "tiny"], cwd=folder, check=True, capture_output=True)
    return folder


def started(project, *options):
    """A torchrun under way."""
    command = [*TORCHRUN, *options, "-m", *(["--"] if NEEDS_DASHES else []), "parascale", "train", "--run", "there"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.slow
def test_torchrun_trains_a_run(project):
    meet = ["--master-addr", "127.0.0.1", "--master-port", str(free_port()), "--rdzv-backend", "static"]
    nodes = [
        started(project, "--nnodes", "2", "--node-rank", str(rank), "--nproc-per-node", "1", *meet) for rank in range(2)
    ]
    told = [node.communicate()[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0] * len(nodes), "\n".join(told)
    folder = project / "results/runs/there"
    assert read_json(folder / "run.json")["prediction"] and read_json(folder / "summary.json")["test_loss"] > 0
    assert [line["step"] for line in read_json_lines(folder / "steps.jsonl")] == list(range(1, 31))
    described, summary = (read_json(folder / f"{name}.json") for name in ("run", "summary"))
    assert described["machines"][0]["hosts"] == list(dict.fromkeys(described["hosts"]))
    assert described["machines"][0]["cpu"]
    assert summary["memory"]["optimizer"] >= 2 * summary["memory"]["gradients"] > 0
    assert sum(summary["memory"].values()) == summary["peak_memory_bytes"]
