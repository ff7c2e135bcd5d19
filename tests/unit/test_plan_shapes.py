"""Sizes by formula are those of the real module: plans count what training holds."""

import dataclasses
import math
import re
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from parascale.families.build import build_model
from parascale.families.sizes import model_sizes, unknown_sizes
from parascale.settings import Model, load_workload, make
from tests.unit.pretrained_folders import BART_CONFIG, T5_CONFIG, T5_SMALL, describe

models = st.builds(
    lambda heads, groups, width, **rest: make(
        Model, dim=heads * groups * width, heads=heads * groups, kv_heads=heads, **rest
    ),
    heads=st.integers(1, 3),
    groups=st.integers(1, 3),
    width=st.sampled_from([2, 4, 8]),
    layers=st.integers(1, 3),
    hidden=st.one_of(st.none(), st.integers(1, 40)),
    tied=st.booleans(),
    norm=st.sampled_from(["layer", "rms"]),
    pre_norm=st.booleans(),
    position=st.sampled_from(["learned", "sinusoidal", "rotary"]),
    activation=st.sampled_from(["gelu", "gelu_tanh", "relu", "swiglu"]),
    bias=st.booleans(),
)


def check_parts(model, module, *places):
    """Each part of the count has the elements of its parameters in the real module, and nothing is left."""
    sizes = model_sizes(model, *places)
    real = {"blocks": 0, "embedding": 0, "norm": 0, "head": 0}
    for name, parameter in module.named_parameters():
        part = next(part for part in name.split(".") if part in real)
        real[part] += parameter.numel()
    split = sum(
        math.prod(parameter.shape)
        for name, parameter in module.named_parameters()
        if ".blocks." in f".{name}" and "norm" not in name and not name.endswith(("o.bias", "down.bias"))
    )
    assert sizes.embedding_split + sizes.embedding_whole == real["embedding"]
    assert (sizes.norm, 0 if sizes.tied else sizes.head) == (real["norm"], real["head"])
    assert (sizes.block * sizes.layers, sizes.block_split * sizes.layers) == (real["blocks"], split)
    assert sizes.count == sum(real.values())
    return sizes


@settings(max_examples=60)
@given(models, st.integers(2, 50), st.integers(2, 20))
def test_sizes_are_those_of_the_real_module(model, vocabulary, window):
    """The count by parts agrees with `named_parameters()`."""
    with torch.device("meta"):
        module = build_model(model, vocabulary, window)
    check_parts(model, module, vocabulary, window)


@settings(max_examples=60)
@given(models, st.integers(2, 50), st.integers(2, 20), st.integers(2, 20))
def test_sizes_of_the_encoder_decoder_are_those_of_the_real_module(model, vocabulary, window, summary_window):
    model = dataclasses.replace(model, kind="encoder_decoder")
    with torch.device("meta"):
        module = build_model(model, vocabulary, window, summary_window)
    sizes = check_parts(model, module, vocabulary, window, summary_window)
    halves = [half.blocks["0"] for half in (module.encoder, module.decoder)]
    largest = max(sum(parameter.numel() for parameter in block.parameters()) for block in halves)
    assert round(sizes.unit * sizes.block) == largest, "FSDP gathers one of the two at once"


xresnets = st.builds(
    partial(make, Model),
    kind=st.just("xresnet"),
    dim=st.integers(1, 8).map(lambda half: 2 * half),
    depths=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    norm=st.sampled_from(["batch", "group"]),
)


@settings(max_examples=15)
@given(xresnets, st.integers(2, 12), st.integers(32, 70))
def test_sizes_of_xresnet_are_those_of_the_real_module(model, classes, size):
    """Parameters, and the operations that torch counts in a forward pass."""
    with torch.device("meta"):
        module = build_model(model, classes, size).eval()
        formula = model_sizes(model, classes, size)
        with FlopCounterMode(display=False) as counter:
            module(torch.empty(1, 3, size, size))
    assert formula.count == sum(parameter.numel() for parameter in module.parameters())
    forward = formula.layers * formula.block_flops + formula.ends_flops
    assert counter.get_total_flops() == pytest.approx(forward - 2 * classes)  # the head's bias is no product
    assert formula.flops_per_target == pytest.approx(3 * forward)
    blocks = [sum(p.numel() for p in block.parameters()) for stage in module.stages for block in stage]
    assert (formula.layers, round(formula.unit * formula.block)) == (len(blocks), max(blocks))
    assert formula.block * len(blocks) == pytest.approx(sum(blocks))


def test_xresnet50_has_its_published_size_and_cost():
    """He et al. 2018, table 5: ResNet-50-D costs 4.3 GFLOPs (of multiply and add as one) at 224 pixels."""
    sizes = model_sizes(make(Model, kind="xresnet", dim=64, norm="batch"), 1000, 224)
    assert sizes.count == 25_576_264
    assert sizes.flops_per_target / 3 / 2 == pytest.approx(4.3e9, rel=0.02)


GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
FOLDERS = {
    "t5": T5_CONFIG,
    "t5 1.1": T5_CONFIG | GATED,
    "t5, narrow heads": T5_CONFIG | {"d_kv": 4},
    "bart": BART_CONFIG,
}


@pytest.mark.parametrize("name", FOLDERS)
def test_sizes_of_a_pretrained_model_are_those_of_the_real_module(name, tmp_path):
    """Parameters, a block's, of which FSDP gathers a half, and operations of products, which torch counts in a forward pass."""
    folder = describe(tmp_path / "model", FOLDERS[name], 90)
    model, window, summary_window = make(Model, kind="pretrained", pretrained=str(folder)), 12, 5
    module, sizes = build_model(model, 90, window, summary_window), model_sizes(model, 90, window, summary_window)
    assert sizes.count == sum(parameter.numel() for parameter in module.parameters())
    network = getattr(module.network, "model", module.network)
    stacks = [getattr(half, "block", None) or half.layers for half in (network.encoder, network.decoder)]
    halves = [sum(p.numel() for block in stack for p in block.parameters()) / len(stack) for stack in stacks]
    assert (sizes.layers, sizes.targets) == (len(stacks[0]), summary_window)
    assert (sizes.block, sizes.unit * sizes.block) == pytest.approx((sum(halves), max(halves)))
    with FlopCounterMode(display=False) as counter:
        documents = torch.zeros(1, window, dtype=torch.int64)
        module(documents, documents == 0, torch.zeros(1, summary_window, dtype=torch.int64))
    scores = window * window + summary_window * summary_window + window * summary_window
    ours = sizes.halves[0].model
    attention = sizes.layers * 4 * scores * ours.heads * ours.head_width
    counts = {str(operator): count for operator, count in counter.get_flop_counts()["Global"].items()}
    products = sum(count for operator, count in counts.items() if operator in ("aten.mm", "aten.addmm"))
    assert sizes.flops_per_target * summary_window / 3 - attention == pytest.approx(products)


def test_t5_small_has_its_published_size(tmp_path):
    """Raffel et al. 2020: about 60 million; its checkpoint has 60,506,624, with 28 rows that no entry has."""
    model = make(Model, kind="pretrained", pretrained=str(describe(tmp_path / "t5", T5_SMALL, 32128)))
    assert model_sizes(model, 32128, 512, 64).count == 60_506_624
    assert model_sizes(model, 32100, 512, 64).count == 60_506_624 - 28 * 512


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (None, r"t5.config\.json: no such file.*hf download"),
        ({"model_type": "pegasus"}, r"no formula for a model with `model_type` = pegasus"),
        ({"num_decoder_layers": 2}, "no formula for a model with two unlike halves"),
        ({"feed_forward_proj": "gated-silu"}, "`feed_forward_proj` = gated-silu"),
        ({"d_kv": "wide"}, "`d_kv` = wide"),
        ({"num_layers": 0}, "`num_layers` = 0"),
    ],
)
def test_a_folder_that_no_formula_knows_is_unknown_and_named(config, reason, tmp_path):
    folder = tmp_path / "t5"
    if config is not None:
        describe(folder, T5_CONFIG | config, 90)
    model = make(Model, kind="pretrained", pretrained=str(folder))
    assert model_sizes(model, 90, 12, 5) is None
    assert re.search(reason, unknown_sizes(model, 90, 12, 5))


PUBLISHED = {
    # Parameter counts as their Hugging Face checkpoints state them; GPT-2 has biases of keys, which do nothing, and we none.
    "openai-community/gpt2": (
        make(Model, dim=768, heads=12, layers=12, hidden=3072, tied=True, activation="gelu_tanh"), 50257, 1024, 124_439_808 - 12 * 768),
    "openai-community/gpt2-xl": (
        make(Model, dim=1600, heads=25, layers=48, hidden=6400, tied=True, activation="gelu_tanh"), 50257, 1024, 1_557_611_200 - 48 * 1600),
    "meta-llama/Llama-2-7b": (
        make(Model, dim=4096, heads=32, layers=32, hidden=11008, norm="rms", position="rotary", activation="swiglu", bias=False),
        32000, 4096, 6_738_415_616),
    "meta-llama/Llama-3.1-8B": (
        make(Model, dim=4096, heads=32, kv_heads=8, layers=32, hidden=14336, norm="rms", position="rotary", activation="swiglu",
              bias=False), 128256, 8192, 8_030_261_248),
    "meta-llama/Llama-2-70b": (
        make(Model, dim=8192, heads=64, kv_heads=8, layers=80, hidden=28672, norm="rms", position="rotary", activation="swiglu",
              bias=False), 32000, 4096, 68_976_648_192),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_their_published_size(name):
    model, vocabulary, window, count = PUBLISHED[name]
    assert model_sizes(model, vocabulary, window).count == count


def test_unknown_kinds_are_unknown():
    """A class of the user's own is never counted as 0."""
    model = make(Model, kind="mine.py:Mine")
    assert model_sizes(model, 10, 10) is None and "not counted" in unknown_sizes(model, 10, 10)


def test_flops_are_those_of_palm():
    """6 N + 12 L T D a token (Chowdhery et al. 2022, appendix B), N without embeddings and vectors."""
    model = make(Model, dim=64, heads=4, layers=3, hidden=256, bias=False)
    matrices = 3 * (4 * 64 * 64 + 2 * 64 * 256) + 1000 * 64
    assert model_sizes(model, 1000, 32).flops_per_target == 6 * matrices + 12 * 3 * 32 * 64


def test_flops_of_the_encoder_decoder_are_those_of_its_products():
    """Counted by torch in a real forward pass, which leaves attention and embeddings out."""
    model = make(Model, kind="encoder_decoder", dim=32, heads=4, layers=2, hidden=48, kv_heads=2, bias=False)
    window, summary_window, vocabulary = 12, 5, 50
    module = build_model(model, vocabulary, window, summary_window)
    with FlopCounterMode(display=False) as counter:
        documents = torch.zeros(1, window, dtype=torch.int64)
        module(documents, documents == 0, torch.zeros(1, summary_window, dtype=torch.int64))
    scores = window * window + summary_window * summary_window + window * summary_window
    attention = model.layers * 4 * scores * model.dim
    formula = model_sizes(model, vocabulary, window, summary_window).flops_per_target * summary_window / 3
    products = sum(count for operator, count in counter.get_flop_counts()["Global"].items() if "mm" in str(operator))
    assert formula - attention == pytest.approx(products)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("gpt2-124m", 124_439_808 - 12 * 768),  # without the biases of keys, which do nothing
        ("llama-1b", 1_100_048_384),  # TinyLlama's checkpoint
        ("llama-7b", 6_738_415_616),
        ("imagewoof-course", 25_576_264 - 990 * 2049),  # xresnet50 with 10 classes for 1,000
    ],
)
def test_shipped_workloads_of_published_sizes_have_them(name, count):
    """Built on the meta device, as a plan on a login node would have it by formula."""
    workload = load_workload("config/workloads", name)
    outputs = workload.data.expected.vocabulary or workload.data.text.max_vocabulary
    with torch.device("meta"):
        module = build_model(workload.model, outputs, *workload.sizes)
    assert sum(parameter.numel() for parameter in module.parameters()) == count
    assert model_sizes(workload.model, outputs, *workload.sizes).count == count
