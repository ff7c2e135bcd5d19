"""Plain training scripts, as anybody writes them, in several layouts, with the faults that are easily made in each.

Kinds of faults: those of NVIDIA/Megatron-LM#7452 and #673, pytorch/torchtitan#2972, #2318, #1750 and #3412, of TTrace's table (arXiv:2506.09280) and of
code of courses, written anew for two processes on CPUs. A script asks `case.has("…")` where it would go wrong.
"""

import contextlib
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from parascale import prove

from .proof_models import IGNORED, SAMPLES, Batched, Dropout, Gathered, Language, batch, counted, optimizer_of, summed

# Faults of an optimizer's settings, and right ways of its step.
UPDATES = {
    "not decayed": {"weight_decay": (0.0, 0.0)},
    "vectors decayed too": {"weight_decay": (0.1, 0.1)},
    "decayed by a tenth": {"weight_decay": (0.01, 0.0)},
    "Adam for AdamW": {"kind": torch.optim.Adam},
    "NAdam for AdamW": {"kind": torch.optim.NAdam},
    "another first decay rate": {"betas": (0.85, 0.999)},
    "another second decay rate": {"betas": (0.9, 0.95)},
    "another epsilon": {"eps": 1e-5},
    "learning rate a twentieth more": {"lr": 1.05e-2},
    "learning rate a hundredth less": {"lr": 0.99e-2},
    "less momentum": {"momentum": 0.8},
    "Nesterov's momentum": {"nesterov": True},
}
SCALE = 2.0**10  # of a loss in fp16
WAYS = {"fused": {"fused": True}, "foreach": {"foreach": True}, "one by one": {"foreach": False}}
BUCKETS = {
    "small buckets": {"bucket_cap_mb": 0.001},
    "views of buckets": {"gradient_as_bucket_view": True},
    "unused weights looked for": {"find_unused_parameters": True},
}


@dataclass
class Case:
    """A script's options. fault: its name, or "". model: options of Language, or {"batched": True}."""

    layout: str
    fault: str = ""
    seed: int = 0
    steps: int = 2
    optimizer: str = "adamw"
    model: dict = field(default_factory=dict)
    micro: int = 1
    clip: float = 0.0
    dtype: str = "float32"
    every: int = 1
    half: str = ""  # type of autocast; float16 with a scaler of the loss
    way: str = ""  # another right way, of WAYS or of HALVES
    scaler = None

    def autocast(self):
        return torch.autocast("cpu", getattr(torch, self.half)) if self.half else contextlib.nullcontext()

    def backward(self, loss):
        """Where DTensors and whole weights are mixed, which torch's scaler refuses, the loss is scaled by hand."""
        self.by_hand = self.half == "float16" and (self.layout == "tp" or self.has("a weight left out of FSDP"))
        if self.half == "float16" and not self.by_hand and not self.scaler:
            self.scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
        (self.scaler.scale(loss) if self.scaler else loss * (SCALE if self.half == "float16" else 1.0)).backward()

    def unscale(self, optimizer):
        if self.scaler and self.way != "fused":
            self.scaler.unscale_(optimizer)
        elif self.by_hand:
            for parameter in (each for group in optimizer.param_groups for each in group["params"]):
                parameter.grad /= SCALE

    def update(self, optimizer):
        self.scaler.step(optimizer) if self.scaler else optimizer.step()
        if self.scaler:
            self.scaler.update()

    def has(self, fault):
        return self.fault == fault

    def build(self, seed=None):
        model = dict(self.model)
        kind = Batched if model.pop("batched", False) else Language
        return kind(**model, seed=self.seed if seed is None else seed).to(getattr(torch, self.dtype))

    def optimizer_of(self, model):
        lr = 2e-2 if self.has("learning rate times ranks") else 1e-2
        options = {"lr": lr} | UPDATES.get(self.fault, {}) | WAYS.get(self.way, {})
        parameters = list(model.parameters())
        if self.has("optimizer before sharding"):
            parameters = self.before
        if self.has("a block without optimizer"):
            parameters = [p for name, p in model.named_parameters() if "blocks.1." not in name]
        if self.has("the embedding is not decayed"):
            parameters = [p for p in parameters if p is not parameters[0]]
        optimizer = optimizer_of(parameters, self.optimizer, **options)
        if self.has("the embedding is not decayed"):
            optimizer.add_param_group({"params": [next(model.parameters())], "weight_decay": 0.0})
        if self.has("norms decayed"):
            norms = [parameter for name, parameter in model.named_parameters() if "norm" in name]
            vectors = optimizer.param_groups[1]
            vectors["params"] = [p for p in vectors["params"] if all(p is not norm for norm in norms)]
            optimizer.add_param_group({"params": norms, "weight_decay": 0.1})
        return optimizer


def begin_step(model, step, samples):
    for module in model.modules():
        if isinstance(module, Dropout):
            module.samples, module.step = list(samples), step


def single(case, folder):
    """The script that runs on one process."""
    model = case.build()
    optimizer = case.optimizer_of(model)
    for step in range(case.steps):
        tokens, labels = batch(case.seed, step)
        begin_step(model, step, range(SAMPLES))
        with prove.recording(model, folder, every=case.every) as record:
            with case.autocast():
                loss = summed(model(tokens), labels) / counted(labels)
            record.loss(loss)
            case.backward(loss)
            case.unscale(optimizer)
            if case.clip:
                nn.utils.clip_grad_norm_(model.parameters(), case.clip)
            case.update(optimizer)
        optimizer.zero_grad()


def share_of(case, rank, world):
    """Numbers of a data rank's samples: every world-th, as a DistributedSampler has them, or for some seeds a block."""
    rank = 0 if case.has("same samples on all ranks") else rank
    shift = case.has("samples shifted") and rank
    if case.seed % 2:
        share = list(range(rank * SAMPLES // world, (rank + 1) * SAMPLES // world))
    else:
        share = list(range(rank, SAMPLES, world))
    sign = -1 if case.seed % 2 else 1
    return [(row + sign * shift) % SAMPLES for row in share]


def data_parallel(case, folder, rank, world, group=None):
    """DDP, DDP by hand, or FSDP2, with accumulation."""
    model = case.build(seed=case.seed + rank if case.has("ranks start differently") else None)
    case.before = list(model.parameters())
    plant(case, model)
    whole = model
    if case.has("causal mask lost"):
        model.blocks["1"].attention.causal = False
    if case.has("a rank evaluates") and rank:
        for block in model.blocks.values():
            block.dropout = nn.Identity()
    if isinstance(model, Batched) and not case.has("batch norm not synced"):
        model = SyncedNorms(model)
    if case.layout == "ddp":
        if case.has("a weight ignored by DDP"):
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["blocks.1.up.weight"])
        model = DistributedDataParallel(model, **BUCKETS.get(case.way, {}))
        if case.has("gradients sent in fp16"):
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

            model.register_comm_hook(None, fp16_compress_hook)
    elif case.layout == "fsdp":
        model = shard(case, model)
    stale = whole.head.weight.detach().clone() if case.has("stale weights") else None
    optimizer = case.optimizer_of(model)
    for step in range(case.steps):
        tokens, labels = batch(case.seed, 9 if case.has("sampler without epoch") and rank else step)
        share = share_of(case, rank, world)
        begin_step(model, step, range(len(share)) if case.has("masks by local row") else share)
        own = labels[share]
        if case.has("labels shifted on a rank") and rank:
            own = own.roll(1, 1)
        total = counted(labels)
        with prove.recording(model, folder, every=case.every) as record:
            if stale is not None:
                fresh, whole.head.weight.data = whole.head.weight.data, stale
            for part in range(case.micro):
                last = part == case.micro - 1
                rows = slice(part * len(share) // case.micro, (part + 1) * len(share) // case.micro)
                with contextlib.nullcontext() if synced(case, model, last) else model.no_sync():
                    with case.autocast():
                        logits = model(tokens[share][rows])
                        loss = loss_of(case, logits, own[rows], total, world)
                    record.loss(loss)
                    case.backward(loss)
                if case.has("accumulated gradients lost") and not last:
                    optimizer.zero_grad()
            if stale is not None:
                whole.head.weight.data = fresh
            if case.layout == "by hand":
                reduce_by_hand(case, model, world)
            if case.layout == "fsdp" and case.has("a weight left out of FSDP summed twice"):
                dist.all_reduce(whole.head.weight.grad)
            case.unscale(optimizer)
            finish(case, model)
            clip(case, model)
            case.update(optimizer)
        optimizer.zero_grad()


def synced(case, model, last):
    if case.has("never synchronised"):
        last = False
    if case.layout == "fsdp":
        model.set_requires_gradient_sync(last)
        return True
    return last or case.layout == "by hand"


def loss_of(case, logits, labels, total, world):
    """A rank's part of the mean over all labels, times the ranks, over which gradients are averaged."""
    if case.has("mean of means"):
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED) / case.micro
    if case.has("loss mask ignored"):
        return summed(logits, labels.clamp(min=0)) / labels.numel() / case.micro
    loss = summed(logits, labels) / total + added(case, logits)
    scale = case.micro if case.has("accumulation not divided") else 1
    averaged = case.layout != "by hand" or not case.has("loss not scaled")
    return loss * scale * (world if averaged else 1)


def plant(case, model):
    """Faults of starts and of the forward pass."""
    if isinstance(model, Batched):
        return
    up, attention = model.blocks["1"].up, model.blocks["1"].attention
    with torch.no_grad():
        if case.has("a start a percent larger"):
            up.weight *= 1.01
        if case.has("a start rounded to bf16"):
            up.weight.copy_(up.weight.bfloat16())
        if case.has("a bias starts from 0"):
            up.bias.zero_()
        if case.has("one element starts otherwise"):
            model.head.weight[3, 5] += 1e-4
    if case.has("attention scaled otherwise"):
        attention.scale = 1.0
    if case.has("another epsilon of a norm"):
        model.blocks["1"].norm2.eps = 0.1
    if case.has("positions shifted"):
        model.positions.register_forward_hook(lambda module, _, output: output.roll(1, 0))
    if case.has("a residual scaled"):
        model.blocks["1"].down.register_forward_hook(lambda module, _, output: 1.1 * output)


def added(case, logits):
    """What faults add to the loss."""
    if case.has("a term added to the loss"):
        return 0.01 * logits.float().logsumexp(-1).square().mean()
    return 0.0


def finish(case, model):
    """Faults of gradients that are reduced already."""
    for name, parameter in model.named_parameters():
        gradient = parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
        if case.has("a gradient scaled by 0.9") and name.endswith("blocks.1.up.weight"):
            gradient *= 0.9
        if case.has("an element altered on a rank") and name.endswith("norm.weight") and dist.get_rank():
            gradient[3] *= 1.001
        if case.has("a block's gradients zeroed") and "blocks.1." in name:
            gradient.zero_()
        if case.has("a gradient zeroed on a rank") and name.endswith("blocks.1.up.bias") and dist.get_rank():
            gradient.zero_()


def reduce_by_hand(case, model, world):
    if case.has("clipped before the reduction"):
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    for name, parameter in model.named_parameters():
        if case.has("no all-reduce") or (case.has("a block not reduced") and "blocks.1." in name):
            continue
        if case.has("a rank's gradient lost") and dist.get_rank():
            parameter.grad.zero_()
        for _ in range(2 if case.has("reduced twice") and "blocks.1." in name else 1):
            dist.all_reduce(parameter.grad)
        parameter.grad /= 1 if case.has("sum instead of mean") else world
        if case.has("averaged twice") and name.startswith("norm"):
            parameter.grad /= world


def shard(case, model):
    policy = (
        MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)
        if case.has("gradients reduced in bf16")
        else MixedPrecisionPolicy()
    )
    ignored = {model.blocks["1"].up.weight} if case.has("a weight left out of FSDP") else None
    for block in model.blocks.values():
        fully_shard(block, mp_policy=policy, ignored_params=ignored and ignored & set(block.parameters()))
    fully_shard(model, mp_policy=policy, ignored_params=ignored)
    if case.has("gradients not averaged"):
        for module in (model, *model.blocks.values()):
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)
    if case.has("shards loaded in another order"):
        weight = model.blocks["1"].up.weight
        weight.to_local().data.copy_(weight.full_tensor().detach().chunk(2)[1 - dist.get_rank()])
    return model


class SyncedNorms(nn.Module):
    """Batch norm over all ranks, by hand: torch's own needs a GPU."""

    def __new__(cls, model):
        model.norm = SyncedNorm(model.norm)
        return model


class SyncedNorm(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        self.register_buffer("running_mean", norm.running_mean)
        self.register_buffer("running_var", norm.running_var)
        self.register_buffer("num_batches_tracked", norm.num_batches_tracked)

    def forward(self, x):
        every = Gathered.apply(x, 0)
        mean, variance = every.mean(0), every.var(0, correction=0)
        with torch.no_grad():
            self.running_mean.lerp_(mean, 0.1)
            self.running_var.lerp_(every.var(0), 0.1)
            self.num_batches_tracked += 1
        return (x - mean) / (variance + self.eps).sqrt() * self.weight + self.bias


def clip(case, model):
    if case.has("clipped by the local norm"):
        grads = [p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad for p in model.parameters()]
        norm = torch.stack([grad.norm() for grad in grads]).norm()
        for grad in grads:
            grad *= min(1.0, case.clip / norm.item())
    elif case.clip and case.way == "torch's clip":
        nn.utils.clip_grad_norm_(model.parameters(), case.clip)
    elif case.clip:
        grads = [p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad for p in model.parameters()]
        norm = torch.stack([grad.norm() for grad in grads]).norm()
        if case.layout.startswith("pp"):
            norm = norm**2
            dist.all_reduce(norm)
            norm = norm**0.5
        for parameter in model.parameters():
            parameter.grad *= min(1.0, case.clip * (1.2 if case.has("another clip") else 1) / (norm.item() + 1e-6))
