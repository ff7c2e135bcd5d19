"""Evaluation counts every target token once: against a plain loop, for sizes that do not divide."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from parascale.data.text import Windows
from parascale.errors import ConfigError
from parascale.evaluation.evaluate import foresees, split_sums
from parascale.evaluation.generate import continue_tokens
from parascale.families.build import build_model
from parascale.settings import Model, make
from parascale.train.loss import ROUNDING

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


def convolved(hidden_BTD):
    """A causal sum of all tokens by FFT, in which rounding errors of later ones reach all."""
    places, size = torch.arange(hidden_BTD.shape[1]), 2 * hidden_BTD.shape[1]
    weights_T1 = (1 / (1 + places.float()))[:, None]
    product = torch.fft.rfft(hidden_BTD, size, 1) * torch.fft.rfft(weights_T1, size, 0)
    return torch.fft.irfft(product, size, 1)[:, : len(places)]


def in_blocks(size):
    """Tokens see the mean of their block of so many."""
    return lambda hidden: torch.cat([part.mean(1, True).expand_as(part) for part in hidden.split(size, 1)], 1)


EARLIER = {"nothing": lambda x: x, "sums": lambda x: x.cumsum(1), "FFT": convolved}
EARLIER |= {"none": lambda x: x * torch.nan, "zeros": lambda x: 0 * x}
LATER = {
    "mean": lambda x: x + x.mean(1, keepdim=True),
    "one of many": lambda x: x + 0.02 * x.mean(1, keepdim=True),
    "next": lambda x: x.roll(-1, 1),
    "last": lambda x: x + 0.1 * x[:, -1:],
    "backwards": lambda x: x.flip(1).cumsum(1).flip(1),
    **{f"blocks of {size}": in_blocks(size) for size in (2, 3, 5, 8)},
}


@settings(max_examples=60)
@given(
    window=st.integers(2, 70),
    kind=st.sampled_from([*EARLIER, *LATER]),
    precision=st.sampled_from(["fp64", "fp32", "bf16"]),
)
def test_what_sees_later_tokens_is_found_and_nothing_else(window, kind, precision):
    mix = (EARLIER | LATER)[kind]
    table_VD = torch.randn(VOCABULARY, 8, generator=torch.Generator().manual_seed(window))
    number = torch.bfloat16 if precision == "bf16" else torch.float32  # some models compute less than they are told to

    def outputs(tokens_BT):
        return mix(table_VD[tokens_BT]).to(number)

    if kind.startswith("blocks"):
        window += -window % int(kind[-1])  # whole ones
    assert foresees(outputs, window, VOCABULARY, "cpu", ROUNDING[precision]) == (kind in LATER)
    assert not foresees(lambda tokens_BT: None, window, VOCABULARY, "cpu", 0.0)
    with pytest.raises(ConfigError, match=r"must return a tensor of logits .*, not tuple"):
        foresees(lambda tokens_BT: (outputs(tokens_BT), None), window, VOCABULARY, "cpu", 0.0)
