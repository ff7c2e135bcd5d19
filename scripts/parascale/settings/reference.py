"""What is made from the declarations of settings: the tables of `config/README.md`, and JSON schemas for editors.

The page is written by hand around pairs of markers, `<!-- table: NAME -->` and `<!-- end -->`; only what stands
between a pair is made here.
"""

import dataclasses
import re
import typing

from pydantic import Field, TypeAdapter
from pydantic_core import PydanticUndefined

from parascale.errors import ConfigError
from parascale.settings.config import Config
from parascale.settings.options import adapter, arms, declared, walk
from parascale.settings.runtable import LAYOUT_COLUMNS, RUN_COLUMNS
from parascale.settings.site import Site
from parascale.settings.workload import TASKS, Model, Workload

BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
KINDS = {bool: "true or false", int: "whole number", float: "number", str: "text", list: "list", dict: "mapping"}
DRAFT = "https://json-schema.org/draft/2020-12/schema"
BOUNDS = {"gt": "exclusiveMinimum", "ge": "minimum", "le": "maximum"}
FOLDED = "\n<details><summary>For experts</summary>\n\n", "\n</details>\n"


def tables():
    """Name → Markdown table, for every kind of file that holds settings."""
    columns = [setting for setting in (RUN_COLUMNS | LAYOUT_COLUMNS).values() if setting.key != "name"]
    return {
        "config": _tables(("key",), [((), setting) for setting in walk(Config)]),
        "runs": _tables(("column",), [((), setting) for setting in columns]),
        "workload": _tables(("key", "of"), _of_workloads(_kinds())),
        "site": _tables(("key",), [((), setting) for setting in walk(Site) if setting.key != "name"]),
    }


def fill(page):
    """`page` with each table between its markers rebuilt. Raises ConfigError where a table has no place or two."""
    made = tables()
    found = [name for _, name, _ in BLOCK.findall(page)]
    if sorted(found) != sorted(made):
        raise ConfigError(
            f"the page must hold each table once: {', '.join(made)}; it holds: {', '.join(found) or 'none'}"
        )
    return BLOCK.sub(lambda match: f"{match[1]}{made[match[2]]}{match[3]}", page)


def schemas():
    """Name of a kind of YAML file → its JSON schema (draft 2020-12), by which editors complete and check it."""
    return {
        "config": _whole({"config": Config})[0] | {"title": "Configuration"},
        "site": _as_file(_whole({"site": Site})[0]) | {"title": "Site"},
        "workload": _workload_schema(),
    }


def _workload_schema():
    """A task, and within it a kind of model, decides which keys there are; a file that `extends` another may leave both to it."""
    kinds = _kinds()
    made = {name: settings for name, (_, settings) in kinds.items()}
    _, shared = _whole(TASKS | made)
    named = {name: {"$ref": f"#/$defs/{settings.__name__}"} for name, settings in (TASKS | made).items()}
    shared.pop(Model.__name__)
    for name, task in TASKS.items():
        own = {kind: named[kind] for kind, (of, _) in kinds.items() if of == name}
        schema = _as_file(shared[task.__name__])
        description = schema["properties"]["model"]["description"]
        schema["properties"]["model"] = {"description": description, **_model_schema(name, own)}
        schema["properties"]["extends"] = {"type": "string", "description": "the workload that this one changes"}
    task = {"enum": list(TASKS), "description": declared(Workload)["task"].field.description}
    choices = [_where("task", {"const": name}, named[name]) for name in TASKS]
    untold = {"not": {"required": ["task"]}}
    usual = named[Workload.variant({}, {}).task]
    choices += [
        {"if": {**untold, "required": ["extends"]}, "then": {"anyOf": [named[name] for name in TASKS]}},
        {"if": {"not": {"anyOf": [{"required": ["task"]}, {"required": ["extends"]}]}}, "then": usual},
    ]
    schema = {"$schema": DRAFT, "title": "Workload", "type": "object", "properties": {"task": task}}
    return schema | {"allOf": choices, "$defs": shared}


def _model_schema(task, kinds):
    """The model of a task: `kinds` are references to the settings of each kind, by name."""
    from parascale.families import settings_of

    own_class = {"pattern": ":"}
    kind = {"anyOf": [{"enum": list(kinds)}, {"type": "string", **own_class}]}
    kind["description"] = declared(Model)["kind"].field.description
    usual = {"$ref": f"#/$defs/{settings_of(task, None).__name__}"}
    choices = [_where("kind", {"const": name}, reference) for name, reference in kinds.items()]
    choices += [
        _where("kind", own_class, usual),
        {"if": {"not": {"required": ["kind"]}}, "then": {"anyOf": list(kinds.values())}},
    ]
    return {"type": "object", "properties": {"kind": kind}, "allOf": choices}


def _where(key, value, then):
    """What holds where a key is there with such a value."""
    return {"if": {"required": [key], "properties": {key: value}}, "then": then}


def _whole(classes):
    """(the schema of the first class of settings, definitions that all of them share by the names of classes)."""
    inputs = [(name, "validation", adapter(kind)) for name, kind in classes.items()]
    _, made = TypeAdapter.json_schemas(inputs, ref_template="#/$defs/{model}")
    shared = _plain(made["$defs"])
    first = next(iter(classes.values())).__name__
    rest = {name: schema for name, schema in shared.items() if name != first}
    return {"$schema": DRAFT, **shared[first], "$defs": rest}, shared


def _plain(schema):
    """A schema in the words of the standard: pydantic's own say of a union's bounds, and of titles what the keys say already."""
    if isinstance(schema, list):
        return [_plain(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    titled = isinstance(schema.get("title"), str)
    return {BOUNDS.get(key, key): _plain(value) for key, value in schema.items() if not (titled and key == "title")}


def _kinds():
    """Kind of model → (its task, its class of settings)."""
    from parascale.families import kinds, settings_of  # families build on settings

    return {name: (kind.task, settings_of(kind.task, name)) for name, kind in kinds().items()}


def _as_file(schema):
    """A schema without the name, which the file's own name gives."""
    del schema["properties"]["name"]
    schema["required"].remove("name")
    return schema


def _of_workloads(kinds):
    """((what it is of,), Setting) of every setting of a workload: of a task, of kinds of models, or of all."""
    whose = {}
    for name, task in TASKS.items():
        for setting in walk(task):
            if setting.key not in ("name", "task") and not setting.key.startswith("model."):
                whose.setdefault((setting.key, setting.owner), (setting, []))[1].append(name)
    for name, (_, settings) in kinds.items():
        for setting in walk(settings, "model."):
            if setting.key != "model.kind":
                whose.setdefault((setting.key, setting.owner), (setting, []))[1].append(name)
    kind = declared(Model)["kind"]  # a file may leave it out, because the task has a usual kind
    kind = dataclasses.replace(kind, key="model.kind", field=Field(None, description=kind.field.description))
    return [(("",), declared(Workload)["task"]), (("",), kind)] + [
        ((", ".join(f"`{name}`" for name in names) if len(names) not in (len(TASKS), len(kinds)) else "",), setting)
        for setting, names in sorted(whose.values(), key=lambda each: each[0].key.partition(".")[0])
    ]


def _tables(first, rows):
    """A table of settings, and below it a folded one of those for experts."""
    usual = [_row(words, setting) for words, setting in rows if not setting.expert]
    expert = [_row(words, setting) for words, setting in rows if setting.expert]
    return _table(first, usual) + (_table(first, expert).join(FOLDED) if expert else "")


def _row(words, setting):
    meaning = setting.field.description
    cells = f"`{setting.key}`", *words, _value(setting), _default(setting.field), setting.decides or ""
    return *cells, meaning[0].upper() + meaning[1:]


def _value(setting):
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


def _default(field):
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if value is None or value in ("", [], {}):
        return "–"
    return _shown(value)


def _shown(value):
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _table(first, rows):
    head = (*first, "value", "default", "decides", "meaning")
    lines = [head, ("---",) * len(head)]
    lines += [tuple(cell.replace("|", "\\|") for cell in row) for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
