"""What a strategy does to a model on one rank: what a stage keeps, what is shared, and who talks to whom."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from parascale.errors import RequirementError
from parascale.families.build import build_model
from parascale.parallel import fsdp, make_mesh
from parascale.parallel.communication import OPERATIONS, groups_of, operation
from parascale.parallel.pipeline import Pipeline, cut
from parascale.parallel.tensor import matches
from parascale.parallel.tying import split_ties, sum_tied_gradients
from parascale.settings import Layout, Model, make

GPT = make(Model, dim=16, heads=2, layers=5, hidden=32)
CPU = torch.device("cpu")


@pytest.fixture
def eight():
    """The first of eight processes, whose collectives are answered at once."""
    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.fixture
def alone():
    """A group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_stages_hold_every_block_once_and_the_ends_at_the_ends():
    with torch.device("meta"):
        whole = build_model(GPT, 50, 8)
        stages = [cut(build_model(GPT, 50, 8), stage, 3) for stage in range(3)]
    assert [stage.embedding is not None for stage in stages] == [True, False, False]
    assert [stage.head is not None for stage in stages] == [False, False, True]
    names = [name for stage in stages for name, _ in stage.named_parameters()]
    assert sorted(names) == sorted(name for name, _ in whole.named_parameters())


@pytest.mark.parametrize(
    ("schedule", "refused"), [("InterleavedZeroBubble", True), ("ZBVZeroBubble", True), ("1F1B", False)]
)
def test_a_schedule_that_goes_backward_twice_is_refused_where_torch_forgets_the_nodes(schedule, refused, monkeypatch):
    """As torch until 2.12 does; before the first step, which would fail there without saying what to do."""

    def forgotten(*arguments):
        raise RuntimeError("Attribute '_input_metadata' is invalid for this instance of _C._FunctionBase")

    monkeypatch.setattr(torch.autograd, "grad", forgotten)
    mesh = SimpleNamespace(layout=Layout(gpus_per_node=2, pp=2, micro_batches=4, schedule=schedule))
    with (
        pytest.raises(RequirementError, match=r"install torch 2\.13 or newer, or choose another `schedule`")
        if refused
        else (
            pytest.raises(AttributeError)  # the rest of a mesh is not there
        )
    ):
        Pipeline([], mesh, None, None)


def test_both_copies_of_a_tied_parameter_get_the_sum_of_their_gradients():
    """Where one rank holds both, as the rank in a V of stages; it asks nobody."""
    first, second = (torch.nn.Linear(2, 2, bias=False) for _ in range(2))
    parts = [torch.nn.ModuleDict({"embedding": first}), torch.nn.ModuleDict({"head": second})]
    first.weight.grad, second.weight.grad = torch.full((2, 2), 1.0), torch.full((2, 2), 10.0)
    sum_tied_gradients(split_ties(parts, {"head.weight": "embedding.weight"}), None)
    assert (first.weight.grad == 11).all() and (second.weight.grad == 11).all()


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


def test_fsdp_shards_what_stands_in_no_block_with_the_root(eight):
    layout = Layout(gpus_per_node=8, fsdp=8)
    model = build_model(GPT, 50, 8)
    fsdp.shard(model, make_mesh(layout, CPU, 60.0).devices["fsdp"], layout, "fp32")
    assert isinstance(model, FSDPModule) and all(isinstance(block, FSDPModule) for block in model.blocks.values())
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())


@pytest.mark.parametrize(
    ("degrees", "names"), [({"dp": 8}, {"all"}), ({"dp": 2, "fsdp": 2, "tp": 2}, {"all", "dp", "fsdp", "tp"})]
)
def test_each_dimension_of_several_has_a_group_to_measure(degrees, names, eight):
    found = groups_of(Layout(gpus_per_node=8, **degrees), CPU, 60.0)
    assert found.keys() == names
    assert {dist.get_world_size(group) for name, group in found.items() if name != "all"} <= {2}


@pytest.mark.parametrize(
    "name", [name for name in OPERATIONS if name != "send_receive"]
)  # gloo sends nothing to itself
def test_an_operation_of_one_rank_gives_what_it_had(name, alone):
    call, result = operation(name, 6, CPU, alone, filled=3.0)
    call()
    assert result.tolist() == [3.0] * 6
