"""Make a model parallel by applying the strategies in a fixed order.

The order, for each pipeline stage on this rank, and the reasons:

1. cut the stage          other ranks' layers are never allocated: everything is built on the meta device
   float8                 changes what linear layers compute, so it comes before they are split
2. tensor parallelism     first to touch the parameters: FSDP must shard parameters that are already split
   context parallelism    exchanges the heads that tensor parallelism has left on this rank
3. batch norm             uses the samples of all ranks, with statistics in fp32; inside the block wrappers below
4. recomputation          wraps a block's forward pass, including the collectives of tensor parallelism
5. compile                sees the block as it will run, but not FSDP's hooks, which stay outside the graph
6. FSDP                   outermost: gathers a block's parameters before all of the above runs
   or copies              in half precision, for layouts without FSDP
7. materialise            allocates memory, only for this rank's shards
8. DDP                    reduces gradients; it broadcasts no weights here
9. pipeline schedule      joins the stages

Weights come last, from a checkpoint or from seed and name (`ParallelModel.initialise`).

Replication in a hybrid layout (`dp` with `tp` or `pp`) uses FSDP without shards: DDP's hooks do not support DTensors, and reduce
at the wrong time in a pipeline.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
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
    """This rank's part of the model.

    whole: function that builds the single-process module. parts: this rank's modules, one per pipeline stage, with single-process
    parameter names.
    forward_module: the module called in training (the DDP wrapper, or the only part).
    ranks_differ: ranks train independently and agree only when they average (`average_every`).
    copies: the half-precision copies that parts compute with, for layouts without FSDP.
    kept: name → extra tensor that a rank keeps with `average_every`, also in checkpoints.
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
        """The output layer if this rank's loss computes it, or None if the model itself returns logits."""
        return next((head for part in self.parts for head in heads(part) if head.deferred), None)

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """(name, parameter) over all parts; cached, because a step needs them several times."""
        return self._named_parameters

    @cached_property
    def _named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        return [entry for part in self.parts for entry in part.named_parameters()]

    def outputs(self, *inputs: Any) -> Any:
        """The loss's input for a batch, without a backward pass, on ranks with the last stage; None on others."""
        return self.pipeline.forward(*inputs) if self.pipeline is not None else self.parts[0](*inputs)

    def initialise(self, seed: int, restored: Any, alive: Callable[[], object]) -> None:
        """Initialise weights from the seed; after a restore, only those not in `restored`. alive: called after each tensor."""
        for part in self.parts:
            initialise(part, self.whole, seed, self.tied, restored, alive)

    @torch.no_grad()
    def share_buffers(self) -> None:
        """Broadcast buffers from the first data-parallel rank: running statistics differ if batch norm is not synchronised."""
        if self.mesh.layout.data_parallel > 1:
            group = self.mesh.data_devices.get_group()
            for part in self.parts:
                for buffer in part.buffers():
                    dist.broadcast(tying.local(buffer), group=group, group_src=0)

    def count_parameters(self) -> int:
        """Number of parameters of the whole model, counting tied ones once. Every rank of a pipeline must call this."""
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
    """Make this rank's ParallelModel of a run, with weights not yet initialised.

    build: function that makes the whole module (called on the meta device). loss: the GlobalLoss, whose `head` this sets.
    clock: the train Clock that pipeline stages report to. Raises ConfigError if the model lacks a plan.
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
        # Creating a group is a collective call, so ranks without a tied parameter take part too.
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
    """True for pure data parallelism. Local SGD averages parameters itself, hybrids use FSDP's replication, and Lightning
    wraps the model on its own."""
    layout = run.layout
    only_dp = layout.dimensions.keys() == {"dp"}
    return only_dp and not run.average_every and run.engine == "native"


def check_plans(model: nn.Module, layout: Layout) -> None:
    """Raise ConfigError if the layout needs a plan that the model does not offer."""
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
    patterns = getattr(part, "shard_units", ())  # blocks are sharded, recomputed and compiled one by one
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
        exchanging = partial(context.exchanged, mesh=mesh.devices["cp"])
        context.split_positions(part, mesh.coordinate("cp"), layout.cp, exchanging)
    synchronised = layout.data_parallel > 1 and layout.sync_batch_norm
    batch_norm.prepare(part, mesh.data_devices.get_group() if synchronised else None)
    if layout.compile:
        _refuse_eager(len(blocks))
    for block in blocks:
        if layout.activation_checkpointing:
            # Replacing the method, not wrapping the module, keeps the parameters' names.
            block.forward = recomputed(block, layout.activation_checkpointing == "selective", copies)
        if layout.compile:
            # A graph break is an error in our models; a user's class may have breaks.
            block.compile(fullgraph=not run.workload.model.is_own)
    if layout.uses_fsdp:
        fsdp.shard(part, blocks, mesh.sharing, run)
    if copies is not None:
        part.forward = copies.around(part)
    return part


def _refuse_eager(blocks: int) -> None:
    """Make it an error to exceed dynamo's recompile limit, which would fall back to eager code, and raise the limit.

    All blocks may differ; each has graphs for training and evaluation, and for two sizes if its batches have two.
    """
    import torch._dynamo.config as dynamo

    dynamo.fail_on_recompile_limit_hit = True
    dynamo.recompile_limit = max(dynamo.recompile_limit, 4 * blocks)
    dynamo.accumulated_recompile_limit = max(dynamo.accumulated_recompile_limit, 4 * blocks)


def heads(part: nn.Module) -> list[Any]:
    """The `Head` modules of a model: one or none."""
    return [module for module in part.modules() if isinstance(module, Head)]


def _pipeline() -> ModuleType:
    """Import the pipeline module lazily: torch's takes a second to load, and only layouts with stages need it."""
    from parascale.parallel import pipeline

    return pipeline
