"""Fine-tuning begins from what others trained: the same numbers, the same weights, the same logits; bad folders are named."""

import json

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch.utils._python_dispatch import TorchDispatchMode

from parascale.data import tokenize
from parascale.data.pairs import Pairs
from parascale.data.text import Tokens
from parascale.evaluation.summaries import beam_search
from parascale.families.build import build_model
from parascale.pretrained import Pretrained
from parascale.settings import Model, Text, make
from tests.unit import folder_models
from tests.unit.pretrained_folders import MAKERS, WORDS, edit_config, make_bart, make_t5
from tests.unit.test_pairs import prepare

DOCUMENT, SUMMARY = "w1 w2 w3 w44 w59", "w3 w1"
PLACES, SUMMARY_PLACES = 40, 24
VARIANTS = {
    "t5": (make_t5, {}),
    "t5 1.1": (make_t5, {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "bart": (make_bart, {}),
    "bart, scaled": (make_bart, {"scale_embedding": True}),
}


@pytest.fixture(scope="module", params=VARIANTS)
def folder(request, tmp_path_factory):
    make, settings = VARIANTS[request.param]
    return make(tmp_path_factory.mktemp("models") / "model", **settings)


@pytest.fixture
def t5(tmp_path):
    return make_t5(tmp_path / "t5")


def tokenizer_of(folder):
    return tokenize.learn([], Text(tokenizer="pretrained", pretrained=str(folder)))


def build(folder, vocabulary=None, window=PLACES, **settings):
    vocabulary = vocabulary or len(Pretrained(str(folder)).order)
    model = make(Model, kind="pretrained", pretrained=str(folder), **settings)
    return build_model(model, vocabulary, window, SUMMARY_PLACES)


def filled(folder, seed=1, **settings):
    """The model as a training begins with it: built without memory, then filled a tensor at a time."""
    return folder_models.filled(lambda: build(folder, **settings), lambda: build(folder), seed).eval()


def transformers_own(folder, **more):
    import transformers

    kind = json.loads((folder / "config.json").read_text())["architectures"][0]
    return getattr(transformers, kind).from_pretrained(folder, **more).eval()


def half_dropped(values, p=0.5, training=True, inplace=False):
    """In the place of dropout: every second feature is less."""
    return values * (1 - p * training * (torch.arange(values.shape[-1]) % 2))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_logits_and_gradients_are_those_of_transformers_on_the_same_text(dropout, folder, tmp_path, monkeypatch):
    """From text to logits on both sides, padding included, and back to the embedding, of which BART leaves a row out.

    The rows that no text reaches are theirs alone, and the order of the columns changes how a product over the vocabulary is
    added up: that is the difference allowed. dropout: we drop where they do.
    """
    monkeypatch.setattr(torch.nn.functional, "dropout", half_dropped)
    own = json.loads((folder / "config.json").read_text())
    rates = {name: dropout for name in ("dropout_rate", "dropout", "attention_dropout") if name in own}
    if dropout:
        rates["attn_implementation"] = "eager"
    texts = [(DOCUMENT, SUMMARY), ("w5", "w6 w7 w8 unheard of")]
    rows = [{"document": document, "summary": summary} for document, summary in texts]
    tokens = Tokens(prepare(tmp_path, rows, text=Text(tokenizer="pretrained", pretrained=str(folder))))
    batch = Pairs(tokens, "test", PLACES, SUMMARY_PLACES).batch([0, 1])
    documents, mask, summaries, labels = map(torch.from_numpy, batch)
    theirs, ours = (model.train() for model in (transformers_own(folder, **rates), filled(folder, dropout=dropout)))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def numbers(part, places, padding):
        encoded = [tokenizer.encode(text[part]).ids for text in texts]
        return torch.tensor([ids + [padding] * (places - len(ids)) for ids in encoded])

    their_documents = numbers(0, PLACES, theirs.config.pad_token_id)
    their_labels = numbers(1, SUMMARY_PLACES, -100)
    expected = theirs(input_ids=their_documents, attention_mask=mask.long(), labels=their_labels).logits
    logits = ours(documents, mask, summaries)
    order = torch.tensor(Pretrained(str(folder)).order)
    assert torch.equal(labels >= 0, their_labels >= 0)
    assert torch.equal(order[labels[labels >= 0]], their_labels[their_labels >= 0])
    there = labels >= 0  # padding after a summary is another entry there, and counts for nothing
    assert logits.shape[-1] == len(order) < theirs.config.vocab_size
    torch.testing.assert_close(logits[there], expected[..., order][there], atol=1e-6, rtol=0)
    assert expected[there].std() > 0.1
    for found in (logits, expected[..., order]):
        torch.nn.functional.cross_entropy(found[there], labels[there]).backward()
    embeddings = [model.get_input_embeddings().weight.grad for model in (ours.network, theirs)]
    torch.testing.assert_close(embeddings[0], embeddings[1][order], atol=1e-6, rtol=1e-5)


class Rounded(TorchDispatchMode):
    """Counts the conversions from fp64 to fp32."""

    count = 0

    def __torch_dispatch__(self, operation, types, arguments=(), keywords=None):
        result = operation(*arguments, **(keywords or {}))
        converted = operation is torch.ops.aten._to_copy.default and arguments[0].dtype == torch.float64
        self.count += converted and result.dtype == torch.float32
        return result


def test_a_training_in_fp64_rounds_nothing_to_fp32(folder):
    """Each such rounding may fall the other way in another layout, and is a hundred million times the last digit of fp64."""
    model = filled(folder).double()
    documents, summaries = torch.tensor([[3, 4, 5, 1]]), torch.tensor([[6, 7, 1]])
    with Rounded() as rounded:
        model(documents, torch.ones_like(documents, dtype=torch.bool), summaries)
    assert rounded.count == 0


def test_unknown_and_end_have_their_places_and_the_text_comes_back(folder, tmp_path):
    tokenizer = tokenizer_of(folder)
    assert tokenizer.vocabulary[:2] == ["<unk>", "</s>"]
    tokenizer.save(tmp_path)
    again = tokenize.load(tmp_path, {"tokenizer": "pretrained"})
    assert again.vocabulary == tokenizer.vocabulary
    numbers, lengths = again.encode_documents([DOCUMENT, "", "a </s> within a text"])
    assert (np.flatnonzero(numbers == tokenize.END_ID) + 1).tolist() == np.cumsum(lengths).tolist()
    assert len(lengths) == 3
    assert again.encode(DOCUMENT).tolist() == numbers[: len(again.encode(DOCUMENT))].tolist()
    assert again.decode(numbers).split("\n")[0] == DOCUMENT


def test_a_special_entry_without_a_row_is_unknown(tmp_path):
    """BART's `<mask>` after it was fine-tuned for summaries."""
    folder = make_bart(tmp_path / "bart")
    rows = len(Pretrained(str(folder)).order)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["<mask>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    assert tokenizer.token_to_id("<mask>") == rows
    edit_config(folder, vocab_size=rows)
    found = tokenizer_of(folder)
    assert len(found.vocabulary) == rows
    assert len(found.encode("<mask>")) > 2


@pytest.mark.parametrize("name", MAKERS)
def test_a_mark_within_a_text_is_spelled_as_text_but_for_the_unknown(name, tmp_path):
    folder = MAKERS[name](tmp_path / "model")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["<mask>", "<extra_id_0>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    ours = tokenizer_of(folder)
    start = ours.encode("").tolist()  # BART's `<s>`
    special = {ours.vocabulary.index(entry) for entry in ours.vocabulary if entry[0] == "<" and len(entry) > 1} - {0}
    assert len(special) >= 4
    for mark in ("</s>", "<s>", "<pad>", "<mask>", "<extra_id_0>"):
        assert not special.intersection(ours.encode(f"w1 {mark} w2{mark}")[len(start) :].tolist())
    for text in ("w1 <unk>", "w1 w2"):
        theirs = tokenizer.encode(text, add_special_tokens=False).tokens
        assert ours.encode(text).tolist() == [*start, *map(ours.vocabulary.index, theirs)]


def test_bart_keeps_the_mark_before_each_text(tmp_path):
    tokenizer = tokenizer_of(make_bart(tmp_path / "bart"))
    assert [tokenizer.vocabulary[number] for number in tokenizer.encode_documents(["", ""])[0]] == ["<s>", "</s>"] * 2


@pytest.mark.parametrize("name", MAKERS)
def test_weights_do_not_depend_on_the_seed_and_the_search_writes_what_can_be_read(name, tmp_path):
    folder = MAKERS[name](tmp_path / "model")
    model, other = filled(folder), filled(folder, seed=2)
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters(), strict=True))
    tokenizer = tokenizer_of(folder)
    document = torch.from_numpy(tokenizer.encode_documents([DOCUMENT])[0])[None]
    for width in (1, 3):
        (found,) = beam_search(model, document, torch.ones_like(document, dtype=torch.bool), 6, width)
        assert isinstance(tokenizer.decode(found), str)


@pytest.mark.parametrize("name", MAKERS)
def test_only_the_dropout_of_the_settings_is_random(name, tmp_path):
    folder = MAKERS[name](tmp_path / "model", **({"encoder_layerdrop": 0.9} if name == "bart" else {}))
    numbers = torch.full((1, 5), 7)

    def logits(dropout):
        model = build(folder, dropout=dropout).train()
        return [model(numbers, numbers > 0, numbers) for _ in range(2)]

    assert torch.equal(*logits(0.0)) and not torch.equal(*logits(0.5))


def test_an_evaluation_drops_nothing(t5):
    """Its attention is fused, as without dropout."""
    numbers = torch.full((1, 5), 7)
    found, expected = (filled(t5, dropout=rate)(numbers, numbers > 0, numbers) for rate in (0.5, 0.0))
    torch.testing.assert_close(found, expected)


def test_weights_in_parts_and_those_of_the_bare_model_are_found(tmp_path):
    folder = make_bart(tmp_path / "bart")
    whole = filled(folder).state_dict()
    theirs = transformers_own(folder)
    (folder / "model.safetensors").unlink()
    theirs.save_pretrained(folder, max_shard_size="20KB")
    assert len(Pretrained(str(folder)).weight_files) > 2
    in_parts = filled(folder).state_dict()
    for path in folder.glob("model*"):
        path.unlink()
    theirs.model.save_pretrained(folder)
    bare = filled(folder).state_dict()
    assert all(torch.equal(whole[name], in_parts[name]) and torch.equal(whole[name], bare[name]) for name in whole)


def test_a_prefix_stands_before_each_document_and_not_in_the_lead(t5, tmp_path):
    rows = [{"document": " ".join(WORDS[n : n + 4]), "summary": WORDS[n]} for n in range(3)]
    text = Text(tokenizer="pretrained", pretrained=str(t5), prefix="summarize: ")
    tokens = Tokens(prepare(tmp_path, rows, text=text))
    pairs = Pairs(tokens, "test", PLACES, SUMMARY_PLACES)
    documents_BS, mask_BS = pairs.documents([1])
    assert tokens.decode(documents_BS[0][mask_BS[0]]).strip() == "summarize: w1 w2 w3 w4"
    assert pairs.raw()[1] == ("w1 w2 w3 w4", "w1")
