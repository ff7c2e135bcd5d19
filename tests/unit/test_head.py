"""The loss from hidden states, chunk by chunk, is the cross-entropy of all logits: value, gradients, and no more memory than a chunk."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from parascale.families import sizes
from parascale.families.head import Head, _filled
from tests.benchmarks.fake_steps import LiveStorages

IGNORED = -100


def case(tokens, width, vocabulary, kind=torch.float64, seed=0, device="cpu"):
    """(deferred head, hidden states, labels of which some do not count)."""
    generator = torch.Generator().manual_seed(seed)
    head = Head(width, vocabulary).to(kind)
    with torch.no_grad():
        head.weight.normal_(generator=generator)
    hidden = torch.randn(1, tokens, width, generator=generator, dtype=torch.float64).to(device, kind).requires_grad_()
    labels = torch.randint(0, vocabulary, (1, tokens), generator=generator)
    labels[torch.rand(1, tokens, generator=generator) < 0.2] = IGNORED
    return head.to(device), hidden, labels.to(device)


def results(head, hidden, loss, scale=1.0):
    """The loss and its gradients in hidden states and weights."""
    return loss.detach(), *torch.autograd.grad(loss * scale, (hidden, head.weight), retain_graph=True)


def whole(head, hidden, labels, smoothing):
    """The loss from all logits."""
    logits = (hidden @ head.weight.T).flatten(0, 1)
    return F.cross_entropy(logits, labels.flatten(), reduction="sum", ignore_index=IGNORED, label_smoothing=smoothing)


@settings(max_examples=60)
@given(
    tokens=st.integers(1, 20),
    vocabulary=st.sampled_from([1, 5, 63, 64, 65, 130]),
    chunk=st.sampled_from([1, 300, 2**20]),
    smoothing=st.sampled_from([0.0, 0.1]),
    divisor=st.sampled_from([1, 7.0, torch.tensor(3.0, dtype=torch.float64)]),
)
def test_loss_and_gradients_are_those_of_all_logits(tokens, vocabulary, chunk, smoothing, divisor):
    """In fp64, whatever the chunks and whether the vocabulary fills whole cache lines; a second backward pass says the same."""
    head, hidden, labels = case(tokens, 8, vocabulary)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizes, "CHUNK_ELEMENTS", chunk)
        loss = head.summed_loss(hidden, labels, smoothing, divisor)
    expected = results(head, hidden, whole(head, hidden, labels, smoothing) / divisor, scale=3.0)
    for _ in range(2):
        torch.testing.assert_close(results(head, hidden, loss, scale=3.0), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("chunk", [64 * 70, 2**20])
def test_in_bf16_it_is_as_exact_as_all_logits_in_fp32(chunk, device, monkeypatch):
    """Gradients of the weights are added up in fp32, so that many chunks lose nothing."""
    monkeypatch.setattr(sizes, "CHUNK_ELEMENTS", chunk)
    head, hidden, labels = case(700, 32, 70, torch.bfloat16, device=device)
    found = results(head, hidden, head.summed_loss(hidden, labels))
    head.double()
    exact = hidden.detach().double().requires_grad_()
    expected = results(head, exact, whole(head, exact, labels, 0.0))
    assert found[0].dtype == torch.float32
    for ours, true in zip(found, expected, strict=True):
        # Half of bf16's 2⁻⁷ twice: logits and their gradient.
        assert (ours.double() - true).norm() < 0.006 * true.norm()


def test_no_more_than_a_chunk_of_logits_lies_there(monkeypatch):
    monkeypatch.setattr(sizes, "CHUNK_ELEMENTS", 50 * 1024)
    head, hidden, labels = case(2000, 4, 1024)
    storages = LiveStorages()
    with storages:
        head.summed_loss(hidden, labels).backward()
    assert storages.peak < 1.8 * 50 * 1024 * 8  # with what stands beside: hidden states, gradients, the matrix


def test_without_gradients_none_are_made():
    head, hidden, labels = case(5, 8, 65)
    with torch.no_grad():
        loss = head.summed_loss(hidden, labels)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, whole(head, hidden, labels, 0.0).detach(), rtol=1e-12, atol=0)


def test_a_factor_of_fp16_cures_an_overflow_of_the_weights_gradient():
    """8,192 tokens with one label and large hidden values: their gradients' sum is no number of fp16, its mean is."""
    head, hidden = Head(8, 64).to(torch.float16), torch.full((1, 8192, 8), 9.0, dtype=torch.float16)
    with torch.no_grad():
        head.weight.zero_()
    for factor, finite in ((2.0**16, False), (1.0, True)):
        loss = head.summed_loss(hidden, torch.zeros(1, 8192, dtype=torch.long), 0.0, 8192 / factor)
        (gradient,) = torch.autograd.grad(loss, head.weight)
        assert gradient.isfinite().all() == finite
    torch.testing.assert_close(gradient[0], torch.full((8,), -9 * 63 / 64, dtype=torch.float16), rtol=2e-3, atol=0)


@pytest.mark.parametrize(
    ("kind", "entries", "rows"),
    [(torch.float32, 4000, 4000), (torch.bfloat16, 4000, 4032), (torch.bfloat16, 50257, 50304), (torch.float32, 0, 32)],
)
def test_rows_of_logits_are_whole_cache_lines(kind, entries, rows):
    """And no copy of the matrix is made where they are."""
    matrix = torch.empty(entries, 2, dtype=kind)
    filled = _filled(matrix)
    assert len(filled) == rows
    assert (filled is matrix) == (entries == rows)
