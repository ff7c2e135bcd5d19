"""What a strategy does to a model on one rank: what a stage keeps, what is shared, and who talks to whom."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.torch_version import TorchVersion

from parascale.errors import RequirementError
from parascale.parallel import communication
from parascale.parallel.communication import OPERATIONS, operation
from parascale.parallel.pipeline import Pipeline
from parascale.parallel.tensor import matches
from parascale.settings import Layout, Model, make

GPT = make(Model, dim=16, heads=2, layers=5, hidden=32)
CPU = torch.device("cpu")


@pytest.fixture
def alone():
    """A group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("schedule", "version", "error"),
    [
        ("InterleavedZeroBubble", "2.12.1+cu130", RequirementError),
        ("ZBVZeroBubble", "2.11.0", RequirementError),
        ("ZBVZeroBubble", "2.13.0", AttributeError),  # the rest of a mesh is not there
        ("1F1B", "2.12.1", AttributeError),
    ],
)
def test_a_schedule_that_goes_backward_twice_is_refused_where_torch_forgets_the_nodes(
    schedule, version, error, monkeypatch
):
    """Before the first step, which would fail there without saying what to do."""
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    mesh = SimpleNamespace(layout=Layout(gpus_per_node=2, pp=2, micro_batches=4, schedule=schedule))
    with pytest.raises(error, match=r"install torch 2\.13 or newer, or choose another `schedule`|device"):
        Pipeline([], mesh, None, None)


@pytest.mark.parametrize(
    ("name", "pattern", "same"),
    [
        ("blocks.0", "blocks.*", True),
        ("blocks.0.attention", "blocks.*", False),
        ("blocks", "blocks.*", False),
        ("encoder.blocks.3", "*.blocks.*", True),
        ("norm", "blocks.*", False),
        ("head", "head", True),
    ],
)
def test_a_star_stands_for_one_part_of_a_name(name, pattern, same):
    assert matches(name, pattern) is same


@pytest.mark.parametrize(
    "name", [name for name in OPERATIONS if name != "send_receive"]
)  # gloo sends nothing to itself
def test_an_operation_of_one_rank_gives_what_it_had(name, alone):
    call, result = operation(name, 6, CPU, alone, filled=3.0)
    call()
    assert result.tolist() == [3.0] * 6


@pytest.mark.parametrize(("ranks", "missing"), [(1, None), (3, "1, 2")])
def test_who_meets_has_signed_and_who_has_not_is_missed(ranks, missing, monkeypatch):
    monkeypatch.setattr(communication, "open_store", lambda *_, **__: dist.HashStore())
    for name, value in (("RANK", 0), ("WORLD_SIZE", ranks)):
        monkeypatch.setenv(name, str(value))
    with pytest.raises(RequirementError, match=missing) if missing else nullcontext():
        communication.meet(0.1)
