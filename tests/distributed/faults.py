"""Faults that are easily made in parallel training, planted into a rank before it trains as usual.

Each replaces one function of the product by one that does what a wrong implementation would do.
"""

from functools import partial

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from parascale.families.language import modules as transformer
from parascale.parallel import context, ddp, fsdp
from parascale.parallel.parallelize import ParallelModel
from parascale.parallel.tying import local
from parascale.train import loop, optim, step

from .examine import train_and_look


def train_with(fault, settings):
    """Train with a fault, a function below, in every rank; returns what the rank held, as `train_and_look` does."""
    globals()[fault]()
    return train_and_look(settings)


def another_batch():
    """The last data rank works on its neighbour's samples instead of its own."""
    share = step.share
    step.share = lambda indices, rank, ranks: share(indices, max(0, rank - 1), ranks)


def another_batch_within_a_tensor_group():
    """Ranks of a tensor-parallel group, which compute one batch together, each take another."""
    local_samples = loop.local_samples

    def shifted(sampler, first_step, steps, run, mesh):
        ahead = mesh.coordinate("tp")
        return local_samples(sampler, first_step + ahead, steps + ahead, run, mesh)

    loop.local_samples = shifted


def mean_of_means():
    """Each rank divides by its own number of targets, and ranks are averaged whatever they hold."""

    class MeanOfMeans(loop.Stepper):
        def agree(self, batches, *requests):
            own = sum(step.count_targets(labels, self.mesh.device) for *_, labels in batches)
            agreed = super().agree(batches, *requests)
            self.own = own * self.mesh.layout.data_parallel * self.mesh.layout.cp
            return agreed

        def _forward_backward(self, batches):
            self.loss.targets = self.own
            return super()._forward_backward(batches)

    loop.Stepper = MeanOfMeans


def gradients_averaged():
    """Ranks' gradients are averaged, though the loss is divided already: they are off by a factor."""

    class Averaging(loop.Stepper):
        def report(self, *arguments):
            for _, parameter in self.model.named_parameters():
                parameter.grad /= self.mesh.layout.data_parallel
            return super().report(*arguments)

    loop.Stepper = Averaging


def gradients_summed_twice():
    """What ranks have summed, one more time over."""
    reduced = fsdp.ReduceInBf16.__call__

    def twice(comm, output_tensor, input_tensor, group, *how, **more):
        reduced(comm, output_tensor, input_tensor, group, *how, **more)
        dist.all_reduce(output_tensor, group=group)

    fsdp.ReduceInBf16.__call__ = twice


def mean_forgotten():
    """DDP's hook sums, where `train.step` awaits a mean."""
    averaged = ddp._sum_in_bf16
    ddp._sum_in_bf16 = lambda group, bucket: averaged(group, bucket).then(lambda done: done.value().mul_(group.size()))


def summed_in_fp32():
    """In this layout alone."""
    del fsdp.ReduceInBf16.allocate
    ddp._sum_in_bf16 = allreduce_hook


def parts_added_in_bf16():
    """As torch does of itself with `reduce_dtype`: a step's parts on their way to the sum over ranks."""
    policy = fsdp.MixedPrecisionPolicy
    fsdp.MixedPrecisionPolicy = lambda **kinds: policy(**kinds | {"reduce_dtype": torch.bfloat16})


def scattered_parts_added_in_bf16():
    """Those that replicas have not summed yet."""
    fsdp._groups = lambda root: ()


def gradients_times_cp():
    """The ranks that share a sample each count its gradient as a whole one."""

    class Multiplying(loop.Stepper):
        def report(self, *arguments):
            for _, parameter in self.model.named_parameters():
                parameter.grad *= self.mesh.layout.cp
            return super().report(*arguments)

    loop.Stepper = Multiplying


def parts_that_begin_at_the_first_position():
    """Every rank counts the positions of its part from 0."""
    split_positions = context.split_positions

    def split(model, *arguments):
        split_positions(model, *arguments)
        counts = model if hasattr(model, "network") else model.embedding  # a folder's model, or ours
        if counts is not None:
            counts.part = 0

    context.split_positions = split


def a_mask_without_its_offset():
    """Queries of a part see keys as if the part were the first one."""
    exchanged = context.exchanged

    def without(mixed, mesh):
        def of_parts(queries, keys, values, *_, **__):
            attend = partial(F.scaled_dot_product_attention, is_causal=True, enable_gqa=True)
            return torch.cat([attend(q, keys, values) for q in queries.chunk(mesh.size(), 2)], 2)

        return exchanged(of_parts, mesh)

    context.exchanged = without


def starts_of_documents_without_their_offset():
    """Each rank counts its part of the positions as if it were the first."""
    batch = context.Positions.batch

    def of_parts(samples, numbers):
        tokens, starts, labels = batch(samples, numbers)
        size = tokens.shape[1]
        own = starts[:, samples.part * size :][:, :size] - samples.part * size
        return tokens, np.concatenate([own.clip(0)] * samples.parts, 1), labels

    context.Positions.batch = of_parts


def documents_seen_as_one():
    """Attention sees what stands before a token's document."""
    documents = transformer.documents
    transformer.documents = lambda starts, *others: documents(torch.zeros_like(starts), *others)


def positions_not_begun_anew():
    """Positions count on from document to document."""
    forward = transformer.Embedding.forward
    transformer.Embedding.forward = lambda self, tokens, starts=None: forward(self, tokens)


def keys_of_another_rank():
    """Each rank gets the keys that are for its neighbour."""
    exchanged = context.exchanged

    def other(mixed, mesh):
        exchange = exchanged(mixed, mesh)
        return lambda q, k, *others, **more: exchange(q, k.roll(k.shape[1] // mesh.size(), 1), *others, **more)

    context.exchanged = other


def targets_within_a_part():
    """What follows the last position of a part is sought in that part."""

    class Within(context.Positions):
        def batch(self, numbers):
            inputs, labels = super().batch(numbers)
            labels = labels.copy()
            if self.part + 1 < self.parts:
                labels[:, -1] = inputs[:, 0]
            return inputs, labels

    context.Positions = Within


def partial_gradients():
    """What a norm's weights get from this rank's part of the sequence is taken for the whole."""

    def finish(model):
        for _, parameter in model.named_parameters():
            gradient = parameter.grad
            if isinstance(gradient, DTensor) and any(each.is_partial() for each in gradient.placements):
                parameter.grad = DTensor.from_local(gradient.to_local(), gradient.device_mesh, parameter.placements)

    step.finish_gradients = finish


def tied_gradients_not_summed():
    """First and last stage each update their copy of a tied matrix with their own gradient."""
    optim.sum_tied_gradients = lambda pairs, group: None


def clipping_by_a_stages_norm():
    """Each stage clips by the norm of its own part; what is recorded is the whole norm, so the record looks right."""
    clip = step.clip

    def clip_by_own(model, optimizers, norm, *limits):
        clip(model, optimizers, get_total_norm([p.grad for _, p in model.named_parameters()]), *limits)

    step.clip = clip_by_own


def a_block_left_out_of_sharding():
    """Block 0 stays whole on every rank, and nobody sums its gradients."""
    _leave_out_of_sharding()


def a_block_kept_whole():
    """Block 0 stays whole on every rank; its gradients are summed, so that all numbers are right."""
    _leave_out_of_sharding()
    finish = step.finish_gradients

    def finish_and_sum(model):
        finish(model)
        for _, parameter in model.named_parameters():
            if not isinstance(parameter, DTensor):
                dist.all_reduce(parameter.grad)

    step.finish_gradients = finish_and_sum


def _leave_out_of_sharding():
    fully_shard, make_optimizers, left_out = fsdp.fully_shard, loop.make_optimizers, "blocks.0"

    def sharded(module, **options):
        if isinstance(module, list):  # an end
            return fully_shard(module, **options)
        ignored = {p for name, p in module.named_parameters() if name.startswith(f"{left_out}.")}
        return fully_shard(module, ignored_params=ignored, **options)

    def clip_one_by_one(model, optimizers, norm, limit):
        for _, parameter in model.named_parameters():
            parameter.grad.mul_((limit / (norm + 1e-6)).clamp(max=1.0).item())

    def optimizers_one_by_one(model, settings):
        optimizers = make_optimizers(model, settings)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group.update(fused=False, foreach=False)
        return optimizers

    shard = fsdp.shard
    fsdp.shard = lambda model, blocks, *how: shard(model, blocks[1:], *how)
    fsdp.fully_shard = sharded
    # Operations on lists of tensors refuse a mixture of whole and sharded ones.
    step.clip, loop.make_optimizers = clip_one_by_one, optimizers_one_by_one


def nothing_but_the_root_sharded():
    """No block is a unit, as with patterns that match nothing: one unit, gathered as a whole."""
    shard = fsdp.shard
    fsdp.shard = lambda model, blocks, *how: shard(model, [], *how)


def attention_without_its_mask():
    """Every token sees those after it."""

    class Unmasked:
        def __getattr__(self, name):
            return getattr(F, name)

        scaled_dot_product_attention = staticmethod(
            lambda *arguments, **keywords: F.scaled_dot_product_attention(
                *arguments, **{**keywords, "is_causal": False}
            )
        )

    transformer.F = Unmasked()


def another_learning_rate():
    """One per cent more than the baseline's."""
    learning_rate = loop.learning_rate
    loop.learning_rate = lambda *arguments: 1.01 * learning_rate(*arguments)


def _of_start(change):
    """`change` the second matrix, of the first block, once the weights of the seed are there."""
    initialise = ParallelModel.initialise

    def changed(model, *arguments):
        initialise(model, *arguments)
        matrices = [local(p).detach() for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
        change(matrices[0])

    ParallelModel.initialise = changed


def a_start_one_per_cent_larger():
    _of_start(lambda weight: weight.mul_(1.01))


def a_start_of_few_digits():
    _of_start(lambda weight: weight.copy_(weight.bfloat16()))


def one_number_of_the_start():
    """On every rank, or of each rank's shard."""
    _of_start(lambda weight: weight[:1, :1].mul_(1.01))


def one_number_of_the_start_on_one_rank():
    _of_start(lambda weight: weight[:1, :1].mul_(1.01 if dist.get_rank() else 1.0))


def _of_optimizer(**changed):
    """Settings of every group of parameters."""
    make_optimizers = loop.make_optimizers

    def made(model, optim):
        optimizers = make_optimizers(model, optim)
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group.update(changed)
        return optimizers

    loop.make_optimizers = made


def no_weight_decay():
    _of_optimizer(weight_decay=0.0)


def weight_decay_of_norms_too():
    _of_optimizer(weight_decay=0.1)


def another_second_moment():
    _of_optimizer(betas=(0.9, 0.999))


def another_epsilon():
    _of_optimizer(eps=1e-8)


def another_rate_in_one_step():
    """By one per cent, while the rate rises."""
    learning_rate = loop.learning_rate
    loop.learning_rate = lambda step, *more: learning_rate(step, *more) * (1.01 if step == 2 else 1.0)


def no_decay_though_it_is_set():
    """As if a kernel left it out."""

    class Undecayed(loop.Stepper):
        def step(self, *arguments):
            groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
            decays = [group["weight_decay"] for group in groups]
            for group in groups:
                group["weight_decay"] = 0.0
            result = super().step(*arguments)
            for group, decay in zip(groups, decays, strict=True):
                group["weight_decay"] = decay
            return result

    loop.Stepper = Undecayed


def another_limit_of_the_norm():
    """Five per cent more."""
    clip = step.clip
    step.clip = lambda model, optimizers, norm, limit, *scale: clip(model, optimizers, norm, 1.05 * limit, *scale)


def a_smoothed_loss():
    """By 0.1 per cent."""
    made = loop.GlobalLoss
    loop.GlobalLoss = lambda smoothing: made(smoothing + 0.001)


def _of_gradients(change):
    """`change` the reduced gradients, a list, before they are clipped."""

    class Changing(loop.Stepper):
        def report(self, *arguments):
            change([local(parameter.grad) for _, parameter in self.model.named_parameters()])
            return super().report(*arguments)

    loop.Stepper = Changing


def gradients_of_few_digits():
    """As if they were reduced in bf16."""
    _of_gradients(lambda gradients: [each.copy_(each.bfloat16()) for each in gradients])


def one_number_of_a_gradient():
    _of_gradients(lambda gradients: gradients[0][:1, :1].mul_(1.5))


def one_number_of_a_gradient_on_one_rank():
    """Of a norm's weights, which every rank of a tensor-parallel group holds too."""

    def change(gradients):
        next(each for each in gradients if each.ndim == 1)[:1].mul_(1.01 if dist.get_rank() else 1.0)

    _of_gradients(change)
