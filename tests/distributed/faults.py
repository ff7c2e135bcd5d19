"""Faults that are easily made in parallel training, planted into a rank before it trains as usual.

Each replaces one function of the product by one that does what a wrong implementation would do.
"""

import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from parascale.families.language import modules as transformer
from parascale.parallel import fsdp
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
            self.own = own * self.mesh.layout.data_parallel
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
