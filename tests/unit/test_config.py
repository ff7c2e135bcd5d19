"""Settings: what is wrong is said with its place and a way out, and what is right is taken as people write it."""

import dataclasses
import math
import typing

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from parascale.errors import ConfigError
from parascale.settings import (
    Config,
    Layout,
    Site,
    Workload,
    strict,
)

KINDS = (Config, Workload, Layout, Site)


quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def options(kind, prefix=()):
    """(path of keys, field, type) of every setting of a dataclass, groups opened."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(hints[field.name]):
            yield from options(hints[field.name], (*prefix, field.name))
        else:
            yield (*prefix, field.name), field, hints[field.name]


OPTIONS = [
    pytest.param(kind, *option, id=f"{kind.__name__}.{'.'.join(option[0])}")
    for kind in KINDS
    for option in options(kind)
]
BOUNDED = [
    pytest.param(kind, path, metadata, id=f"{kind.__name__}.{'.'.join(path)}")
    for kind in KINDS
    for path, field, _ in options(kind)
    if any((metadata := field.metadata).get(bound) is not None for bound in ("low", "above", "high"))
]


def load(kind, path, value):
    """Load a dataclass in which one setting, at a path of keys, is given; return what the setting became."""
    values = {"name": "x"} if kind in (Workload, Site) else {}
    inner = values
    for key in path[:-1]:
        inner = inner.setdefault(key, {})
    inner[path[-1]] = value
    loaded = strict.load(kind, values, "file.yaml")
    for key in path:
        loaded = getattr(loaded, key)
    return loaded


@quick
@given(st.sampled_from([case.values for case in OPTIONS]), st.data())
def test_a_mistyped_key_is_an_error_that_names_it_and_a_near_one(case, data):
    kind, path, _, _ = case
    key = path[-1]
    assume(len(key) > 3)
    cut = data.draw(st.integers(0, len(key) - 1))
    typo = key[:cut] + key[cut + 1 :]
    group = kind
    for step in path[:-1]:
        group = typing.get_type_hints(group)[step]
    assume(typo not in {field.name for field in dataclasses.fields(group)})
    with pytest.raises(ConfigError) as error:
        load(kind, (*path[:-1], typo), 1)
    assert "file.yaml" in str(error.value)
    assert f"unknown key `{'.'.join((*path[:-1], typo))}`" in str(error.value)
    assert "did you mean `" in str(error.value)
    assert f"Allowed: {dataclasses.fields(group)[0].name}" in str(error.value)


@pytest.mark.parametrize(("kind", "path", "field", "hint"), OPTIONS)
def test_every_setting_refuses_a_value_of_another_type(kind, path, field, hint):
    wrong = {"bool": 1} if hint is not dict and typing.get_origin(hint) is not dict else ["a list"]
    with pytest.raises(ConfigError, match=r"file\.yaml: `" + r"\.".join(path) + "` must be "):
        load(kind, path, wrong)


@pytest.mark.parametrize(("kind", "path", "metadata"), BOUNDED)
def test_every_bound_holds_at_its_limit_and_not_beyond(kind, path, metadata):
    low, above, high = (metadata.get(bound) for bound in ("low", "above", "high"))
    for limit, beyond, words in ((low, -1, "at least"), (high, 1, "at most")):
        if limit is not None:
            assert load(kind, path, limit) == limit
            with pytest.raises(ConfigError, match=f"must be {words} {limit}"):
                load(kind, path, limit + beyond)
    if above is not None:
        assert load(kind, path, above + 1) == above + 1
        with pytest.raises(ConfigError, match=f"must be above {above}"):
            load(kind, path, above)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "nan", "inf", 10**400])
def test_a_number_that_is_not_finite_passes_no_bound(value):
    with pytest.raises(ConfigError, match=r"`optim.weight_decay`"):
        load(Workload, ("optim", "weight_decay"), value)


@pytest.mark.parametrize(("given_", "taken"), [("1e-3", 1e-3), (1, 1.0), ("2.5", 2.5), (0.5, 0.5)])
def test_numbers_are_taken_as_people_write_them(given_, taken):
    loaded = load(Workload, ("optim", "lr"), given_)
    assert loaded == taken and isinstance(loaded, float)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("task",), "language_modell", "did you mean `language_model`"),
        (
            ("data", "source", "files"),
            {"valid": "a.txt"},
            r"unknown key `data.source.files.valid`.*Allowed: train, validation",
        ),
        (("data", "source", "columns"), {"text": 3}, "`data.source.columns.text` must be text, not 3"),
        (("model", "options"), {3: 4}, "`model.options`: its keys must be text, not 3"),
        (("optim", "betas"), [0.9, "high"], r"`optim.betas\[1\]` must be a number, not `high`"),
        (("optim",), None, "optim. must be a mapping of keys, not None"),
        (("training", "steps"), True, "must be a whole number, not True"),
        (("training", "steps"), 1e3, "must be a whole number, not 1000.0"),
    ],
)
def test_values_inside_mappings_and_lists_are_checked(path, value, message):
    with pytest.raises(ConfigError, match=message):
        load(Workload, path, value)


def test_a_list_of_groups_is_checked_entry_by_entry():
    with pytest.raises(ConfigError, match=r"unknown key `partitions\[1\].max_hour`; did you mean `max_hours`"):
        load(Site, ("partitions",), [{"name": "a"}, {"name": "b", "max_hour": 2}])
    with pytest.raises(ConfigError, match=r"`partitions\[0\].name` is missing"):
        load(Site, ("partitions",), [{}])


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3),
    max_leaves=5,
)


@settings(quick, max_examples=200)
@given(st.sampled_from([case.values for case in OPTIONS]), anything)
def test_no_value_causes_anything_but_a_setting_or_a_clear_error(case, value):
    kind, path, _, _ = case
    try:
        load(kind, path, value)
    except ConfigError as error:
        assert str(error).startswith("file.yaml: ")
