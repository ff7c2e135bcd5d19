"""`scripts/plan.py --check` says with its exit code whether everything can run, and in words what cannot."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITE = """
device: cuda
cores_per_node: 128
gpus_per_node: 4
gpu_memory_gb: 42.9
peak_tflops: {fp32: 19.5}
memory_gigabytes_per_second: 1555
partitions: [{name: dc-gpu, max_hours: 24, max_nodes: 24}, {name: dc-gpu-devel, max_hours: 2, max_nodes: 4}]
"""
WORKLOAD = """
data: {{source: {{kind: builtin, name: documentation}}, expected: {{vocabulary: 5000}}}}
model: {{dim: {dim}, heads: 4, layers: 4}}
training: {{steps: {steps}}}
"""
RUNS = "run\tworkload\tnodes\tgpus_per_node\tdp\nsingle\tw\t1\t1\t1\nwide\tw\t8\t4\t32\n"


@pytest.fixture
def check(tmp_path):
    """A function: (exit code, both streams) of a check of a small project with these settings."""

    def run(dim=128, steps=1000, config="", arguments=()):
        for place, text in (
            ("config/sites/here.yaml", SITE),
            ("config/workloads/w.yaml", WORKLOAD.format(dim=dim, steps=steps)),
            ("config/runs.tsv", RUNS),
            ("config/config.yaml", f"site: here\n{config}"),
        ):
            (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / place).write_text(text)
        command = [sys.executable, ROOT / "scripts/plan.py", "--check", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.mark.parametrize(
    ("settings", "code", "said"),
    [
        ({}, 0, "all 2 runs can start"),
        ({"config": "budget: {core_hours: 1000}\n"}, 0, "all 2 runs can start"),
        ({"config": "budget: {core_hours: 0.5}\n"}, 1, "more than budget.core_hours = 0.5"),
        ({"config": "budget: {core_hours: 0.5}\n", "arguments": ["--runs", "single"]}, 1, "core_hours"),
        ({"dim": 8192}, 1, "single: does not fit; it would with"),
        ({"config": "partition: dc-gpu-devel\n"}, 1, "wide: asks for 8 nodes; partition dc-gpu-devel"),
        ({"config": "partition: dc-gpo\n"}, 1, "did you mean `dc-gpu`"),
        ({"arguments": ["--runs", "sinle"]}, 1, "did you mean `single`"),
        ({"steps": 10_000_000}, 0, "will continue in several jobs"),
    ],
)
def test_the_exit_code_is_the_verdict(check, settings, code, said):
    found, text = check(**settings)
    assert found == code, text
    assert said in text
