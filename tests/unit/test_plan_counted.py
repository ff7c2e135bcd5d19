"""All models but our decoder are counted once: what plans then say of them is what the real step takes, and what torch counts.

`python -m tests.unit.test_plan_counted` counts the shipped workloads anew.
"""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from parascale.errors import RequirementError
from parascale.evaluation.evaluate import summed_loss
from parascale.evaluation.task import empty_batch
from parascale.families import is_counted, model_sizes, unknown_sizes
from parascale.families.build import build_model
from parascale.families.counted import NOT_COUNTED, CountedSizes, count_found, counts_of
from parascale.families.kind import matches
from parascale.families.sizes import BACKWARD, MicroBatch
from parascale.plan.memory import RankMemory, peak, rank_stages, total
from parascale.plan.time import formula_rates, step_seconds
from parascale.plan.work import ATTENTION_BACKWARD, NOTHING, step_work
from parascale.settings import Layout, Model, Run, Site, Workload, load_workload, make
from parascale.train import counting
from parascale.train.counting import count
from tests.distributed.cases import pp, ranks_of
from tests.made_up.project import shipped_site

from .folder_models import FAMILIES, VOCABULARY, make_folder
from .own_classes import VIT, VIT_WORKLOAD
from .pretrained_folders import BART_CONFIG, T5_CONFIG, describe
from .test_plan_memory import (
    DROPS_SUMMARISER,
    SUMMARISER,
    T5_GATED,
    XRESNET,
    alone,
    keep_count,
    make_run,
    measured,
    sizes_of,
)

WINDOW = 32
LAYOUTS = {
    "single": {},
    "ddp": {"dp": 2},
    "fsdp": {"fsdp": 2},
    "tp": {"tp": 2},
    "pp": pp(2, 4, "1F1B"),
    "cp": {"cp": 2},
}
QUICK = [("Llama", "cp")]
CASES = [
    (family, layout) for family in FAMILIES for layout in LAYOUTS if family != "GPT-2" or layout not in ("tp", "pp")
]
OWN = """
from torch import nn
from torch.nn import functional as F


class Recurrent(nn.Module):
    def __init__(self, settings, vocabulary, window):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, settings.dim)
        self.layers = getattr(nn, settings.options["kind"])(settings.dim, settings.dim, settings.layers, batch_first=True)
        self.head = nn.Linear(settings.dim, vocabulary)

    def forward(self, tokens_BT):
        hidden_BTD, _ = self.layers(self.embedding(tokens_BT))
        return self.head(hidden_BTD)


class Blocks(nn.Module):
    tensor_plan = {"layers.*.0": "columns", "layers.*.2": "rows"}

    def __init__(self, settings, vocabulary, window):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, settings.dim)
        width, hidden = settings.dim, settings.hidden
        layers = (nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, width)) for _ in range(settings.layers))
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(settings.dim, vocabulary)

    def forward(self, tokens_BT):
        hidden_BTD = self.embedding(tokens_BT)
        for layer in self.layers:
            hidden_BTD = hidden_BTD + layer(hidden_BTD)
        return self.head(hidden_BTD)


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.projection, self.out = nn.Linear(width, 2 * width), nn.Linear(width, width)

    def mixed(self, query, *keys_and_values):
        groups = query.shape[1] // keys_and_values[0].shape[1]
        return F.scaled_dot_product_attention(query, *(x.repeat_interleave(groups, 1) for x in keys_and_values), is_causal=True)

    def forward(self, hidden_BTD):
        width = hidden_BTD.shape[-1]
        parts = self.projection(hidden_BTD).split([width, width // 2, width // 2], -1)
        mixed = self.mixed(*(x.unflatten(-1, (-1, width // 4)).transpose(1, 2) for x in parts))
        return self.out(mixed.transpose(1, 2).flatten(2))


class Attending(Blocks):
    context_plan = {"layers.*": "exchanges"}

    def __init__(self, settings, *sizes):
        super().__init__(settings, *sizes)
        self.layers = nn.ModuleList(Attention(settings.dim) for _ in range(settings.layers))


class Normed(nn.Module):
    def __init__(self, settings, classes, side):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, classes)

    def forward(self, pixels):
        return self.head(self.norm(self.stem(pixels.to(self.head.weight.dtype))).mean((2, 3)))


class Uncalled(Blocks):
    def forward(self, tokens_BT):
        return self.head(self.embedding(tokens_BT))


class Partly(Blocks):
    def forward(self, tokens_BT):
        return self.head(self.layers[0](self.embedding(tokens_BT)))
"""


def run_of(model, layout, precision="fp32", window=WINDOW):
    """A Run of a model in a layout."""
    training = {"window": window, "global_batch": 16, "steps": 2}
    workload = make(Workload, name="counted", model=model, training=training)
    run = Run("test", workload, Layout(gpus_per_node=ranks_of(layout), **layout), precision)
    run.check()
    return run


def counted(model, window=WINDOW):
    """A model whose count is where plans look for it."""
    alone(keep_count, run_of(model, {}, window=window), VOCABULARY)
    return model


@pytest.fixture(scope="session")
def family_of(tmp_path_factory):
    """A function from a family's name to the settings of its tiny model, which is counted."""
    made = {}

    def model_of(family):
        if family not in made:
            folder = make_folder(tmp_path_factory.mktemp("counted") / "model", family)
            made[family] = counted({"kind": "transformers", "folder": str(folder)})
        return made[family]

    return model_of


def check_memory(run, error=0.1):
    """Hold the predicted peak of each pipeline rank against the real step's."""
    sizes = sizes_of(run, VOCABULARY)
    for number, held in enumerate(rank_stages(run.layout, sizes.layers)):
        rank = number * (run.layout.world_size // run.layout.pp)
        real, _ = alone(measured, run, VOCABULARY, rank)
        predicted = total(peak(RankMemory(run, sizes, "cpu", held).moments()))
        print(f"rank {number}: {predicted / real - 1:+.1%}")
        assert predicted == pytest.approx(real, rel=error), number


@pytest.mark.parametrize(
    ("family", "layout"), [pytest.param(*case, marks=[pytest.mark.slow] * (case not in QUICK)) for case in CASES]
)
def test_predicted_memory_is_that_of_the_real_step(family, layout, family_of):
    check_memory(run_of(family_of(family), LAYOUTS[layout]), 0.08 if layout == "cp" else 0.1)


RECOMPUTED = {"activation_checkpointing": True}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "layout", "precision"),
    [
        *(("Gemma 2", layout, "bf16") for layout in ({}, RECOMPUTED, {"fsdp": 2}, {"tp": 2})),
        ("GPT-NeoX", RECOMPUTED, "fp32"),
        ("Phi-3", {"tp": 2, **RECOMPUTED}, "fp32"),
        ("OLMo 2", {"fsdp": 2, **RECOMPUTED}, "bf16"),
        ("SmolLM3", {"cp": 4}, "fp32"),  # keys of a group for two ranks
        ("Gemma 2", {"cp": 2}, "bf16"),
        ("Llama", {"fsdp": 2, "cp": 2, **RECOMPUTED}, "fp32"),
    ],
    ids=str,
)
def test_memory_in_half_precision_and_with_recomputation_is_that_of_the_real_step(family, layout, precision, family_of):
    check_memory(run_of(family_of(family), layout, precision))


def dispatched(run):
    """(parameters, operations of a forward and a backward pass) of a run's model, as torch counts them."""
    model = build_model(run.workload.model, VOCABULARY, *run.workload.sizes)
    *inputs, labels = map(torch.from_numpy, empty_batch(run.workload, run.global_batch))
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    formulas = {
        attention: lambda query, key, value, *_, **__: sdpa_flop_count(query, key, value),
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda *shapes, **_: (
            sdpa_backward_flop_count(*shapes[:4])
        ),
    }
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter, torch.backends.mkldnn.flags(enabled=False):
        summed_loss(model(*inputs), labels).backward()
    return sum(each.numel() for each in model.parameters()), counter.get_total_flops()


def check_operations(run):
    """Within 1 %: flash attention, unmasked, is 2.5 times as much work on the way back. The first convolution has no gradient of its input,
    which is little work. Returns the sizes."""
    sizes, batch = sizes_of(run, VOCABULARY), MicroBatch.of(run, "cpu")
    parameters, real = dispatched(run)
    parts = [(sizes.layers, sizes.block_operations(batch, False)), (1, sizes.ends_operations(batch, False))]
    products = sum(times * sum(each.flops for each in part.products) for times, part in parts)
    forward = run.global_batch * (sizes.layers * sizes.block_flops + sizes.ends_flops)
    planned = (1 + BACKWARD) * products + (1 + ATTENTION_BACKWARD) * (forward - products)
    targets = 1 if run.workload.of_images else run.workload.sizes[-1]
    print(f"{planned / real - 1:+.2%}")
    assert sizes.count == parameters and planned == pytest.approx(real, rel=0.01)
    assert sizes.flops_per_target == pytest.approx(3 * forward / run.global_batch / targets)
    return sizes


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.slow] * (name != "Llama")) for name in FAMILIES]
)
def test_predicted_operations_are_those_that_torch_dispatches(family, family_of):
    check_operations(run_of(family_of(family), {}))


FOLDERS = {"t5": T5_CONFIG, "t5 1.1": T5_GATED, "bart": BART_CONFIG}
FOLDERS |= {"t5, unlike halves": T5_CONFIG | {"num_decoder_layers": 2}}
GROUPED = dataclasses.replace(SUMMARISER, kv_heads=2, tied=True, norm="rms", activation="swiglu", bias=False)
OURS = {"images": XRESNET, "summaries": SUMMARISER, "summaries, other": GROUPED, "summaries, dropout": DROPS_SUMMARISER}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "images")) for name in [*OURS, *FOLDERS]]
)
def test_operations_of_our_kinds_are_those_that_torch_dispatches(name, tmp_path):
    """FSDP gathers one block of a half at a time."""
    model = OURS.get(name)
    if model is None:
        model = make(Model, kind="pretrained", pretrained=str(describe(tmp_path / "model", FOLDERS[name], VOCABULARY)))
    run = make_run(model, batch=4)
    module, sizes = build_model(model, VOCABULARY, *run.workload.sizes), check_operations(run)
    blocks = [each for name, each in module.named_modules() if any(matches(name, unit) for unit in module.shard_units)]
    counts = [sum(parameter.numel() for parameter in block.parameters()) for block in blocks]
    assert (sizes.layers, round(sizes.unit * sizes.block)) == (len(blocks), max(counts))
    assert sizes.layers * sizes.block == pytest.approx(sum(counts))


def test_an_edited_model_is_unknown_until_it_is_counted_beside_its_workload(tmp_path):
    """Another batch needs no count, another side of the images does."""
    text = Path("config/workloads/images-small.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(text.replace("dim: 128, depths: [1, 1]", "dim: 8, depths: [1]"))
    workload = load_workload(tmp_path, "mine")
    assert unknown_sizes(workload.model, 10, 32) == NOT_COUNTED
    assert counting.keep_count(workload, 10).parent == tmp_path / "counts"
    assert unknown_sizes(workload.model, 10, 32) is None and unknown_sizes(workload.model, 10, 64) == NOT_COUNTED
    sizes, batch = model_sizes(workload.model, 10, 32), MicroBatch(64, 1, False, 4, 4, False, "cpu")
    twice = dataclasses.replace(batch, samples=128)
    assert sizes.block_bytes(twice) == pytest.approx(2 * sizes.block_bytes(batch), rel=0.01)


FILES = sorted(Path("config/workloads").glob("*.yaml"))
WORKLOADS = (load_workload("config/workloads", file.stem) for file in FILES)
SHIPPED = [each for each in WORKLOADS if is_counted(each.model) and not each.model.pretrained]


def test_all_that_is_shipped_is_counted_and_nothing_else():
    files = {Path(counts_of(each.model, each.data.expected_outputs, *each.sizes)[0]) for each in SHIPPED}
    assert files == {*Path("config/workloads/counts").iterdir()}


@pytest.mark.parametrize(
    "workload",
    [pytest.param(each, marks=[pytest.mark.slow] * ("small" not in each.name)) for each in SHIPPED],
    ids=lambda workload: workload.name,
)
def test_shipped_counts_are_true(workload):
    outputs = workload.data.expected_outputs
    assert count(workload, outputs) == count_found(workload.model, outputs, *workload.sizes)


def own(tmp_path, name, **settings):
    """Settings of a class of one's own in a file."""
    (tmp_path / "own.py").write_text(OWN)
    return {"kind": f"{tmp_path}/own.py:{name}", "dim": 32, "layers": 2, "hidden": 64, **settings}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layout"), [("Recurrent", {}), ("Blocks", {"fsdp": 2}), ("Blocks", {"tp": 2})])
def test_a_class_of_one_s_own_is_counted_too(name, layout, tmp_path):
    window = 16  # on tensors without data a GRU goes from token to token
    model = counted(own(tmp_path, name, options={"kind": "GRU"}), window)
    check_operations(run_of(model, {}, window=window))
    check_memory(run_of(model, layout, window=window))


@pytest.mark.parametrize(("cp", "keys"), [(2, 1 / 2), (4, 1)])
def test_what_a_class_of_one_s_own_exchanges_is_counted(cp, keys, tmp_path):
    """It has two heads of keys for four of queries: four ranks need them twice."""
    run = run_of(counted(own(tmp_path, "Attending")), {"cp": cp})
    batch, bytes_of_queries = MicroBatch.of(run, "cpu"), 4 * 32 * 16 * WINDOW / cp
    assert sizes_of(run, VOCABULARY).exchanged_bytes(batch) == 2 * (1 + keys) * bytes_of_queries
    check_memory(run, 0.08)


@pytest.mark.parametrize(("name", "norms"), [("Normed", (1, 16)), ("ViT", (0, 0))])
def test_ranks_tell_each_other_of_batch_norms_where_a_class_has_them(name, norms, tmp_path):
    """A class of images may have some or none, whatever `model.norm` says."""
    (tmp_path / "vit.py").write_text(OWN if name == "Normed" else VIT)
    (tmp_path / "w.yaml").write_text(VIT_WORKLOAD.replace("vit.py:ViT", f"vit.py:{name}"))
    run = Run("x", load_workload(tmp_path, "w"), Layout(gpus_per_node=2, dp=2))
    alone(keep_count, run, 10)
    sizes = sizes_of(run, 10)
    assert (sizes.norms, sizes.statistics) == norms
    (rank,) = step_work(run, sizes, Site("cpus", cores_per_node=2)).ranks
    assert (rank.normalise == NOTHING) == (norms == (0, 0))


def test_what_stands_behind_the_last_layer_that_is_called_is_the_end(tmp_path):
    sizes = sizes_of(run_of(counted(own(tmp_path, "Partly")), {}), VOCABULARY)
    assert sizes.head > 0 and sizes.embedding_whole == sizes.head


@pytest.mark.parametrize(
    ("dropout", "compile"),
    [(0.1, True), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((0.0, False), (0.0, True), (0.1, False)))],
)
def test_a_counted_step_on_a_gpu_costs_what_the_formula_says(dropout, compile):
    """Of our decoder, which has both. Masks are drawn forward alone; compiled, they are what is left of that, and what stands between two
    products is one kernel."""
    model = {"dim": 512, "layers": 2, "heads": 8, "hidden": 2048, "dropout": dropout}
    workload = make(Workload, name="x", model=model, training={"window": 256, "global_batch": 16, "steps": 2})
    run, site = Run("x", workload, Layout(compile=compile), "bf16"), shipped_site("jureca")
    both = model_sizes(workload.model, 8192, *workload.sizes), CountedSizes(count(workload, 8192))
    formula, counted = (
        step_seconds(step_work(run, sizes, site), formula_rates(site, "bf16"), site)["compute"] for sizes in both
    )
    print(f"{counted / formula - 1:+.1%}")
    assert counted == pytest.approx(formula, rel=0.2)


def test_repeated_layers_that_are_never_called_are_named(tmp_path):
    with pytest.raises(RequirementError, match=r"none of its repeated layers layers\.\* is called"):
        counted(own(tmp_path, "Uncalled"))


if __name__ == "__main__":
    for file in Path("config/workloads/counts").glob("*.json"):
        file.unlink()
    for each in SHIPPED:
        print(each.name, counting.keep_count(each, each.data.expected_outputs))
