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
BOUNDS = {"ge": (-1, "at least"), "le": (1, "at most"), "gt": (0, "above")}

quick = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def declared_settings():
    """(class of a file's settings, kind of model or None, Setting) of every single setting that a file may hold."""
    for kind in (Config, Layout, Site, *TASKS.values()):
        for setting in walk(kind):
            if "[]" not in setting.key and setting.key != "name":
                yield kind, None, setting
    for name, kind in kinds().items():
        yield from ((TASKS[kind.task], name, setting) for setting in walk(settings_of(kind.task, name), "model."))


SETTINGS = list(declared_settings())


def load(kind, key, value, model=None):
    """Load settings in which one, at a dotted key, is given; return what it became."""
    values = {"name": "x"} if kind is not Config and kind is not Layout else {}
    if kind in TASKS.values():
        values["task"] = kind.__pydantic_fields__["task"].default
    if kind is TASKS["script"] and key != "task":
        values["command"] = "train.py"
    if model:
        values["model"] = {"kind": model}
    if key.startswith("studies.NAME."):
        values["studies"] = {"NAME": {"run": "x"}}
    inner, path = values, key.split(".")
    for step in path[:-1]:
        inner = inner.setdefault(step, {})
    inner[path[-1]] = value
    loaded = strict.load(kind, values, "file.yaml")
    for step in path:
        loaded = loaded[step] if isinstance(loaded, dict) else getattr(loaded, step)
    return loaded


@quick
@given(st.sampled_from(SETTINGS), st.data())
def test_a_mistyped_key_is_an_error_that_names_it_and_a_near_one(case, data):
    kind, model, setting = case
    key = setting.key.rpartition(".")[2]
    assume(len(key) > 3)
    cut = data.draw(st.integers(0, len(key) - 1))
    typo = f"{setting.key.removesuffix(key)}{key[:cut]}{key[cut + 1 :]}"
    assume(typo not in {each.key for *_, each in SETTINGS})
    with pytest.raises(ConfigError, match=f"file.yaml: unknown key `{typo}`; did you mean `.*Allowed: "):
        load(kind, typo, 1, model)


@pytest.mark.parametrize("kind", dict.fromkeys(kind for kind, *_ in SETTINGS))
def test_each_setting_of_a_file_refuses_another_type_keeps_its_bounds_and_decides_something(kind):
    for _, model, setting in (case for case in SETTINGS if case[0] is kind):
        assert setting.info.decides in DECISIONS, f"`{setting.key}`: say in its class, or beside it, what it decides"
        wrong = ["a list"] if typing.get_origin(setting.hint) is dict else {"bool": 1}
        with pytest.raises(ConfigError, match=f"file\\.yaml: `{re.escape(setting.key)}` (must be |= .* is not known)"):
            load(kind, setting.key, wrong, model)
        for bound, (step, words) in BOUNDS.items():
            limit = next((getattr(entry, bound) for entry in setting.field.metadata if hasattr(entry, bound)), None)
            if limit is not None:
                inside = limit + 1 if bound == "gt" else limit
                assert load(kind, setting.key, inside, model) == inside
                with pytest.raises(ConfigError, match=re.escape(f"must be {words} {limit:g}")):
                    load(kind, setting.key, limit + step, model)


# Read by names that code puts together: the module that does.
READ_BY_NAME = {"data.expected.train_tokens": "data/text.py"}
READ_BY_NAME |= dict.fromkeys(("data.images.validation", "data.images.test"), "data/image_download.py")


def test_every_setting_is_read_somewhere():
    """As an attribute of that name, in the package or in the rules: one that nothing reads decides nothing, and goes."""
    read = set()
    for path in (ROOT / "scripts").rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        read |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    for path in (ROOT / "Snakefile", *(ROOT / "rules").glob("*.smk")):
        read |= set(re.findall(r"\.(\w+)", path.read_text(encoding="utf-8")))
    keys = {setting.key for setting in walk(Run)} | {setting.key for *_, setting in SETTINGS}
    unread = {key for key in keys if key.rpartition(".")[2] not in read}
    assert len(keys) > 200 and unread == set(READ_BY_NAME)


def own_keys(kind):
    """Dotted key → value of the settings of a class that has groups."""
    return {setting.key: setting.field.get_default(call_default_factory=True) for setting in walk(kind)}


@pytest.mark.parametrize("task", TASKS)
def test_no_section_takes_a_key_of_another_task_or_of_another_kind_of_model(task):
    """Over all pairs, each key of one that the other does not have. The outermost group that is not known is named."""
    own = own_keys(TASKS[task])
    for key, value in ((key, value) for other in TASKS.values() for key, value in own_keys(other).items()):
        if key not in own and "." in key:
            with pytest.raises(ConfigError, match=r"unknown key `[\w.]+`.* Allowed: "):
                load(TASKS[task], key, value)
    classes = {name: settings_of(kind.task, name) for name, kind in kinds().items()}
    for name in (name for name, kind in kinds().items() if kind.task == task):
        foreign = {key: value for other in classes.values() for key, value in own_keys(other).items()}
        for key in foreign.keys() - own_keys(classes[name]).keys():
            with pytest.raises(ConfigError, match=f"unknown key `model.{key}`.* Allowed: kind, "):
                load(TASKS[task], f"model.{key}", foreign[key], name)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "nan", "inf", 10**400])
def test_a_number_that_is_not_finite_passes_no_bound(value):
    with pytest.raises(ConfigError, match=r"`optim.weight_decay`"):
        load(LanguageModelling, "optim.weight_decay", value)


@pytest.mark.parametrize(("given_", "taken"), [("1e-3", 1e-3), (1, 1.0), ("2.5", 2.5), (0.5, 0.5)])
def test_numbers_are_taken_as_people_write_them(given_, taken):
    loaded = load(LanguageModelling, "optim.lr", given_)
    assert loaded == taken and isinstance(loaded, float)


LM = LanguageModelling


@pytest.mark.parametrize(
    ("kind", "key", "value", "message"),
    [
        (LM, "task", "language_modell", "did you mean `language_model`"),
        (LM, "data.source.files", {"valid": "a.txt"}, "unknown key .*files.valid`.*Allowed: train, validation, test$"),
        (LM, "data.source.columns", {"txt": "content"}, "unknown key .*columns.txt`; did you mean `text`"),
        (LM, "data.source.columns", {"text": 3}, "`data.source.columns.text` must be text, not 3"),
        (LM, "data.source.kind", 3, "`data.source.kind` = 3 is not known. Allowed: builtin, hub, files, url"),
        (LM, "data.format", 3, "`data.format` = 3 is not known. Allowed: flat"),
        (LM, "model.options", {3: 4}, "`model.options`: its keys must be text, not 3"),
        (LM, "data", {3: 4}, "`data`: its keys must be text, not 3"),
        (LM, "optim.betas", [0.9, "high"], r"`optim.betas\[1\]` must be a number, not `high`"),
        (LM, "optim", None, "`optim` must be a mapping of keys, not None"),
        (LM, "training.steps", True, "must be a whole number, not True"),
        (LM, "optim.lr", True, "`optim.lr` must be a number, not True"),
        (LM, "training.steps", 1e3, "must be a whole number, not 1000.0"),
        (LM, "data.text.max_vocabulary", 2, "`data.text.max_vocabulary` = 2 must be at least 3"),
        (Layout, "activation_checkpointing", "x", "is not known. Allowed: false, selective, true$"),
        (Config, "checkpoints.forms", [], "`checkpoints.forms` is empty"),
        (Site, "partitions", [{"name": "a"}, {"name": "b", "max_hour": 2}], r"key `partitions\[1\].max_hour`; did you"),
        (Site, "partitions", [{}], r"`partitions\[0\].name` is missing \(its name in Slurm\)"),
    ],
)
def test_values_inside_groups_mappings_and_lists_are_checked(kind, key, value, message):
    with pytest.raises(ConfigError, match=message):
        load(kind, key, value)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3),
    max_leaves=5,
)


@settings(quick, max_examples=200)
@given(st.sampled_from(SETTINGS), anything)
def test_no_value_causes_anything_but_a_setting_or_a_clear_error(case, value):
    kind, model, setting = case
    try:
        load(kind, setting.key, value, model)
    except ConfigError as error:
        assert str(error).startswith("file.yaml: ")
