"""Folders of pretrained models that do not do are named, and settings that do not go with them."""

import json
import sys
from contextlib import nullcontext

import pytest

from parascale.errors import ConfigError, DataError, RequirementError
from parascale.parallel.parallelize import check_plans
from parascale.pretrained import Pretrained, folders
from parascale.settings import Layout, Run, Text, Workload, load_workload, make
from tests.unit.pretrained_folders import edit_config, make_bart, make_t5
from tests.unit.test_pretrained import build, filled


@pytest.fixture
def t5(tmp_path):
    return make_t5(tmp_path / "t5")


def _without(name):
    return lambda folder: (folder / name).unlink()


def _text(name, text):
    return lambda folder: (folder / name).write_text(text)


def _with_a_gap(folder):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["added_tokens"].append({"content": "<far>", "id": len(Pretrained(str(folder)).order) + 1})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_without("config.json"), r"config\.json: no such file.*hf download google-t5/t5-small --local-dir"),
        (_without("tokenizer.json"), r"tokenizer\.json: no such file.*login node"),
        (_without("model.safetensors"), r"model\.safetensors: no such file"),
        (_text("config.json", "{"), r"config\.json: not valid JSON"),
        (_text("tokenizer.json", "{}"), r"no vocabulary of `tokenizers` in tokenizer\.json"),
        (_text("model.safetensors", "short"), r"model\.safetensors: no whole safetensors file.*fetch it again"),
        (lambda folder: edit_config(folder, model_type="pegasus"), r"`model_type` = pegasus cannot.*Allowed: t5, bart"),
        (lambda folder: edit_config(folder, eos_token_id=7777), r"`eos_token_id` = 7777 is not an entry"),
        (_with_a_gap, r"lacks entries below `vocab_size` of"),
        (
            lambda folder: edit_config(folder, pad_token_id=7777),
            r"`pad_token_id` = 7777 is not an entry of its tokenizer",
        ),
        (lambda folder: edit_config(folder, d_model="wide"), r"config\.json: `transformers` does not take it.*d_model"),
        (lambda folder: edit_config(folder, num_layers=3), r"its weights lack `encoder\.block\.2"),
        (
            lambda folder: edit_config(folder, d_ff=8),
            r"wi\.weight` is \[32, 16\], but after its config\.json \[8, 16\]",
        ),
        (_text("tokenizer_config.json", '{"unk_token": "[UNK]"}'), r"no entry `\[UNK\]`"),
    ],
)
def test_a_folder_that_does_not_do_is_named(t5, damage, message):
    damage(t5)
    with pytest.raises(DataError, match=message):
        filled(t5)


def test_a_plan_goes_by_the_files_that_are_there(t5):
    """A part of the weights that a broken download left out is an error for the training, not for a dry run."""
    (t5 / "model.safetensors").unlink()
    parts = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (t5 / "model.safetensors.index.json").write_text(json.dumps({"weight_map": parts}))
    (t5 / parts["a"]).touch()
    folder = Pretrained(str(t5))
    assert {path.name for path in folder.found_files(True, True)} >= {parts["a"], "model.safetensors.index.json"}
    assert parts["b"] not in {path.name for path in folder.found_files(True, True)}
    folder.check(weights=False)
    with pytest.raises(DataError, match=parts["b"]):
        folder.check()


def test_a_prefix_is_for_a_pretrained_model():
    with pytest.raises(ConfigError, match=r"here: `data\.text\.prefix` is for a pretrained model"):
        Text(prefix="summarize: ").check("here")


def test_other_data_longer_samples_and_a_missing_package_are_errors(tmp_path, monkeypatch):
    folder = make_bart(tmp_path / "bart")
    with pytest.raises(DataError, match=r"the data was prepared with 7;"):
        build(folder, vocabulary=7)
    with pytest.raises(ConfigError, match=r"training\.window = 65 is longer than the 64 positions"):
        build(folder, window=65)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(RequirementError, match=r"needs the package `transformers`"):
        build(folder)


def test_layouts_that_it_does_not_offer_are_refused(t5):
    text = Text(tokenizer="pretrained", pretrained=str(t5))
    model, training = {"kind": "pretrained", "pretrained": str(t5)}, {"steps": 1, "window": 8, "summary_window": 8}
    workload = make(Workload, name="x", task="summarisation", data={"text": text}, model=model, training=training)
    Run("fsdp", workload, Layout(gpus_per_node=2, fsdp=2)).check()
    with pytest.raises(ConfigError, match=r"offers no tp = 2\. Allowed: single, dp, fsdp"):
        Run("tp", workload, Layout(gpus_per_node=2, tp=2)).check()
    with pytest.raises(ConfigError, match=r"offers no `tensor_plan`.*single, ddp, fsdp"):
        check_plans(build(t5), Layout(gpus_per_node=2, tp=2))


def test_the_folder_is_given_once_and_settings_of_a_learned_vocabulary_are_refused(tmp_path):
    def loaded(text, model="{kind: pretrained}"):
        words = f"task: summarisation\ndata: {{text: {text}}}\nmodel: {model}\ntraining: {{steps: 1}}\n"
        (tmp_path / "x.yaml").write_text(words)
        return load_workload(tmp_path, "x")

    assert loaded("{tokenizer: pretrained, pretrained: $DATA/t5}").model.pretrained == "$DATA/t5"
    for text in ("{tokenizer: pretrained}", "{pretrained: t5}"):
        with pytest.raises(ConfigError, match=r"x\.yaml: .*its folder, need each other"):
            loaded(text)
    with pytest.raises(ConfigError, match=r"`data\.text\.lowercase` is for a learned vocabulary"):
        loaded("{tokenizer: pretrained, pretrained: t5, lowercase: true}")
    other = loaded("{tokenizer: pretrained, pretrained: t5}", "{kind: pretrained, pretrained: bart}")
    with pytest.raises(ConfigError, match=rf"the same folder, but model\.pretrained = `{tmp_path}/bart`"):
        Run("x", other).check()


def test_variables_in_the_path_are_filled_in(t5, monkeypatch):
    monkeypatch.setenv("SOME_MODELS", str(t5.parent))
    assert Pretrained("$SOME_MODELS/t5").folder == t5
    monkeypatch.delenv("SOME_MODELS")
    assert Pretrained("${SOME_MODELS:-models}/t5").folder.parts == ("models", "t5")
    with pytest.raises(ConfigError, match=r"`data\.text\.pretrained`.*is not set"):
        Pretrained("$SOME_MODELS/t5")


def test_a_folder_whose_tokenizer_is_renumbered_must_describe_its_model_whatever_is_trained(t5):
    """Summaries take its `vocab_size` and its end from there; a language model needs the tokenizer alone."""
    (t5 / "config.json").unlink()
    text = {"tokenizer": "pretrained", "pretrained": str(t5)}
    for task in ("summarisation", "language_model"):
        workload = make(Workload, name="x", task=task, data={"text": text})
        ((folder, *parts),) = folders(workload.data, workload.model)
        error = pytest.raises(DataError, match=r"config\.json: no such file")
        with error if task == "summarisation" else nullcontext():
            folder.check(*parts)
