"""With `compile`, blocks run compiled or not at all, and an evaluation makes one more graph of each, whatever the size of its splits."""

import functools

import pytest
import torch
import torch._dynamo
from torch._dynamo.exc import FailOnRecompileLimitHit

from parascale.evaluation.task import EmptySamples
from parascale.families.build import build_model
from parascale.parallel import make_mesh, parallelize
from parascale.settings import Layout, Model, Run, Workload, make
from parascale.train.clock import Clock
from parascale.train.loss import GlobalLoss, evaluate

UNLIKE = 4  # blocks of the model
BATCH = 4


@pytest.fixture
def graphs(monkeypatch):
    """Compiled graphs run as they are; returns the function that counts them."""
    torch._dynamo.reset()
    made = []

    def backend(graph, inputs):
        made.append(graph)
        return graph

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    with torch._dynamo.config.patch(recompile_limit=UNLIKE - 1, fail_on_recompile_limit_hit=False):
        yield lambda: len(made)
    torch._dynamo.reset()


@pytest.fixture
def model(graphs):
    """(run, its ParallelModel): a compiled xresnet whose blocks are all different."""
    settings = make(Model, kind="xresnet", dim=4, depths=[2] * (UNLIKE // 2), norm="batch")
    training = {"image_size": 32, "global_batch": BATCH, "steps": 1}
    workload = make(Workload, name="test", task="classification", model=settings, training=training)
    run, device = Run("test", workload, Layout(gpus_per_node=1, compile=True)), torch.device("cpu")
    mesh = make_mesh(run.layout, device, 60.0)
    parallel = parallelize(lambda: build_model(settings, 10, 32), run, mesh, GlobalLoss(), Clock(device), 60.0)
    parallel.initialise(1, False, lambda: None)
    pixels, _ = EmptySamples(run).batch(range(BATCH))
    parallel.outputs(torch.as_tensor(pixels)).sum().backward()
    return run, parallel


class OddSamples(EmptySamples):
    """Of a last batch that is not full."""

    def __init__(self, run, last):
        super().__init__(run)
        self.last = last

    def __len__(self):
        return 2 * BATCH + self.last


def test_every_block_has_its_graph_and_one_more_to_evaluate(model, graphs):
    run, parallel = model
    assert graphs() == UNLIKE
    for last in (1, 2):
        evaluate(run, parallel, OddSamples(run, last))
        assert graphs() == 2 * UNLIKE


def test_more_graphs_than_the_blocks_need_are_an_error(model):
    """Not code that runs as if it were not compiled."""
    run, parallel = model
    torch._dynamo.config.recompile_limit = UNLIKE  # as many as it has
    with pytest.raises(FailOnRecompileLimitHit):
        evaluate(run, parallel, EmptySamples(run))
