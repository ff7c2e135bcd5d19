"""What a block keeps and what its backward pass computes again: eagerly, with copies in half precision, and compiled."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from parascale.errors import ConfigError
from parascale.families import model_sizes
from parascale.families.build import build_model
from parascale.families.language.modules import Block
from parascale.families.language.sizes import TransformerSizes
from parascale.families.sizes import MicroBatch
from parascale.parallel.precision import Copies
from parascale.parallel.recompute import PRODUCTS, recomputed
from parascale.parallel.tensor import split_tensors
from parascale.plan.work import step_work
from parascale.settings import Layout, Model, Site, Workload, make
from parascale.train.counting import count
from tests.unit.test_plan_memory import make_run

GPT = make(Model, dim=32, heads=4)
PARTS = {"norm": "rms", "position": "rotary", "activation": "swiglu", "bias": False}
LLAMA = make(Model, dim=32, heads=4, kv_heads=2, hidden=48, **PARTS)
# Model → its products, and those that selective recomputation performs again: keys, the result of attention, the gate.
BLOCKS = {"gpt": (GPT, 6, 2), "llama": (LLAMA, 7, 3)}


class Performed(TorchDispatchMode):
    """Counts what reaches a kernel."""

    def __init__(self):
        super().__init__()
        self.products = self.attention = 0

    def __torch_dispatch__(self, function, kinds, arguments=(), keywords=None):
        self.products += function in PRODUCTS
        self.attention += "attention" in str(function) and "backward" not in str(function)
        return function(*arguments, **(keywords or {}))


def trained(model, selective, half=False):
    """(products, attentions, gradients) of a forward and a backward pass of a block. selective: None keeps all."""
    torch.manual_seed(0)
    part = nn.Sequential(Block(model))
    copies = Copies(torch.bfloat16) if half else None
    if selective is not None:
        part[0].forward = recomputed(part[0], selective, copies)
    if half:
        part.forward = copies.around(part)
    hidden = torch.randn(2, 8, 32, requires_grad=True)
    with Performed() as performed:
        part(hidden).square().sum().backward()
    return performed.products, performed.attention, [hidden.grad, *(each.grad for each in part.parameters())]


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", BLOCKS)
def test_selectively_attention_and_half_of_the_products_are_computed_once(name, half):
    """The last product is never computed again, since nothing behind it is asked for. No gradient changes by a bit."""
    model, products, again = BLOCKS[name]
    plain, selective, all_again = (trained(model, each, half) for each in (None, True, False))
    assert [each[0] - 3 * products for each in (plain, selective, all_again)] == [0, again, products - 1]
    assert [each[1] for each in (plain, selective, all_again)] == [1, 1, 2]
    for found in (selective, all_again):
        assert all(map(torch.equal, found[2], plain[2]))


@pytest.mark.parametrize("selective", [True, False])
@pytest.mark.parametrize("changed", [{}, {"dropout": 0.1}, {"pre_norm": False}], ids=str)
def test_the_plan_knows_what_a_block_computes_again(changed, selective):
    """Operations of products, which torch counts: eagerly, also where dropout or a norm asks for the last one's result."""
    model = replace(GPT, **changed)
    block = Block(model)
    block.forward = recomputed(block, selective)
    with FlopCounterMode(display=False) as counter:
        result = block(torch.randn(2, 8, 32, requires_grad=True))
        forward = products_counted(counter)
        result.square().sum().backward()
    batch = MicroBatch(2, 1, False, 4, 4, False, "cpu")
    again = TransformerSizes(model, 100, 8).recomputed_operations(batch, False, selective)
    assert sum(product.flops for product in again.products) == products_counted(counter) - 3 * forward


def products_counted(counter):
    """Operations of matrix products, attention's own apart."""
    counts = counter.get_flop_counts()["Global"]
    return sum(count for operator, count in counts.items() if "attention" not in str(operator))


class Sent(TorchDispatchMode):
    """Counts collectives."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, function, kinds, arguments=(), keywords=None):
        if any(issubclass(kind, DTensor) for kind in kinds):
            return NotImplemented  # its collectives come as calls of their own
        self.calls += str(function).startswith(("_c10d_functional.all_", "_c10d_functional.reduce_"))
        return function(*arguments, **(keywords or {}))


@pytest.fixture(scope="module")
def pair():
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


@pytest.mark.parametrize("recomputing", ["selective", True])
@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_plan_knows_what_tensor_parallelism_sends_again(pair, dropout, split, recomputing):
    """All-gathers and reduce-scatters of a block with a split sequence, else sums, which weigh as two of these."""
    model = replace(GPT, dropout=dropout, layers=1)
    layout = {"tp": 2, "sequence_parallel": split, "activation_checkpointing": recomputing}
    run = make_run(model, "fp32", window=16, batch=2, **layout)
    rank = step_work(run, model_sizes(model, 64, 16), Site("gpus", device="cuda", gpu="A100")).ranks[0]
    whole = build_model(model, 64, 16)
    split_tensors(whole, pair, split)
    block = whole.blocks["0"]
    block.forward = recomputed(block, recomputing == "selective")
    hidden = torch.randn(2, 8 if split else 16, 32, requires_grad=True)
    with Sent() as forward:
        result = block(hidden)
    with Sent() as backward:
        result.sum().backward()
    assert forward.calls == (4 if split else 2)
    planned = rank.split_backward.node_bytes / rank.split.node_bytes
    assert backward.calls == planned * forward.calls


@pytest.mark.parametrize("selective", [True, False])
def test_compiled_a_graph_computes_again_what_python_would(selective):
    """With copies in half precision, which a graph keeps."""
    model, products, again = BLOCKS["llama"]
    counts = Counter()

    def counting(name):
        def compiler(graph, _):
            counts[name] += sum(node.target in PRODUCTS for node in graph.graph.nodes)
            return make_boxed_func(graph.forward)

        return compiler

    torch.manual_seed(0)
    part, copies = nn.Sequential(Block(model)), Copies(torch.bfloat16)
    part[0].forward = recomputed(part[0], selective, copies)
    compilers = {"fw_compiler": counting("forward"), "bw_compiler": counting("backward")}
    backend = aot_autograd(partition_fn=min_cut_rematerialization_partition, **compilers)
    part[0].compile(backend=backend, fullgraph=True)
    part.forward = copies.around(part)
    hidden = torch.randn(2, 8, 32, requires_grad=True)
    part(hidden).square().sum().backward()
    assert counts == {"forward": products, "backward": 2 * products + (again if selective else products - 1)}
    found = [hidden.grad, *(each.grad for each in part.parameters())]
    for one, other in zip(found, trained(model, None, half=True)[2], strict=True):
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("schedule", ["InterleavedZeroBubble", "ZBVZeroBubble"])
@pytest.mark.parametrize(("switch", "value"), [("activation_checkpointing", "selective"), ("compile", True)])
def test_a_backward_pass_in_two_parts_finds_nothing_twice(schedule, switch, value):
    """What was kept is given away by the first; torch would say so when the training is under way."""
    layout = Layout(gpus_per_node=2, pp=2, micro_batches=4, schedule=schedule, **{switch: value})
    with pytest.raises(ConfigError, match=f"{switch} = {value}.* or schedule".replace("True", "true")):
        layout.check()


def test_the_plan_knows_which_convolutions_are_computed_again():
    """Of a block with a shortcut of its own the first of the others, else the second; and the last, before a norm."""
    training = {"image_size": 32, "global_batch": 2, "steps": 1}
    model = {"kind": "xresnet", "dim": 8, "depths": [2], "norm": "group"}
    workload = make(Workload, name="x", task="classification", model=model, training=training)
    seen = []
    for block in build_model(workload.model, 10, 32).stages[0]:
        block.forward = recomputed(block, True)
        with Shapes() as shapes:
            result = block(torch.randn(2, block.reduce.convolution.in_channels, 8, 8, requires_grad=True))
            forward = len(shapes.seen)
            result.sum().backward()
        seen += [(inputs * size**2, outputs) for outputs, inputs, size in shapes.seen[forward:]]
    products = count(workload, 10)["forms"]["4"]["blocks"]["products"]
    planned = [each for _, *each, _, again, times in products for _ in range(round(2 * times)) if again]
    assert sorted(seen) == sorted(map(tuple, planned))


class Shapes(TorchDispatchMode):
    """Notes outputs, inputs and size of each convolution's kernel."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, kinds, arguments=(), keywords=None):
        if function is torch.ops.aten.convolution.default:
            self.seen.append(tuple(arguments[1].shape[:3]))
        return function(*arguments, **(keywords or {}))
