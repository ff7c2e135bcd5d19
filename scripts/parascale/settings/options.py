"""How a setting is declared: its default, meaning and bounds, and what it decides, in one place.

Everything that reads, checks, explains or compares settings follows from these declarations: `strict.py` checks values,
`config/README.md` and the JSON schemas are made from them, and `identity.py` tells from them whether two runs are the same.
"""

import dataclasses
import functools
import inspect
import math
import operator
import types
import typing
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, Strict, TypeAdapter, WrapValidator
from pydantic.dataclasses import dataclass

# What a setting decides; each is exactly one of these.
RECIPE = "recipe"  # the numbers of a training
LAYOUT = "layout"  # how these are spread over processes
CONDUCT = "conduct"  # no number: when state is saved, what is watched, what is read and written where
SITE = "site"  # facts, limits, prices and labels
DECISIONS = (RECIPE, LAYOUT, CONDUCT, SITE)

NOT_SET = object()


def _number(value):
    """YAML 1.1 reads 1e-3 as text; people write it all the same."""
    try:
        return float(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else value
    except OverflowError:
        return math.inf
    except ValueError:
        return value


Number = Annotated[float, Strict(), BeforeValidator(_number)]


@dataclasses.dataclass(frozen=True)
class Told:
    """What a declaration says besides type, default and bounds; see `option`."""

    decides: str | None = None
    before: object = NOT_SET
    path: bool = False
    expert: bool = False


def settings(decides=None, *, expert=False):
    """A class of settings. decides: what its settings decide that do not say so themselves. expert: few will touch them."""

    def declare(declared):
        declared.decides, declared.expert = decides, expert
        declared.__annotations__ = {name: _strict(hint) for name, hint in inspect.get_annotations(declared).items()}
        return dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))(declared)

    return declare


def _strict(hint):
    """A type that takes no value of another one: pydantic by itself takes `"3"` for a number and 1 for true."""
    if hint in (int, str, bool):
        return Annotated[hint, Strict()]
    if isinstance(hint, types.UnionType):
        return functools.reduce(operator.or_, map(_strict, typing.get_args(hint)))
    if typing.get_origin(hint) in (list, dict):
        return typing.get_origin(hint)[tuple(map(_strict, typing.get_args(hint)))]
    return hint


def option(default, doc, decides=None, *, low=None, above=None, high=None, before=NOT_SET, path=False, expert=False):
    """A setting with its default.

    low, high: inclusive bounds. above: an exclusive one. decides: where it differs from its class. before: the value that
    results had before the setting was there; as long as it is this, the setting enters no digest. path: a place on this
    machine (or a mapping or list of them), relative to the file that names it. expert: few will touch it.
    """
    told = Told(decides, before, path, expert)
    bounds = {"ge": low, "gt": above, "le": high, "description": doc}
    if isinstance(default, (dict, list)):
        return _declared(told, default_factory=default.copy, **bounds)
    return _declared(told, default=default, **bounds)


def required(doc, decides=None, *, path=False):
    """A setting that has no default."""
    return _declared(Told(decides, path=path), description=doc)


def section(kind, doc):
    """A group of settings, itself of a class whose defaults hold when the group is left out."""
    return _declared(Told(), default_factory=kind, description=doc)


def _declared(told, **words):
    field = Field(**{name: word for name, word in words.items() if word is not None or name == "default"})
    field.metadata.append(told)
    return field


def chosen(kind):
    """The type of a group that is read as one of several subclasses of `kind`, which `kind.variant(values, beside)` names.

    values: the group's own mapping. beside: the settings that stand before it.
    """

    def validate(value, handler, info):
        if not isinstance(value, dict):
            return handler(value)
        return adapter(kind.variant(value, info.data)).validate_python(value)

    return Annotated[kind, WrapValidator(validate)]


adapter = functools.cache(TypeAdapter)


@dataclasses.dataclass(frozen=True)
class Setting:
    """One declared setting: its dotted key, the class that declares it, and its declaration."""

    key: str
    owner: type
    field: Any
    hint: Any
    told: Told

    @property
    def decides(self):
        """What it decides, one of DECISIONS; None where neither it nor its class says so."""
        return self.told.decides or self.owner.decides

    @property
    def expert(self):
        """Whether few will touch it."""
        return self.told.expert or self.owner.expert


@functools.cache
def declared(kind):
    """The settings that a class declares itself, by name; groups are settings too, of a class of settings."""
    hints = typing.get_type_hints(kind)
    fields = kind.__pydantic_fields__
    return {name: Setting(name, _owner(kind, name), field, hints[name], _told(field)) for name, field in fields.items()}


def _told(field):
    return next(entry for entry in field.metadata if isinstance(entry, Told))


def _owner(kind, name):
    """The class in whose body a setting stands."""
    return next(base for base in kind.__mro__ if name in inspect.get_annotations(base))


def arms(hint):
    """The types that a type is a union of, None aside: mostly one."""
    united = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return [arm for arm in (typing.get_args(hint) if united else (hint,)) if arm is not types.NoneType]


def group_of(hint):
    """The class of settings that a type is a group of, or None."""
    return next((arm for arm in arms(hint) if dataclasses.is_dataclass(arm)), None)


def item_of(hint):
    """The class of settings that a list is made of, or None."""
    items = typing.get_args(hint) if typing.get_origin(hint) is list else ()
    return items[0] if items and dataclasses.is_dataclass(items[0]) else None


def walk(kind, prefix="", variants=types.MappingProxyType({})):
    """Yield every single Setting of a class, with its dotted key; those of its groups follow what stands alone.

    variants: class of a group → the subclass that it is read as.
    """
    groups = []
    for name, setting in declared(variants.get(kind, kind)).items():
        if (group := group_of(setting.hint)) is not None:
            groups.append((group, name))
            continue
        yield dataclasses.replace(setting, key=f"{prefix}{name}")
        if (item := item_of(setting.hint)) is not None:
            groups.append((item, f"{name}[]"))
    for group, name in groups:
        yield from walk(group, f"{prefix}{name}.", variants)
