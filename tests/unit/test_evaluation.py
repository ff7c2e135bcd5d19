"""Evaluation counts every target token once: against a plain loop, for sizes that do not divide."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from parascale.data.text import Windows
from parascale.evaluation.evaluate import split_sums
from parascale.evaluation.generate import continue_tokens
from parascale.families.build import build_model
from parascale.settings import Model, make

VOCABULARY = 17


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return build_model(make(Model, dim=8, heads=2, layers=1), VOCABULARY, 6).eval()


@settings(max_examples=12)
@given(tokens=st.integers(8, 90), ranks=st.integers(1, 7), batch=st.integers(1, 9))
def test_sums_over_ranks_equal_a_plain_loop_over_tokens(model, tokens, ranks, batch):
    text = np.random.default_rng(tokens).integers(0, VOCABULARY, tokens).astype("<u2")
    windows = Windows(text, 6)
    total = sum(split_sums(model, windows, rank, ranks, batch, torch.device("cpu")) for rank in range(ranks))
    expected, count = 0.0, 0
    with torch.no_grad():
        for start in range(0, tokens - 1, 6):
            piece = torch.from_numpy(text[start : start + 7].astype(np.int64))
            logits = model(piece[None, :-1])[0]
            expected += F.cross_entropy(logits.double(), piece[1:], reduction="sum").item()
            count += len(piece) - 1
    assert count == tokens - 1 == int(total[1])
    assert total[0].item() == pytest.approx(expected, rel=1e-5)


def test_all_ranks_make_the_same_number_of_forward_passes(model):
    """Strategies communicate in a forward pass: a rank with fewer samples that stops early would hang the others."""
    windows = Windows(np.zeros(31, dtype="<u2"), 6)  # five samples for three ranks
    passes = []
    for rank in range(3):
        calls = []
        split_sums(
            lambda inputs, calls=calls: calls.append(1) or model(inputs), windows, rank, 3, 1, torch.device("cpu")
        )
        passes.append(len(calls))
    assert passes == [2, 2, 2]


def test_a_continuation_is_the_likeliest_token_each_time_and_never_a_forbidden_one(model):
    context = [1, 2, 3]
    (chosen,) = continue_tokens(model, [context], 9, 6, 0, [None], forbidden=[0])
    for number in chosen:
        logits = model(torch.tensor([context[-6:]]))[0, -1]
        logits[0] = -torch.inf
        assert number == int(logits.argmax())
        context.append(number)


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_a_text_continues_in_the_same_way_alone_and_among_others(model, temperature):
    """Of other lengths too: shorter texts are filled up, and longer ones than the window are cut."""
    prompts = [[1], [1, 2, 3], [4, 3, 2, 1, 0, 4, 3, 2]]

    def continued(some):
        generators = [torch.Generator().manual_seed(3) for _ in some]
        return continue_tokens(model, some, 5, 6, temperature, generators)

    assert continued(prompts) == [continued([prompt])[0] for prompt in prompts]
