"""Declare settings: default, meaning, bounds and what a setting decides, in one place.

All code that reads, checks, explains or compares settings uses these declarations: `strict.py` checks values, `reference.py` makes
`config/README.md` and the JSON schemas, and `identity.py` decides if two runs are the same.
"""

import dataclasses
import functools
import inspect
import math
import operator
import types
import typing
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, Strict, TypeAdapter, WrapValidator, model_validator
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

# What a setting decides; exactly one of these.
RECIPE = "recipe"  # the numbers of a training
LAYOUT = "layout"  # how the training is distributed over processes
CONDUCT = "conduct"  # no numbers: when to save, what to monitor, where to read and write
SITE = "site"  # facts, limits, prices and labels
DECISIONS = (RECIPE, LAYOUT, CONDUCT, SITE)

NOT_SET = object()
T = TypeVar("T")


def _number(value: object) -> object:
    """Convert text to a number, because YAML 1.1 reads 1e-3 as text."""
    try:
        return float(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else value
    except OverflowError:
        return math.inf
    except ValueError:
        return value


Number = Annotated[float, Strict(), BeforeValidator(_number)]


@dataclasses.dataclass(frozen=True)
class OptionInfo:
    """Declarations of a setting other than type, default, bounds and meaning; see `option`."""

    decides: str | None = None
    before: object = NOT_SET
    path: bool = False
    expert: bool = False


@dataclasses.dataclass(frozen=True)
class Setting:
    """A declared setting: its dotted key, type, pydantic field and OptionInfo."""

    key: str
    hint: Any
    field: Any
    info: OptionInfo


def _check_keys(cls: type, values: Any) -> Any:
    """Refuse keys that a class of settings does not know, and missing required keys."""
    if isinstance(values, dict):
        known = declared(cls)
        for key in (key for key in values if key not in known):
            raise PydanticCustomError("unknown_key", "unknown", {"key": key, "allowed": list(known)})
        for name in (name for name in known if name not in values and known[name].field.is_required()):
            meaning = known[name].field.description
            raise PydanticCustomError("missing_key", "missing", {"key": name, "meaning": meaning})
    return values


def _strict(hint: Any) -> Any:
    """Make a type strict: by default pydantic accepts `"3"` as a number and 1 as true."""
    if hint in (int, str, bool):
        return Annotated[hint, Strict()]
    if isinstance(hint, types.UnionType):
        return functools.reduce(operator.or_, map(_strict, typing.get_args(hint)))
    if typing.get_origin(hint) in (list, dict):
        return typing.get_origin(hint)[tuple(map(_strict, typing.get_args(hint)))]
    return hint


def option(
    doc: str,
    decides: str | None = None,
    *,
    default: Any,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    before: object = NOT_SET,
    path: bool = False,
    expert: bool = False,
) -> Any:
    """Declare a setting with a default.

    low, high: inclusive bounds. above: exclusive lower bound. decides: if it differs from its class. before: the value that
    results had before the setting existed; with this value, the setting enters no digest. path: a path on this machine
    (or a mapping or list of paths), relative to the file that names it. expert: rarely needed.
    """
    given = {"default_factory": default.copy} if isinstance(default, (dict, list)) else {"default": default}
    bounds = {"ge": low, "gt": above, "le": high}
    given |= {name: bound for name, bound in bounds.items() if bound is not None}
    return _field(OptionInfo(decides, before, path, expert), doc, **given)


def required(doc: str, decides: str | None = None, *, path: bool = False) -> Any:
    """Declare a setting without a default."""
    return _field(OptionInfo(decides, path=path), doc)


def section(doc: str, *, default_factory: Callable[[], Any]) -> Any:
    """Declare a group of settings. If it is left out, it is read from `default_factory()`."""
    return _field(OptionInfo(), doc, default_factory=default_factory, validate_default=True)


@typing.dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(option, required, section))
def settings(decides: str, *, expert: bool = False) -> Callable[[type[T]], type[T]]:
    """Class decorator for a group of settings. decides, expert: defaults for its settings."""

    def declare(declared: Any) -> Any:
        declared.__annotations__ = {name: _strict(hint) for name, hint in inspect.get_annotations(declared).items()}
        for name in declared.__annotations__:
            field = vars(declared).get(name)
            if isinstance(field, FieldInfo):
                own = _info(field)
                field.metadata.remove(own)
                field.metadata.append(OptionInfo(own.decides or decides, own.before, own.path, own.expert or expert))
        declared.check_keys = model_validator(mode="before")(_check_keys)
        return dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))(declared)

    return declare


def _field(info: OptionInfo, doc: str, **given: Any) -> FieldInfo:
    field = Field(description=doc, **given)
    field.metadata.append(info)
    return field


def _info(field: FieldInfo) -> OptionInfo:
    return next(entry for entry in field.metadata if isinstance(entry, OptionInfo))


class Varied:
    """Base of groups with several subclasses, each with its own settings; `variant` chooses the subclass for given values."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


def chosen(kind: Any) -> WrapValidator:
    """Validator that reads a group as the subclass `kind.variant(values, beside)`. beside: the settings declared before the group."""

    def validate(value: Any, handler: Callable[[Any], Any], info: Any) -> Any:
        if not isinstance(value, dict):
            return handler(value)
        return adapter(kind.variant(value, info.data)).validate_python(value)

    return WrapValidator(validate)


adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(TypeAdapter)


def _declared(kind: Any) -> dict[str, Setting]:
    """The settings of a class by name, including groups, whose type is a class of settings."""
    hints = typing.get_type_hints(kind)
    fields = kind.__pydantic_fields__
    return {name: Setting(name, hints[name], field, _info(field)) for name, field in fields.items()}


declared: Callable[[Any], dict[str, Setting]] = functools.cache(_declared)


def arms(hint: Any) -> list[Any]:
    """The members of a union type except None; of any other type, the type itself."""
    united = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return [arm for arm in (typing.get_args(hint) if united else (hint,)) if arm is not types.NoneType]


def walk(kind: Any, prefix: str = "") -> Iterator[Setting]:
    """Yield each plain Setting of a class with its dotted key; those of its groups come last."""
    groups = []
    for name, setting in declared(kind).items():
        if dataclasses.is_dataclass(setting.hint):
            groups.append((setting.hint, name))
            continue
        yield dataclasses.replace(setting, key=f"{prefix}{name}")
        several = {list: "[]", dict: ".NAME"}.get(typing.get_origin(setting.hint))
        if several and dataclasses.is_dataclass(item := typing.get_args(setting.hint)[-1]):
            groups.append((item, f"{name}{several}"))
    for group, name in groups:
        yield from walk(group, f"{prefix}{name}.")
