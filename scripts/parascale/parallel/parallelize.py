"""A model becomes a parallel model: the strategies, applied in one order.

The order, for each pipeline stage that this rank holds, and why:

1. cut the stage          what another rank computes is never allocated: everything is built on the meta device
   float8                 changes what linear layers compute, before others say with which part of it
2. tensor parallelism     first to touch the parameters: FSDP must shard what is already split
   context parallelism    exchanges the heads that this has left
3. batch norm             counts the samples of all ranks, its statistics in fp32; inside of what wraps blocks
4. recomputation          wraps a block's forward pass, the collectives of tensor parallelism included
5. compile                sees the block as it will run, but not FSDP's hooks, which stay outside the graph
6. FSDP                   outermost: gathers a block's parameters before all of the above runs
   or copies              in half precision, where FSDP does not make them
7. materialise            only now memory is taken, and only for this rank's shards
8. DDP                    reduces gradients, and copies no weights from rank to rank here
9. pipeline schedule      joins the stages

Weights come last, from a checkpoint or from seed and name (`ParallelModel.initialise`).

Plain replication inside a hybrid (`dp` beside `tp` or `pp`) is FSDP's without its shards: DDP's hooks do not know
DTensors, and reduce at the wrong time in a pipeline.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from parascale.families.build import initialise
from parascale.families.head import Head
from parascale.families.kind import check_offer, offer_of
from parascale.parallel import batch_norm, context, ddp, float8, fsdp, tensor, tying
from parascale.parallel.mesh import Mesh
from parascale.parallel.precision import HALF, Copies
from parascale.parallel.recompute import recomputed
from parascale.settings import Layout, Run
from parascale.stages import held_stages


@dataclass
class ParallelModel:
    """What a rank computes with.

    whole: function that builds the module of the single process. parts: this rank's modules, one a pipeline stage, with the
    parameter names of the single process.
    forward_module: what is called in training (the DDP wrapper, or the one part).
    ranks_differ: ranks train apart and agree only when they average (local SGD).
    copies: those in half precision that parts compute with, where FSDP does not make them.
    kept: name → tensor that a rank which trains apart keeps besides, also in checkpoints.
    """

    mesh: Mesh
    whole: Callable[[], nn.Module]
    parts: list
    forward_module: nn.Module | None
    pipeline: Any = None
    tied: dict = field(default_factory=dict)
    split_ties: list = field(default_factory=list)
    ties_group: dist.ProcessGroup | None = None
    ranks_differ: bool = False
    copies: Copies | None = None
    kept: dict = field(default_factory=dict)

    @property
    def head(self) -> Any:
        """The output layer that this rank's loss computes, or None where the model itself makes the logits."""
        return next((head for part in self.parts for head in heads(part) if head.deferred), None)

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """(name, parameter) over all parts; found once, because a step asks for them several times."""
        return self._named_parameters

    @cached_property
    def _named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        return [entry for part in self.parts for entry in part.named_parameters()]

    def outputs(self, *inputs: Any) -> Any:
        """What the loss takes of a batch, without a backward pass, on ranks that have the last stage; None on others."""
        return self.pipeline.forward(*inputs) if self.pipeline is not None else self.parts[0](*inputs)

    def initialise(self, seed: int, restored: Any, alive: Callable[[], object]) -> None:
        """Fill in the weights of the seed; only what no checkpoint holds, if one is `restored`. alive: called after each tensor."""
        for part in self.parts:
            initialise(part, self.whole, seed, self.tied, restored, alive)

    @torch.no_grad()
    def share_buffers(self) -> None:
        """Every data-parallel rank takes those of the first: running statistics differ where batch norm is each rank's own."""
        if self.mesh.layout.data_parallel > 1:
            group = self.mesh.data_devices.get_group()
            for part in self.parts:
                for buffer in part.buffers():
                    dist.broadcast(tying.local(buffer), group=group, group_src=0)

    def count_parameters(self) -> int:
        """Parameters of the whole model, tied ones once. Every rank of a pipeline must call this."""
        held = sum(p.numel() for part in self.parts for p in part.parameters())
        held -= sum(second.numel() for _, second in self.split_ties if second is not None)
        if self.pipeline is not None:
            held = torch.tensor(held, dtype=torch.int64, device=self.mesh.device)
            dist.all_reduce(held, group=self.pipeline.group)
        return int(held)

    def train(self, mode: bool = True) -> None:
        for part in self.parts:
            part.train(mode)


def parallelize(
    build: Callable[[], nn.Module], run: Run, mesh: Mesh, loss: Any, clock: Any, timeout_seconds: float
) -> ParallelModel:
    """Make the ParallelModel of a run on this rank, its weights still to be filled in.

    build: function that makes the whole module (called under the meta device). loss: the GlobalLoss, which learns of the `head`.
    clock: the train Clock that pipeline stages report to. Raises ConfigError where the model lacks a plan.
    """
    layout = run.layout

    def whole() -> nn.Module:
        model = build()
        return model.double() if run.precision == "fp64" else model

    with torch.device("meta"):
        single = whole()
    check_plans(single, layout)
    tied = tying.tied_names(single)
    indices = held_stages(layout, mesh.coordinate("pp"))
    copies = Copies(HALF[run.precision], layout.pp == 1) if run.precision in HALF and not layout.uses_fsdp else None
    parts = [_make_part(whole, run, mesh, tied, index, copies) for index in indices]
    for part in parts:
        part.to_empty(device=mesh.device)
        tying.tie(part, tied)
    if layout.pp > 1:
        joined = _pipeline().Pipeline(parts, mesh, loss, clock)
        # Making a group is collective, so ranks without a tied parameter take part too.
        group = _pipeline().ends_group(mesh, timeout_seconds) if tied else None
        ties = tying.split_ties(parts, tied)
        model = ParallelModel(mesh, whole, parts, None, joined, tied, ties, group, copies=copies)
    else:
        sent = "bf16" if run.reduce_precision != "fp32" else run.compression
        forward_module = ddp.replicate(parts[0], mesh, sent) if uses_ddp(run) else parts[0]
        ranks_differ = run.average_every is not None
        model = ParallelModel(mesh, whole, parts, forward_module, tied=tied, ranks_differ=ranks_differ, copies=copies)
    loss.head = model.head
    return model


def uses_ddp(run: Run) -> bool:
    """Pure data parallelism is DDP's; local SGD averages parameters itself, hybrids use FSDP's replication, and Lightning
    wraps the model on its own."""
    layout = run.layout
    only_dp = layout.dimensions.keys() == {"dp"}
    return only_dp and not run.average_every and run.engine == "native"


def check_plans(model: nn.Module, layout: Layout) -> None:
    """Raise ConfigError where a layout needs a plan that the model does not offer, and would do nothing or fail."""
    check_offer(offer_of(model), layout)


def _make_part(
    whole: Callable[[], nn.Module], run: Run, mesh: Mesh, tied: dict[str, str], stage: int, copies: Copies | None
) -> nn.Module:
    """One stage on the meta device, split and wrapped (steps 1 to 6)."""
    layout = run.layout
    with torch.device("meta"):
        part = whole()
    if layout.pp > 1:
        _pipeline().cut(part, stage, layout.stages)
    patterns = getattr(part, "shard_units", ())  # blocks are sharded, computed again and compiled one by one
    blocks = [
        module for name, module in part.named_modules() if any(tensor.matches(name, pattern) for pattern in patterns)
    ]
    float8.prepare(blocks, run, mesh.device)
    for head in heads(part):
        head.deferred = layout.tp == 1 or layout.loss_parallel
        head.copy = copies.of if copies is not None else None
        if layout.compile:
            head.score = torch.compile(head.score, dynamic=False, fullgraph=True)
    if layout.tp > 1:
        tensor.split_tensors(part, mesh.devices["tp"], layout.sequence_parallel)
        tying.tie(part, tied)
    if layout.cp > 1:
        context.split_positions(part, mesh.devices["cp"])
    synchronised = layout.data_parallel > 1 and layout.sync_batch_norm
    batch_norm.prepare(part, mesh.data_devices.get_group() if synchronised else None)
    if layout.compile:
        _refuse_eager(len(blocks))
    for block in blocks:
        if layout.activation_checkpointing:
            # Replacing the method, not wrapping the module, keeps the parameters' names.
            block.forward = recomputed(block, layout.activation_checkpointing == "selective", copies)
        if layout.compile:
            # A graph that breaks is an error; a class of the user's own may have breaks.
            block.compile(fullgraph=not run.workload.model.is_own)
    if layout.uses_fsdp:
        fsdp.shard(part, blocks, mesh.sharing, run)
    if copies is not None:
        part.forward = copies.around(part)
    return part


def _refuse_eager(blocks: int) -> None:
    """More graphs of one function than dynamo keeps are an error, not code that runs as if it were not compiled.

    So many blocks may all differ; each has graphs of training and of evaluation, in two sizes where its batches have two.
    """
    import torch._dynamo.config as dynamo

    dynamo.fail_on_recompile_limit_hit = True
    dynamo.recompile_limit = max(dynamo.recompile_limit, 4 * blocks)
    dynamo.accumulated_recompile_limit = max(dynamo.accumulated_recompile_limit, 4 * blocks)


def heads(part: nn.Module) -> list[Any]:
    """The output layers of a model whose loss needs no logits: one, or none."""
    return [module for module in part.modules() if isinstance(module, Head)]


def _pipeline() -> ModuleType:
    """The module of pipelines. torch's takes a second to load, which only runs with stages spend."""
    from parascale.parallel import pipeline

    return pipeline
