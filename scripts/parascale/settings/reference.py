"""Generate files from the declarations of settings: the tables of `config/README.md`, and JSON schemas for editors.

The page is written by hand, except for the tables between pairs of markers, `<!-- table: NAME -->` and `<!-- end -->`.
"""

import dataclasses
import re
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import Field, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from parascale.errors import ConfigError
from parascale.settings.config import Config
from parascale.settings.options import Setting, adapter, arms, declared, walk
from parascale.settings.runtable import LAYOUT_COLUMNS, RUN_COLUMNS
from parascale.settings.site import Site
from parascale.settings.workload import LANGUAGE_MODEL, TASKS, Model, Workload

BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
KINDS = {bool: "true or false", int: "whole number", float: "number", str: "text", list: "list", dict: "mapping"}
DRAFT = "https://json-schema.org/draft/2020-12/schema"
BOUNDS = {"gt": "exclusiveMinimum", "ge": "minimum", "le": "maximum"}
FOLDED = "\n<details><summary>For experts</summary>\n\n", "\n</details>\n"


class SettingRow(NamedTuple):
    """A row of a table of settings: the key, and the other cells."""

    key: str
    expert: bool
    cells: tuple[str, ...]


def tables() -> dict[str, str]:
    """{name: Markdown table} for each kind of settings file."""
    columns = [setting for setting in (RUN_COLUMNS | LAYOUT_COLUMNS).values() if setting.key != "name"]
    return {
        "config": _tables(("key",), map(_row, walk(Config))),
        "runs": _tables(("column",), map(_row, columns)),
        "workload": _tables(("key", "of"), _rows_of_workloads()),
        "site": _tables(("key",), [_row(setting) for setting in walk(Site) if setting.key != "name"]),
    }


def fill(page: str) -> str:
    """`page` with new tables between the markers. Raises ConfigError unless each table has exactly one place."""
    made = tables()
    found = [name for _, name, _ in BLOCK.findall(page)]
    if sorted(found) != sorted(made):
        raise ConfigError(
            f"the page must have each table once: {', '.join(made)}; it has: {', '.join(found) or 'none'}"
        )
    return BLOCK.sub(lambda match: f"{match[1]}{made[match[2]]}{match[3]}", page)


def schemas() -> dict[str, dict[str, Any]]:
    """{kind of YAML file: JSON schema (draft 2020-12)}, with which editors complete and check the file."""
    config, site = _definitions(Config), _definitions(Site)
    return {
        "config": {"$schema": DRAFT, **config.pop("Config"), "$defs": config, "title": "Configuration"},
        "site": {"$schema": DRAFT, **_without_name(site.pop("Site")), "$defs": site, "title": "Site"},
        "workload": {"$schema": DRAFT, **_workload_schema(), "title": "Workload"},
    }


def _workload_schema() -> dict[str, Any]:
    """The schema of a workload. Task and kind of model decide which keys are allowed; a file that `extends` another may omit both."""
    kinds = _kinds()
    shared = _definitions(*TASKS.values(), *(settings for _, settings in kinds.values()))
    for name, task in TASKS.items():
        properties = _without_name(shared[task.__name__])["properties"]
        properties["extends"] = {"type": "string", "description": "the workload that this one changes"}
        if task.is_script:
            continue
        own = {kind: settings for kind, (of, settings) in kinds.items() if of == name}
        named: dict[str, Any] = {"anyOf": [{"enum": list(own)}, {"type": "string", "pattern": ":"}]}
        usual = _reference(Model.variant({}, {"task": name}))
        model = _one_of("kind", own, {"required": ["kind"]}, usual, {"anyOf": list(map(_reference, own.values()))})
        properties["model"] = {"type": "object", "properties": {"kind": named}, **model}
    usual, anything = _reference(TASKS[LANGUAGE_MODEL]), {"anyOf": list(map(_reference, TASKS.values()))}
    named = {"task": {"enum": list(TASKS), "description": declared(Workload)["task"].field.description}}
    return {**_one_of("task", TASKS, {"required": ["extends"]}, anything, usual), "properties": named, "$defs": shared}


def _one_of(key: str, classes: Mapping[str, type], condition: Any, then: Any, otherwise: Any) -> dict[str, Any]:
    """The schema of a mapping in which `key` selects a class of settings; without it `condition` chooses `then` or `otherwise`."""
    chain: dict[str, Any] = {"if": condition, "then": then, "else": otherwise}
    for name, settings in classes.items():
        named = {"required": [key], "properties": {key: {"const": name}}}
        chain = {"if": named, "then": _reference(settings), "else": chain}
    return {"type": "object", **chain}


def _reference(settings: type) -> dict[str, str]:
    return {"$ref": f"#/$defs/{settings.__name__}"}


def _definitions(*classes: type) -> dict[str, Any]:
    """{class name: schema} of classes of settings and of their groups."""
    inputs: list[Any] = [(kind.__name__, "validation", adapter(kind)) for kind in classes]
    _, made = TypeAdapter.json_schemas(inputs, ref_template="#/$defs/{model}")
    return _plain(made["$defs"])


def _plain(schema: Any) -> Any:
    """A schema with standard keywords: renames pydantic's bounds in unions, and drops titles, which only repeat keys."""
    if isinstance(schema, list):
        return [_plain(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    titled = isinstance(schema.get("title"), str)
    return {BOUNDS.get(key, key): _plain(value) for key, value in schema.items() if not (titled and key == "title")}


def _kinds() -> dict[str, tuple[str, type]]:
    """{kind of model: (task, class of settings)}."""
    from parascale.families import kinds, settings_of  # families build on settings

    return {name: (kind.task, settings_of(kind.task, name)) for name, kind in kinds().items()}


def _without_name(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without `name`, which comes from the file's name."""
    del schema["properties"]["name"]
    schema["required"].remove("name")
    return schema


def _rows_of_workloads() -> Iterator[SettingRow]:
    """Rows of all settings of workloads. The second cell lists the tasks or kinds of models that have the setting; empty: all."""
    kinds = _kinds()
    whose: dict[SettingRow, Any] = {}
    for name, task in TASKS.items():
        for setting in walk(task):
            if setting.key not in ("name", "task") and not setting.key.startswith("model."):
                whose.setdefault(_row(setting), []).append(name)
    for name, (_, settings) in kinds.items():
        for setting in walk(settings, "model."):
            if setting.key != "model.kind":
                whose.setdefault(_row(setting), []).append(name)
    kind = declared(Model)["kind"]  # optional in a file, because each task has a default kind
    kind = dataclasses.replace(kind, key="model.kind", field=Field(None, description=kind.field.description))
    rows: dict[SettingRow, Any] = {_row(declared(Workload)["task"]): TASKS, _row(kind): kinds}
    rows |= dict(sorted(whose.items(), key=lambda each: each[0].key.partition(".")[0]))
    for row, names in rows.items():
        every: Any = (
            kinds if row.key.startswith("model.") else [name for name, task in TASKS.items() if not task.is_script]
        )
        of = "" if len(names) >= len(every) else ", ".join(f"`{name}`" for name in names)
        yield SettingRow(row.key, row.expert, (of, *row.cells))


def _tables(first: tuple[str, ...], rows: Iterable[SettingRow]) -> str:
    """A table of settings, followed by a folded one for experts."""
    rows = list(rows)
    usual, expert = ([row for row in rows if row.expert == wanted] for wanted in (False, True))
    return _table(first, usual) + (_table(first, expert).join(FOLDED) if expert else "")


def _row(setting: Setting) -> SettingRow:
    meaning = setting.field.description
    cells = _value(setting), _default(setting.field), setting.info.decides or "", meaning[0].upper() + meaning[1:]
    return SettingRow(setting.key, setting.info.expert, cells)


def _value(setting: Setting) -> str:
    hint = arms(setting.hint)[0]
    kind = KINDS.get(typing.get_origin(hint) or hint, "text")  # in the run table a workload is a name
    arguments = (hint, *typing.get_args(hint))
    if choices := next((typing.get_args(arm) for arm in arguments if typing.get_origin(arm) is typing.Literal), ()):
        words = ", ".join(_shown(choice) for choice in choices)
        return words if typing.get_origin(hint) is typing.Literal else f"{kind} of {words}"
    bounds = [
        f"{sign} {bound:g}"
        for sign, name in (("≥", "ge"), (">", "gt"), ("≤", "le"))
        for bound in (getattr(entry, name, None) for entry in setting.field.metadata)
        if bound is not None
    ]
    return f"{kind} {', '.join(bounds)}".strip()


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if value is None or value in ("", [], {}):
        return "–"
    return _shown(value)


def _shown(value: object) -> str:
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _table(first: tuple[str, ...], rows: list[SettingRow]) -> str:
    head = (*first, "value", "default", "decides", "meaning")
    lines = [head, ("---",) * len(head)]
    lines += [(f"`{row.key}`", *(cell.replace("|", "\\|") for cell in row.cells)) for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
