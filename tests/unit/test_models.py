"""The Transformer language model: what it must never do, and what its plans promise."""

import pytest
import torch

from parascale.errors import ConfigError
from parascale.families import kind
from parascale.families.build import build_model, initialise
from parascale.parallel import check_plans
from parascale.parallel.tensor import matches
from parascale.parallel.tying import tied_names
from parascale.settings import Layout, Model, make
from parascale.settings.layout import DEGREES

LLAMA = {"kv_heads": 2, "norm": "rms", "position": "rotary", "activation": "swiglu", "bias": False}
SETTINGS = {
    "gpt": {"dim": 16, "heads": 4, "layers": 2},
    "post-norm": {"dim": 16, "heads": 4, "layers": 2, "pre_norm": False, "position": "sinusoidal"},
    "llama": {"dim": 16, "heads": 4, "layers": 2, **LLAMA},
    "tied": {"dim": 16, "heads": 2, "layers": 1, "tied": True, "activation": "gelu_tanh"},
}


def made(name, seed=1):
    model = build_model(make(Model, **SETTINGS[name]), 23, 8)
    initialise(model, lambda: build_model(make(Model, **SETTINGS[name]), 23, 8), seed, tied_names(model))
    return model.eval()


@pytest.mark.parametrize("name", SETTINGS)
def test_no_token_sees_a_later_one(name):
    model = made(name)
    tokens = torch.randint(0, 23, (1, 8), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 23
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


@pytest.mark.parametrize("name", SETTINGS)
def test_every_matrix_has_its_place_in_the_tensor_plan(name):
    assert_covered(made(name))


def assert_covered(model):
    """A matrix that no pattern covers would be held whole by every rank, and no one would notice."""
    for key, _ in model.named_parameters():
        assert any(matches(key.rpartition(".")[0], pattern) for pattern in model.tensor_plan), key


def test_a_layout_without_a_plan_is_refused_and_told_what_there_is():
    with pytest.raises(ConfigError, match=r"pp = 2: it offers no `pipeline_plan`.*single, ddp"):
        check_plans(torch.nn.Linear(1, 1), Layout(gpus_per_node=2, pp=2))


def test_a_degree_that_no_plan_or_stored_offer_names_is_refused(monkeypatch):
    """As a new one is until it stands in `PLANS`, and one that was not there when a class was counted."""
    layouts = {axis: Layout(gpus_per_node=2, **{axis: 2}) for axis in DEGREES}
    before = {"name": "Own", "layouts": ["single", "ddp"], "refusals": {}, "units": []}
    for axis in layouts.keys() - {"dp"}:
        monkeypatch.setattr(kind, "PLANS", {name: plan for name, plan in kind.PLANS.items() if name != axis})
        for check in (lambda layout: check_plans(made("gpt"), layout), lambda layout: kind.check_offer(before, layout)):
            check(layouts["dp"])
            with pytest.raises(ConfigError, match=f"cannot be trained with {axis} = 2: .*trained as: single, ddp"):
                check(layouts[axis])


@pytest.mark.parametrize("switch", ["activation_checkpointing", "compile"])
def test_a_class_without_blocks_is_not_said_to_be_compiled_or_checkpointed(switch):
    """Nothing would be done to it, and reports would say that it was."""
    with pytest.raises(ConfigError, match=rf"Linear cannot be trained with {switch}: .* Add `shard_units`"):
        check_plans(torch.nn.Linear(1, 1), Layout(**{switch: True}))
    check_plans(torch.nn.Linear(1, 1), Layout())
