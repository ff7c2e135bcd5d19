"""Pipeline parallelism: the model is cut into stages, and micro-batches flow through them.

Schedules come from `torch.distributed.pipelining`. Layers keep their names in every stage, so a checkpoint does not depend on the cut.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import RESHARD, PipelineScheduleMulti, get_schedule_class

from parascale.errors import RequirementError
from parascale.families.foreign import Passed
from parascale.parallel import fsdp
from parascale.parallel.mesh import Mesh, set_timeout
from parascale.stages import held_stages, stage_blocks, stage_rank

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64)


def cut(model: Any, stage: int, stages: int) -> Any:
    """Remove, in place, all modules that do not belong to stage number `stage` of `stages`."""
    plan = model.pipeline_plan
    blocks = model.get_submodule(plan.blocks)
    names = [name for name, _ in blocks.named_children()]
    keep = {names[number] for number in stage_blocks(len(names), stages, stage)}
    for name in names:
        if name not in keep and plan.leaves_places:
            setattr(blocks, name, Passed())
        elif name not in keep:
            del blocks[name]
    for names, held in ((plan.first, stage == 0), (plan.last, stage == stages - 1)):
        for name in names:
            if not held:
                owner, _, attribute = name.rpartition(".")
                setattr(model.get_submodule(owner), attribute, Passed() if plan.leaves_places else None)
    return model


class TimedStage(PipelineStage):
    """A stage that reports its forward and backward time to its clock; the rest of a step is waiting.

    draws: dropout's random state, which needs the micro-batch in the forward pass and, with recomputation, in the backward pass.
    last: True for the last schedule of a step; earlier ones leave gradients unreduced, as earlier micro-batches do.

    torch keeps a receive buffer per micro-batch and direction for the whole life of the stage. Here each is allocated on receipt and
    freed after use; autograd keeps what the backward pass needs.
    """

    draws: Any = None
    last = True

    def __init__(self, *args: Any, clock: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.clock = clock

    def _prepare_forward_infra(self, *args: Any, **kwargs: Any) -> Any:
        """Infer shapes in eager mode. torch passes meta tensors through the stages in turn; compiled, each stage would wait for all earlier
        ones to compile graphs that are used only here."""
        with torch.compiler.set_stance("force_eager"):
            return super()._prepare_forward_infra(*args, **kwargs)

    def _prepare_backward_infra(self, *args: Any, **kwargs: Any) -> Any:
        with torch.compiler.set_stance("force_eager"):
            return super()._prepare_backward_infra(*args, **kwargs)

    @contextmanager
    def _without_memory(self) -> Iterator[None]:
        device, self.device = self.device, torch.device("meta")
        yield
        self.device = device

    def _setup_forward_recv_info(self, *args: Any, **kwargs: Any) -> None:
        with self._without_memory():
            super()._setup_forward_recv_info(*args, **kwargs)

    def _create_grad_recv_info(self, *args: Any, **kwargs: Any) -> Any:
        with self._without_memory():
            return super()._create_grad_recv_info(*args, **kwargs)

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        _place(self.args_recv_info[fwd_chunk_id], self.device)
        return super().get_fwd_recv_ops(fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        _place(self.grad_recv_info[bwd_chunk_id], self.device)
        return super().get_bwd_recv_ops(bwd_chunk_id)

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        self.draws.begin_micro_batch(fwd_chunk_id)
        output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        _place(self.args_recv_info[fwd_chunk_id], "meta")
        return output

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> None:
        self.draws.begin_micro_batch(bwd_chunk_id)
        super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
        _place(self.grad_recv_info[bwd_chunk_id], "meta")
        if loss is not None and full_backward:
            loss.detach_()  # the schedule keeps the loss, and its graph would keep what this stage received

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        super().backward_weight_one_chunk(bwd_chunk_id, last_backward)
        fsdp.sum_up(self.submod)

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        if self.last:
            super().perform_reduce_grad(grad_scale_factor)

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        with self.clock.phase("forward"):
            return super().forward_maybe_with_nosync(*args, **kwargs)

    def backward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        with self.clock.phase("backward"):
            return super().backward_maybe_with_nosync(*args, **kwargs)


def _place(received: Any, device: torch.device | str) -> None:
    """Allocate a stage's receive buffers on `device`; `meta` frees them."""
    for each in received:
        if each.buffer is not None:
            each.buffer = torch.empty_like(each.buffer, device=device, requires_grad=False)


def _stay_gathered(action: Any, context: Any) -> None:
    context.schedule_ref.unsharded_stages.discard(action.stage_index)


class Pipeline:
    """The stages of this rank and their schedule."""

    def __init__(self, parts: Sequence[nn.Module], mesh: Mesh, loss: Callable[..., torch.Tensor], clock: Any) -> None:
        """parts: modules of this rank's stages, in ascending order. loss: (outputs, labels) → summed, already divided."""
        layout = mesh.layout
        # These versions lose the nodes of an `autograd.Function`, such as the loss, between the two passes.
        if layout.splits_backward and (2, 11) <= torch.__version__ < (2, 13):  # type: ignore[operator]  # it compares with tuples
            raise RequirementError(
                f"torch {torch.__version__} loses the graph that the second backward pass of zero-bubble and V schedules needs: install "
                "torch 2.13 or newer, or choose another `schedule`, such as Interleaved1F1B"
            )
        self.layout = layout
        self.device = mesh.device
        self.group = mesh.devices.get_group("pp")
        self.indices = held_stages(layout, mesh.coordinate("pp"))
        self.parts = dict(zip(self.indices, parts, strict=True))
        self.first = 0 in self.indices
        self.last = layout.stages - 1 in self.indices
        self.stages = [
            TimedStage(part, index, layout.stages, mesh.device, group=self.group, clock=clock)
            for index, part in self.parts.items()
        ]
        kind = get_schedule_class(layout.pipeline_schedule)
        # Multi-stage schedules take a list of stages, others a single stage.
        held = self.stages if issubclass(kind, PipelineScheduleMulti) else self.stages[0]
        self.schedule = kind(held, layout.micro_batches, loss_fn=loss, scale_grads=False)
        if held is self.stages:
            # torch would free FSDP's gathered parameters after each part; here the reduction at the end of the step frees them.
            self.schedule.register_custom_function(RESHARD, _stay_gathered)

    def train_step(self, inputs: torch.Tensor, *beside: torch.Tensor, last: bool = True) -> torch.Tensor | None:
        """Forward and backward of one local batch. Returns the summed loss on the last stage's rank, otherwise None.

        beside: document starts, which every stage takes (if documents are separate), then labels. last: this is the step's last batch.
        """
        *starts, labels = beside
        losses: list[torch.Tensor] = []
        for stage in self.stages:
            stage.last = last
        self.schedule.step(
            *([inputs] if self.first else []),
            target=labels if self.last else None,
            **({"starts_BT": starts[0]} if starts else {}),
            losses=losses if self.last else None,
            return_outputs=False,
        )
        return torch.stack([loss.detach() for loss in losses]).sum() if self.last else None

    @torch.no_grad()
    def forward(self, inputs: torch.Tensor, *starts: torch.Tensor) -> torch.Tensor | None:
        """A plain forward pass from stage to stage. Returns the loss's input on the last stage's rank, otherwise None.

        Not all schedules can evaluate (the V-shaped ones crash), and without a backward pass they gain nothing.
        """
        hidden = inputs
        for stage in range(self.layout.stages):
            if stage not in self.parts:
                continue
            if stage > 0 and stage - 1 not in self.parts:
                hidden = self._receive(stage_rank(self.layout, stage - 1))
            hidden = self.parts[stage](hidden, *starts)
            if stage + 1 < self.layout.stages and stage + 1 not in self.parts:
                self._send(hidden, stage_rank(self.layout, stage + 1))
        return hidden if self.last else None

    def _send(self, tensor: torch.Tensor, rank: int) -> None:
        """Send shape and dtype, then the tensor: batches of an evaluation differ in size."""
        header = torch.tensor([DTYPES.index(tensor.dtype), *tensor.shape], device=self.device)
        dist.send(torch.tensor([len(header)], device=self.device), group_dst=rank, group=self.group)
        dist.send(header, group_dst=rank, group=self.group)
        dist.send(tensor.contiguous(), group_dst=rank, group=self.group)

    def _receive(self, rank: int) -> torch.Tensor:
        length = torch.empty(1, dtype=torch.int64, device=self.device)
        dist.recv(length, group_src=rank, group=self.group)
        header = torch.empty(int(length), dtype=torch.int64, device=self.device)
        dist.recv(header, group_src=rank, group=self.group)
        kind, *shape = header.tolist()
        tensor = torch.empty(shape, dtype=DTYPES[kind], device=self.device)
        dist.recv(tensor, group_src=rank, group=self.group)
        return tensor


def ends_group(mesh: Mesh, timeout_seconds: float) -> dist.ProcessGroup | None:
    """The group of the two ranks with the first and last stage of this rank's pipeline; None on ranks in between, or if one
    rank holds both. Every process must call this, because creating a group is a collective operation."""
    layout = mesh.layout
    first, last = stage_rank(layout, 0), stage_rank(layout, layout.stages - 1)
    if first == last:
        return None
    mine = None
    columns = mesh.devices.mesh.reshape(layout.pp, -1)  # pipeline rank × everything else
    for column in range(columns.shape[1]):
        ranks = [int(columns[first, column]), int(columns[last, column])]
        group = dist.new_group(ranks)
        if mesh.rank in ranks:
            set_timeout(group, timeout_seconds)
            mine = group
    return mine
