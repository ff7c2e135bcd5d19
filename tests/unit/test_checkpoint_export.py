"""Export: `transformers` loads the folder as it stands and computes what our model computes; what has no equal is refused."""

import dataclasses
from pydoc_data.topics import topics
from types import SimpleNamespace

import pytest
import torch

from parascale.checkpoint import export
from parascale.checkpoint.convert import convert
from parascale.checkpoint.manifest import MANIFEST, read_manifest
from parascale.checkpoint.verify import require_identical, verify
from parascale.data import tokenize
from parascale.errors import CheckpointError
from parascale.files import read_json, sha256, write_json
from parascale.settings import SPLITS, Text
from parascale.settings.config import Checkpoints
from parascale.settings.layout import DEGREES

from .checkpoints import VOCABULARY, WINDOW, make_run, save_run, seal
from .pretrained_folders import MAKERS

GPT2 = {"norm": "layer", "position": "learned", "activation": "gelu_tanh", "tied": True}
LLAMA = {"norm": "rms", "position": "rotary", "activation": "swiglu", "bias": False, "kv_heads": 2}
MODELS = {
    "GPT-2": GPT2,
    "GPT-2 untied": GPT2 | {"tied": False},
    "GPT-2 gelu": GPT2 | {"activation": "gelu"},
    "GPT-2 relu": GPT2 | {"activation": "relu", "norm_eps": 1e-6},
    "GPT-2 without bias": GPT2 | {"bias": False},
    "Llama": LLAMA,
    "Llama tied": LLAMA | {"tied": True},
    "Llama with bias": LLAMA | {"bias": True, "kv_heads": None},
}


@pytest.mark.parametrize("name", MODELS)
def test_transformers_computes_the_same_logits(name, tmp_path):
    """In fp32, with the attention kernel that we use, no logit differs."""
    from transformers import AutoModelForCausalLM

    _, ours, checkpoint = save_run(tmp_path, MODELS[name])
    convert(checkpoint, tmp_path / "out", Checkpoints(), ["transformers"])
    theirs, loading = AutoModelForCausalLM.from_pretrained(
        tmp_path / "out/transformers", output_loading_info=True, attn_implementation="sdpa"
    )
    assert not {key: found for key, found in loading.items() if found}
    assert theirs.dtype == torch.float32
    tokens = torch.randint(VOCABULARY, (3, WINDOW), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        difference = (theirs.eval()(tokens).logits - ours.eval()(tokens)).abs().max().item()
    assert difference == 0.0


MARKS = ["", "a <eos> b", "<eos>", "x<eos>y <unk> the<unk>cat <UNK> <EOS>", "<mask> <pad>", "ΟΔΟΣ İ é 🙂"]
MARKS += ["t\tf\x1c \x85 n\xa0b\u200bc"]
TOKENIZERS = {
    "words": {},
    "words in lower case": {"lowercase": True},
    "subwords": {"tokenizer": "subword", "max_vocabulary": 400, "lowercase": True},
    "of bart": {"tokenizer": "pretrained"},
    "of t5": {"tokenizer": "pretrained"},
    "of t5, kept": {"tokenizer": "pretrained"},
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_transformers_gives_texts_our_numbers(name, tmp_path):
    """Over the language reference, which every Python has, and texts that hold marks."""
    from transformers import AutoTokenizer

    texts = [line for topic in topics.values() for line in topic.splitlines()] + MARKS
    settings = dict(TOKENIZERS[name])
    if name.startswith("of"):
        settings["pretrained"] = str(MAKERS[name.split()[1].rstrip(",")](tmp_path / "theirs"))
    if name.startswith("of t5"):  # a unigram model finds its marks in a text, as pieces
        texts = [text for text in texts if "<pad>" not in text]
    tokenize.learn(texts, Text(**settings), renumbered=not name.endswith("kept")).save(tmp_path)
    ours = tokenize.load(tmp_path, dataclasses.asdict(Text(**settings)))
    source = SimpleNamespace(run_record={"settings": dataclasses.asdict(make_run())})
    for file, values in export.tokenizer(source, SimpleNamespace(tokenizer=ours, folder=tmp_path)).items():
        write_json(tmp_path / "out" / file, values)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert theirs(texts).input_ids == [ours.encode(text).tolist() for text in texts]
    assert theirs.eos_token_id == ours.end and theirs.model_max_length == WINDOW


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"pre_norm": False}, r"model\.pre_norm = false"),
        ({"position": "sinusoidal"}, r"nearest is gpt2, but model\.position = sinusoidal"),
        ({"activation": "swiglu"}, r"model\.activation = swiglu \(needed: gelu or gelu_tanh or relu\)"),
        ({"kv_heads": 2}, r"model\.kv_heads = 2"),
        (
            {"position": "rotary"},
            r"nearest is llama, but model\.norm = layer \(needed: rms\); model\.activation = gelu",
        ),
    ],
)
def test_settings_without_an_equal_are_named(model, message, tmp_path):
    _, _, checkpoint = save_run(tmp_path, model)
    with pytest.raises(CheckpointError, match=message):
        convert(checkpoint, tmp_path / "out", Checkpoints(), ["safetensors", "transformers"])
    assert not (tmp_path / "out").exists()


@pytest.fixture
def data(tmp_path):
    """A folder of tokens."""
    folder = tmp_path / "flat"
    folder.mkdir()
    for split in SPLITS:
        torch.arange(400).remainder(VOCABULARY).to(torch.uint16).numpy().tofile(folder / f"{split}.bin")
    write_json(folder / "vocabulary.json", ["<unk>", "<eos>", *(f"w{number}" for number in range(VOCABULARY - 2))])
    files = {path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in folder.iterdir()}
    splits = {key: {"tokens": 400, "words": 400, "documents": 1, "unknown": 0} for key in SPLITS}
    text = {"tokenizer": "word", "lowercase": False, "min_count": 1, "max_vocabulary": None}
    manifest = {"schema_version": 1, "dtype": "<u2", "vocabulary": VOCABULARY, "splits": splits, "settings": text}
    write_json(folder / "manifest.json", {**manifest, "source": "test", "files": files})
    return folder


def test_verification_evaluates_every_form_alike(data, tmp_path):
    """One loss for the source and all exact forms; the matrix has what a report shows."""
    _, _, checkpoint = save_run(tmp_path, LLAMA)
    folder = tmp_path / "results/checkpoints/small"
    convert(checkpoint, folder, Checkpoints(), ["safetensors", "pt", "transformers"])
    result = verify(checkpoint, folder, data)
    require_identical(result)
    for found in result["forms"].values():
        assert found["test_loss"] == pytest.approx(result["test_loss"], abs=1e-6)
    assert result["forms"]["pt"]["test_loss"] == result["forms"]["safetensors"]["test_loss"] == result["test_loss"]
    assert result["forms"]["pt"]["optimizer"] and result["forms"]["transformers"]["optimizer"] is False

    from parascale.checkpoint.matrix import conversions

    write_json(folder / "verify.json", result)
    rows = conversions(tmp_path / "results")
    found = [(row["run"], row["layout"], row["form"], row["identical"]) for row in rows]
    assert found == [("small", "single", form, True) for form in ("safetensors", "pt", "transformers")]
    assert all(row["gb_per_second"] > 0 for row in rows)


def test_verification_finds_one_changed_bit(data, tmp_path):
    """The proof compares with the source, not with what the converter says of itself."""
    _, _, checkpoint = save_run(tmp_path, GPT2)
    _, _, other = save_run(tmp_path / "other", GPT2, steps=3)
    folder = tmp_path / "out"
    convert(other, folder, Checkpoints(), ["safetensors"])
    result = verify(checkpoint, folder, data)
    with pytest.raises(CheckpointError, match="safetensors differs from its source in"):
        require_identical(result)
    assert "model.norm.weight" in result["forms"]["safetensors"]["differs"]


def test_verification_knows_a_dtype_rounds(data, tmp_path):
    _, _, checkpoint = save_run(tmp_path, GPT2)
    convert(checkpoint, tmp_path / "out", Checkpoints(dtype="bfloat16"), ["safetensors", "pt"])
    result = verify(checkpoint, tmp_path / "out", data)
    require_identical(result)
    assert result["dtype"] == read_json(tmp_path / "out" / MANIFEST)["facts"]["conversion"]["dtype"] == "bfloat16"


def test_a_record_from_before_an_axis_was_there_is_verified_with_none_of_it(data, tmp_path):
    _, _, checkpoint = save_run(tmp_path, GPT2)
    convert(checkpoint, tmp_path / "out", Checkpoints(), ["safetensors"])
    record = read_json(tmp_path / "out/run.json")
    del record["settings"]["layout"]["pp"]
    write_json(tmp_path / "out/run.json", record)
    seal_as(tmp_path / "out")
    assert verify(checkpoint, tmp_path / "out", data)["layout"] == dict.fromkeys(DEGREES, 1)


def seal_as(folder, **changed):
    """The manifest anew; changed: what it says of the conversion."""
    facts = read_manifest(folder)["facts"]
    seal(folder, facts | {"conversion": facts["conversion"] | changed})


def test_verification_misses_what_a_converter_dropped_of_the_optimizer(data, tmp_path):
    """Every moment where the optimizer's state was asked for, none where it was not; the converter's word alone is no proof."""
    _, _, checkpoint = save_run(tmp_path, GPT2)
    folder, moment = tmp_path / "out", "optimizer.state.norm.weight.exp_avg_sq"

    def differs():
        return verify(checkpoint, folder, data)["forms"]["pt"]["differs"]

    convert(checkpoint, folder, Checkpoints(), ["pt"])
    held = torch.load(folder / "optimizer.pt", weights_only=True)
    torch.save({name: tensor for name, tensor in held.items() if name != moment}, folder / "optimizer.pt")
    seal_as(folder)
    assert differs() == [moment]
    (folder / "optimizer.pt").unlink()
    seal_as(folder)
    assert differs() == list(held)
    seal_as(folder, optimizer=False)
    assert differs() == []
    torch.save({moment: held[moment]}, folder / "optimizer.pt")
    seal_as(folder)
    assert differs() == [moment]
