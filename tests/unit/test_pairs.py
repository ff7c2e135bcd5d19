"""Pairs of document and summary: nothing is lost or mixed up, and what is left out is counted."""

import json
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parascale.data.pairs import Pairs, prepare_pairs
from parascale.data.text import IGNORED, Tokens
from parascale.data.tokenize import END_ID
from parascale.errors import DataError
from parascale.evaluation.task import open_task
from parascale.settings import Text, Workload, make
from parascale.settings.data import ExpectedText
from tests.unit.trees import read_in_place, write_tree

GOOD = [{"document": f"the text number {n} says a lot of things", "summary": f"text {n}"} for n in range(8)]


def lines_of(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def prepare(folder, rows, columns=None, text=None):
    """The folder of pairs made from the same JSON Lines for all splits."""
    write_tree(folder, {"rows.jsonl": lines_of(rows)})
    raw = read_in_place(folder, "rows.jsonl", columns=columns or {})
    prepare_pairs(raw, text or Text(), ExpectedText(), folder / "pairs")
    return folder / "pairs"


WORDS = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=9).map(" ".join)


@settings(max_examples=40)
@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=6), st.integers(2, 11), st.integers(2, 11))
def test_batches_hold_every_pair_that_fits_and_nothing_else(tmp_path_factory, rows, window, summary_window):
    folder = prepare(tmp_path_factory.mktemp("pairs"), [{"document": d, "summary": s} for d, s in rows])
    tokens = Tokens(folder)
    kept = [(d, s) for d, s in rows if len(s.split()) < summary_window]
    if not kept:
        with pytest.raises(DataError, match=r"no pair of the split `train` fits"):
            Pairs(tokens, "train", window, summary_window)
        return
    pairs = Pairs(tokens, "train", window, summary_window)
    assert len(pairs) == len(kept)
    documents, mask, summaries, labels = pairs.batch(range(len(kept)))
    for row, (document, summary) in enumerate(kept):
        numbers = [*tokens.encode(document), END_ID][:window]
        assert documents[row].tolist() == numbers + [0] * (window - len(numbers))
        assert mask[row].tolist() == [True] * len(numbers) + [False] * (window - len(numbers))
        asked = [*tokens.encode(summary), END_ID]
        padding = summary_window - len(asked)
        assert labels[row].tolist() == asked + [IGNORED] * padding
        assert summaries[row].tolist() == [END_ID, *asked[:-1]] + ([END_ID] if padding else []) + [0] * (padding - 1)


def decoded(tokens, pairs, number):
    """Document and summary of a sample as text again."""
    document, mask, _, labels = (part[0] for part in pairs.batch([number]))
    return [tokens.decode(part[:-1]) for part in (document[mask], labels[labels != IGNORED])]


def test_rows_without_document_or_summary_are_left_out_and_counted(tmp_path):
    bad = [{"document": "alone"}, {"document": "blank", "summary": "  "}]
    bad += [{"summary": "orphan"}, {"document": None, "summary": "x"}]
    tokens = Tokens(prepare(tmp_path, [*GOOD, *bad]))
    counts = tokens.manifest["splits"]["train"]
    assert (counts["documents"], counts["without_summary"], counts["without_document"]) == (8, 2, 2)


@pytest.mark.parametrize(
    ("over_long", "left", "expected"),
    [
        ("cut", 9, {"long_summary": 1, "long_document": 0, "cut_documents": 1}),
        ("leave_out", 8, {"long_summary": 1, "long_document": 1, "cut_documents": 0}),
    ],
)
def test_over_long_documents_and_summaries_are_counted(tmp_path, monkeypatch, over_long, left, expected):
    monkeypatch.setattr("parascale.data.pairs.AT_ONCE", 3)
    long = [{"document": "word " * 30, "summary": "short"}, {"document": "short", "summary": "word " * 30}]
    folder = prepare(tmp_path, [*GOOD, *long])
    training = {"window": 12, "summary_window": 8, "over_long": over_long}
    task = open_task(make(Workload, name="x", task="summarisation", training=training), folder)
    assert len(task.splits["train"]) == left
    numbers = task.splits["train"].batch(range(left))[0][:8, 3]  # each document's own
    assert len(set(numbers.tolist())) == 8
    assert task.excluded["train"] == {"without_document": 0, "without_summary": 0, **expected}
    assert task.excluded.keys() == {"train", "validation", "test"}


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [
        (
            [{"document": None, "summary": "y"}],
            {},
            r"no pair of document and summary \(1 rows without document.*columns",
        ),
        ([{"document": "x", "summary": 3}], {}, r"line 1: `summary` is not text but 3"),
        (["only text"], {}, r"line 1: not a mapping with `document` and `summary`"),
    ],
)
def test_bad_rows_are_named(tmp_path, rows, columns, message):
    with pytest.raises(DataError, match=message):
        prepare(tmp_path, rows, columns)


@pytest.mark.parametrize(
    ("rows", "part", "refused"),
    [
        ([{"document": "a b", "other": "c"}] * 3, "", True),
        ([{"document": "a b", "other": "c"}] * 3, "[1:]", True),
        ([{"document": "a b", "summary": None}] * 3, "", False),
        ([{"document": "a b"}] * 3 + GOOD, "", False),
        ([], "", False),
    ],
)
def test_a_file_without_a_column_is_named(rows, part, refused, tmp_path):
    """Lines without it are counted, but of a whole file it is a mistake, whatever the files beside it hold."""
    write_tree(tmp_path, {"good.jsonl": lines_of(GOOD), "other.jsonl": lines_of(rows)})
    files = dict.fromkeys(("validation", "test"), "good.jsonl") | {"train": ["good.jsonl", f"other.jsonl{part}"]}
    error = pytest.raises(DataError, match=r"other\.jsonl: no column `summary` \(it has document, other\)")
    with error if refused else nullcontext():
        prepare_pairs(read_in_place(tmp_path, files), Text(), ExpectedText(), tmp_path / "pairs")


def test_plain_text_holds_no_pairs(tmp_path):
    (tmp_path / "a.txt").write_text("one\n")
    raw = read_in_place(tmp_path, "a.txt")
    with pytest.raises(DataError, match=r"a\.txt: plain text has no columns document, summary"):
        prepare_pairs(raw, Text(), ExpectedText(), tmp_path / "pairs")


def test_columns_may_have_other_names(tmp_path):
    rows = [{"article": f"a b {n}", "title": "c"} for n in range(3)]
    tokens = Tokens(prepare(tmp_path, rows, {"document": "article", "summary": "title"}))
    assert decoded(tokens, Pairs(tokens, "test", 9, 9), 2) == ["a b 2", "c"]


SUBWORD = {"tokenizer": "subword", "max_vocabulary": 300}


@pytest.mark.parametrize("mark", ["<eos>", "<EOS>", "<eos><eos> <eos>"])
@pytest.mark.parametrize("text", [{}, {"lowercase": True}, SUBWORD, {**SUBWORD, "lowercase": True}])
def test_a_mark_within_a_text_ends_nothing(tmp_path, text, mark):
    marks = [mark if n in (3, 10) else "nothing" for n in range(40)]
    rows = [{"document": f"doc{n} stops at {mark} too", "summary": f"sum{n} {mark}"} for n, mark in enumerate(marks)]
    folder = prepare(tmp_path, rows, text=Text(**text))
    tokens = Tokens(folder)
    pairs = Pairs(tokens, "test", 99, 99)
    assert len(pairs) == 40 and np.count_nonzero(pairs.batch(range(40))[3] == END_ID) == 40
    found = [decoded(tokens, pairs, number) for number in range(40)]
    if text.get("tokenizer"):
        lower = str.lower if text.get("lowercase") else str
        assert found == [[lower(row["document"]), lower(row["summary"])] for row in rows]
    else:
        assert [[part.split()[0] for part in pair] for pair in found] == [[f"doc{n}", f"sum{n}"] for n in range(40)]
    ends = np.load(folder / "test.ends.npy")
    assert ends.shape == (40, 2) and (tokens.split("test")[ends - 1] == END_ID).all()


def test_subwords_give_the_text_back(tmp_path):
    folder = prepare(tmp_path, GOOD, text=Text(tokenizer="subword", max_vocabulary=300))
    tokens = Tokens(folder)
    pairs = Pairs(tokens, "train", 200, 50)
    found = [decoded(tokens, pairs, number) for number in range(len(pairs))]
    assert found == [[row["document"], row["summary"]] for row in GOOD]


def test_ends_that_do_not_fit_are_damage(tmp_path):
    folder = prepare(tmp_path, GOOD)
    ends = np.load(folder / "train.ends.npy")
    np.save(folder / "train.ends.npy", ends - 1)
    with pytest.raises(DataError, match=r"`train\.ends\.npy` does not fit its tokens"):
        Pairs(Tokens(folder), "train", 9, 9)
