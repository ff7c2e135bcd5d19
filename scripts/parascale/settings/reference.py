"""What is made from the declarations of settings: the tables of `config/README.md`, and JSON schemas for editors.

The page is written by hand around pairs of markers, `<!-- table: NAME -->` and `<!-- end -->`; only what stands
between a pair is made here.
"""

import dataclasses
import re
import typing

from pydantic_core import PydanticUndefined

from parascale.errors import ConfigError
from parascale.settings.config import Config
from parascale.settings.options import adapter, arms, declared, walk
from parascale.settings.runtable import LAYOUT_COLUMNS, RUN_COLUMNS
from parascale.settings.site import Site
from parascale.settings.workload import TASKS, Model, Workload

BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
KINDS = {bool: "true or false", int: "whole number", float: "number", str: "text", list: "list", dict: "mapping"}
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
    """`page` with each table between its markers made anew. Raises ConfigError where a table has no place or two."""
    made = tables()
    found = [name for _, name, _ in BLOCK.findall(page)]
    if sorted(found) != sorted(made):
        raise ConfigError(
            f"the page must hold each table once: {', '.join(made)}; it holds: {', '.join(found) or 'none'}"
        )
    return BLOCK.sub(lambda match: f"{match[1]}{made[match[2]]}{match[3]}", page)


def schemas():
    """Name of a kind of YAML file → its JSON schema (draft 2020-12), by which editors complete and check it."""
    base = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    tasks = []
    for name, task in TASKS.items():
        schema = adapter(task).json_schema(ref_template=f"#/$defs/{name}/$defs/{{model}}")
        models = {kind: adapter(settings).json_schema() for kind, (of, settings) in _kinds().items() if of == name}
        schema["properties"]["model"] = {"anyOf": list(models.values())}
        tasks.append(_as_file(schema, ["extends"]))
    return {
        "config": base | _as_file(adapter(Config).json_schema()),
        "site": base | _as_file(adapter(Site).json_schema()),
        "workload": base
        | {"$defs": dict(zip(TASKS, tasks, strict=True)), "anyOf": [{"$ref": f"#/$defs/{name}"} for name in TASKS]},
    }


def _kinds():
    """Kind of model → (its task, its class of settings)."""
    from parascale.families import kinds, settings_of  # families build on settings

    return {name: (kind.task, settings_of(kind.task, name)) for name, kind in kinds().items()}


def _as_file(schema, more=()):
    """A schema without the name that the file gives, and with other keys (texts) that a file may hold."""
    schema["properties"].pop("name", None)
    schema["properties"] |= {key: {"type": "string"} for key in more}
    schema["required"] = [key for key in schema.get("required", ()) if key != "name"]
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
    kind = dataclasses.replace(declared(Model)["kind"], key="model.kind")
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
        words = ", ".join(f"`{choice}`" for choice in choices)
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
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _table(first, rows):
    head = (*first, "value", "default", "decides", "meaning")
    lines = [head, ("---",) * len(head)]
    lines += [tuple(cell.replace("|", "\\|") for cell in row) for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
