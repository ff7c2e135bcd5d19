"""Whether two runs are the same has one answer: each setting moves exactly the identities that it decides."""

import dataclasses
import typing

import pytest

from parascale.families import kinds
from parascale.settings import Layout, Run, Site, identity, make
from parascale.settings.options import CONDUCT, DECISIONS, LAYOUT, RECIPE, SITE, arms, declared, walk

SITES = Site("here", cores_per_node=8)
OTHERS = {bool: lambda value: not value, int: lambda value: (value or 99) + 1, float: lambda value: (value or 0.5) / 2}


def run_of(kind, **changes):
    """A run of a kind of model, with settings given by dotted key."""
    values = {"run": "r", "workload": {"name": "w", "task": kinds()[kind].task, "model": {"kind": kind}}}
    for key, value in changes.items():
        inner, path = values, key.split(".")
        for step in path[:-1]:
            inner = inner.setdefault(step, {})
        inner[path[-1]] = value
    return make(Run, **values)


def changed(setting, run):
    """The run with one setting at another value that it may have; None where this test knows none."""
    value = run
    for step in setting.key.split("."):
        value = getattr(value, step)
    hint = arms(setting.hint)[0]
    if typing.get_origin(hint) is typing.Literal:
        other = next((choice for choice in typing.get_args(hint) if choice != value), None)
    elif hint in OTHERS:
        other = OTHERS[hint](value)
    elif hint is str:
        other = f"{value or ''}x"
    else:
        return None
    return None if other is None else run_of(run.workload.model.kind, **{setting.key: other})


def settings_of(kind):
    """Every setting of a run of a kind of model."""
    run = run_of(kind)
    keys = [setting for setting in walk(Run) if not setting.key.startswith("workload.")]
    keys += [
        setting for setting in walk(type(run.workload), "workload.") if not setting.key.startswith("workload.model.")
    ]
    return keys + list(walk(type(run.workload.model), "workload.model."))


CASES = [
    pytest.param(kind, setting, id=f"{kind}-{setting.key}")
    for kind in kinds()
    for setting in settings_of(kind)
    if "[]" not in setting.key
    and setting.key not in ("workload.task", "workload.model.kind", "workload.data.format")
    and changed(setting, run_of(kind)) is not None
]


@pytest.mark.parametrize(("kind", "setting"), CASES)
def test_a_setting_moves_the_identities_that_it_decides_and_no_others(kind, setting):
    run = run_of(kind)
    other = changed(setting, run)
    seen = setting.info.decides
    if setting.info.path:
        seen = CONDUCT  # where something lies decides nothing; what lies there is known by its checksums
    if setting.key in ("scaling", "workload.optim.lr_scaling", "layout.dp", "layout.fsdp"):
        seen = LAYOUT if setting.key.startswith("layout") else CONDUCT  # on one process weak is strong
    key, key_of_other = (identity.key_of(each, SITES, "code") for each in (run, other))
    same_recipe = identity.recipe(run) == identity.recipe(other)
    assert same_recipe == (seen != RECIPE)
    repeats = setting.key == "repeat"
    assert (key == key_of_other) == (seen in (CONDUCT, SITE) and not repeats)
    words = identity.difference(other, run)
    assert bool(words) == (seen == RECIPE and setting.key not in ("seed", "init_from"))
    assert (identity.speed_of(run) == identity.speed_of(other)) == (
        (seen == SITE and setting.key != "workload.name") or setting.key in ("seed", "baseline", "init_from")
    )
    # Other data and other models are never taken for repetitions, although their keys know them by their checksums.
    if setting.info.path or setting.key == "workload.name":
        assert identity.configuration_of(run) != identity.configuration_of(other)


def test_the_words_of_a_difference_name_key_and_both_values():
    others = {"workload.optim.lr": 2e-3, "workload.model.layers": 4}
    run, other = run_of("transformer_lm"), run_of("transformer_lm", **others)
    assert identity.difference(other, run) == "`model.layers` 2 → 4, `optim.lr` 0.001 → 0.002"


def test_weak_scaling_is_compared_without_the_batch_and_its_rate():
    wide = {"scaling": "weak", "layout.dp": 2, "layout.gpus_per_node": 2, "workload.optim.lr_scaling": "linear"}
    weak = run_of("transformer_lm", **wide)
    assert weak.global_batch == 128 and weak.peak_lr == 2e-3
    assert identity.difference(weak, run_of("transformer_lm")) == ""
    strong = run_of("transformer_lm", **{"workload.training.global_batch": 128, "workload.optim.lr": 2e-3})
    assert identity.recipe(weak) == identity.recipe(strong), "it is the values that count, not how they were arrived at"


def test_the_device_the_code_and_the_data_are_part_of_a_key():
    run, gpu = run_of("xresnet"), Site("there", device="cuda", gpu="A100", cores_per_node=8)
    keys = [
        identity.key_of(run, SITES, "code"),
        identity.key_of(run, SITES, "other code"),
        identity.key_of(run, SITES, "code", ["data"]),
        identity.key_of(run, gpu, "code"),
        identity.key_of(run, dataclasses.replace(gpu, gpu="H100"), "code"),
        identity.key_of(dataclasses.replace(run, repeat=2), SITES, "code"),
    ]
    assert len(set(keys)) == len(keys)
    assert identity.key_of(run, dataclasses.replace(SITES, title="x", max_hours=3.0), "code") == keys[0]


def test_rows_that_are_the_same_are_numbered():
    run = run_of("transformer_lm")
    rows = {name: dataclasses.replace(run, run=name) for name in ("a", "b", "c")} | {
        "other seed": dataclasses.replace(run, run="d", seed=2),
        "watched": dataclasses.replace(run, run="e", profile="5-7"),
    }
    assert [each.repeat for each in identity.numbered(rows).values()] == [1, 2, 3, 1, 4]
    keys = {identity.key_of(each, SITES, "code") for each in identity.numbered(rows).values()}
    assert len(keys) == len(rows), "rows never share a key"


def test_a_setting_that_was_added_later_leaves_earlier_results_as_they_are(monkeypatch):
    """A new setting that names the value that results had before is in no digest until it has another one."""
    run = run_of("transformer_lm")
    before = identity.key_of(run, SITES, "code")
    compile_ = declared(Layout)["compile"]
    info = dataclasses.replace(compile_.info, before=None)
    monkeypatch.setitem(declared(Layout), "compile", dataclasses.replace(compile_, info=info))
    monkeypatch.setattr(identity, "_split", identity._split.__wrapped__)
    monkeypatch.setattr(identity, "_known", identity._known.__wrapped__)
    without = identity.key_of(run, SITES, "code")
    assert "layout.compile" not in identity.settings(run, LAYOUT) and without != before
    with_it = dataclasses.replace(run, layout=dataclasses.replace(run.layout, compile=True))
    assert "layout.compile" in identity.settings(with_it, LAYOUT)


def test_all_that_decides_is_told_apart():
    decisions = {setting.info.decides for setting in settings_of("transformer_lm")}
    assert decisions == set(DECISIONS)
