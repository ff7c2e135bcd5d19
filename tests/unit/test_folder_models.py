"""A folder of `transformers` becomes a model of ours and goes back to its form: the same weights, the same logits; bad folders are named."""

import json
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors import safe_open

from parascale.checkpoint.convert import convert
from parascale.commands.project import check
from parascale.errors import ConfigError, DataError, RequirementError
from parascale.families import kinds
from parascale.families.build import build_model
from parascale.families.folders.modules import Underivable, pipeline_plan, tensor_plan
from parascale.families.kind import offer_of
from parascale.files import read_json
from parascale.parallel import check_plans
from parascale.pretrained import Pretrained
from parascale.settings import Layout, Model, Run, make
from parascale.settings.config import Checkpoints
from parascale.store.keys import modules_of_run
from parascale.train.counting import keep_count
from parascale.train.graph import narrowest_type

from ..distributed.cases import but_slow
from .checkpoints import save_run
from .folder_models import FAMILIES, LLAMA, OTHERS, PLACES, VOCABULARY, filled, make_folder, workload_of
from .own_classes import VIT, VIT_WORKLOAD
from .pretrained_folders import edit_config, make_bart

ROOT = Path(__file__).parents[2]
BUILT = [*FAMILIES, *(name for name in OTHERS if name != "RoBERTa")]
REFUSED = {"GPT-2": [{"tp": 2}, {"pp": 2}], "Mixtral": [{"tp": 2}], "Apertus": [{"tp": 2}]}
REFUSED |= {"Qwen3-MoE": [{"tp": 2}], "GLM-4-MoE": [{"tp": 2}], "BERT": [{"tp": 2}, {"pp": 2}]}
TOKENS = torch.randint(VOCABULARY, (3, PLACES), generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module", params=["GPT-2", "Llama"])
def folder(request, tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("models") / "model", request.param)


def build(folder, vocabulary=VOCABULARY, window=PLACES, **settings):
    return build_model(make(Model, kind="transformers", folder=str(folder), **settings), vocabulary, window)


def theirs(folder):
    from transformers import AutoModelForCausalLM

    found, loading = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not {key: value for key, value in loading.items() if value}
    with torch.no_grad():
        return found.eval()(TOKENS).logits


def begun(folder):
    """The model that a training begins with, with the folder's weights."""
    return filled(lambda: build(folder, weights=True))


def test_a_training_begins_with_the_folder_s_weights_if_it_is_told_to(folder):
    with torch.no_grad():
        assert torch.equal(begun(folder).eval()(TOKENS), theirs(folder))
        assert not torch.equal(build(folder).eval()(TOKENS), theirs(folder))


def test_a_checkpoint_goes_back_to_the_folder_s_form(folder, tmp_path):
    model = {"kind": "transformers", "folder": str(folder)}
    _, ours, checkpoint = save_run(tmp_path, model)
    convert(checkpoint, tmp_path / "out", Checkpoints(), ["transformers"])
    written = read_json(tmp_path / "out/transformers/config.json")
    assert written == read_json(folder / "config.json") | {"dtype": "float32"}
    with torch.no_grad():
        assert torch.equal(theirs(tmp_path / "out/transformers"), ours.eval()(TOKENS))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_documents_say_what_a_family_offers(family, tmp_path):
    """Models with two layers and twenty have the same plans."""
    folder = str(make_folder(tmp_path, family))
    with torch.device("meta"):
        layouts = ", ".join(f"`{name}`" for name in offer_of(build(folder))["layouts"])
    narrowest = narrowest_type(workload_of(folder), VOCABULARY)
    row = f"| {family} | {layouts} | {narrowest} |"
    assert row in (ROOT / "docs/own-models.md").read_text(encoding="utf-8")


def refusal(check, *arguments):
    """Why a check refuses a layout; None where it does not."""
    try:
        check(*arguments)
    except ConfigError as error:
        return str(error).partition(": ")[2]


@pytest.mark.parametrize("family", but_slow(BUILT, {*BUILT} - {"GPT-2", "Mixtral"}))
def test_plans_refuse_the_layouts_that_jobs_would(family, tmp_path):
    """Before the model is counted, what the library's file says; then all of it, without its modules."""
    folder = str(make_folder(tmp_path, family))
    workload = workload_of(folder)
    with torch.device("meta"):
        model = build(folder)
    degrees = ("dp", *kinds()["transformers"].degrees)
    layouts = [Layout(gpus_per_node=2, **{axis: 2}, micro_batches=1 + (axis == "pp")) for axis in degrees]
    jobs = {layout: refusal(check_plans, model, layout) for layout in layouts}
    for counted in (False, True):
        if counted:
            with suppress(RequirementError):  # a mixture: what it offers is known all the same
                keep_count(workload, VOCABULARY)
        plans = {layout: refusal(Run("x", workload, layout).check) for layout in layouts}
        unsaid = {layout for layout in layouts if "does not say" in (jobs[layout] or "") and not counted}
        assert {layout: None if layout in unsaid else why for layout, why in jobs.items()} == plans
    assert [layout.dimensions for layout in layouts if jobs[layout]] == REFUSED.get(family, [])


@pytest.mark.parametrize(
    ("kind", "refused"),
    [
        ("llama", {}),
        ("gemma3_text", {}),  # in the file of gemma3
        ("openai-gpt", {"tp": "declares no", "pp": "declares no"}),  # of another name
        ("data2vec-text", {"tp": "declares no", "pp": "declares no"}),
        ("gpt-sw3", {"tp": "once it is counted", "pp": "once it is counted"}),  # that of gpt2
        ("llama4", {"tp": "once it is counted", "pp": "once it is counted"}),  # its parts decide
        ("none", {"tp": "once it is counted", "pp": "once it is counted"}),
        (None, {}),  # the folder is elsewhere
    ],
)
def test_plans_offer_an_uncounted_model_no_more_than_its_own_class_declares(kind, refused, tmp_path):
    if kind:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    workload = workload_of(tmp_path)
    for axis in ("fsdp", "tp", "pp"):
        layout = Layout(gpus_per_node=2, **{axis: 2}, micro_batches=1 + (axis == "pp"))
        assert refused.get(axis, "None") in str(refusal(Run("x", workload, layout).check))


def test_a_layout_that_cannot_be_derived_is_refused_with_the_reason(folder):
    model = build(folder)
    if "Llama" in str(type(model.network)):
        check_plans(model, Layout(gpus_per_node=2, tp=2))
        model.network.tp_plan["model.layers.*.mlp.up_proj"] = "local_colwise"
        with pytest.raises(Underivable, match=r"splits it by `local_colwise`, which is not supported here"):
            tensor_plan(model.network)
        model.network.pp_plan.pop("model.norm")
        with pytest.raises(Underivable, match=r"`base_model_pp_plan` has no place for `model\.norm\.weight`"):
            pipeline_plan(model.network)
        return
    reason = (
        "tp = 2: transformers declares no `base_model_tp_plan` for gpt2. It can be trained as: single, ddp, fsdp, cp"
    )
    with pytest.raises(ConfigError, match=reason):
        check_plans(model, Layout(gpus_per_node=2, tp=2))


def test_parameters_on_split_heads_that_the_library_does_not_declare_are_refused():
    from transformers import PhiConfig, PhiForCausalLM

    sizes = LLAMA | {"vocab_size": VOCABULARY}
    with torch.device("meta"):
        assert tensor_plan(PhiForCausalLM(PhiConfig(**sizes)))
        network = PhiForCausalLM(PhiConfig(**sizes, qk_layernorm=True))
    with pytest.raises(Underivable, match=r"does not say how to split `model\.layers\.0\.self_attn\.q_layernorm`"):
        tensor_plan(network)


def test_a_pipeline_has_the_order_that_the_library_declares_and_something_at_both_ends():
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device("meta"):
        network = LlamaForCausalLM(LlamaConfig(**LLAMA, vocab_size=VOCABULARY))
    heads = [f"head{number}" for number in range(9)]
    network.pp_plan.update(dict.fromkeys(heads))
    last = ("model.norm", "lm_head", *heads)
    assert pipeline_plan(network).last == tuple(f"network.{name}" for name in last)
    network.pp_plan["model.embed_tokens"] = network.pp_plan.pop("model.embed_tokens")
    with pytest.raises(Underivable, match=r"names nothing before the repeated layers"):
        pipeline_plan(network)


def test_degrees_must_fit_what_the_folder_says(folder):
    def check(weights=False, **layout):
        Run("x", workload_of(folder, weights=weights), make(Layout, **layout)).check()

    if "llama" in (folder / "config.json").read_text():
        with pytest.raises(ConfigError, match=r"tp = 4 does not divide `num_key_value_heads` = 2"):
            check(gpus_per_node=4, tp=4)
        with pytest.raises(ConfigError, match=r"compile = true with tp"):
            check(gpus_per_node=2, tp=2, compile=True)
        with pytest.raises(ConfigError, match=r"4 pipeline stages, but the model in .* has 2 layers"):
            check(gpus_per_node=4, pp=4, micro_batches=4)
    with pytest.raises(ConfigError, match=r"needs data\.text\.tokenizer = `pretrained` and the same folder"):
        check(weights=True)


def test_another_folder_is_another_training(folder, tmp_path):
    """Its place does not count, but what it says: a changed config.json trains again."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)

    def key():
        return modules_of_run(Run("x", workload_of(copy, weights=True), Layout()))

    before = key()
    assert {name for name in before if name.startswith("model/")} == {"model/config.json", "model/model.safetensors"}
    edit_config(copy, vocab_size=102)
    assert {name for name, digest in key().items() if before[name] != digest} == {"model/config.json"}


def test_weights_that_differ_in_their_middle_are_others(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(10 << 20))
    before = Pretrained(str(tmp_path)).digests(True)
    with weights.open("r+b") as file:
        file.seek(4 << 20)
        file.write(b"x" * (4 << 20))
    after = Pretrained(str(tmp_path)).digests(True)
    assert {name for name, digest in after.items() if before[name] != digest} == {"model/model.safetensors"}


def test_bad_folders_are_named(folder, tmp_path):
    with pytest.raises(ConfigError, match=r"training\.window = 33 is longer than the 32 positions"):
        build(folder, window=33)
    with pytest.raises(DataError, match=r"the data has 102 different tokens, but the model 101; make the data"):
        build(folder, vocabulary=102)
    with pytest.raises(DataError, match=r"config\.json: no such file"):
        build(tmp_path)
    with pytest.raises(DataError, match=r"bart is no causal language model.*model\.kind = `pretrained`"):
        build(make_bart(tmp_path / "bart"))
    edit_config(tmp_path / "bart", model_type="none")
    with pytest.raises(DataError, match=r"the installed `transformers` has no `model_type` = none"):
        build(tmp_path / "bart")


@pytest.mark.parametrize("weights", [False, True])
def test_a_folder_of_quantized_weights_is_refused(weights, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    edit_config(tmp_path / "copy", quantization_config={"quant_method": "fp8"})
    with pytest.raises(DataError, match=r"config\.json: its weights are quantized; use the folder of the model befo"):
        build(tmp_path / "copy", weights=weights)


@pytest.mark.parametrize("family", ["GPT-NeoX", "Mixtral"])
def test_weights_that_the_library_renames_and_joins_are_read(family, tmp_path):
    sizes = {"num_local_experts": 4} if family == "Mixtral" else {}
    folder = make_folder(tmp_path, family, **sizes)
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert not build(folder).network.state_dict().keys() <= set(file.keys())
    with torch.no_grad():
        assert torch.equal(begun(folder).eval()(TOKENS), theirs(folder))


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "int8"])
def test_a_quantized_tensor_is_named(kind, folder):
    model, name = build(folder, weights=True), next(iter(build(folder).state_dict()))
    shard = model.get_parameter(name).data
    with pytest.raises(DataError, match=rf"`\S+\.weight` is stored as {kind}, as quantized"):
        model._stored.fill(name.removeprefix("network."), shard, shard.to(getattr(torch, kind)))
    model._stored.fill(name, shard, shard.bfloat16())


def test_a_model_of_images_and_text_is_refused(tmp_path):
    sizes = LLAMA | {"vocab_size": VOCABULARY}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": sizes}))
    with torch.device("meta"), pytest.raises(DataError, match=r"gemma3 is no causal language model"):
        build(tmp_path)


UNUSED = """
from torch import nn


class Unused(nn.Module):
    def __init__(self, settings, vocabulary, window):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(settings.dim, settings.dim) for _ in range(settings.layers))
        self.embedding, self.spare = nn.Embedding(vocabulary, settings.dim), nn.Linear(2, 2)

    def forward(self, tokens_BT):
        hidden_BTD = self.embedding(tokens_BT)
        for layer in self.layers:
            hidden_BTD = layer(hidden_BTD)
        return hidden_BTD @ self.embedding.weight.T
"""


def looked_at(*words):
    """What `parascale check model` prints."""
    return CliRunner().invoke(check, ["model", *map(str, words)], catch_exceptions=False).output.splitlines()


def test_a_model_is_looked_at_before_anything_runs(folder, tmp_path):
    (tmp_path / "unused.py").write_text(UNUSED)
    assert looked_at(f"{tmp_path}/unused.py:Unused", "--vocabulary", "50") == [
        "39,430 parameters: 0.000631 GB of weights, gradients and AdamW's states in fp32",
        "offers single, ddp, fsdp; units of FSDP and recomputation: layers.*",
        "not tp: it offers no `tensor_plan`",
        "not pp: it offers no `pipeline_plan`",
        "not cp: it offers no `context_plan`",
        "no gradient for spare.weight, spare.bias: `ddp` refuses this model",
    ]
    (tmp_path / "sees.py").write_text(UNUSED.replace("return hidden_BTD", "return hidden_BTD.flip(1)"))
    for target in (f"{tmp_path}/sees.py:Unused", make_folder(tmp_path / "encoder", "BERT")):
        with pytest.raises(ConfigError, match="sees tokens that come later"):
            looked_at(target, "--window", "16")
    (tmp_path / "fails.py").write_text(UNUSED.replace("return hidden_BTD", "return None"))
    assert looked_at(f"{tmp_path}/fails.py:Unused", "--window", "16")[-1].startswith(
        "its gradients are unknown: a pass"
    )
    other = make_folder(tmp_path / "bin", "Llama")
    (other / "model.safetensors").rename(other / "pytorch_model.bin")
    (said,) = (line for line in looked_at(other, "--window", "16") if line.startswith("not weights: true: "))
    assert "save_pretrained" in said
    printed = "\n".join(looked_at(folder, "--window", "16"))
    assert ("offers single, ddp, fsdp, tp, pp, cp;" in printed) == ("computes some of its results in fp32" in printed)
    assert f"{sum(each.numel() for each in build(folder).parameters()):,} parameters" in printed


def test_a_model_that_needs_numbers_is_looked_at_too(tmp_path):
    """Rotary positions that may grow look for the largest one, mixtures of experts multiply in types that fp64 is none of."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    grows = make_folder(tmp_path / "grows", "Llama", rope_parameters=rope)
    *_, offers, narrowest = looked_at(grows, "--window", PLACES)
    assert offers.startswith("offers single, ddp, fsdp, tp, pp, cp;")
    assert narrowest.startswith("computes some of its results in fp32")
    with torch.no_grad():
        assert torch.equal(begun(grows).eval()(TOKENS), theirs(grows))
    mixture = make_folder(tmp_path / "mixture", "Mixtral", num_local_experts=4)
    *_, offers, refused, gradients = looked_at(mixture, "--window", PLACES)
    assert offers.startswith("offers single, ddp, fsdp, pp, cp;")
    assert refused.startswith("not tp: transformers splits it by")
    assert gradients.startswith("its gradients are unknown: a pass in fp64 without data fails (Expected inputs of BF16")
    workload = workload_of(mixture)
    Run("x", workload, Layout()).check()
    error = r"a mixture of experts \(`num_experts_per_tok` = 2\).* fp64: choose fp32"
    for precision, other in (("fp64", workload), ("fp32", replace(workload, parity_precision="fp64"))):
        with pytest.raises(ConfigError, match=error):
            Run("x", other, Layout(), precision).check()


def test_a_class_is_looked_at_as_its_workload_builds_it(tmp_path):
    """Its sizes may be of the workload alone, and random numbers that differ in each layout are known before anything is paid."""
    (tmp_path / "vit.py").write_text(VIT)
    (tmp_path / "vit.yaml").write_text(VIT_WORKLOAD)
    assert looked_at(tmp_path / "vit.yaml") == [
        "7,802 parameters: 0.000125 GB of weights, gradients and AdamW's states in fp32",
        "offers single, ddp, fsdp; units of FSDP and recomputation: encoder.layers.*",
        "not tp: it offers no `tensor_plan`",
        "not pp: it offers no `pipeline_plan`",
        "not cp: it offers no `context_plan`",
        f"counted for plans: {tmp_path}/vit.py.counts.json",
    ]
    assert looked_at(tmp_path / "vit.yaml", "--window", "8")[-1].startswith("Error: leave out --window")
    (tmp_path / "vit.yaml").write_text(VIT_WORKLOAD.replace("dropout: 0.0", "dropout: 0.1"))
    said = looked_at(tmp_path / "vit.yaml")[-2]
    assert said.startswith("its layouts will be `not comparable`: the model draws random")
    with pytest.raises(ConfigError, match=r"made as a language model with default settings \(KeyError: 'dim'\)"):
        looked_at(f"{tmp_path}/vit.py:ViT")
