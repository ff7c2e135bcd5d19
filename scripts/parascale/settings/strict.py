"""Strict loading of mappings into settings: unknown keys and values are errors.

pydantic checks types and bounds. Each error names the place (file, line, column and dotted key), the allowed values and the
nearest match.
"""

import codecs
import difflib
import os
import re
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from parascale.errors import ConfigError
from parascale.files import File
from parascale.settings.options import T, adapter, walk

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{,99}")  # names become folders, wildcards and parts of file names
KINDS = {
    "int": "a whole number",
    "float": "a number",
    "string": "text",
    "bool": "true or false",
    "dict": "a mapping",
    "list": "a list",
    "dataclass": "a mapping of keys",
}
Keys = tuple[str | int, ...]  # path to a value in nested mappings and lists
Mark = tuple[File, int | None, int | None]  # file, line, column

UNION_ARMS = ("str", "list[any]")  # pydantic adds the type that it tried to the path of keys
# Other names for our words, if the nearest spelling would mean something else (fp16 is not fp64).
SYNONYMS = {
    "bf16": ("fp16", "bfloat16", "amp", "mixed"),
    "float8": ("fp8", "e4m3"),
    "fp16": ("float16", "half"),
    "fp32": ("float32", "float", "full"),
    "fp64": ("float64", "double"),
    "cuda": ("gpu", "nvidia"),
    "subword": ("bpe", "sentencepiece"),
    "hub": ("huggingface", "hf"),
    "url": ("web", "http", "https"),
    "language_model": ("lm", "gpt"),
    "nsight": ("nsys",),
    "neighbour": ("gossip",),
    "gpus_per_node": ("gpus",),
    "global_batch": ("batch", "batch_size"),
    "lr": ("learning_rate",),
}
BOUNDS = {"greater_than_equal": "at least", "greater_than": "above", "less_than_equal": "at most"}


class Places:
    """The file, line and column of each key of a mapping. As text: the file, and the line if the whole mapping is on one."""

    def __init__(self, path: File, marks: dict[Keys, Mark]) -> None:
        self.path, self.marks = path, marks

    def __str__(self) -> str:
        return self.of(())

    def of(self, keys: Keys) -> str:
        """`file, line 3, column 5` of the longest prefix of a path of keys that is in a file; columns count from 1."""
        path, line, column = self._mark(keys)
        return f"{path}" + (f", line {line}" if line else "") + (f", column {column}" if column else "")

    def folder(self, keys: Keys) -> str | None:
        """The folder of the file with this path of keys, or None."""
        path, line, _ = self._mark(keys)
        return None if line is None else os.path.dirname(path)

    def _mark(self, keys: Keys) -> Mark:
        starts = (keys[:length] for length in range(len(keys), -1, -1))
        return next((self.marks[start] for start in starts if start in self.marks), (self.path, None, None))


Place = Places | str  # origin of a value, for messages


def load(kind: Any, values: object, where: Place, prefix: str = "", columns: Container[str] = ()) -> Any:
    """Settings of class `kind` from plain values. prefix: dotted key of the mapping. columns: of the run table, for messages."""
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: {prefix or 'the file'} must be a mapping of keys, not {_shown(values)}")
    kind = kind.variant(values, {}) if hasattr(kind, "variant") else kind
    try:
        return adapter(kind).validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        home = ": it is a column of the run table" if first.get("ctx", {}).get("key") in columns else ""
        raise ConfigError(_message(first, kind, where, prefix, home)) from None


def make(kind: type[T], /, **values: Any) -> T:
    """Settings of class `kind` from keyword arguments; groups may be mappings or settings."""
    return load(kind, values, kind.__name__)


def check_name(name: str, where: Place, key: str, seen: dict[str, str] | None = None) -> None:
    """Raise ConfigError unless `name` can be a folder's name below `results/` on any filesystem. seen: earlier names by their casefolded
    form, to which `name` is added; names must not differ only in case.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{at(where, key)}: `{key}` = `{name}` must be at most 100 letters, digits, `-`, `_` and `.`, the first a letter or a digit"
        )
    other = name if seen is None else seen.setdefault(name.casefold(), name)
    if other != name:
        raise ConfigError(
            f"{at(where, key)}: `{key}` = `{name}`, but there is `{other}`: filesystems that ignore case would keep both in one folder"
        )


def at(where: Place, key: str) -> Place:
    """The place of a dotted key, with line and column if known."""
    return where.of(tuple(key.split("."))) if isinstance(where, Places) else where


def read_text(path: File, what: str) -> str:
    """The text of a configuration file. what: kind of file, for errors."""
    try:
        data = Path(path).read_bytes()
        # Excel saves its "Unicode text" in UTF-16.
        return data.decode("utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file ({what})") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({what}): {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text ({what}): {error}") from None


def nearest(word: str, allowed: Iterable[str], elsewhere: Iterable[str] = ()) -> str:
    """A hint with the nearest allowed word and all allowed ones. elsewhere: dotted keys of other groups, used before similar spellings."""
    allowed = list(allowed)
    if not allowed:
        return ". There is none yet"
    meant = {item for item, words in SYNONYMS.items() if word.lower() in words}
    known = [item for item in allowed if item in meant or item.lower() == word.lower()]
    known += [key for key in elsewhere if key.rpartition(".")[2] in {word, *meant}]
    match = known or ([] if meant else difflib.get_close_matches(word, allowed, n=1, cutoff=0.6))
    hint = f"; did you mean `{match[0]}`?" if match else ""
    return f"{hint} Allowed: {', '.join(allowed)}" if hint else f". Allowed: {', '.join(allowed)}"


def _message(error: Any, kind: Any, where: Place, prefix: str, home: str) -> str:
    """The message for a pydantic error. home: hint on where an unknown key belongs."""
    name, given, context = error["type"], error["input"], error.get("ctx", {})
    place = [part for part in error["loc"] if part not in ("[key]", *UNION_ARMS)]
    if name in ("unknown_key", "missing_key"):
        place.append(context["key"])
    key = prefix + _dotted(place)
    start = where.of(tuple(place)) if isinstance(where, Places) else where
    is_key = error["loc"][-1:] == ("[key]",) or name == "unknown_key"
    if is_key and not isinstance(place[-1], str):
        group = f": `{prefix}{_dotted(place[:-1])}`" if place[:-1] else ""
        return f"{start}{group}: its keys must be text, not {_shown(place[-1])}"
    if name == "missing_key":
        return f"{start}: `{key}` is missing ({context['meaning']})"
    allowed = context.get("allowed") or _literals(context.get("expected", ""))
    if is_key:
        elsewhere = [prefix + setting.key for setting in walk(kind)]
        return f"{start}: unknown key `{key}`{home or nearest(place[-1], allowed, elsewhere)}"
    if name == "literal_error":
        return f"{start}: `{key}` = {_shown(given)} is not known{nearest(str(given), allowed)}"
    if name in BOUNDS:
        return f"{start}: `{key}` = {given} must be {BOUNDS[name]} {next(iter(context.values())):g}"
    if name == "too_short":
        return f"{start}: `{key}` is empty: name at least one"
    if name == "finite_number":
        return f"{start}: `{key}` = {given} must be a finite number"
    if not (wanted := KINDS.get(name.partition("_")[0])):
        return f"{start}: `{key}`: {error['msg']}"
    # Snakemake turns digits on its command line into a number, even in quotes.
    digits = name == "string_type" and type(given) in (int, float)
    remedy = f": put it into quotes in a file, or type '{key}=!!str {given}'" if digits else ""
    return f"{start}: `{key}` must be {wanted}, not {_shown(given)}{remedy}"


def _dotted(place: Iterable[str | int]) -> str:
    """A path of keys as text: `a.b[1].c`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.removeprefix(".")


def _literals(expected: str) -> list[str]:
    """Split pydantic's `'a', 'b' or True` into words as written in a file."""
    words = re.split(", | or ", expected)
    return [word.strip("'") if word.startswith("'") else word.lower() for word in words]


def _shown(value: object) -> str:
    return repr(value) if not isinstance(value, str) else f"`{value}`"
