"""Any `tokenizer.json` keeps its numbers: a language model reads what the tokenizer's own library gives a text, and one end each."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from parascale.checkpoint import export
from parascale.data.text import Tokens, prepare
from parascale.errors import DataError
from parascale.files import write_json
from parascale.pretrained import Pretrained
from parascale.settings import Layout, Run, Text, Workload, make
from parascale.settings.data import ExpectedText, TextData
from tests.unit.test_checkpoint_export import make_run
from tests.unit.test_text import raw_of

TEXTS = ["the cat sat on the mat", "", "a dog é 🙂 <|endoftext|> </s> <s> <eos> [CLS]", "the  end\t<|im_end|><tool>"]


def byte_level(special, **more):
    """GPT-2's kind: BPE on bytes, which has a number for any text and none for what is unknown."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet, show_progress=False, **more)
    tokenizer.train_from_iterator(TEXTS[:2] * 9, trainer)
    tokenizer.add_special_tokens(special)  # behind all others, as in GPT-2
    return tokenizer


def gpt2():
    return byte_level(["<|endoftext|>"]), {}, "<|endoftext|>"


def llama3():
    tokenizer = byte_level(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    number = tokenizer.token_to_id("<|begin_of_text|>")
    special = [("<|begin_of_text|>", number)]
    tokenizer.post_processor = processors.TemplateProcessing("<|begin_of_text|> $A", special_tokens=special)
    return tokenizer, {"config.json": {"eos_token_id": number + 1}}, "<|end_of_text|>"


def qwen():
    tokenizer = byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])  # not special: it is seen in a text
    tokenizer.enable_truncation(3)
    return tokenizer, {"tokenizer_config.json": {"eos_token": {"content": "<|im_end|>"}}}, "<|im_end|>"


def llama2():
    """SentencePiece's BPE as it is converted: bytes for what has no piece, and an entry for what is unknown all the same."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "t", "h", "e", "a", "th", "the"]
    merges, how = [("t", "h"), ("th", "e")], {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    tokenizer = Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, merges, **how))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    return tokenizer, {}, "</s>"


def unigram():
    pieces = [("<pad>", 0.0), ("<eos>", 0.0), ("<unk>", 0.0), ("▁the", -2.0)]
    pieces += [(letter, -5.0) for letter in "▁thecasonmdg"]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2, byte_fallback=False))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.add_special_tokens(["<pad>", "<eos>", "<unk>"])
    return tokenizer, {"tokenizer_config.json": {"eos_token": "<eos>"}}, "<eos>"


def with_a_gap():
    """Numbers that no entry has, between the vocabulary and what was added to it."""
    tokenizer, beside, end = gpt2()
    state = json.loads(tokenizer.to_str())
    number = state["added_tokens"][0]["id"]
    state["added_tokens"].append(state["added_tokens"][0] | {"content": "<far>", "id": number + 7, "special": True})
    state["model"]["vocab"]["<far>"] = number + 7
    return Tokenizer.from_str(json.dumps(state)), beside, end


KINDS = {make.__name__: make for make in (gpt2, llama3, qwen, llama2, unigram, with_a_gap)}


def saved(folder, tokenizer, beside):
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, values in beside.items():
        write_json(folder / name, values)
    return folder


@pytest.fixture(params=KINDS)
def theirs(request, tmp_path):
    """(tokenizer, its end, tokens that were made with it)."""
    tokenizer, beside, end = KINDS[request.param]()
    text = Text(tokenizer="pretrained", pretrained=str(saved(tmp_path / "model", tokenizer, beside)))
    prepare(raw_of(tmp_path, train="\n".join(TEXTS)), text, ExpectedText(), tmp_path / "flat")
    tokenizer.no_truncation()
    return tokenizer, end, Tokens(tmp_path / "flat")


def test_numbers_are_those_of_the_tokenizers_own_library_and_each_text_ends_once(theirs):
    tokenizer, end, tokens = theirs
    number = tokenizer.token_to_id(end)
    tokenizer.encode_special_tokens = True  # a mark that stands in a text is text
    expected = [[each for each in tokenizer.encode(text).ids if each != number] + [number] for text in TEXTS]
    if end != "<eos>":  # a unigram model of the library finds its marks in a text, as pieces
        assert tokens.split("train").tolist() == [each for ids in expected for each in ids]
    assert tokens.encode(TEXTS[0]).tolist() == expected[0][:-1]
    assert tokens.vocabulary_size == 1 + max(tokenizer.get_vocab().values()) > max(tokens.split("train"))
    assert np.count_nonzero(tokens.split("train") == number) == tokens.manifest["splits"]["train"]["documents"] == 4
    assert tokens.decode(tokens.split("train")).split("\n")[0] == TEXTS[0]
    assert tokens.tokenizer.vocabulary[number] == end


def test_the_data_needs_the_folder_no_more_and_transformers_gives_its_numbers(theirs, tmp_path):
    from transformers import AutoTokenizer

    _, end, tokens = theirs
    source = SimpleNamespace(run_record={"settings": dataclasses.asdict(make_run())})
    for file, values in export.tokenizer(source, tokens).items():
        write_json(tmp_path / "out" / file, values)
    again = AutoTokenizer.from_pretrained(tmp_path / "out")
    texts = TEXTS[:2] if end == "<eos>" else TEXTS
    ends = again.eos_token_id
    found = [[n for n in ids if n != ends] for ids in again(texts).input_ids]
    assert found == [tokens.encode(text).tolist() for text in texts]
    assert again.eos_token == end


@pytest.mark.parametrize(
    ("special", "beside", "message"),
    [
        (["<stop>"], {}, r"cannot tell which entry ends a text \(none of <\|endoftext\|>.*\): .*\"eos_token\""),
        (["<|endoftext|>", "</s>"], {}, r"cannot tell which entry ends a text \(<\|endoftext\|>, </s>\)"),
        (["<a>"], {"tokenizer_config.json": {"eos_token": "<b>"}}, r"`<b>`, the end of text .* is not an entry"),
        (["<a>"], {"config.json": {"eos_token_id": 9999}}, r"`9999`, the end of text .* is not an entry"),
        (["<a>", "<b>"], {"config.json": {"eos_token_id": [256, 257]}}, r"cannot tell which"),
    ],
)
def test_an_end_that_cannot_be_told_is_an_error_that_says_where_to_name_it(special, beside, message, tmp_path):
    folder = saved(tmp_path / "model", byte_level(special), beside)
    text = Text(tokenizer="pretrained", pretrained=str(folder))
    with pytest.raises(DataError, match=message):
        prepare(raw_of(tmp_path), text, ExpectedText(), tmp_path / "flat")


def test_a_tokenizer_needs_neither_weights_nor_a_config(tmp_path):
    folder = saved(tmp_path / "model", gpt2()[0], {})
    Pretrained(str(folder)).check(weights=False)
    with pytest.raises(DataError, match=r"config\.json: no such file"):
        Pretrained(str(folder)).check()
    (folder / "tokenizer.json").unlink()
    with pytest.raises(DataError, match=r"tokenizer\.json: no such file"):
        Pretrained(str(folder)).check(weights=False)


def test_a_plan_knows_the_vocabulary_before_the_data_is_there(tmp_path):
    data = make(TextData, text=Text(tokenizer="pretrained", pretrained=str(tmp_path / "model")))
    assert data.expected_outputs is None
    for kind in ("with_a_gap", "unigram"):
        tokenizer, beside, _ = KINDS[kind]()
        saved(tmp_path / "model", tokenizer, beside)
        assert data.expected_outputs == 1 + max(tokenizer.get_vocab().values())
    (tmp_path / "model/tokenizer.json").write_text("{")
    assert data.expected_outputs is None


def test_a_plan_can_do_without_variables_of_another_machine(monkeypatch):
    monkeypatch.delenv("SOME_MODELS", raising=False)
    place = "$SOME_MODELS/model"
    settings = {"data": {"text": {"tokenizer": "pretrained", "pretrained": place}}}
    settings |= {"model": {"kind": "transformers", "folder": place}, "training": {"window": 8, "steps": 2}}
    workload = make(Workload, name="x", **settings)
    assert workload.data.expected_outputs is None
    Run("x", workload, Layout()).check()
