"""Text that several jobs encode is that of one job, byte for byte; a shard that is damaged or of other text is named."""

import dataclasses
import functools
import shutil

import numpy as np
import pytest
from click import UsageError

from parascale.data import shards
from parascale.data.pairs import prepare_pairs
from parascale.data.sources import download
from parascale.data.text import Tokens, prepare
from parascale.errors import ConfigError, DataError
from parascale.settings import Source, Text
from parascale.settings.data import ExpectedText, TextData
from tests.command import call
from tests.made_up.project import write_one
from tests.made_up.results import write_lines
from tests.unit.pretrained_folders import make_t5
from tests.unit.test_text import raw_of
from tests.unit.test_tokenizers import byte_level, gpt2, saved
from tests.unit.trees import read_in_place

ROWS = [{"text": f"the cat {n} sat"[: 2 * n], "document": f"w{n} w2 w3"[: 3 * n], "summary": "w2 w4"} for n in range(7)]
ROWS[3] |= {"text": None, "summary": None}


def text_of(folder):
    return prepare, Text(tokenizer="pretrained", pretrained=str(saved(folder / "model", *gpt2()[:2])))


def pairs_of(folder):
    return prepare_pairs, Text(tokenizer="pretrained", pretrained=str(make_t5(folder / "model")), prefix="summarize: ")


def source(folder):
    """Several files a split, slices, of which one is empty, and a split of one row."""
    for name in "ab":
        write_lines(folder / f"{name}.jsonl", ROWS)
    return {"train": ["a.jsonl", "b.jsonl[2:6]", "b.jsonl[:10%]"], "validation": "b.jsonl[1:2]", "test": "b.jsonl[6:]"}


def encode(raw, count, work, text, folder):
    """The folders of all shards."""
    folders = [folder / str(number) for number in range(count)]
    for part, output in zip(raw.shards(count), folders, strict=True):
        work(part, text, ExpectedText(train_samples=1), output, shards.shard)
    return folders


def join(raw, folders, work, text, output):
    work(raw, text, ExpectedText(), output, functools.partial(shards.join, folders))


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("kind", [text_of, pairs_of], ids=["text", "pairs"])
def test_any_number_of_jobs_makes_the_same_bytes(kind, tmp_path):
    """Also more than a split has rows, so that some have nothing to do."""
    raw = read_in_place(tmp_path, source(tmp_path))
    work, text = kind(tmp_path)
    work(raw, text, ExpectedText(train_samples=11), tmp_path / "one")
    for count in (1, 2, 3, 13):
        folders = encode(raw, count, work, text, tmp_path / f"{count}")
        join(raw, folders, work, text, tmp_path / "joined")
        assert content(tmp_path / "joined") == content(tmp_path / "one"), count
        rows = [sum(each["last"] - each["first"] for each in part.files("train")) for part in raw.shards(count)]
        assert sum(rows) == 11 and max(rows) - min(rows) <= 1
    with pytest.raises(DataError, match=r"train_samples` is 12, but there are 11"):
        work(raw, text, ExpectedText(train_samples=12), tmp_path / "x", functools.partial(shards.join, folders))


def test_the_first_job_accepts_rows_without_a_column_that_later_rows_have(tmp_path):
    rows = [{"document": "a b"}] * 4 + [{"document": "a b", "summary": "c"}] * 4
    write_lines(tmp_path / "a.jsonl", rows)
    raw = read_in_place(tmp_path, "a.jsonl")
    work, text = pairs_of(tmp_path)
    work(raw, text, ExpectedText(), tmp_path / "one")
    join(raw, encode(raw, 2, work, text, tmp_path / "two"), work, text, tmp_path / "joined")
    assert content(tmp_path / "joined") == content(tmp_path / "one")


@pytest.fixture
def encoded(tmp_path):
    """(raw, folders of two shards, function that prepares text, its settings)."""
    raw = read_in_place(tmp_path, source(tmp_path))
    work, text = text_of(tmp_path)
    return raw, encode(raw, 2, work, text, tmp_path / "shards"), work, text


def flip(folder):
    path = folder / "train.bin"
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])


def swapped(folder):
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name("0"), folder)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flip, r"shards/1/train\.bin is damaged: its sha256 differs"),
        (lambda folder: (folder / "test.bin").unlink(), r"shards/1/test\.bin is missing"),
        (shutil.rmtree, "shards/1: no prepared data here"),
        (swapped, "shards/1: made from other text or settings"),
    ],
)
def test_a_damaged_shard_is_named_and_made_again_alone(damage, message, encoded, tmp_path):
    raw, folders, work, text = encoded
    damage(folders[1])
    with pytest.raises(DataError, match=message):
        join(raw, folders, work, text, tmp_path / "flat")
    assert not (tmp_path / "flat").exists()
    work(raw.shards(2)[1], text, ExpectedText(), folders[1], shards.shard)
    join(raw, folders, work, text, tmp_path / "flat")


def test_shards_of_other_settings_or_of_another_number_are_not_joined(encoded, tmp_path):
    raw, folders, work, text = encoded
    for given, settings in ((folders, dataclasses.replace(text, prefix="a")), (folders[:1], text)):
        with pytest.raises(DataError, match="shards/0: made from other text or settings"):
            join(raw, given, work, settings, tmp_path / "flat")


def test_shards_of_another_tokenizer_are_not_joined(encoded, tmp_path):
    raw, folders, work, text = encoded
    saved(tmp_path / "model", byte_level(["<|endoftext|>", "<|more|>"]), {})
    with pytest.raises(DataError, match="shards/0: made with another tokenizer; remove it and rebuild it"):
        join(raw, folders, work, text, tmp_path / "flat")


@pytest.mark.parametrize(
    ("part", "message"),
    [("", "1 empty documents, 1 null rows"), ("[:10%]", "0 empty documents, 0 null rows")],
)
def test_a_split_without_text_is_an_error_of_all_shards_together(part, message, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n{"text": null}\n')
    raw = read_in_place(tmp_path, f"a.jsonl{part}")
    work, text = text_of(tmp_path)
    folders = encode(raw, 2, work, text, tmp_path / "shards")
    with pytest.raises(DataError, match=f"`train` has no text: {message}"):
        join(raw, folders, work, text, tmp_path / "flat")


def test_a_vocabulary_learned_from_a_part_of_a_text_encodes_all_of_it_in_shards(encoded, tmp_path):
    raw, _, work, _ = encoded
    learned = Text(tokenizer="subword", max_vocabulary=270)
    work(raw.shards(2)[0], learned, ExpectedText(), tmp_path / "part", shards.shard)
    text = Text(tokenizer="pretrained", pretrained=str(tmp_path / "part"))
    join(raw, encode(raw, 2, work, text, tmp_path / "again"), work, text, tmp_path / "flat")
    tokens = Tokens(tmp_path / "flat")
    assert tokens.decode(tokens.split("train")).split("\n")[1:3] == ["th", "the "] and tokens.tokenizer.end == 1


def test_a_vocabulary_that_is_learned_is_refused():
    with pytest.raises(ConfigError, match=r"`data\.shards` = 2 needs `data\.text\.tokenizer: pretrained`"):
        TextData(shards=2).check("here")


def test_the_command_encodes_joins_and_refuses_what_is_no_shard_and_what_is_tokens_already(tmp_path, capsys):
    raw_of(tmp_path / "results/data/w", train="the cat\nthe mat\nthe dog")
    model = saved(tmp_path / "model", *gpt2()[:2])
    text = f"data: {{shards: 2, text: {{tokenizer: pretrained, pretrained: {model}}}}}\n"
    project = write_one(tmp_path, "w", f"{text}training: {{window: 2, global_batch: 1, steps: 2}}\n")

    def prepare(*words):
        call("data", "prepare", "--workload", "w", *words, *project)
        return capsys.readouterr().err

    with pytest.raises(UsageError, match=r"--shard 2: shards count from 0, and `data\.shards` = 2"):
        prepare("--shard", "2")
    for number in range(2):
        prepare("--shard", str(number))
    assert "error" not in prepare()
    tokens = Tokens(tmp_path / "results/data/w/flat")
    assert tokens.decode(tokens.split("train")) == "the cat\nthe mat\nthe dog\n"
    np.arange(9, dtype=np.uint16).tofile(tmp_path / "a.bin")
    files = dict.fromkeys(("train", "validation", "test"), "a.bin")
    download(Source(kind="files", location=str(tmp_path), files=files), tmp_path / "results/data/w/raw")
    assert "holds tokens, and nothing is left to encode: leave out `data.shards`" in prepare()
