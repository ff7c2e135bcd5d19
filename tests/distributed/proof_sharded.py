"""Plain training scripts that spread one model over processes: tensor parallelism, pipelines, parts of the sequence. Faults as in `proof_scripts`."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from parascale import prove

from .proof_models import IGNORED, PLACES, SAMPLES, WORDS, Gathered, batch, counted, summed
from .proof_scripts import added, begin_step, clip, plant
from .proof_scripts import finish as finish_data


def tensor_parallel(case, folder, rank, world):
    """TP, in `tp` by DTensor, in `tp by hand` by plain shards; `fsdp x tp` shards the rest over the other half of the ranks."""
    data = 2 if case.layout == "fsdp x tp" else 1
    mesh = init_device_mesh("cpu", (data, world // data), mesh_dim_names=("dp", "tp"))
    at = mesh["dp"].get_local_rank()
    model = case.build()
    plant(case, model)
    if case.layout == "tp by hand":
        by_hand(case, model, mesh["tp"].get_local_rank(), world // data)
    else:
        parallelize_module(model, mesh["tp"], plan_of(case, model))
    if case.has("bias added by each rank"):
        model.blocks["1"].down.register_forward_hook(
            lambda module, _, output: output + module.bias.to_local().to(output.dtype)
        )
    if data > 1:
        for block in model.blocks.values():
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
    optimizer = case.optimizer_of(model)
    for step in range(case.steps):
        tokens, labels = batch(case.seed, step + (rank if case.has("tensor ranks read other samples") else 0))
        share = range(at * SAMPLES // data, (at + 1) * SAMPLES // data)
        begin_step(model, step + (rank if case.has("masks differ between tensor ranks") else 0), share)
        with prove.recording(model, folder, every=case.every) as record:
            with case.autocast():
                logits = model(tokens[share])
                loss = summed(logits, labels[share]) / counted(labels) * data + added(case, logits)
            record.loss(loss)
            case.backward(loss)
            case.unscale(optimizer)
            finish(case, model, mesh)
            finish_data(case, model)
            clip(case, model)
            case.update(optimizer)
        optimizer.zero_grad()


def plan_of(case, model):
    """What `parallelize_module` does; with parts of the sequence between the products for odd seeds."""
    partial = case.has("row-parallel output not summed")
    plan = {"embedding": RowwiseParallel(input_layouts=Replicate())}
    sequence = case.seed % 2
    for number in model.blocks:
        block, between = f"blocks.{number}", Shard(1) if sequence else Replicate()
        plan |= {f"{block}.attention.{name}": ColwiseParallel() for name in "qkv"}
        plan |= {f"{block}.attention.o": RowwiseParallel(output_layouts=between)}
        plan |= {f"{block}.up": ColwiseParallel(input_layouts=between)}
        plan |= {f"{block}.down": RowwiseParallel(output_layouts=Partial() if partial and number == "1" else between)}
        if sequence:
            gathered = PrepareModuleInput(
                input_layouts=Shard(1), desired_input_layouts=Replicate(), use_local_output=True
            )
            plan |= {f"{block}.attention": gathered}
            plan |= {f"{block}.norm{which}": SequenceParallel(use_local_output=True) for which in (1, 2)}
    if sequence:
        first = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=True)
        plan |= {"blocks.0": first, "norm": SequenceParallel(use_local_output=True)}
    return plan | {
        "head": ColwiseParallel(input_layouts=Shard(1) if sequence else Replicate(), output_layouts=Replicate())
    }


def finish(case, model, mesh):
    """Gradients, before they are used."""
    for name, parameter in model.named_parameters():
        if case.has("norms' gradients not summed") and "norm2" in name:
            parameter.grad = DTensor.from_local(parameter.grad.to_local(), mesh["tp"], [Replicate()])
        if case.has("norms' gradients summed though whole") and "norm2" in name:
            dist.all_reduce(parameter.grad)


class Copied(torch.autograd.Function):
    """What all tensor ranks read: their gradients are summed."""

    @staticmethod
    def forward(context, x):
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class Summed(torch.autograd.Function):
    """The sum of what tensor ranks hold."""

    @staticmethod
    def forward(context, x):
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(context, gradient):
        return gradient


class Column(nn.Module):
    def __init__(self, linear, rank, world, copied=True):
        super().__init__()
        self.weight = nn.Parameter(linear.weight.detach().chunk(world)[rank].clone())
        self.bias = nn.Parameter(linear.bias.detach().chunk(world)[rank].clone())
        self.copied = copied

    def forward(self, x):
        return F.linear(Copied.apply(x) if self.copied else x, self.weight, self.bias)


class Row(nn.Module):
    def __init__(self, linear, rank, world, twice=False):
        super().__init__()
        self.weight = nn.Parameter(linear.weight.detach().chunk(world, 1)[rank].clone())
        self.bias, self.twice = linear.bias, twice

    def forward(self, x):
        if self.twice:
            return Summed.apply(F.linear(x, self.weight, self.bias))
        return Summed.apply(F.linear(x, self.weight)) + self.bias


class Words(nn.Module):
    """An embedding of which each rank holds some words."""

    def __init__(self, embedding, rank, world, masked=True):
        super().__init__()
        self.weight = nn.Parameter(embedding.weight.detach().chunk(world)[rank].clone())
        self.begin, self.masked = rank * WORDS // world, masked

    def forward(self, tokens):
        own = tokens - self.begin
        held = (own >= 0) & (own < len(self.weight))
        found = F.embedding(own.clamp(0, len(self.weight) - 1), self.weight)
        return Summed.apply(found * held[..., None] if self.masked else found)


def by_hand(case, model, rank, world):
    model.embedding = Words(model.embedding, rank, world, masked=not case.has("other ranks' words not masked"))
    for number, block in model.blocks.items():
        second = number == "1"
        other = world - 1 - rank if second and case.has("another rank's shard") else rank
        twice = second and case.has("bias added before the sum")
        attention = block.attention
        for name in "qkv":
            setattr(attention, name, Column(getattr(attention, name), rank, world))
        attention.o = Row(attention.o, rank, world)
        block.up = Column(block.up, other, world, copied=not (second and case.has("input's gradient not summed")))
        block.down = Row(block.down, rank, world, twice)


def pipelined(case, folder, rank, world):
    """A pipeline of two stages; `dp x pp` has two of them."""
    data = world // 2
    mesh = init_device_mesh("cpu", (2, data), mesh_dim_names=("pp", "dp"))
    stage, at = mesh["pp"].get_local_rank(), mesh["dp"].get_local_rank()
    model = case.build(seed=case.seed + 1 if stage and case.has("a stage starts from another seed") else None)
    names = list(model.blocks)
    cut = 1 + case.seed % 2
    kept = names[cut:] if stage else names[:cut]
    if stage and case.has("a block left out"):
        kept = kept[1:]
    for name in set(names) - set(kept):
        del model.blocks[name]
    if stage:
        model.embedding = model.positions = None
    else:
        model.norm = model.head = None
    total = 1
    micro = case.micro

    def loss_of(logits, labels):
        if case.has("mean of means"):
            return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED) / micro
        return summed(logits, labels) / (1 if case.has("loss not normalised") else total)

    kind = Schedule1F1B if case.seed % 2 else ScheduleGPipe
    divided = case.has("divided by micro-batches too")
    schedule = kind(
        PipelineStage(model, stage, 2, torch.device("cpu"), group=mesh["pp"].get_group()),
        micro,
        loss_fn=loss_of,
        scale_grads=divided,
    )
    optimizer = case.optimizer_of(model)
    if case.model.get("dropout"):  # before its first step a pipeline asks for shapes, which draws masks
        begin_step(model, 0, range(2 * SAMPLES))
        tokens, labels = batch(case.seed, 0)
        schedule.step(*([] if stage else [tokens]), target=labels if stage else None, losses=[] if stage else None)
        optimizer.zero_grad()
    for step in range(case.steps):
        tokens, labels = batch(case.seed, step)
        share, total = range(at * SAMPLES // data, (at + 1) * SAMPLES // data), counted(labels)
        begin_step(
            model, step, [*range(SAMPLES // micro)] * micro if case.has("masks by place in the micro-batch") else share
        )
        own = labels[share].flip(0) if case.has("labels of other micro-batches") else labels[share]
        with prove.recording(model, folder, every=case.every) as record:
            losses = []
            schedule.step(
                *([] if stage else [tokens[share]]), target=own if stage else None, losses=losses if stage else None
            )
            if stage:
                record.loss(sum(losses) / (total if case.has("loss not normalised") else 1))
            if data > 1:
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad, group=mesh["dp"].get_group())
            if case.model.get("tied") and not case.has("tied weights not summed"):
                dist.all_reduce((model.head if stage else model.embedding).weight.grad, group=mesh["pp"].get_group())
            clip(case, model)
            if stage or not case.has("a stage's optimizer never steps"):
                optimizer.step()
        if stage or not case.has("a stage's gradients never cleared"):
            optimizer.zero_grad()


def sequence_parallel(case, folder, rank, world):
    """Each rank has a part of the sequence; attention gathers keys and values of all parts."""
    model = case.build()
    begin, size = rank * PLACES // world, PLACES // world
    model.begin = 0 if case.has("positions restarted") else begin
    for block in model.blocks.values():
        block.attention.begin = 0 if case.has("causal mask of the part alone") else begin
        if not case.has("parts attend to themselves alone"):
            block.attention.exchange = lambda x: Gathered.apply(x, 2)
        else:
            block.attention.begin = 0
    optimizer = case.optimizer_of(model)
    for step in range(case.steps):
        tokens, labels = batch(case.seed, step)
        own = labels[:, begin : begin + size]
        if case.has("labels lost between parts"):
            own = torch.cat([own[:, :-1], torch.full_like(own[:, :1], IGNORED)], 1)
        begin_step(model, step, range(SAMPLES))
        with prove.recording(model, folder, every=case.every) as record:
            logits = model(tokens[:, begin : begin + size])
            loss = summed(logits, own) / (counted(own) * world if case.has("mean of means") else counted(labels))
            record.loss(loss)
            loss.backward()
            for parameter in model.parameters():
                if not case.has("gradients not summed"):
                    dist.all_reduce(parameter.grad)
                if case.has("scaled by the degree"):
                    parameter.grad *= world
            clip(case, model)
            optimizer.step()
        optimizer.zero_grad()
