"""Strict loading: a mapping becomes a dataclass, and what it does not know is an error.

Every error names the place (file and dotted key), what is allowed, and the nearest match.
"""

import contextlib
import dataclasses
import difflib
import functools
import math
import re
import types
import typing
from pathlib import Path

from parascale.errors import ConfigError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # names become folders and wildcards


_hints = functools.cache(typing.get_type_hints)  # of each dataclass once: a run table has thousands of rows


def load(kind, values, where, prefix=""):
    """Make a `kind` (a dataclass) from a mapping of plain values.

    where: the file, for messages. prefix: the dotted key that leads here.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: {prefix or 'the file'} must be a mapping of keys, not {_shown(values)}")
    known = {field.name: field for field in dataclasses.fields(kind)}
    for key in values:
        if key not in known:
            raise ConfigError(f"{where}: unknown key `{prefix}{key}`{nearest(str(key), known)}")
    hints = _hints(kind)
    arguments = {}
    for name, field in known.items():
        if name in values:
            arguments[name] = _value(hints[name], values[name], field.metadata, where, f"{prefix}{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{where}: `{prefix}{name}` is missing ({field.metadata['doc']})")
    return kind(**arguments)


def check_name(name, where, key):
    """Raise ConfigError unless `name` can be the name of a folder below `results/`."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{where}: `{key}` = `{name}` must be letters, digits, `-`, `_` and `.`, the first a letter or a digit"
        )


def read_text(path, what):
    """The text of a configuration file; `what` says in an error what it should have been."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file ({what})") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({what}): {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text ({what}): {error}") from None


def nearest(word, allowed):
    """A sentence that names the nearest allowed word and all of them."""
    allowed = [str(item) for item in allowed]
    if not allowed:
        return ". There is none yet"
    match = difflib.get_close_matches(word, allowed, n=1, cutoff=0.6)
    hint = f"; did you mean `{match[0]}`?" if match else ""
    return f"{hint} Allowed: {', '.join(allowed)}" if hint else f". Allowed: {', '.join(allowed)}"


def _value(hint, value, metadata, where, key):
    """`value` checked against a type hint and the bounds its option declares."""
    optional = isinstance(hint, types.UnionType) and type(None) in typing.get_args(hint)
    if optional:
        if value is None:
            return None
        hint = next(arm for arm in typing.get_args(hint) if arm is not type(None))
    if dataclasses.is_dataclass(hint):
        return value if isinstance(value, hint) else load(hint, value, where, f"{key}.")
    kind, items = typing.get_origin(hint) or hint, typing.get_args(hint)
    value = _typed(kind, value, where, key)
    if kind is list and items:
        value = [_value(items[0], entry, {}, where, f"{key}[{index}]") for index, entry in enumerate(value)]
    if kind is dict and items:
        value = {name: _value(items[1], entry, {}, where, f"{key}.{name}") for name, entry in value.items()}
    _check_bounds(value, metadata, where, key)
    return value


def _typed(hint, value, where, key):
    if hint is float and isinstance(value, (int, str)) and not isinstance(value, bool):
        # YAML 1.1 reads 1e-3 as a string; people write it all the same.
        with contextlib.suppress(ValueError, OverflowError):
            value = float(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where}: `{key}` = {value} must be a finite number")
    if isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool):
        return value
    names = {
        int: "a whole number",
        float: "a number",
        str: "text",
        bool: "true or false",
        dict: "a mapping",
        list: "a list",
    }
    raise ConfigError(f"{where}: `{key}` must be {names[hint]}, not {_shown(value)}")


def _check_bounds(value, metadata, where, key):
    choices, low, above, high = (metadata.get(name) for name in ("choices", "low", "above", "high"))
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise ConfigError(f"{where}: `{key}`: its keys must be text, not {_shown(name)}")
            if choices and name not in choices:
                raise ConfigError(f"{where}: unknown key `{key}.{name}`{nearest(name, choices)}")
    elif choices and value not in choices:
        raise ConfigError(f"{where}: `{key}` = {_shown(value)} is not known{nearest(str(value), choices)}")
    if low is not None and value < low:
        raise ConfigError(f"{where}: `{key}` = {value} must be at least {low}")
    if above is not None and not value > above:
        raise ConfigError(f"{where}: `{key}` = {value} must be above {above}")
    if high is not None and value > high:
        raise ConfigError(f"{where}: `{key}` = {value} must be at most {high}")


def _shown(value):
    return repr(value) if not isinstance(value, str) else f"`{value}`"
