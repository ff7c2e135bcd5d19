"""Precision float8: what it is refused for, how a row is rounded, what is computed again, and its price."""

import json
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from parascale.errors import ConfigError
from parascale.families.language.modules import Block
from parascale.families.sizes import Operations, Product
from parascale.parallel import float8
from parascale.parallel.recompute import recomputed
from parascale.plan.advise import advise, scaling
from parascale.plan.work import Rounding, _loads
from parascale.settings import Layout, Site, strict
from parascale.settings.run import Run

MODEL = {"dim": 64, "heads": 4, "layers": 2, "hidden": 128}


def run_of(model=MODEL, task="language_model", **layout):
    workload = {"name": "w", "task": task, "model": model, "training": {"steps": 2}}
    values = {"run": "r", "workload": workload, "precision": "float8"}
    return strict.load(Run, {**values, "layout": {"gpus_per_node": 2 if layout else 1, **layout}}, "test")


def site_of(**peak):
    keys = {"name": "s", "device": "cuda", "gpu": "A GPU", "peak_tflops": peak, "memory_gigabytes_per_second": 2000}
    return strict.load(Site, keys, "test")


def test_it_trains_our_decoder_where_a_gpu_has_it():
    for run in (run_of(), run_of(tp=2), run_of(fsdp=2)):
        run.check()
        for site in (site_of(bf16=989, float8=1979), site_of(), Site(name="cpus")):
            site.check_run(run)


@pytest.mark.parametrize(
    ("run", "named"),
    [
        (run_of(MODEL | {"hidden": 120}), "hidden"),
        (run_of(MODEL | {"dim": 72}), "dim"),
        (run_of(MODEL | {"kv_heads": 2, "hidden": 96}, tp=2), None),
        (run_of(MODEL | {"kv_heads": 2, "dim": 32}, tp=2), "kv_heads"),
        (run_of(task="summarisation"), "encoder_decoder"),
    ],
)
def test_sizes_and_models_that_the_kernel_does_not_take_are_refused_by_name(run, named):
    if named is None:
        return run.check()
    with pytest.raises(ConfigError, match=named):
        run.check()


def test_gpus_without_it_are_refused_by_name():
    with pytest.raises(ConfigError, match="A GPU"):
        site_of(bf16=312).check_run(run_of())


def test_matrices_that_are_no_linear_layers_are_refused():
    for block in (torch.nn.Conv1d(16, 16, 1), torch.nn.Linear(16, 20)):
        with pytest.raises(ConfigError, match="unlike"):
            float8.prepare([block], run_of(), torch.device("cpu"))


@given(st.integers(0, 2**31), st.integers(-60, 60))
def test_a_row_is_rounded_by_itself_and_alike_in_parts(seed, exponent):
    rows = torch.randn(5, 32, generator=torch.Generator().manual_seed(seed)) * 2.0**exponent
    rows[1] = 0
    rows = rows.bfloat16()
    matrix, undo = float8.rounded(rows)
    assert undo.frexp().mantissa.eq(0.5).all() and matrix.float().isfinite().all()
    again = matrix.float() * undo
    large = rows.float().abs() >= 2**-6 * undo  # what e4m3 holds with all its digits
    assert ((again - rows.float()).abs() <= 2**-4 * rows.float().abs())[large].all()
    parts = torch.cat([part.float() * scale for part, scale in map(float8.rounded, rows.chunk(2, 1))], 1)
    assert torch.equal(parts[large], again[large])
    assert torch.equal(torch.cat([float8.rounded(row)[0] for row in rows.chunk(5)]).float(), matrix.float())


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = Counter()

    def __torch_dispatch__(self, operation, types, arguments=(), keywords=None):
        self.seen[operation] += 1
        return operation(*arguments, **(keywords or {}))


@pytest.mark.parametrize(("selective", "again"), [(True, 4), (False, 7), (None, 0)])
def test_selective_recomputation_keeps_every_second_product(selective, again):
    """Of seven; each has one in 8 bits for the gradient of its input besides. Eagerly the last one is there before its factors are kept."""
    settings = run_of(MODEL | {"norm": "rms", "activation": "swiglu", "bias": False}).workload.model
    block = Block(settings).bfloat16()
    float8.prepare([block], run_of(), torch.device("cpu"))
    if selective is not None:
        block.forward = recomputed(block, selective)
    hidden = torch.randn(2, 8, 64).bfloat16().requires_grad_()
    with Counting() as counting:
        block(hidden).square().sum().backward()
    assert counting.seen[torch.ops.aten._scaled_mm_v2.default] == 7 + 7 + again


@pytest.mark.parametrize("of_leaves", [True, False])
def test_a_pass_computes_the_gradients_that_it_is_asked_for(of_leaves):
    """As schedules ask that split the backward pass; of leaves torch says it otherwise."""
    leaves = [torch.randn(16, 16).bfloat16().requires_grad_() for _ in range(2)]
    outputs = float8.Product.apply(*(leaves if of_leaves else [leaf.clone() for leaf in leaves]))
    expected = torch.autograd.grad(outputs, leaves, torch.ones_like(outputs), retain_graph=True)
    for number, kind in enumerate((torch.ops.aten._scaled_mm_v2.default, torch.ops.aten.mm.default)):
        with Counting() as counting:
            (gradient,) = torch.autograd.grad(outputs, leaves[number], torch.ones_like(outputs), retain_graph=True)
        assert torch.equal(gradient, expected[number])
        assert {name: count for name, count in counting.seen.items() if "mm" in str(name)} == {kind: 1}


def test_two_of_three_products_with_weights_are_priced_by_the_rate_of_8_bits():
    """Explicit attention's are as they were, and rounding moves each factor."""
    half = Rounding(operations=0.5, moved=5, kernels=4)
    for product, kept in ((Product(512, 256, 1024), 0.5), (Product(512, 256, 1024, weighs=False), 1.0)):
        plain, rounded = (_loads(Operations((product,)), 0, rounding=each) for each in (Rounding(), half))
        assert [one.flops / other.flops for one, other in zip(rounded, plain, strict=True)] == [kept, (1 + kept) / 2]
        more = [one.moved - other.moved for one, other in zip(rounded, plain, strict=True)]
        factors = 256 * (512 + 1024), 1024 * (512 + 256)
        assert more == [5 * each * (kept < 1) for each in factors]


def test_the_price_follows_the_data_sheet():
    run, fast, faster = run_of(), site_of(bf16=1000, float8=2000), site_of(bf16=1000, float8=4000)
    assert Rounding.of(run, faster).operations == pytest.approx(Rounding.of(run, fast).operations / 2)
    assert Rounding.of(replace(run, precision="bf16"), fast) == Rounding()
    eager, joined = (Rounding.of(replace(run, layout=Layout(compile=each)), fast) for each in (False, True))
    assert joined.moved < eager.moved and joined.kernels < eager.kernels


def test_a_linear_layer_with_a_pass_of_its_own_is_refused():
    class Router(torch.nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs).softmax(-1)

    block = torch.nn.ModuleDict({"router": Router(16, 16)})
    with pytest.raises(ConfigError, match="unlike `router`"):
        float8.prepare([block], run_of(), torch.device("cpu"))


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"model_type": "gpt2"}, "nn.Linear alone"),
        ({"model_type": "mixtral", "num_local_experts": 4}, "nn.Linear alone"),
        ({"model_type": "llama", "hidden_size": 72}, "`hidden_size` = 72"),
    ],
)
def test_folders_whose_blocks_the_kernel_does_not_take_are_refused_before_a_job(config, named, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=named):
        run_of({"kind": "transformers", "folder": str(tmp_path)}).check()


def test_advice_says_that_it_is_the_precision_which_is_refused():
    with pytest.raises(ConfigError, match="multiples of 16"):
        advise(run_of(MODEL | {"dim": 72}).workload, site_of(float8=1979, bf16=989), 4, "float8")
    with pytest.raises(ConfigError, match="names no float8"):
        scaling(run_of().workload, site_of(bf16=312), 4, "float8")
