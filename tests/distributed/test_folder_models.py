"""Language models of `transformers` from folders train to the same numbers in every layout that they offer, spread as it says."""

import math
import os

import pytest
import torch

from parascale.errors import ConfigError
from parascale.families.build import build_model
from parascale.parallel import stop_processes
from parascale.settings import Model, make
from parascale.train import loop
from parascale.train.parity import compare_folders
from tests.unit.folder_models import FAMILIES, VOCABULARY, make_folder

from .cases import but_slow, pp
from .conftest import WINDOW
from .examine import held, train_settings
from .harness import free_port, run_on_ranks

LAYOUTS = {
    "ddp": {"dp": 2},
    "fsdp": {"fsdp": 2, "activation_checkpointing": True},
    "tp": {"tp": 2},
    "pp": pp(2, 4, "1F1B"),
}
QUICK = {"GPT-2", "Llama"}


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


@pytest.mark.parametrize("family", but_slow(FAMILIES, FAMILIES.keys() - QUICK))
def test_a_folder_trains_alike_in_every_layout_that_it_offers(family, make_settings, single, tmp_path):
    folder = make_folder(tmp_path / "model", family)
    keys = {"model": {"kind": "transformers", "folder": str(folder)}, "precision": "fp64", "parity": True}
    cases = {name: make_settings(name, layout, **keys) for name, layout in LAYOUTS.items()}
    with_ports = {name: (settings, free_port()) for name, settings in cases.items()}
    ranks = run_on_ranks(train_each, 2, tmp_path / "ranks", with_ports, seconds=480)
    baseline = single(**keys)
    for name, settings in cases.items():
        first, second = (rank[name] for rank in ranks)
        if isinstance(first, str):
            assert name in ("tp", "pp") and "transformers declares no" in first and first.endswith("single, ddp, fsdp")
            continue
        verdict = compare_folders(settings["output"], baseline["output"])
        assert verdict["verdict"] == "same", (name, verdict["reason"])
        assert verdict["narrowest_type"] == ("fp64" if family.startswith("GPT") else "fp32")
        check_spread(name, [first["parameters"], second["parameters"]], folder)


def check_spread(layout, ranks, folder):
    """DDP holds all twice and FSDP once; tensor parallelism splits all matrices, and pipelines leave a stage what is its own."""
    with torch.device("meta"):
        model = build_model(make(Model, kind="transformers", folder=str(folder)), VOCABULARY, WINDOW)
    for name, parameter in model.named_parameters():
        held = sum(math.prod(rank[name]) for rank in ranks if name in rank) / parameter.numel()
        twice = layout == "ddp" or (layout == "tp" and (parameter.ndim == 1 or name.endswith("embed_in.weight")))
        assert held == 1 + twice, name
