"""Precision float8: every layout rounds the same numbers to the same 8 bits."""

import pytest

from parascale.train.parity import TOLERANCES

from .cases import CASES, but_slow, ranks_of
from .conftest import COMPARED
from .float8 import train_with_float8, train_with_rounding
from .harness import run_on_ranks
from .jobs import job_from_settings
from .rounding import verdict_on
from parascale.train.parity import compare_folders

SIZES = {"dim": 64, "hidden": 128}  # ranks' parts are multiples of 16
WAYS = ("ddp 2", "fsdp 2 x tp 2", "tp 2 llama", "pp 2 1F1B", "cp 2 llama", "hsdp 2x2 selective", "pp 2 zero bubble", "fsdp 2 x tp 2 x pp 2 selective", "ddp 2 uneven accumulated")

@pytest.fixture(scope="session")
def exactly_alone(settings_below, tmp_path_factory):
    trained = {}
    def train(**keys):
        key = repr(keys)
        if key not in trained:
            folder = tmp_path_factory.mktemp("exact")
            trained[key] = settings_below(folder, "single", **keys)
            run_on_ranks(train_with_float8, 1, folder / "ranks", trained[key])
        return trained[key]
    return train

@pytest.mark.parametrize("name", WAYS)
def test_x(name, make_settings, exactly_alone, tmp_path):
    case = CASES[name]
    keys = {"model": case.model | SIZES, "optim": case.optim, "training": case.training, "precision": "fp64", "parity": COMPARED}
    settings = make_settings("case", case.layout, **keys)
    run_on_ranks(train_with_float8, ranks_of(case.layout), tmp_path / "ranks", settings)
    v = compare_folders(settings["output"], exactly_alone(**keys)["output"])
    print("TRY", name, v["verdict"], v["reason"], v["loss_difference"], v["grad_norm_difference"], v["weight_difference"])
