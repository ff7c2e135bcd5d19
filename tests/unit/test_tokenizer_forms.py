"""Folders of tokenizers in all their forms: a text has the numbers that `transformers` gives it there, or an error says why not."""

import dataclasses
import json
from types import SimpleNamespace

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from parascale.checkpoint import export
from parascale.data.text import Tokens, prepare
from parascale.data.tokenize import learn, load
from parascale.errors import ConfigError, DataError
from parascale.files import read_json
from parascale.pretrained import Pretrained
from parascale.settings import Text
from parascale.settings.data import ExpectedText
from tests.unit.test_checkpoint_export import make_run
from tests.unit.test_text import raw_of
from tests.unit.test_tokenizers import byte_level, gpt2, llama2, llama3, qwen, saved, unigram, with_a_gap

PLAIN = ["the cat sat on the mat", " The  CAT é on", "a\tdog 🙂 12345", ""]
MARKS = ["<|im_start|>user\nthe cat<|im_end|>\n", "a <mask> on</s>", "<new> the <tool>"]
MARKS += ["[CLS] the [SEP]<|endoftext|>", "<pad> on"]
ENTRY = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
GPT2 = {"tokenizer_class": "GPT2Tokenizer"}


def said(**values):
    return {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"} | values}


def edited(change, beside=None):
    """GPT-2's kind, after `change` of its `tokenizer.json`."""
    state = json.loads(gpt2()[0].to_str())
    change(state)
    return Tokenizer.from_str(json.dumps(state)), beside or {}


def dropout():
    return edited(lambda state: state["model"].update(dropout=0.5))


def added(name, number=None, **flags):
    """An entry that only `tokenizer_config.json` has."""
    tokenizer = gpt2()[0]
    number = tokenizer.get_vocab_size() if number is None else number
    return tokenizer, said(added_tokens_decoder={str(number): {"content": name} | ENTRY | flags})


def added_long_ago():
    tokenizer = gpt2()[0]
    size, names = tokenizer.get_vocab_size(), {"additional_special_tokens": ["<|im_start|>"]}
    numbers = {"<|im_start|>": size, "<new>": size + 1}
    return tokenizer, said() | {"added_tokens.json": numbers, "special_tokens_map.json": names}


def other_flags():
    tokenizer = gpt2()[0]
    tokenizer.add_tokens(["<tool>"])
    number = str(tokenizer.token_to_id("<tool>"))
    return tokenizer, said(added_tokens_decoder={number: {"content": "<tool>"} | ENTRY | {"lstrip": True}})


def end_named_long_ago():
    tokenizer = byte_level(["<|im_start|>", "<|endoftext|>", "<|im_end|>"])
    return tokenizer, said() | {"special_tokens_map.json": {"eos_token": {"content": "<|im_end|>"} | ENTRY}}


def only_in_the_vocabulary():
    words = ["[UNK]", "the", "cat", "on", "</s>", "<mask>", "a"]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer, said(eos_token="</s>", mask_token="<mask>", unk_token="[UNK]")


def word_piece(lowercase=True, kind="BertTokenizer", **values):
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*special, *"thecasonmdgéTCA", *(f"##{letter}" for letter in "thecasonmdgéTCAE"), "the", "cat", "12"]
    tokenizer = Tokenizer(models.WordPiece({word: n for n, word in enumerate(dict.fromkeys(words))}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer, said(tokenizer_class=kind, eos_token="[SEP]", **values)


def mask_with_its_space():
    tokenizer = gpt2()[0]
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    return tokenizer, said(mask_token={"__type": "AddedToken", "content": "<mask>"} | ENTRY | {"lstrip": True})


def normalised():
    tokenizer = gpt2()[0]
    parts = [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    tokenizer.normalizer = normalizers.Sequence(parts)
    return tokenizer, said()


def split_first():
    tokenizer = gpt2()[0]
    numbers = pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([numbers, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return tokenizer, said(clean_up_tokenization_spaces=True, model_max_length=3)


def told(make, **values):
    return make()[0], said(**values)


FORMS = {
    **{make.__name__: lambda make=make: make()[:2] for make in (gpt2, llama3, llama2, unigram, with_a_gap)},
    "qwen": lambda: told(qwen, eos_token="<|im_end|>"),
    **{
        make.__name__: make
        for make in (dropout, added_long_ago, other_flags, end_named_long_ago, only_in_the_vocabulary)
    },
    **{make.__name__: make for make in (mask_with_its_space, normalised, split_first)},
    "added beside": lambda: added("<new>"),
    "added beside, no mark": lambda: added("<new>", special=False, normalized=True),
    "begin and end that are not added": lambda: told(gpt2, add_bos_token=True, add_eos_token=True),
    "begin that its file adds": lambda: told(llama3, add_bos_token=False, eos_token="<|end_of_text|>"),
    "a space before, by its class": lambda: told(gpt2, **GPT2, add_prefix_space=True),
    "no space before, by its class": lambda: edited(
        lambda state: state["pre_tokenizer"].update(add_prefix_space=True), said(**GPT2)
    ),
    "a space before, by its file": lambda: edited(
        lambda state: state["pre_tokenizer"].update(add_prefix_space=True), said()
    ),
    "BERT": word_piece,
    "BERT, cased by its class": lambda: word_piece(do_lower_case=False),
    "BERT, not cased by its class": lambda: word_piece(lowercase=False),
    "BERT, accents kept": lambda: word_piece(strip_accents=False),
    "cased by its file": lambda: word_piece(lowercase=False, kind="PreTrainedTokenizerFast", do_lower_case=True),
}
REFUSED = {
    "two numbers of one": (lambda: added("<|endoftext|>", 3), r"`<\|endoftext\|>` is \d+ in tokenizer\.json, but 3"),
    "one number of two": (lambda: added("<new>", 3), r"`<new>` is listed as 3, but is"),
    "a number too far": (lambda: added("<new>", 999), r"`<new>` is listed as 999, but is"),
    "damaged": (lambda: told(gpt2, added_tokens_decoder={"x": {}}), "or a damaged file"),
    "an end that is a list": (lambda: told(gpt2, eos_token=["a", "b"]), "must be text"),
    "an end that is no entry": (lambda: told(gpt2, eos_token="<stop>"), "`<stop>`, the end of text .* is not an entry"),
}


@pytest.mark.parametrize("form", FORMS)
def test_numbers_are_those_of_the_folder_in_transformers(form, tmp_path):
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    folder = saved(tmp_path / "model", *FORMS[form]())
    beside = folder / "tokenizer_config.json"
    auto = beside.is_file() and "tokenizer_class" in read_json(beside)
    theirs = (AutoTokenizer if auto else PreTrainedTokenizerFast).from_pretrained(folder)
    if form == "dropout":
        theirs = PreTrainedTokenizerFast(tokenizer_object=gpt2()[0])
    theirs._tokenizer.no_truncation()
    for marks in ("text", "tokens"):
        text = Text(tokenizer="pretrained", pretrained=str(folder), marks=marks)
        ours = learn((), text, renumbered=False)
        assert len(ours.vocabulary) == Pretrained(str(folder)).size
        (tmp_path / marks).mkdir()
        ours.save(tmp_path / marks)
        again = load(tmp_path / marks, {"tokenizer": "pretrained", "marks": marks})
        for document in [*PLAIN, *(MARKS if marks == "tokens" else ())]:
            numbers = theirs(document).input_ids
            if marks == "text":
                numbers = [number for number in numbers if number != ours.end]
            while numbers[-2:] == [ours.end] * 2:  # of a text that ends in a mark, as chats do
                numbers.pop()
            found = ours.encode_documents([document])[0].tolist()
            assert found == (numbers if numbers[-1:] == [ours.end] else [*numbers, ours.end]), document
            assert again.encode_documents([document])[0].tolist() == found


@pytest.mark.parametrize("form", REFUSED)
def test_what_a_folder_contradicts_itself_in_is_named(form, tmp_path):
    make, message = REFUSED[form]
    text = Text(tokenizer="pretrained", pretrained=str(saved(tmp_path, *make())))
    with pytest.raises(DataError, match=message):
        learn((), text, renumbered=False)


def test_chats_are_short_with_their_marks_and_named_without(tmp_path, capsys):
    folder = saved(tmp_path / "model", qwen()[0], said(eos_token="<|im_end|>"))
    lines = ["<|im_start|>the cat<|im_end|>", "the mat", "<|im_start|>a<|im_end|>"]
    raw, size = raw_of(tmp_path, train="\n".join(lines), test="\n".join(PLAIN)), {}
    for marks in ("text", "tokens"):
        text = Text(tokenizer="pretrained", pretrained=str(folder), marks=marks)
        prepare(raw, text, ExpectedText(), tmp_path / marks)
        tokens, out = Tokens(tmp_path / marks), capsys.readouterr().out
        assert ("`train` has 4 special entries in 3 texts" in out, "`test`" in out) == (marks == "text", False)
        assert ("marks" in tokens.manifest["settings"]) == (marks == "tokens")  # of data from before nothing changes
        numbers = tokens.split("train").tolist()
        assert tokens.decode(numbers[: numbers.index(tokens.tokenizer.end)]).startswith("<|im_start|>the cat")
        size[marks] = len(numbers)
        record = SimpleNamespace(run_record={"settings": dataclasses.asdict(make_run())})
        described = export.tokenizer(record, tokens)["tokenizer_config.json"]
        assert described["split_special_tokens"] == (marks == "text")
    assert size["text"] > 2 * size["tokens"]
    with pytest.raises(ConfigError, match="marks: tokens` needs a `pretrained` tokenizer"):
        Text(marks="tokens").check("x")
