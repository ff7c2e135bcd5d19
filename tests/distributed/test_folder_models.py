"""Language models of `transformers` from folders train to the same numbers in every layout that they offer, spread as it says."""

import math
import os

import pytest
import torch

from parascale.errors import ConfigError
from parascale.families.build import build_model
from parascale.parallel.mesh import stop_processes
from parascale.settings import Model, make
from parascale.train import loop
from parascale.train.parity import compare_folders
from tests.unit.folder_models import FAMILIES, VOCABULARY, make_folder

from ..ports import free_port
from .cases import but_slow, pp, ranks_of
from .conftest import COMPARED, WINDOW
from .examine import held, train_settings
from .harness import run_on_ranks
from .rounding import verdict_on

LAYOUTS = {
    "ddp": {"dp": 2},
    "fsdp": {"fsdp": 2, "activation_checkpointing": True},
    "tp": {"tp": 2},
    "pp": pp(2, 4, "1F1B"),
    "cp": {"cp": 2},
}
BIASES_OF_COLUMNS = tuple(f"{name}.bias" for name in ("q_proj", "k_proj", "v_proj", "query_key_value", "dense_h_to_4h"))

CP_PRODUCTS = {
    "cp 4": {"cp": 4},
    "dp x cp": {"dp": 2, "cp": 2},
    "fsdp x cp": {"fsdp": 2, "cp": 2, "activation_checkpointing": True},
    "tp x cp": {"tp": 2, "cp": 2},
    "cp x pp": {"cp": 2, **pp(2, 2, "1F1B")},
}
TP_PP = {"tp": 2, **pp(2, 2, "1F1B")}
# (family, layout, precision) beside those: products of layouts, and half precision or less.
MORE = [
    *(("Llama", layout, "fp64") for layout in (TP_PP, {"tp": 2, "fsdp": 2})),
    *(("Llama", layout, "bf16") for layout in (*LAYOUTS.values(), TP_PP)),
    *(("Llama", layout, "float8") for layout in (*LAYOUTS.values(), TP_PP)),
    *(("Gemma 2", layout, "bf16") for layout in (LAYOUTS["fsdp"], TP_PP)),
    *(("GPT-2", layout, "bf16") for layout in (LAYOUTS["ddp"], LAYOUTS["fsdp"])),
    *(("Llama", layout, "fp64") for layout in CP_PRODUCTS.values()),
    *(("Llama", CP_PRODUCTS[name], "bf16") for name in ("cp 4", "fsdp x cp", "tp x cp")),
    # Softened scores of an explicit kernel, layers that see a part of the window, grouped keys for four ranks; a mask for sdpa.
    *(("Gemma 2", CP_PRODUCTS[name], "fp64") for name in ("cp 4", "fsdp x cp", "cp x pp")),
    *((family, CP_PRODUCTS["cp 4"], "fp64") for family in ("Mistral", "SmolLM3", "GPT-2")),
    ("GPT-NeoX", CP_PRODUCTS["fsdp x cp"], "fp64"),
    ("Llama", {"cp": 2, "compile": True}, "fp64"),
    *((family, CP_PRODUCTS["dp x cp"], "fp32") for family in ("Mixtral", "Qwen3-MoE")),
]


def train_each(cases):
    """Train one after the other in these processes; what this rank held of each, or the message that refused it.

    cases: name → (settings, a free port).
    """
    stepper, found = loop.Stepper, {}
    for name, (settings, port) in cases.items():

        class Looking(stepper):
            def result(self, *arguments, name=name):
                found[name] = held(self.model, self.optimizers)
                return super().result(*arguments)

        loop.Stepper, os.environ["MASTER_PORT"] = Looking, str(port)
        try:
            train_settings(settings)
        except ConfigError as error:
            found[name] = str(error)
            stop_processes()
    return found


@pytest.mark.parametrize("family", but_slow(FAMILIES, FAMILIES.keys() - {"Llama"}))
def test_a_folder_trains_alike_in_every_layout_that_it_offers(family, make_settings, single, tmp_path):
    folder = make_folder(tmp_path / "model", family)
    keys = {"model": {"kind": "transformers", "folder": str(folder)}, "precision": "fp64", "parity": COMPARED}
    cases = {}
    for name, layout in LAYOUTS.items():
        try:
            cases[name] = make_settings(name, layout, **keys)
        except ConfigError as error:
            said = str(error)
            assert (
                name in ("tp", "pp") and "transformers declares no" in said and said.endswith("single, ddp, fsdp, cp")
            )
    with_ports = {name: (settings, free_port()) for name, settings in cases.items()}
    ranks = run_on_ranks(train_each, 2, tmp_path / "ranks", with_ports, seconds=480)
    baseline = single(**keys)
    for name, settings in cases.items():
        first, second = (rank[name] for rank in ranks)
        verdict = compare_folders(settings["output"], baseline["output"])
        assert verdict["verdict"] == "same", (name, verdict["reason"])
        assert verdict["narrowest_type"] == ("fp64" if family.startswith("GPT") else "fp32")
        check_spread(name, [first["parameters"], second["parameters"]], folder)


@pytest.mark.parametrize(
    ("family", "layout", "precision"), [pytest.param(*case, marks=pytest.mark.slow) for case in MORE], ids=str
)
def test_a_folder_trains_alike_in_products_and_half_precision(
    family, layout, precision, make_settings, single, tmp_path
):
    # Ranks' parts are multiples of 16 in float8.
    sizes = {"hidden_size": 64, "intermediate_size": 96} if precision == "float8" else {}
    folder = make_folder(tmp_path / "model", family, **sizes)
    keys = {"model": {"kind": "transformers", "folder": str(folder)}, "precision": precision, "parity": COMPARED}
    settings = make_settings("case", layout, **keys)
    # Compiling took more than four minutes where nothing was cached and cores were shared.
    run_on_ranks(train_settings, ranks_of(layout), tmp_path / "ranks", settings, seconds=600)
    verdict = verdict_on(settings, single(**keys), layers=2)
    print(family, layout, precision, verdict)
    assert verdict["verdict"] == "same", verdict["reason"]


def check_spread(layout, ranks, folder):
    """DDP holds all twice and FSDP once; tensor parallelism splits all matrices, and biases with the columns that they are added to;
    pipelines leave a stage what is its own."""
    with torch.device("meta"):
        model = build_model(make(Model, kind="transformers", folder=str(folder)), VOCABULARY, WINDOW)
    for name, parameter in model.named_parameters():
        held = sum(math.prod(rank[name]) for rank in ranks if name in rank) / parameter.numel()
        whole = name.endswith("embed_in.weight") or (parameter.ndim == 1 and not name.endswith(BIASES_OF_COLUMNS))
        twice = layout in ("ddp", "cp") or (layout == "tp" and whole)
        assert held == 1 + twice, name
