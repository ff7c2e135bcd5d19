"""With `compile`, each block and the loss really run compiled, in one graph each, under every strategy: the same training."""

import shutil
from collections import Counter
from pathlib import Path

import pytest

from parascale.families.language import modules as transformer
from parascale.files import read_json
from tests.unit.folder_models import make_folder

from . import tasks
from .cases import CASES, LLAMA, TIED, axes_of, but_slow, pp, ranks_of
from .examine import train_settings
from .harness import run_on_ranks
from .rounding import verdict_on

STEPS = 3
# layout, model, calls a step and rank: of each block that it holds and each of its micro-batches, and of the loss. None is of the pass in
# which stages learn of shapes.
LAYOUTS = {
    # More blocks than dynamo makes graphs of one function: they share one.
    "single": ({}, {"layers": 12, "dropout": 0.2}, 13),
    "single recomputed": ({"activation_checkpointing": True}, {**LLAMA, "dropout": 0.2}, 5),
    "ddp": ({"dp": 2}, TIED, 5),
    "fsdp": ({"fsdp": 2, "activation_checkpointing": True}, LLAMA, 5),
    "tp": ({"tp": 2}, {"dropout": 0.2}, 5),
    "tp selective": ({"tp": 2, "activation_checkpointing": "selective"}, LLAMA, 5),
    "tp whole sequence": ({"tp": 2, "sequence_parallel": False}, LLAMA, 5),
    "tp whole logits": ({"tp": 2, "sequence_parallel": False, "loss_parallel": False}, {}, 4),
    "pp": (pp(2, 2, "1F1B"), {}, (4, 6)),
    "dp x tp": ({"dp": 2, "tp": 2}, TIED, 5),
    "fsdp x tp": ({"fsdp": 2, "tp": 2}, LLAMA, 5),
    "hsdp": ({"dp": 2, "fsdp": 2}, {}, 5),
    "dp x pp": ({"dp": 2, **pp(2, 2, "1F1B")}, {}, (4, 4, 6, 6)),
    "fsdp x pp": ({"fsdp": 2, **pp(2, 2, "1F1B")}, LLAMA, (4, 4, 6, 6)),
    "tp x pp": ({"tp": 2, **pp(2, 2, "1F1B")}, {}, (4, 4, 6, 6)),
    "dp x tp x pp": ({"dp": 2, "tp": 2, **pp(2, 2, "1F1B")}, {}, (4,) * 4 + (6,) * 4),
    "fsdp x tp x pp": ({"fsdp": 2, "tp": 2, **pp(2, 2, "1F1B")}, LLAMA, (4,) * 4 + (6,) * 4),
    "cp": ({"cp": 2}, LLAMA, 5),
    "dp x cp": ({"dp": 2, "cp": 2}, {}, 5),
    "fsdp x cp": ({"fsdp": 2, "cp": 2}, LLAMA, 5),
    "hsdp x cp": ({"dp": 2, "fsdp": 2, "cp": 2}, {}, 5),
    "tp x cp": ({"tp": 2, "cp": 2}, LLAMA, 5),
    "fsdp x tp x cp": ({"fsdp": 2, "tp": 2, "cp": 2}, TIED, 5),
    "cp x pp": ({"cp": 2, **pp(2, 2, "1F1B")}, {}, (4, 4, 6, 6)),
    "fsdp x cp x pp": ({"fsdp": 2, "cp": 2, **pp(2, 2, "1F1B")}, TIED, (4,) * 4 + (6,) * 4),
    "tp x cp x pp": ({"tp": 2, "cp": 2, **pp(2, 2, "1F1B")}, LLAMA, (4,) * 4 + (6,) * 4),
}
QUICK = {"tp whole logits"}


def train_and_count_compiled_calls(settings, **chosen):
    """Train with graphs that run as they are; (how often a compiled graph ran in all, why graphs broke) on this rank.

    chosen: of what `torch.compile` takes, instead of ours.
    """
    import torch._dynamo
    from torch._dynamo.backends.debugging import aot_eager

    calls, compiled = Counter(), torch.compile

    def counting(graph, inputs):
        run = aot_eager(graph, inputs)

        def counted(*arguments):
            calls["all"] += 1
            return run(*arguments)

        return counted

    torch.compile = lambda function, **keywords: compiled(function, **{**keywords, **chosen, "backend": counting})
    train_settings(settings)
    return calls["all"], list(torch._dynamo.utils.counters["graph_break"])


def train_with_broken_graphs(settings):
    """Train where dynamo captures no block whole, as it may be with a class of the user's own."""
    import torch._dynamo

    split_heads = transformer.Attention._heads

    def broken(attention, projected):
        torch._dynamo.graph_break()
        return split_heads(attention, projected)

    transformer.Attention._heads = broken
    train_and_count_compiled_calls(settings, fullgraph=False)
    assert torch._dynamo.utils.counters["graph_break"]


@pytest.mark.parametrize("name", but_slow(LAYOUTS, {*LAYOUTS} - QUICK))
def test_blocks_and_loss_run_compiled(name, make_settings, single, tmp_path):
    layout, model, calls = LAYOUTS[name]
    expected = [STEPS * each for each in (calls if isinstance(calls, tuple) else (calls,) * ranks_of(layout))]
    settings = check_compiled(expected, layout, {"model": model}, make_settings, single, tmp_path)
    summary = read_json(Path(settings["output"]) / "summary.json")
    assert summary["attention"] == ("" if "dropout" in model else "flash")


def test_every_way_to_spread_is_compiled():
    ways = [axes_of(layout) for layout, *_ in LAYOUTS.values()]
    assert all(axes_of(case.layout) in ways for case in CASES.values())


# name → calls a step: of two blocks, of each half of a summariser, and of the loss where chunks make it
OTHERS = {"summarisation": 5, "classification": 2, "t5": 4, "bart": 4}


@pytest.mark.slow
@pytest.mark.parametrize("layout", [{}, {"dp": 2}, {"fsdp": 2}], ids=str)
@pytest.mark.parametrize("name", OTHERS)
def test_blocks_of_other_families_run_compiled(name, layout, pretrained, make_settings, single, tmp_path, request):
    if name in ("t5", "bart"):
        folder, data = pretrained(name)
        keys = {
            "task": "summarisation",
            **tasks.FINE_TUNING,
            "model": {"kind": "pretrained", "pretrained": str(folder)},
        }
        keys["text"] = {"tokenizer": "pretrained", "pretrained": str(folder)}
    else:
        usual, fixture = {
            "summarisation": (tasks.SUMMARISATION, "pairs"),
            "classification": (tasks.CLASSIFICATION, "images"),
        }[name]
        keys, data = {"task": name, **usual}, request.getfixturevalue(fixture)
    keys["data"] = str(data)
    check_compiled([STEPS * OTHERS[name]] * ranks_of(layout), layout, keys, make_settings, single, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "layout"),
    [(name, layout) for name in ("GPT-2", "Llama") for layout in ({}, {"fsdp": 2, "activation_checkpointing": True})]
    + [("GPT-2", {"dp": 2}), ("Llama", pp(2, 2, "1F1B"))],
    ids=str,
)
def test_blocks_of_a_folder_run_compiled(family, layout, make_settings, single, tmp_path):
    """Both of them, or one a stage in each of its micro-batches."""
    folder = make_folder(tmp_path / "model", family)
    keys = {"model": {"kind": "transformers", "folder": str(folder)}}
    check_compiled([STEPS * 2] * ranks_of(layout), layout, keys, make_settings, single, tmp_path)


def check_compiled(expected, layout, keys, make_settings, single, tmp_path):
    """Train: so many compiled calls on each rank, no broken graph, and the training of a process that compiles nothing. Returns settings."""
    training = {"steps": STEPS, "evaluate": False, **keys.get("training", {})}
    keys = {**keys, "precision": "fp64", "optim": {"warmup_steps": 1}, "training": training}
    settings = make_settings("case", layout | {"compile": True}, timeout=200.0, **keys)
    ranks = run_on_ranks(train_and_count_compiled_calls, ranks_of(layout), tmp_path / "ranks", settings)
    assert [calls for calls, _ in ranks] == expected, ranks
    assert not any(breaks for _, breaks in ranks), ranks
    verdict = verdict_on(settings, single(**keys))
    assert verdict["verdict"] == "same", verdict
    return settings


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_a_pipeline_with_real_graphs_is_the_same_training(make_settings, single, tmp_path):
    """By inductor, whose graphs take their time: no stage waits for those that another makes to learn of shapes."""
    keys = {"precision": "fp64", "optim": {"warmup_steps": 1}, "training": {"steps": STEPS, "evaluate": True}}
    settings = make_settings("case", pp(2, 2, "1F1B") | {"compile": True}, timeout=200.0, **keys)
    run_on_ranks(train_settings, 2, tmp_path / "ranks", settings, seconds=900)
    assert verdict_on(settings, single(**keys))["verdict"] == "same"


@pytest.mark.slow
@pytest.mark.parametrize("layout", [{}, {"dp": 2}], ids=str)
def test_a_recomputed_block_whose_graph_breaks_computes_with_copies(layout, make_settings, single, tmp_path):
    """In bf16, where parameters are in fp32 again when the backward pass recomputes what Python ran."""
    keys = {"precision": "bf16", "parity": 20}
    switches = {"activation_checkpointing": True, "compile": True}
    settings = make_settings("case", layout | switches, timeout=200.0, **keys)
    run_on_ranks(train_with_broken_graphs, ranks_of(layout), tmp_path / "ranks", settings)
    verdict = verdict_on(settings, single(**keys))
    assert verdict["verdict"] == "same", verdict
