"""A step in one process, and how ranks that train apart come together, seen from one of them."""

import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import TensorDataset

from parascale.families.build import build_model, initialise
from parascale.parallel import make_mesh, parallelize
from parascale.parallel.precision import number_type, set_arithmetic
from parascale.settings import Layout, Model, Run, Workload, make
from parascale.train import averaging
from parascale.train.clock import Clock
from parascale.train.loss import GlobalLoss, LossScale, evaluate
from parascale.train.optim import SGD, make_optimizers
from parascale.train.step import Stepper

VOCABULARY, WINDOW, BATCH = 31, 8, 4
CPU = torch.device("cpu")


def stepper_of(accumulate=1, precision="fp32", device=CPU, optim=None, dropout=0.0, **layout):
    """A Stepper of a tiny Transformer, and its run."""
    training = {"window": WINDOW, "global_batch": BATCH, "accumulate": accumulate, "steps": 3}
    model = make(Model, dim=16, heads=2, layers=2, hidden=32, dropout=dropout)
    workload = make(Workload, name="w", model=model, training=training, optim=optim or {})
    run = Run("r", workload, Layout(**layout), precision)
    mesh, loss, clock = make_mesh(run.layout, device, 60.0), GlobalLoss(), Clock(device)
    parallel = parallelize(lambda: build_model(model, VOCABULARY, WINDOW), run, mesh, loss, clock, 60.0)
    if run.layout.world_size == 1:  # else nobody looks at a value
        initialise(parallel.parts[0], None, 1, {})
    return Stepper(run, parallel, make_optimizers(parallel, run.workload.optim), loss, clock)


def batch_of(samples):
    """(tokens, labels), of which some count for nothing."""
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, VOCABULARY, (samples, WINDOW)))
    labels = tokens.roll(-1, 1)
    labels[0, 3:] = -100
    return tokens, labels


class Samples(TensorDataset):
    def batch(self, numbers):
        return self[numbers]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_is_that_of_a_bare_loop(accumulate, device):
    """Its loss, its norm and the weights after it, for a batch in one part or in several."""
    stepper = stepper_of(accumulate, device=device)
    model = stepper.model.parts[0]
    bare = build_model(stepper.run.workload.model, VOCABULARY, WINDOW).to(device)
    tokens, labels = (part.to(device) for part in batch_of(BATCH))
    bare.load_state_dict(model.state_dict())
    (optimizer,) = make_optimizers(SimpleNamespace(parts=[bare]), stepper.run.workload.optim)
    expected = F.cross_entropy(bare(tokens).flatten(0, 1), labels.flatten(), ignore_index=-100)
    expected.backward()
    norm = torch.nn.utils.clip_grad_norm_(bare.parameters(), stepper.run.workload.optim.clip_norm or float("inf"))
    optimizer.step()
    parts = zip(tokens.chunk(accumulate), labels.chunk(accumulate), strict=True)
    stepper.number = 1
    result = stepper.step([*parts], stop=True)
    assert result.read() == (pytest.approx(norm.item(), rel=1e-4), pytest.approx(expected.item(), rel=1e-5), 4 * 8 - 5)
    assert (result.stop, result.save) == (True, False)
    for ours, theirs in zip(model.parameters(), bare.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_an_evaluation_drops_nothing_and_the_model_trains_on():
    stepper = stepper_of(dropout=0.5)
    (model,), (tokens, labels) = stepper.model.parts, batch_of(BATCH)
    model.train()
    found = evaluate(stepper.run, stepper.model, Samples(tokens, labels))
    assert model.training and found[1] == (labels >= 0).sum()
    bare = build_model(stepper.run.workload.model, VOCABULARY, WINDOW).eval()
    bare.load_state_dict(model.state_dict())
    expected = F.cross_entropy(bare(tokens).flatten(0, 1), labels.flatten(), ignore_index=-100)
    assert found[0] / found[1] == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("optim", [{}, {"name": "sgd"}, {"name": "sgd", "momentum": 0.0}], ids=str)
def test_a_step_of_fp16_that_overflows_changes_no_bit(optim, device):
    """Of weights and optimizer, not even as the first step: those after it are what they are without it."""
    good, huge = 2.0**10, 2.0**100

    def trained(factors):
        stepper = stepper_of(precision="fp16", device=device, optim=optim)
        batch = [part.to(device) for part in batch_of(BATCH)]
        for factor in factors:
            stepper.scale = LossScale(device, [factor, 0])
            norm, loss, _, reported = stepper.step([batch]).read()
            assert math.isfinite(loss) and math.isfinite(norm) == (factor == good) and reported == factor
            assert stepper.scale.state == ([good, 1] if factor == good else [huge / 2, 0])
        state = [tensor for entry in stepper.optimizers[0].state.values() for tensor in entry.values()]
        return [*stepper.model.parts[0].parameters(), *state]

    skipped, expected = trained([huge, good, huge, good, huge]), trained([good, good])
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(skipped, expected, strict=True))


class Operations(TorchDispatchMode):
    """Counts what is dispatched."""

    count = 0

    def __torch_dispatch__(self, function, kinds, arguments=(), keywords=None):
        self.count += 1
        return function(*arguments, **(keywords or {}))


def cost(steps):
    """(operations, calls of Python functions and built-in ones) of the second of two steps."""
    calls = [0]
    steps()
    with Operations() as operations:
        steps()
    sys.setprofile(lambda frame, event, argument: calls.__setitem__(0, calls[0] + event.endswith("call")))
    try:
        steps()
    finally:
        sys.setprofile(None)
    return operations.count, calls[0]


def test_a_step_costs_the_host_little_more_than_that_of_a_bare_loop():
    """Exact norm, loss in chunks, phases and all: counted, because a clock says something else on every machine. It takes fewer calls,
    since the bare loop searches all modules for their parameters in each step."""
    stepper, (tokens, labels) = stepper_of(), batch_of(BATCH)
    bare = build_model(stepper.run.workload.model, VOCABULARY, WINDOW)
    bare.load_state_dict(stepper.model.parts[0].state_dict())
    (optimizer,) = make_optimizers(SimpleNamespace(parts=[bare]), stepper.run.workload.optim)

    def bare_step():
        F.cross_entropy(bare(tokens).flatten(0, 1), labels.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(bare.parameters(), stepper.run.workload.optim.clip_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    operations, calls = cost(lambda: stepper.step([(tokens, labels)]).read())
    bare_operations, bare_calls = cost(bare_step)
    assert operations <= bare_operations + 55, (operations, bare_operations)
    assert calls <= 0.75 * bare_calls, (calls, bare_calls)


class Talk:
    """torch.distributed as one rank of two hears it: what the other sends, and what it is sent."""

    def __init__(self, heard):
        self.heard, self.said = torch.tensor(heard), []

    def recv(self, vector, group, group_src):
        vector.copy_(self.heard)

    def send(self, vector, group, group_dst):
        self.said.append(vector.tolist())

    def broadcast(self, vector, group, group_src):
        self.said.append(vector.tolist())


@pytest.mark.parametrize(
    ("rank", "heard", "said", "after"),
    [
        # The server adds each rank's share, tells the visitor the sum, and then all.
        (0, [4.0, 0.0], [[4.0, 3.0]] * 2, [1 + 2 / 2 + 4 / 2, 2 + 2 / 2 + 0.0]),
        # A visitor brings what it learned, and takes home what the server has.
        (1, [7.0, 8.0], [[2.0, 2.0], [7.0, 8.0]], [7.0, 8.0]),
    ],
)
def test_the_server_adds_each_ranks_share_and_everyone_goes_on_from_the_sum(rank, heard, said, after, monkeypatch):
    parameter = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    devices = SimpleNamespace(get_group=lambda: None)
    mesh = SimpleNamespace(data_devices=devices, data_rank=rank, layout=SimpleNamespace(data_parallel=2))
    model = SimpleNamespace(mesh=mesh, named_parameters=lambda: [("weight", parameter)])
    workload = SimpleNamespace(training=SimpleNamespace(evaluate_every=None))
    server = averaging.make_averager(SimpleNamespace(average_every=1, averaging="server", workload=workload), model)
    server.begin()
    monkeypatch.setattr(averaging, "dist", talk := Talk(heard))
    parameter.data += 2
    server.agree()
    assert talk.said == said and parameter.tolist() == after == server.fetched.tolist()


def test_sgd_follows_a_gradient_that_lies_otherwise_in_memory():
    """The kernel goes through parameter and gradient as they lie."""
    weights = torch.nn.Parameter(torch.zeros(2, 3))
    expected = torch.arange(6.0).view(2, 3)
    optimizer = SGD([weights], lr=1.0, momentum=0.9)
    with torch.no_grad():
        weights.grad = expected.t().contiguous().t()
    optimizer.step()
    assert torch.equal(weights.detach(), -expected)


# Precision → the largest error of a product of two matrices of 1,024, relative to its largest element, and the least on a GPU: a product
# of TF32 with less was not rounded.
ERRORS = {"fp64": (1e-13, 0), "fp32": (1e-5, 0), "tf32": (2e-3, 1e-5), "bf16": (1e-2, 1e-3), "fp16": (2e-3, 1e-4)}


@pytest.mark.parametrize("precision", ERRORS)
def test_a_product_is_as_precise_as_a_run_says(precision, device):
    a, b = torch.rand(2, 1024, 1024, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) - 0.5
    try:
        set_arithmetic(SimpleNamespace(precision=precision, deterministic=False))
        one, other = (each.to(device, number_type(precision)) for each in (a, b))
        error = ((one @ other).double().cpu() - a @ b).abs().max() / (a @ b).abs().max()
    finally:
        set_arithmetic(SimpleNamespace(precision="fp32", deterministic=False))
    most, least = ERRORS[precision]
    rounds = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    assert (least if rounds else 0) <= error < most
