"""A model class of the user's own: its dropout has the same masks in every layout, or its layouts are not called comparable."""

import contextlib
import tempfile

import pytest

from parascale.errors import ConfigError, TrainingError
from parascale.families.build import build_model
from parascale.settings import Model, make
from parascale.train.parity import compare_folders
from tests.unit.own_classes import LSTM

from ..ports import free_port
from .cases import but_slow, pp, ranks_of
from .conftest import COMPARED
from .examine import train_settings
from .harness import run_on_ranks
from .test_folder_models import train_each

# `options.drops` says how: by modules in each block or by a function; or torch's module is given the positions first.
CLASS = """
from torch import nn
from torch.nn import functional as F

from parascale.families.kind import PipelinePlan


class Block(nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.layer, self.drop, self.how = nn.Linear(settings.dim, settings.dim), nn.Dropout(settings.dropout), settings.options["drops"]

    def forward(self, hidden_BTD):
        changed_BTD = self.layer(hidden_BTD).tanh()
        if self.how == "function":
            return hidden_BTD + F.dropout(changed_BTD, self.drop.p, self.training)
        if self.how == "positions first":
            return hidden_BTD + self.drop(changed_BTD.transpose(0, 1)).transpose(0, 1)
        return hidden_BTD + self.drop(changed_BTD)


class Own(nn.Module):
    shard_units = ("blocks.*",)
    pipeline_plan = PipelinePlan(first=("embedding",), blocks="blocks", last=("head",))

    def __init__(self, settings, vocabulary, window):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, settings.dim)
        self.blocks = nn.ModuleDict({str(number): Block(settings) for number in range(settings.layers)})
        self.head = nn.Linear(settings.dim, vocabulary)

    def forward(self, tokens_BT):
        hidden_BTD = tokens_BT if self.embedding is None else self.embedding(tokens_BT)
        for block in self.blocks.values():
            hidden_BTD = block(hidden_BTD)
        return hidden_BTD if self.head is None else self.head(hidden_BTD)
"""
LAYOUTS = {"ddp": {"dp": 2}, "fsdp": {"fsdp": 2, "activation_checkpointing": True}, "pp": pp(2, 4, "1F1B")}


@pytest.fixture(scope="session")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "own.py"
    path.write_text(CLASS)
    return path


def keys_of(file, drops="module"):
    """What a run of the class says beside its layout."""
    model = {"kind": f"{file}:Own", "dim": 32, "layers": 2, "dropout": 0.2, "options": {"drops": drops}}
    return {"model": model, "precision": "fp64", "parity": COMPARED}


def verdict_of(layout, keys, make_settings, single, tmp_path):
    settings = make_settings("case", layout, **keys)
    run_on_ranks(train_settings, ranks_of(layout), tmp_path / "ranks", settings)
    assert settings["run"]["workload"]["model"]["dropout"] == keys["model"].get("dropout", 0.0)
    return compare_folders(settings["output"], single(**keys)["output"])


@pytest.mark.parametrize("name", but_slow(LAYOUTS, {*LAYOUTS} - {"fsdp"}))
def test_dropout_as_a_module_falls_alike_in_every_layout(name, file, make_settings, single, tmp_path):
    verdict = verdict_of(LAYOUTS[name], keys_of(file), make_settings, single, tmp_path)
    assert verdict["verdict"] == "same", verdict


def test_an_lstm_trains_alike_on_two_processes_as_it_is(make_settings, single, tmp_path):
    (tmp_path / "lstm.py").write_text(LSTM)
    model = {"kind": f"{tmp_path}/lstm.py:LSTM", "dim": 16, "layers": 2}
    keys = {"model": model, "precision": "fp64", "parity": COMPARED}
    assert verdict_of({"dp": 2}, keys, make_settings, single, tmp_path)["verdict"] == "same"


@pytest.mark.parametrize(
    "layout",
    [{"tp": 2}, pytest.param({"fsdp": 2, "activation_checkpointing": True}, marks=pytest.mark.slow)],
    ids=["tp", "fsdp"],
)
def test_a_class_needs_few_lines_for_tensor_parallelism_and_none_for_fsdp(
    layout, file, make_settings, single, tmp_path
):
    """FSDP's units are the children of a container; what a `tensor_plan` does not name is whole on every rank."""
    file = file.with_name("bare.py")
    lines = CLASS.replace(
        'shard_units = ("blocks.*",)', 'tensor_plan = {"blocks.*.layer": "columns", "blocks.*.back": "rows"}'
    )
    lines = lines.replace("self.layer(hidden_BTD).tanh()", "self.back(self.layer(self.norm(hidden_BTD)).tanh())")
    made = "self.norm, self.back = nn.LayerNorm(settings.dim), nn.Linear(settings.dim, settings.dim)"
    file.write_text(lines.replace('settings.options["drops"]', f'settings.options["drops"]\n        {made}'))
    verdict = verdict_of(layout, keys_of(file), make_settings, single, tmp_path)
    assert verdict["verdict"] == "same", verdict


ATTENDING = """

    def mixed(self, *heads_BHTE):
        return F.scaled_dot_product_attention(*heads_BHTE, is_causal=True)
"""


@pytest.mark.parametrize("layout", [{"cp": 2}, pytest.param({"fsdp": 2, "cp": 2}, marks=pytest.mark.slow)], ids=str)
def test_a_class_with_a_context_plan_shares_the_positions(layout, file, make_settings, single, tmp_path):
    """Its attention makes `mixed` of all positions, whatever its other modules do with a part; without the plan it is refused."""
    file = file.with_name("attends.py")
    lines = CLASS.replace(
        "self.layer(hidden_BTD).tanh()", "self.mixed(*[heads_BHTE] * 3, None).transpose(1, 2).flatten(2)"
    )
    heads = "heads_BHTE = self.layer(hidden_BTD).unflatten(-1, (4, -1)).transpose(1, 2)"
    lines = lines.replace("        changed_BTD = self.mixed", f"        {heads}\n        changed_BTD = self.mixed")
    file.write_text(lines.replace("\n\n\nclass Own", f"{ATTENDING}\n\nclass Own"))
    case = make_settings("refused", layout, **keys_of(file))
    for rank in run_on_ranks(train_each, ranks_of(layout), tmp_path / "refused", {"refused": (case, free_port())}):
        assert "it offers no `context_plan`" in rank["refused"]
    plan = 'context_plan = {"blocks.*": "exchanges", "blocks.*.drop": "drops_of_positions"}'
    file.write_text(file.read_text().replace("class Own(nn.Module):", f"class Own(nn.Module):\n    {plan}"))
    verdict = verdict_of(layout, keys_of(file), make_settings, single, tmp_path)
    assert verdict["verdict"] == "same", verdict


def test_a_class_that_sees_what_it_is_to_predict_is_refused_in_every_layout(file, make_settings, tmp_path):
    """Each rank says so, those of a pipeline too that have no logits; half precision hides nothing."""
    file = file.with_name("sees.py")
    file.write_text(
        CLASS.replace("self.layer(hidden_BTD)", "self.layer(hidden_BTD + hidden_BTD.mean(1, keepdim=True))")
    )
    keys = [keys_of(file) | {"precision": precision} for precision in ("fp32", "bf16", "fp64")]
    cases = {
        name: (make_settings(name, LAYOUTS[name], **each), free_port())
        for name, each in zip(LAYOUTS, keys, strict=True)
    }
    for rank in run_on_ranks(train_each, 2, tmp_path / "ranks", cases, seconds=240):
        assert all("sees.py:Own: the model sees tokens that come later" in str(said) for said in rank.values()), rank


@pytest.mark.parametrize("drops", but_slow(["function", "positions first"], {"function"}))
def test_a_class_that_draws_its_own_way_is_not_compared(drops, file, make_settings, single, tmp_path):
    verdict = verdict_of({"dp": 2}, keys_of(file, drops), make_settings, single, tmp_path)
    assert verdict["verdict"] == "not comparable" and "grad_norm_difference" not in verdict
    assert verdict["reason"].startswith("the model draws random numbers of its own")
    assert "nn.Dropout" in verdict["reason"]


def test_a_bias_that_only_rounding_moves_is_no_difference(file, make_settings, single, tmp_path):
    """Softmax cancels a bias of keys. Here it begins at zero, so that the noise which moves it is all that it is."""
    file = file.with_name("keys.py")
    attention = "F.scaled_dot_product_attention(hidden_BTD, self.layer(hidden_BTD), hidden_BTD, is_causal=True)"
    zero = "self.layer.bias = nn.Parameter(torch.zeros(settings.dim))"
    lines = CLASS.replace("self.layer(hidden_BTD).tanh()", attention).replace(
        "from torch import nn", "import torch\nfrom torch import nn"
    )
    file.write_text(lines.replace('settings.options["drops"]', f'settings.options["drops"]\n        {zero}'))
    keys = keys_of(file) | {"precision": "fp32"}
    assert verdict_of({"dp": 2}, keys, make_settings, single, tmp_path)["verdict"] == "same"


def refused(settings):
    """The message of the ConfigError that training ends with."""
    with pytest.raises(ConfigError) as error:
        train_settings(settings)
    return str(error.value)


def ended(settings):
    """What a rank printed before its training ended, the error's message included."""
    with tempfile.TemporaryFile("w+") as printed, contextlib.redirect_stderr(printed):
        try:
            train_settings(settings)
        except TrainingError as error:
            print(f"error: {error}", file=printed)
        printed.seek(0)
        return printed.read()


def test_a_parameter_without_a_gradient_is_named_at_the_first_step_in_every_layout(file, make_settings, tmp_path):
    file = file.with_name("unused.py")
    file.write_text(CLASS.replace("self.head = ", "self.spare = nn.Linear(3, 3)\n        self.head = "))
    for name, layout in {"single": {}, "fsdp": {"fsdp": 2}, "ddp": {"dp": 2}}.items():
        settings = make_settings(name, layout, **keys_of(file))
        for printed in run_on_ranks(ended, ranks_of(layout), tmp_path / "ranks" / name, settings):
            kind = "error" if name == "ddp" else "warning"
            assert f"{kind}: parameter `spare.weight` and 1 more had no part in the loss" in printed, name


def test_a_module_in_two_places_is_refused(file, make_settings, tmp_path):
    """Its masks would be one, in every layout, and nothing would show it."""
    file = file.with_name("twice.py")
    file.write_text(CLASS.replace("self.drop(changed_BTD)\n\n", "self.drop(self.drop(changed_BTD))\n\n"))
    settings = make_settings("case", {}, **keys_of(file))
    assert "blocks.0.drop`, an nn.Dropout, is called twice" in run_on_ranks(refused, 1, tmp_path / "ranks", settings)[0]


def test_what_only_the_last_stage_draws_is_seen(file, make_settings, single, tmp_path):
    """Rank 0 writes the record, and draws nothing here."""
    file = file.with_name("last.py")
    drawn = "self.head(F.dropout(hidden_BTD, 0.2, self.training))"
    file.write_text(CLASS.replace("self.head(hidden_BTD)", drawn))
    verdict = verdict_of(LAYOUTS["pp"], keys_of(file), make_settings, single, tmp_path)
    assert verdict["verdict"] == "not comparable"


def test_modules_that_drop_in_place_are_left_as_they_are(tmp_path):
    """A class may not use what they return."""
    path = tmp_path / "in_place.py"
    path.write_text(CLASS.replace("nn.Dropout(settings.dropout)", "nn.Dropout(settings.dropout, inplace=True)"))
    model = build_model(make(Model, kind=f"{path}:Own", dim=8, layers=1, options={"drops": "module"}), 5, 4)
    assert not hasattr(model.blocks["0"].drop, "key")
