"""The tables of `config/README.md`, made from what the settings themselves declare.

The page is written by hand around pairs of markers, `<!-- table: NAME -->` and `<!-- end -->`; only what stands
between a pair is made here.
"""

import dataclasses
import re
import types
import typing

from parascale.errors import ConfigError
from parascale.settings.project import Config
from parascale.settings.runtable import LAYOUT_COLUMNS, RUN_COLUMNS
from parascale.settings.site import Site
from parascale.settings.workload import Workload

BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
KINDS = {bool: "true or false", int: "whole number", float: "number", str: "text", list: "list", dict: "mapping"}


def tables():
    """Name → Markdown table, for every kind of file that holds settings."""
    columns = [*RUN_COLUMNS.values(), *LAYOUT_COLUMNS.values()]
    return {
        "config": _table("key", _settings(Config)),
        "runs": _table("column", [_row(field, field.type, "") for field in columns]),
        "workload": _table("key", _settings(Workload)),
        "site": _table("key", _settings(Site)),
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


def _settings(kind, prefix=""):
    """A row for each setting of a dataclass; those of its groups come after what stands alone."""
    rows, groups = [], []
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if not prefix and field.name == "name":
            continue  # a workload or a site is called as its file
        hint, place = hints[field.name], f"{prefix}{field.name}"
        if dataclasses.is_dataclass(hint):
            groups += _settings(hint, f"{place}.")
            continue
        rows.append(_row(field, hint, prefix))
        items = typing.get_args(hint)
        if typing.get_origin(hint) is list and dataclasses.is_dataclass(items[0]):
            groups += _settings(items[0], f"{place}[].")
    return rows + groups


def _row(field, hint, prefix):
    doc = field.metadata["doc"]
    return f"`{prefix}{field.name}`", _allowed(hint, field.metadata), _default(field), doc[0].upper() + doc[1:]


def _allowed(hint, metadata):
    """In words: what a setting may be."""
    if isinstance(hint, types.UnionType):
        hint = next(arm for arm in typing.get_args(hint) if arm is not type(None))
    kind = KINDS.get(typing.get_origin(hint) or hint, "text")  # in the run table a workload is a name
    choices, low, above, high = (metadata.get(name) for name in ("choices", "low", "above", "high"))
    if choices:
        words = ", ".join(f"`{choice}`" for choice in choices)
        return f"mapping of {words}" if kind == "mapping" else words
    bounds = [f"{sign} {bound:g}" for sign, bound in (("≥", low), (">", above), ("≤", high)) if bound is not None]
    return f"{kind} {', '.join(bounds)}".strip()


def _default(field):
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    elif field.default is dataclasses.MISSING:
        return "required"
    else:
        value = field.default
    if value is None or value in ("", [], {}):
        return "–"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _table(first, rows):
    lines = [(first, "value", "default", "meaning"), ("---",) * 4]
    lines += [tuple(cell.replace("|", "\\|") for cell in row) for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
