"""Batch norm's statistics are as precise as they are kept, whatever the precision of the images and of its weights."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from parascale.parallel import batch_norm


@pytest.fixture(scope="module")
def group():
    """A group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize("synchronised", [True, False])
def test_weights_in_bf16_leave_statistics_in_fp32(synchronised, group):
    """FSDP's policy hands over bf16 weights beside fp32 statistics, which torch's own batch norm refuses on CPUs."""
    torch.manual_seed(0)
    images = (100 + torch.randn(8, 3, 4, 4)).bfloat16()  # in bf16 a mean of 100 would be off by up to 0.25
    exact, norm = nn.BatchNorm2d(3).double(), nn.BatchNorm2d(3)
    exact(images.double())
    for parameter in norm.parameters():
        parameter.data = parameter.data.bfloat16()
    batch_norm.prepare(norm, group if synchronised else None)
    norm(images)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        torch.testing.assert_close(getattr(norm, name), getattr(exact, name), check_dtype=False, rtol=1e-5, atol=0)
    assert norm.running_mean.dtype == norm.running_var.dtype == torch.float32
    result, expected = norm.eval()(images), exact.eval()(images.double())
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result.double(), expected, rtol=2**-8, atol=0)


def test_gradients_over_ranks_are_those_of_one_process(group):
    """With small variances, where the constant beside them counts, and with `eps` far from the usual."""
    torch.manual_seed(0)
    images = torch.randn(6, 3, 4, 4, dtype=torch.float64) * 0.01
    found = []
    for synchronised in (group, None):
        norm, own = nn.BatchNorm2d(3, eps=1e-3).double(), images.clone().requires_grad_()
        batch_norm.prepare(norm, synchronised)
        (norm(own) ** 3).sum().backward()
        found.append([own.grad, norm.weight.grad, norm.bias.grad])
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected)


def test_statistics_of_ranks_are_those_of_all_their_images(group, monkeypatch):
    images = torch.randn(6, 3, 4, 4, dtype=torch.float64) + torch.arange(6).view(6, 1, 1, 1)
    ranks = images.split((2, 4))

    def all_gather(everyone, own, group):
        for each, part in zip(everyone, ranks, strict=True):
            statistics = (part.mean((0, 2, 3)), part.var((0, 2, 3), correction=0), torch.tensor([part.numel() / 3]))
            each.copy_(torch.cat(statistics))

    monkeypatch.setattr(dist, "get_world_size", lambda group: len(ranks))
    monkeypatch.setattr(dist, "all_gather", all_gather)
    mean, variance, count = batch_norm._gathered(ranks[0], torch.float64, group)
    torch.testing.assert_close(mean, images.mean((0, 2, 3)))
    torch.testing.assert_close(variance, images.var((0, 2, 3), correction=0))
    assert count == images.numel() / 3


def test_only_training_asks_the_other_ranks(group, monkeypatch):
    asked, gather = [], batch_norm._gathered
    monkeypatch.setattr(batch_norm, "_gathered", lambda *what: asked.append(what) or gather(*what))
    for synchronised, training, times in ((group, True, 1), (group, False, 0), (None, True, 0)):
        norm = nn.BatchNorm2d(3).train(training)
        batch_norm.prepare(norm, synchronised)
        norm(torch.randn(4, 3, 2, 2))
        assert len(asked) == times
        asked.clear()
