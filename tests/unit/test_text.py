"""From words to windows: numbers that match the published ones, and every target predicted exactly once."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parascale.data import text, tokenize
from parascale.data.sources import download
from parascale.data.sources.raw import Raw
from parascale.data.text import IGNORED, Tokens, Windows, prepare
from parascale.errors import ConfigError, DataError, RequirementError
from parascale.evaluation.task import open_task
from parascale.files import write_json
from parascale.plan.planner import require_windows
from parascale.settings import SPLITS, Source, Text, Workload, make
from parascale.settings.data import ExpectedText
from parascale.store.keys import data_known, meaning_of
from tests.command import call
from tests.made_up import FULL_DISK, failing
from tests.made_up.project import write_files, write_one
from tests.unit.trees import read_in_place

WIKITEXT = Path(__file__).parents[3] / "shared" / "data" / "wikitext-2"
unhurried = settings(max_examples=60)  # other tests may keep the machine busy
TRAIN = "the cat sat\n\nthe dog <unk> The\na cat"


def raw_of(folder, train=TRAIN, validation="the bird", test="a dog"):
    """A raw folder of the source `files` with these three texts."""
    write_files(folder, {"train.txt": train, "validation.txt": validation, "test.txt": test})
    return download(Source(kind="files", location=str(folder)), folder / "raw")


def prepared(folder, settings=None, **texts):
    prepare(raw_of(folder, **texts), settings or Text(), ExpectedText(), folder / "flat")
    return Tokens(folder / "flat")


@pytest.mark.parametrize("how", [{}, {"tokenizer": "subword", "max_vocabulary": 260}], ids=("words", "subwords"))
def test_data_says_what_its_numbers_mean(how, tmp_path):
    """By the entries in turn, whatever the order of the texts; in the same size others mean something else."""
    texts = {"first": "ab ab cd\ncd ab", "again": "cd ab\nab ab cd", "other": "cd cd ab\nab cd"}
    sizes = {prepared(tmp_path / name, Text(**how), train=text).vocabulary_size for name, text in texts.items()}
    meaning = {name: meaning_of(data_known(tmp_path / name / "flat")) for name in texts}
    assert len(sizes) == 1 and meaning["first"] == meaning["again"] != meaning["other"]


def test_vocabulary_comes_from_the_train_split_by_count_then_spelling(tmp_path):
    tokens = prepared(tmp_path)
    assert tokens.tokenizer.vocabulary == ["<unk>", "<eos>", "cat", "the", "The", "a", "dog", "sat"]
    assert tokens.split("validation").tolist() == [3, 0, 1]  # `bird` is unknown to it


def test_every_line_ends_in_one_end_mark_empty_ones_too(tmp_path):
    tokens = prepared(tmp_path)
    assert tokens.decode(tokens.split("train")) == "the cat sat \n \n the dog <unk> The \n a cat \n"


def test_rows_without_a_text_are_left_out_and_counted(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"text": "a b"}\n{"text": null}\n{"text": "c"}\n{"text": ""}\n')
    prepare(read_in_place(tmp_path, "rows.jsonl"), Text(), ExpectedText(train_samples=4), tmp_path / "flat")
    assert Tokens(tmp_path / "flat").split("test").tolist() == [2, 3, 1, 4, 1, 1]
    task = open_task(make(Workload, name="x", task="language_model", training={"window": 2}), tmp_path / "flat")
    assert task.excluded == {split: {"without_text": 1} for split in SPLITS}
    (tmp_path / "rows.jsonl").write_text('{"text": null}\n')
    with pytest.raises(DataError, match="no text: 0 empty documents, 1 null rows"):
        prepare(read_in_place(tmp_path, "rows.jsonl"), Text(), ExpectedText(), tmp_path / "b")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Text(lowercase=True), ["the", "cat", "a", "dog", "sat"]),
        (Text(min_count=2), ["cat", "the"]),
        (Text(max_vocabulary=3), ["cat"]),
        (Text(lowercase=True, min_count=2, max_vocabulary=4), ["the", "cat"]),
    ],
)
def test_settings_of_the_vocabulary(tmp_path, settings, words):
    assert prepared(tmp_path, settings).tokenizer.vocabulary == ["<unk>", "<eos>", *words]


def test_text_longer_than_a_batch_of_documents_is_whole(tmp_path):
    lines = [f"w{number % 7} w{number % 3}" for number in range(tokenize.DOCUMENTS_AT_ONCE * 2 + 1)]
    tokens = prepared(tmp_path, train="\n".join(lines))
    assert tokens.decode(tokens.split("train")) == " \n ".join(lines) + " \n"


@pytest.mark.parametrize(("entries", "dtype"), [(65_533, np.uint16), (65_534, np.uint32)])
def test_numbers_take_two_bytes_as_long_as_they_fit(tmp_path, entries, dtype):
    tokens = prepared(tmp_path, train=" ".join(map(str, range(entries))))
    assert tokens.split("train").dtype == dtype
    assert tokens.split("train")[:-1].max() == tokens.vocabulary_size - 1


def test_counts_of_wikitext_are_the_published_ones(tmp_path):
    """245,569 and 217,646 tokens: the counts under which perplexities on WikiText-2 are published."""
    if not WIKITEXT.is_dir():
        pytest.skip(f"{WIKITEXT} is not on this machine")
    files = {"train": "test.txt", "validation": "valid.txt[:50%]", "test": "valid.txt[50%:]"}
    raw = download(Source(kind="files", location=str(WIKITEXT), files=files), tmp_path / "raw")
    counts = prepare(raw, Text(), ExpectedText(), tmp_path / "flat")["splits"]
    assert counts["train"]["tokens"] == 245_569
    assert counts["validation"]["tokens"] + counts["test"]["tokens"] == 217_646


@pytest.mark.parametrize("text", [Text(), Text(lowercase=True), Text(tokenizer="subword", max_vocabulary=300)])
def test_a_mark_within_a_text_ends_no_document(tmp_path, text):
    tokens = prepared(tmp_path, text, train="one <eos> two\n<EOS>\n<unk><eos>\n <unk> end")
    assert tokens.manifest["splits"]["train"]["documents"] == np.count_nonzero(tokens.split("train") == 1) == 4
    assert np.count_nonzero(tokens.split("train") == 0) >= 1  # `<unk>` is WikiText's own word


@unhurried
@given(st.text(max_size=60) | st.lists(st.sampled_from(["<eos>", "<EOS>", "<unk", " ", "x"])).map("".join))
def test_subwords_give_any_text_back(subwords, content):
    assert subwords.decode(subwords.encode(content)) == content


@pytest.fixture(scope="module")
def subwords(tmp_path_factory):
    folder = tmp_path_factory.mktemp("subwords")
    return prepared(folder, Text(tokenizer="subword", max_vocabulary=300), train="the cat sat on the mat\n" * 20)


def test_subword_splits_end_documents_and_merge_what_is_frequent(subwords):
    line = subwords.split("train")[: len(subwords.split("train")) // 20]
    assert line[-1] == tokenize.END_ID and np.count_nonzero(line == tokenize.END_ID) == 1
    assert len(line) < len("the cat sat on the mat")
    assert subwords.vocabulary_size == len(json.loads((subwords.folder / "vocabulary.json").read_text())) <= 300


def test_subwords_need_a_size(tmp_path):
    with pytest.raises(ConfigError, match="max_vocabulary"):
        prepared(tmp_path, Text(tokenizer="subword"))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"train": ""}, "train.txt: empty, so the train split has no data"),
        ({"test": "\n\n \n"}, "`test` has no text: 3 empty documents"),
    ],
)
def test_a_split_without_text_is_an_error_and_leaves_nothing(tmp_path, texts, message):
    with pytest.raises(DataError, match=message):
        prepared(tmp_path, **texts)
    assert not (tmp_path / "flat").exists()
    assert not list(tmp_path.glob(".flat*"))


def test_a_missing_split_is_named(tmp_path):
    (tmp_path / "train.txt").write_text(TRAIN)
    with pytest.raises(DataError, match="no split `validation`"):
        prepare(read_in_place(tmp_path, {"train": "train.txt"}), Text(), ExpectedText(), tmp_path / "flat")


@pytest.mark.parametrize("key", ["vocabulary", "train_tokens", "train_samples"])
def test_other_data_than_expected_names_both_figures(tmp_path, key):
    found = {"vocabulary": 8, "train_tokens": 13, "train_samples": 4}
    prepare(raw_of(tmp_path), Text(), ExpectedText(**found), tmp_path / "flat")
    with pytest.raises(DataError, match=rf"expected.{key}` is 1,234, but there are {found[key]} "):
        prepare(raw_of(tmp_path), Text(), ExpectedText(**{key: 1234}), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_full_disk_is_said_and_leaves_what_was_there(tmp_path, monkeypatch):
    prepared(tmp_path)
    before = (tmp_path / "flat" / "manifest.json").read_bytes()
    monkeypatch.setattr(text, "write_documents", failing(FULL_DISK))
    with pytest.raises(RequirementError, match="disk or its quota is full"):
        prepared(tmp_path)
    assert (tmp_path / "flat" / "manifest.json").read_bytes() == before
    assert not list(tmp_path.glob(".flat*"))


def test_a_flipped_byte_is_found_by_verify_and_a_lost_one_on_opening(tmp_path):
    tokens = prepared(tmp_path)
    tokens.verify()
    path = tmp_path / "flat" / "train.bin"
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"train\.bin is damaged"):
        Tokens(tmp_path / "flat").verify()
    path.write_bytes(content[:-1])
    with pytest.raises(DataError, match=r"train\.bin is cut short or was changed: 25 bytes instead of 26"):
        Tokens(tmp_path / "flat")
    path.unlink()
    with pytest.raises(DataError, match=r"train\.bin is missing"):
        Tokens(tmp_path / "flat")


def test_opening_what_was_never_made_names_the_target(tmp_path):
    with pytest.raises(DataError, match="target `data`"):
        Tokens(tmp_path)
    with pytest.raises(DataError, match="target `data`"):
        Raw(tmp_path)


@unhurried
@given(st.integers(2, 9), st.integers(3, 60))
def test_windows_predict_every_target_exactly_once(window, length):
    tokens = np.arange(100, 100 + length, dtype=np.uint16)
    if length <= window:
        with pytest.raises(DataError, match="does not fit a split of"):
            Windows(tokens, window)
        return
    windows = Windows(tokens, window)
    inputs, labels = windows.batch(range(len(windows)))
    real = labels != IGNORED
    assert labels[real].tolist() == tokens[1:].tolist()
    assert inputs[real].tolist() == tokens[:-1].tolist()
    assert inputs.shape == labels.shape == (len(windows), window)
    assert not inputs[~real].any() and inputs.dtype == labels.dtype == np.int64


@unhurried
@given(st.integers(2, 9), st.integers(1, 30), st.integers(10, 60))
def test_a_window_is_the_text_at_its_stride(window, stride, length):
    tokens = np.arange(100, 100 + length, dtype=np.uint32)
    windows = Windows(tokens, window, stride)
    labels = windows.batch(range(len(windows)))[1]
    for number in range(len(windows)):
        targets = tokens[1:][number * stride : number * stride + window].tolist()
        assert labels[number].tolist() == targets + [IGNORED] * (window - len(targets))
        assert labels[number, 0] != IGNORED
    if stride <= window:
        assert labels.max() == tokens[-1]
    if stride == 1:
        assert len(windows) == length - window


PREPARE, TRAINS, CHECK = ("data", "prepare", "--workload", "w"), ("train", "--run", "single"), ("plan", "--check")
SHORT = "`training.window` = 4 does not fit into the validation split of .*flat: it has 3 tokens"
OF_EPOCHS = r"of 12 \(training.epochs = 2\)"  # the 12 tokens of train are 6 windows


@pytest.mark.parametrize(
    ("verb", "training", "profile", "said"),
    [
        (PREPARE, "{window: 4, global_batch: 1, steps: 2}", "-", f"error: workload `w`: {SHORT}"),
        (TRAINS, "{window: 4, global_batch: 1, steps: 2}", "-", f"error: workload `w`: {SHORT}"),
        (TRAINS, "{window: 2, global_batch: 1, epochs: 2}", "-", f"warmup_steps = 12 leaves no step {OF_EPOCHS}"),
        (TRAINS, "{window: 2, global_batch: 1, epochs: 4}", "24-25", "`24-25` is outside of 24"),
        (CHECK, "{window: 2, global_batch: 1, epochs: 2}", "-", f"refused.*\n? .*run `single`: .*{OF_EPOCHS}"),
        (
            CHECK[:1],
            "{window: 2, global_batch: 1, epochs: 4}",
            "24-25",
            "cannot start: run `single`: profile = `24-25`",
        ),
    ],
)
def test_what_the_data_does_not_allow_is_refused_before_anything_trains(
    verb, training, profile, said, tmp_path, capsys
):
    """Once when the text is prepared, in plans, and when training starts: settings may have been changed meanwhile."""
    prepared(tmp_path / "results/data/w", train="a b c d e f g h a b c", test="a b c")
    model = "model: {dim: 8, heads: 2, layers: 1, hidden: 8}\noptim: {warmup_steps: 12}"
    if "steps" in training:
        model = model.replace("12", "1")
    call(*verb, *write_one(tmp_path, "w", f"{model}\ntraining: {training}\n", profile=profile))
    assert re.search(said, "".join(capsys.readouterr()))


@pytest.mark.parametrize("task", ["summarisation", "classification"])
def test_only_language_models_have_windows(task, tmp_path):
    write_json(tmp_path / "manifest.json", {"splits": {"train": {"samples": 1}}})
    require_windows(make(Workload, name="x", task=task), tmp_path)


def test_a_training_checks_its_steps_when_it_has_opened_its_data(tmp_path, capsys, monkeypatch):
    """Before, their number may be a bound: pairs with too long a summary are still to be left out."""
    monkeypatch.setattr("parascale.commands.train.require_fit", lambda *_: None)
    case = (TRAINS, "{window: 2, global_batch: 1, epochs: 2}", "-", f"warmup_steps = 12 leaves no step {OF_EPOCHS}")
    test_what_the_data_does_not_allow_is_refused_before_anything_trains(*case, tmp_path, capsys)


def test_windows_outside_are_refused_and_none_is_fine():
    windows = Windows(np.arange(20), 4)
    assert windows.batch([])[0].shape == (0, 4)
    for wrong in (-1, len(windows)):
        with pytest.raises(IndexError):
            windows.batch([wrong])
