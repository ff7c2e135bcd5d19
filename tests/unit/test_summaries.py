"""The search finds the likeliest summary, and ROUGE is what the literature means by it, on the texts as people wrote them."""

import itertools
import json
import unicodedata
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from parascale.data.pairs import Pairs, prepare_pairs
from parascale.data.text import Tokens
from parascale.data.tokenize import END_ID, UNKNOWN_ID
from parascale.errors import DataError
from parascale.evaluation.summaries import ROUGE, beam_search, judge, rouge, write
from parascale.families.build import build_model
from parascale.settings import Model, Summaries, Text, make
from parascale.settings.data import ExpectedText
from tests.unit.trees import read_in_place

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


def test_rouge_counts_shared_words_and_pairs():
    """By hand: 3 of 4 and 3 of 5 words, 2 of 3 and 2 of 4 pairs, a common subsequence of 3."""
    scores = rouge(["the cat sat down"], ["the cat sat over there"])
    assert scores["rouge1"] == pytest.approx(2 * (3 / 5) * (3 / 4) / (3 / 5 + 3 / 4))
    assert scores["rouge2"] == pytest.approx(2 * (2 / 4) * (2 / 3) / (2 / 4 + 2 / 3))
    assert scores["rougeL"] == scores["rouge1"]


TEXTS = [
    "same text",
    "Le café naïve fut fermé à Noël.",
    "Суд отменил решение.",
    "रक्षा मंत्री ने कहा कि हिन्दी",
    "ศาลสั่งปล่อยตัวผู้ต้องหา 2023",
    "法院今天撤销了判决。",
    "OpenAI 发布 GPT-4 API",
    "裁判所は判決を取り消した",
    "대법원은 판결을 뒤집었다",
    "ألغت المحكمة الحكم",
]


@pytest.mark.parametrize("text", TEXTS)
def test_identical_texts_of_every_script_score_one_and_others_less(text):
    assert rouge([text], [unicodedata.normalize("NFC", text)]) == {"rouge1": 1.0, "rouge2": 1.0, "rougeL": 1.0}
    others = [other for other in TEXTS if other != text]
    assert max(rouge([text] * len(others), others).values()) < 0.2
    half = text[: len(text) // 2]
    assert 0.1 < rouge([text], [half])["rouge1"] < 1


@given(st.text(min_size=1).filter(str.strip))
def test_any_identical_text_scores_one(text):
    assert rouge([text], [text])["rouge1"] == rouge([text], [text])["rougeL"] == 1


@pytest.mark.parametrize(
    "reference",
    ["Running dogs jumped over the café of Zoë", "α-synuclein binds to 3 naïve cells", "Two_words, 1,000 men"],
)
def test_english_scores_are_those_of_the_library(reference):
    summary = "The dog runs over a cafe; α-synuclein binding, two words of 1000 men"
    expected = RougeScorer(ROUGE, use_stemmer=True).score(reference, summary)
    assert rouge([reference], [summary]) == {name: expected[name].fmeasure for name in ROUGE}


def test_the_lead_of_a_script_without_spaces_is_no_longer_than_the_references():
    rows = [("法院今天撤销了判决。理由明天公布。", "判决被撤销"), ("第二篇文章很长很长很长。", "文章很长")]
    numbered = SimpleNamespace(raw=lambda count: rows)
    found = judge(numbered, [(0, ["", ""], ["", ""])], Summaries(beams=2))
    assert found["lead_words"] == 4 and found["lead"] == rouge([rows[0][1], rows[1][1]], ["法院今天", "第二篇文"])


RARE = "Rare{n} words, and\u2028Unknown{n} ones: the river rose by {n} metres in the <eos> night"
LONG = "The one reference that is far longer than the window of summaries, to the very last word of it"
RAW = [(RARE.format(n=n), f"River{n} rose, sleepers fled") for n in range(9)]
RAW += [("A short text.", "Short"), ("Another text.", LONG)]


@pytest.fixture
def pairs(tmp_path):
    """Pairs whose vocabulary knows hardly a word, and whose window is shorter than a reference."""
    rows = [json.dumps({"document": document, "summary": summary}) for document, summary in RAW]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    raw, text = read_in_place(tmp_path, "rows.jsonl"), Text(min_count=5, prefix="summarise: ")
    prepare_pairs(raw, text, ExpectedText(), tmp_path / "pairs")
    return Pairs(Tokens(tmp_path / "pairs"), "test", 9, 6, over_long="leave_out")


def test_summaries_are_judged_by_the_raw_references_all_of_them(pairs, model):
    """As `rouge_score` does on the raw rows: a tokenizer would give shared `<unk>`s, and a window would leave pairs out."""

    def expected(summaries):
        scorer = RougeScorer(ROUGE, use_stemmer=True)
        scores = [scorer.score(reference, summary) for (_, reference), summary in zip(RAW, summaries, strict=True)]
        return {name: pytest.approx(np.mean([score[name].fmeasure for score in scores]), abs=1e-9) for name in ROUGE}

    assert len(pairs) == 1
    words = round(np.mean([len(summary.split()) for _, summary in RAW]))
    unknown = judged(pairs, lambda numbers: "<unk> <unk>", Summaries(beams=2))
    assert unknown["documents"] == len(RAW)
    assert unknown["lead"] == expected([" ".join(document.split()[:words]) for document, _ in RAW])
    assert unknown["beam"] == dict.fromkeys(ROUGE, 0.0)
    assert judged(pairs, str, Summaries(beams=2, documents=3))["documents"] == 3


def judged(pairs, decode, settings):
    return judge(pairs, write(model_of(pairs), pairs, decode, settings, 4, "cpu"), settings)


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_processes_write_the_summaries_that_one_writes(parts, monkeypatch):
    """Each some of the batches, and all in the order of the documents again; more processes than batches do no harm."""
    said = lambda model, documents, mask, length, width, penalty: [f"{row} {width}" for row in documents.tolist()]  # noqa: E731
    monkeypatch.setattr("parascale.evaluation.summaries.beam_search", said)
    numbered = SimpleNamespace(raw=lambda count: RAW[:count], documents=lambda rows: (rows, rows), summary_window=6)
    settings = Summaries(beams=2, examples=len(RAW))
    shares = [write(None, numbered, str, settings, 3, "cpu", part, parts) for part in reversed(range(parts))]
    assert sorted(map(len, shares)) == {2: [2, 2], 3: [1, 1, 2], 5: [0, 1, 1, 1, 1]}[parts]
    found = judge(numbered, [batch for share in shares for batch in share], settings)
    assert [each["summary"] for each in found["examples"]] == [f"{row} 2" for row in range(len(RAW))]
    assert found == judge(numbered, write(None, numbered, str, settings, 3, "cpu"), settings)


def model_of(pairs):
    return build_model(make(Model, kind="encoder_decoder", dim=8, heads=2, layers=1), 40, pairs.window, 6).eval()


def test_pairs_of_an_older_version_are_made_again_before_they_are_judged(pairs, tmp_path):
    (tmp_path / "pairs/test.jsonl").unlink()
    with pytest.raises(DataError, match=r"test\.jsonl is missing.*target `data`"):
        pairs.raw()
