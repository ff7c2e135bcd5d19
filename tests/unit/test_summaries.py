"""The search finds the likeliest summary, and ROUGE is what the literature means by it."""

import itertools

import numpy as np
import pytest
import torch

from parascale.data.tokenize import END_ID, UNKNOWN_ID
from parascale.evaluation.summaries import beam_search, rouge
from parascale.families.build import build_model
from parascale.settings import Model, make

VOCABULARY, LENGTH = 5, 3


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(4)
    made = build_model(make(Model, kind="encoder_decoder", dim=8, heads=2, layers=1), VOCABULARY, 4, LENGTH).eval()
    for parameter in made.parameters():
        parameter.data *= 6  # so that summaries differ
    return made


DOCUMENTS = torch.tensor([[2, 3, 4, 1], [4, 4, 1, 0], [3, 1, 0, 0]])
MASK = torch.tensor([[True] * 4, [True] * 3 + [False], [True] * 2 + [False] * 2])


def log_probability(model, row, summary):
    given = torch.tensor([[END_ID, *summary[:-1]]])
    with torch.no_grad():
        steps = model(DOCUMENTS[row : row + 1], MASK[row : row + 1], given)[0].log_softmax(-1)
    return sum(steps[place, token].item() for place, token in enumerate(summary))


def all_summaries():
    """Every sequence that ends with the end mark or is as long as allowed."""
    words = [number for number in range(VOCABULARY) if number not in (END_ID, UNKNOWN_ID)]
    for length in range(LENGTH):
        for body in itertools.product(words, repeat=length):
            yield [*body, END_ID]
    yield from map(list, itertools.product(words, repeat=LENGTH))


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_wide_search_finds_what_trying_everything_finds(model, penalty):
    found = beam_search(model, DOCUMENTS, MASK, LENGTH, width=VOCABULARY**LENGTH, length_penalty=penalty)
    for row, summary in enumerate(found):
        best = max(all_summaries(), key=lambda s, row=row: log_probability(model, row, s) / len(s) ** penalty)
        assert summary.tolist() == [number for number in best if number != END_ID]


def test_greedy_search_takes_the_likeliest_token_each_time(model):
    for row, summary in enumerate(beam_search(model, DOCUMENTS, MASK, LENGTH)):
        given = [END_ID]
        while len(given) <= LENGTH:
            with torch.no_grad():
                logits = model(DOCUMENTS[row : row + 1], MASK[row : row + 1], torch.tensor([given]))[0, -1]
            logits[UNKNOWN_ID] = -torch.inf
            given.append(int(logits.argmax()))
            if given[-1] == END_ID:
                break
        assert summary.tolist() == [number for number in given[1:] if number != END_ID]


def test_a_wider_search_is_never_less_likely_on_these_documents(model):
    def score(width):
        found = beam_search(model, DOCUMENTS, MASK, LENGTH, width, length_penalty=0.0)
        whole = [[*s.tolist(), END_ID][:LENGTH] for s in found]
        return np.array([log_probability(model, row, summary) for row, summary in enumerate(whole)])

    assert (score(125) >= score(1) - 1e-6).all()


def test_rouge_counts_shared_words_and_pairs():
    """By hand: 3 of 4 and 3 of 5 words, 2 of 3 and 2 of 4 pairs, a common subsequence of 3."""
    scores = rouge(["the cat sat down"], ["the cat sat over there"])
    assert scores["rouge1"] == pytest.approx(2 * (3 / 5) * (3 / 4) / (3 / 5 + 3 / 4))
    assert scores["rouge2"] == pytest.approx(2 * (2 / 4) * (2 / 3) / (2 / 4 + 2 / 3))
    assert scores["rougeL"] == scores["rouge1"]
    assert rouge(["same text"], ["same text"]) == {"rouge1": 1.0, "rouge2": 1.0, "rougeL": 1.0}
