"""Settings: what is wrong is said with its place and a way out, and what is right is taken as people write it."""

import ast
import math
import re
import typing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from parascale.errors import ConfigError
from parascale.families import kinds, settings_of
from parascale.settings import Config, Layout, Run, Site, strict
from parascale.settings.options import DECISIONS, walk
from parascale.settings.workload import TASKS, LanguageModelling

ROOT = Path(__file__).parents[2]
KINDS = (Config, Layout, Site, *TASKS.values())


quick = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def declared_settings():
    """(class of a file's settings, Setting) of every single setting; of a workload also those of each kind of model."""
    for kind in KINDS:
        yield from ((kind, setting) for setting in walk(kind) if "[]" not in setting.key and setting.key != "name")
    for name, kind in kinds().items():
        yield from ((TASKS[kind.task], each) for each in walk(settings_of(kind.task, name), "model."))


OPTIONS = [
    pytest.param(kind, setting, id=f"{kind.__name__}.{setting.key}")
    for kind, setting in declared_settings()
    if not setting.key.startswith("model.") or setting.key.count(".") == 1
]
BOUNDS = {"ge": (-1, "at least"), "le": (1, "at most"), "gt": (0, "above")}
BOUNDED = [
    pytest.param(kind, setting, bound, limit, id=f"{kind.__name__}.{setting.key}-{bound}")
    for kind, setting in declared_settings()
    for bound in BOUNDS
    for entry in setting.field.metadata
    if (limit := getattr(entry, bound, None)) is not None
]


def load(kind, key, value, task=None):
    """Load settings in which one, at a dotted key, is given; return what it became."""
    values = {"name": "x"} if kind is not Config and kind is not Layout else {}
    if kind in TASKS.values():
        values["task"] = kind.__pydantic_fields__["task"].default
    inner, path = values, key.split(".")
    for step in path[:-1]:
        inner = inner.setdefault(step, {})
    if path[0] == "model" and path[-1] != "kind" and task is not None:
        inner["kind"] = task
    inner[path[-1]] = value
    loaded = strict.load(kind, values, "file.yaml")
    for step in path:
        loaded = getattr(loaded, step)
    return loaded


def model_kind(setting):
    """The kind of model that a setting is of, or None."""
    own = (name for name, kind in kinds().items() if setting.owner in settings_of(kind.task, name).__mro__)
    return next(own, None) if setting.key.startswith("model.") else None


@quick
@given(st.sampled_from([case.values for case in OPTIONS]), st.data())
def test_a_mistyped_key_is_an_error_that_names_it_and_a_near_one(case, data):
    kind, setting = case
    key = setting.key.rpartition(".")[2]
    assume(len(key) > 3)
    cut = data.draw(st.integers(0, len(key) - 1))
    typo = f"{setting.key.removesuffix(key)}{key[:cut]}{key[cut + 1 :]}"
    assume(typo not in {each.key for _, each in declared_settings()})
    with pytest.raises(ConfigError) as error:
        load(kind, typo, 1, model_kind(setting))
    assert "file.yaml" in str(error.value)
    assert f"unknown key `{typo}`" in str(error.value)
    assert "did you mean `" in str(error.value)
    assert "Allowed: " in str(error.value)


@pytest.mark.parametrize(("kind", "setting"), OPTIONS)
def test_every_setting_refuses_a_value_of_another_type(kind, setting):
    wrong = ["a list"] if typing.get_origin(setting.hint) is dict else {"bool": 1}
    with pytest.raises(ConfigError, match=f"file\\.yaml: `{re.escape(setting.key)}` must be "):
        load(kind, setting.key, wrong, model_kind(setting))


@pytest.mark.parametrize(("kind", "setting", "bound", "limit"), BOUNDED)
def test_every_bound_holds_at_its_limit_and_not_beyond(kind, setting, bound, limit):
    step, words = BOUNDS[bound]
    inside = limit + 1 if bound == "gt" else limit
    assert load(kind, setting.key, inside, model_kind(setting)) == inside
    with pytest.raises(ConfigError, match=re.escape(f"must be {words} {limit:g}")):
        load(kind, setting.key, limit + step, model_kind(setting))


@pytest.mark.parametrize(("kind", "setting"), OPTIONS)
def test_every_setting_says_what_it_decides(kind, setting):
    assert setting.decides in DECISIONS, f"`{setting.key}`: say in its declaration, or its class's, what it decides"


# Read by names that code puts together: the module that does.
READ_BY_NAME = {"data.expected.train_tokens": "data/text.py", "data.images.test": "data/drawing.py"}


def test_every_setting_is_read_somewhere():
    """As an attribute of that name, in the package or in the rules: one that nothing reads decides nothing, and goes."""
    read = set()
    for path in (ROOT / "scripts").rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        read |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    for path in (ROOT / "Snakefile", *(ROOT / "rules").glob("*.smk")):
        read |= set(re.findall(r"\.(\w+)", path.read_text(encoding="utf-8")))
    keys = {setting.key for kind in (*KINDS, Run) for setting in walk(kind)}
    keys |= {setting.key for _, setting in declared_settings()}
    unread = {key for key in keys if key.rpartition(".")[2] not in read}
    assert len(keys) > 200 and unread == set(READ_BY_NAME)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("other", TASKS)
def test_no_section_takes_a_key_of_another_task(task, other):
    """Over all pairs of tasks, each key of one that the other does not have."""
    own = {setting.key for setting in walk(TASKS[task])}
    for setting in walk(TASKS[other]):
        if setting.key not in own and setting.key.count(".") and not setting.key.startswith("model."):
            # The outermost group that is not known is named.
            with pytest.raises(ConfigError, match=r"unknown key `[\w.]+`.* Allowed: "):
                load(TASKS[task], setting.key, setting.field.get_default(call_default_factory=True))


@pytest.mark.parametrize("kind", kinds())
@pytest.mark.parametrize("other", kinds())
def test_no_kind_of_model_takes_a_key_of_another(kind, other):
    """Over all pairs of kinds of models, each key of one that the other does not have."""
    task = TASKS[kinds()[kind].task]
    own = {setting.key for setting in walk(settings_of(kinds()[kind].task, kind))}
    for setting in walk(settings_of(kinds()[other].task, other)):
        if setting.key not in own:
            with pytest.raises(ConfigError, match=f"unknown key `model.{setting.key}`.* Allowed: kind, "):
                load(task, f"model.{setting.key}", setting.field.get_default(call_default_factory=True), kind)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "nan", "inf", 10**400])
def test_a_number_that_is_not_finite_passes_no_bound(value):
    with pytest.raises(ConfigError, match=r"`optim.weight_decay`"):
        load(LanguageModelling, "optim.weight_decay", value)


@pytest.mark.parametrize(("given_", "taken"), [("1e-3", 1e-3), (1, 1.0), ("2.5", 2.5), (0.5, 0.5)])
def test_numbers_are_taken_as_people_write_them(given_, taken):
    loaded = load(LanguageModelling, "optim.lr", given_)
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
        (("data", "source", "kind"), 3, "`data.source.kind` must be builtin, hub, files or url, not 3"),
        (("data", "format"), 3, "`data.format` must be flat"),
        (("model", "options"), {3: 4}, "`model.options`: its keys must be text, not 3"),
        (("optim", "betas"), [0.9, "high"], r"`optim.betas\[1\]` must be a number, not `high`"),
        (("optim",), None, "optim. must be a mapping of keys, not None"),
        (("training", "steps"), True, "must be a whole number, not True"),
        (("optim", "lr"), True, "`optim.lr` must be a number, not True"),
        (("training", "steps"), 1e3, "must be a whole number, not 1000.0"),
    ],
)
def test_values_inside_mappings_and_lists_are_checked(path, value, message):
    with pytest.raises(ConfigError, match=message):
        load(LanguageModelling, ".".join(path), value)


def test_a_list_of_groups_is_checked_entry_by_entry():
    with pytest.raises(ConfigError, match=r"unknown key `partitions\[1\].max_hour`; did you mean `max_hours`"):
        load(Site, "partitions", [{"name": "a"}, {"name": "b", "max_hour": 2}])
    with pytest.raises(ConfigError, match=r"`partitions\[0\].name` is missing"):
        load(Site, "partitions", [{}])


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3),
    max_leaves=5,
)


@settings(quick, max_examples=200)
@given(st.sampled_from([case.values for case in OPTIONS]), anything)
def test_no_value_causes_anything_but_a_setting_or_a_clear_error(case, value):
    kind, setting = case
    try:
        load(kind, setting.key, value, model_kind(setting))
    except ConfigError as error:
        assert str(error).startswith("file.yaml: ")
