"""The shipped JURECA profile on a real Slurm: every rule, the right resources, and the numbers of one machine."""

import pytest
from workflow import Workflow

pytestmark = pytest.mark.slurm

MATRIX = [
    {"run": "single"},
    {"run": "ddp", "gpus_per_node": 2, "dp": 2},
    {"run": "ddp-2", "nodes": 2, "gpus_per_node": 1, "dp": 2},
    {"run": "fsdp", "gpus_per_node": 2, "fsdp": 2},
    {"run": "tp", "gpus_per_node": 2, "tp": 2},
    {"run": "pp", "gpus_per_node": 2, "pp": 2, "micro_batches": 4, "schedule": "1F1B"},
]


@pytest.mark.slow
def test_every_rule_of_the_default_matrix(cluster, tmp_path):
    workflow = Workflow(cluster, tmp_path, MATRIX).start("all")
    workflow.wait(timeout=280)
