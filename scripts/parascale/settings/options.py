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
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, Strict, TypeAdapter, WrapValidator, model_validator
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

# The kind of a setting; each is exactly one of these.
RECIPE = "recipe"  # the numbers of a training
LAYOUT = "layout"  # how these are spread over processes
CONDUCT = "conduct"  # no number: when state is saved, what is watched, what is read and written where
SITE = "site"  # facts, limits, prices and labels
DECISIONS = (RECIPE, LAYOUT, CONDUCT, SITE)

NOT_SET = object()
T = TypeVar("T")


def _number(value: object) -> object:
    """YAML 1.1 reads 1e-3 as text; people write it all the same."""
    try:
        return float(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else value
    except OverflowError:
        return math.inf
    except ValueError:
        return value


Number = Annotated[float, Strict(), BeforeValidator(_number)]


@dataclasses.dataclass(frozen=True)
class OptionInfo:
    """Declarations of a setting besides type, default, bounds and meaning; see `option`."""

    decides: str | None = None
    before: object = NOT_SET
    path: bool = False
    expert: bool = False


@dataclasses.dataclass(frozen=True)
class Setting:
    """One declared setting: its dotted key, type, pydantic's field and our OptionInfo."""

    key: str
    hint: Any
    field: Any
    info: OptionInfo


def _check_keys(cls: type, values: Any) -> Any:
    """Refuse a key that a class of settings does not know, and a missing one that it needs."""
    if isinstance(values, dict):
        known = declared(cls)
        for key in (key for key in values if key not in known):
            raise PydanticCustomError("unknown_key", "unknown", {"key": key, "allowed": list(known)})
        for name in (name for name in known if name not in values and known[name].field.is_required()):
            meaning = known[name].field.description
            raise PydanticCustomError("missing_key", "missing", {"key": name, "meaning": meaning})
    return values


def _strict(hint: Any) -> Any:
    """A type that takes no value of another one: pydantic by itself takes `"3"` for a number and 1 for true."""
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
    """A setting with its default.

    low, high: inclusive bounds. above: an exclusive one. decides: where it differs from its class. before: the value that
    results had before the setting was there; as long as it is this, the setting enters no digest. path: a place on this
    machine (or a mapping or list of them), relative to the file that names it. expert: few will touch it.
    """
    given = {"default_factory": default.copy} if isinstance(default, (dict, list)) else {"default": default}
    bounds = {"ge": low, "gt": above, "le": high}
    given |= {name: bound for name, bound in bounds.items() if bound is not None}
    return _field(OptionInfo(decides, before, path, expert), doc, **given)


def required(doc: str, decides: str | None = None, *, path: bool = False) -> Any:
    """A setting that has no default."""
    return _field(OptionInfo(decides, path=path), doc)


def section(doc: str, *, default_factory: Callable[[], Any]) -> Any:
    """A group of settings, which is read from `default_factory()` if it is left out."""
    return _field(OptionInfo(), doc, default_factory=default_factory, validate_default=True)


@typing.dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(option, required, section))
def settings(decides: str, *, expert: bool = False) -> Callable[[type[T]], type[T]]:
    """A class of settings. decides, expert: for those of its settings that do not say so themselves."""

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
    """Base of groups that are read as one of several subclasses, which `variant` names; each has settings of its own."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


def chosen(kind: Any) -> WrapValidator:
    """What reads a group as the subclass that `kind.variant(values, beside)` names, beside: the settings that stand before it."""

    def validate(value: Any, handler: Callable[[Any], Any], info: Any) -> Any:
        if not isinstance(value, dict):
            return handler(value)
        return adapter(kind.variant(value, info.data)).validate_python(value)

    return WrapValidator(validate)


adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(TypeAdapter)


def _declared(kind: Any) -> dict[str, Setting]:
    """The settings that a class has, by name; groups are settings too, of a class of settings."""
    hints = typing.get_type_hints(kind)
    fields = kind.__pydantic_fields__
    return {name: Setting(name, hints[name], field, _info(field)) for name, field in fields.items()}


declared: Callable[[Any], dict[str, Setting]] = functools.cache(_declared)


def arms(hint: Any) -> list[Any]:
    """The types that a type is a union of, None aside: mostly one."""
    united = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return [arm for arm in (typing.get_args(hint) if united else (hint,)) if arm is not types.NoneType]


def walk(kind: Any, prefix: str = "") -> Iterator[Setting]:
    """Yield every single Setting of a class, with its dotted key; those of its groups follow what stands alone."""
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
