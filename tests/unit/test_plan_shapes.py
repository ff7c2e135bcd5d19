"""Sizes by formula are those of the real module: plans count what training holds."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parascale.families import model_sizes, unknown_sizes
from parascale.families.build import build_model
from parascale.settings import Model, load_workload, make

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


def test_xresnet50_has_its_published_size_and_cost():
    """He et al. 2018, table 5: ResNet-50-D costs 4.3 GFLOPs (of multiply and add as one) at 224 pixels."""
    workload = load_workload("config/workloads", "imagenet")
    sizes = model_sizes(workload.model, 1000, *workload.sizes)
    assert sizes.count == 25_576_264
    assert sizes.flops_per_target / 3 / 2 == pytest.approx(4.3e9, rel=0.02)


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
