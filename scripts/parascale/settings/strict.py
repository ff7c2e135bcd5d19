"""Strict loading: a mapping becomes settings, and what these do not know is an error.

pydantic checks types and bounds. Every error names the place (file, line, column and dotted key), what is allowed, and the
nearest match.
"""

import difflib
import re
import typing
from pathlib import Path

from pydantic import ValidationError

from parascale.errors import ConfigError
from parascale.settings.options import adapter, arms, declared, group_of, walk

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # names become folders and wildcards
KINDS = {
    "int": "a whole number",
    "float": "a number",
    "string": "text",
    "bool": "true or false",
    "dict": "a mapping",
    "list": "a list",
    "dataclass": "a mapping of keys",
}
UNION_ARMS = ("str", "list[any]")  # pydantic names the type that it tried as if it were a key
# What others call our words: there the nearest spelling would be another thing (fp16 is no fp64).
MEANT = {
    "bf16": ("fp8", "fp16", "float8", "bfloat16", "amp", "mixed"),
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
BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "above"),
    "less_than_equal": ("le", "at most"),
}


def load(kind, values, where, prefix=""):
    """Make settings of class `kind` from a mapping of plain values.

    where: the file, for messages; text, or `yaml_files.Places`, which knows lines. prefix: the dotted key that leads here.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: {prefix or 'the file'} must be a mapping of keys, not {_shown(values)}")
    kind = variant(kind, values)
    try:
        return adapter(kind).validate_python(values)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        # A key that is missing may be there, misspelt: what is unknown is said first. But what stands at the top decides which
        # keys its groups know.
        unknown = (each for each in errors if each["type"] == "unexpected_keyword_argument")
        first = errors[0] if errors[0]["type"] == "literal_error" else next(unknown, errors[0])
        raise ConfigError(_said(first, kind, values, where, prefix)) from None


def make(kind, /, **values):
    """Settings of class `kind` from their values, groups as mappings or as settings already."""
    return load(kind, values, kind.__name__)


def variant(kind, values, beside=()):
    """The class that a mapping is read as, where its keys, and those beside it, choose among several."""
    return kind.variant(values, dict(beside)) if hasattr(kind, "variant") else kind


def check_name(name, where, key):
    """Raise ConfigError unless `name` can be the name of a folder below `results/`."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{at(where, key)}: `{key}` = `{name}` must be letters, digits, `-`, `_` and `.`, the first a letter or a digit"
        )


def at(where, key):
    """A place with line and column of a dotted key, where they are known."""
    return where.of(tuple(key.split("."))) if hasattr(where, "of") else where


def read_text(path, what):
    """The text of a configuration file; `what` says in an error what it should have been."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file ({what})") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({what}): {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text ({what}): {error}") from None


def nearest(word, allowed, elsewhere=()):
    """A sentence that names the nearest allowed word and all of them.

    elsewhere: dotted keys that are allowed in other places. They come before words that are only spelt like this one.
    """
    allowed = [_written(item) for item in allowed]
    if not allowed:
        return ". There is none yet"
    meant = {item for item, words in MEANT.items() if word.lower() in words}
    known = [item for item in allowed if item in meant or item.lower() == word.lower()]
    known += [key for key in elsewhere if key.rpartition(".")[2] in {word, *meant}]
    match = known or ([] if meant else difflib.get_close_matches(word, allowed, n=1, cutoff=0.6))
    hint = f"; did you mean `{match[0]}`?" if match else ""
    return f"{hint} Allowed: {', '.join(allowed)}" if hint else f". Allowed: {', '.join(allowed)}"


def _said(error, kind, values, where, prefix):
    """One of pydantic's errors in our words."""
    place = [part for part in error["loc"] if part not in ("[key]", *UNION_ARMS)]
    key = prefix + _dotted(place)
    start = where.of(tuple(place)) if hasattr(where, "of") else where
    of_key = error["loc"][-1:] == ("[key]",)
    owner, hint = _walked(kind, values, place[:-1] if of_key else place)
    name, given = error["type"], error["input"]
    if name == "unexpected_keyword_argument" or of_key:
        if not isinstance(place[-1], str):
            return f"{start}: `{prefix}{_dotted(place[:-1])}`: its keys must be text, not {_shown(place[-1])}"
        allowed = declared(owner) if name == "unexpected_keyword_argument" else _choices(hint)
        elsewhere = [prefix + setting.key for setting in walk(kind)]
        return f"{start}: unknown key `{key}`{nearest(place[-1], allowed, elsewhere)}"
    if name == "missing":
        return f"{start}: `{key}` is missing ({declared(owner)[place[-1]].field.description})"
    if name == "literal_error" and not isinstance(given, str):
        *words, last = map(_written, _choices(hint))
        wanted = f"{', '.join(words)} or {last}" if words else last
        return f"{start}: `{key}` must be {wanted}, not {_shown(given)}"
    if name == "literal_error":
        return f"{start}: `{key}` = {_shown(given)} is not known{nearest(str(given), _choices(hint))}"
    if name in BOUNDS:
        bound, words = BOUNDS[name]
        return f"{start}: `{key}` = {given} must be {words} {error['ctx'][bound]:g}"
    if name == "too_short":
        return f"{start}: `{key}` is empty. Allowed: {', '.join(_choices(hint))}"
    if name == "finite_number":
        return f"{start}: `{key}` = {given} must be a finite number"
    if place and not isinstance(place[-1], str) and not isinstance(values, list) and name.startswith("invalid_key"):
        return f"{start}: its keys must be text, not {_shown(place[-1])}"
    wanted = KINDS.get(name.partition("_")[0])
    return f"{start}: `{key}` must be {wanted}, not {_shown(given)}" if wanted else f"{start}: `{key}`: {error['msg']}"


def _walked(kind, values, place):
    """(class of settings, type) that a path of keys ends in."""
    owner, hint, beside = kind, kind, {}
    for part in place:
        group = group_of(hint)
        if group is None:
            hint = _item(hint)
        else:
            owner = variant(group, values, beside) if isinstance(values, dict) else group
            setting = declared(owner).get(part)
            hint = setting.hint if setting else None
        beside, values = values if isinstance(values, dict) else {}, values[part] if _has(values, part) else None
    return owner, hint


def _has(values, part):
    return part in values if isinstance(values, dict) else isinstance(part, int) and part < len(values)


def _item(hint):
    """The type of the entries of a list or of a mapping's values."""
    inner = next((typing.get_args(arm) for arm in arms(hint) if typing.get_origin(arm) in (list, dict)), ())
    return inner[-1] if inner else None


def _choices(hint):
    """The words that a type allows: of a mapping its keys, of a list its entries."""
    if typing.get_origin(hint) is typing.Literal:
        return typing.get_args(hint)
    return next((found for arm in typing.get_args(hint) if (found := _choices(arm))), ())


def _dotted(place):
    """`a.b[1].c` of a path of keys."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.removeprefix(".")


def _written(word):
    """An allowed value as a file has it."""
    return str(word).lower() if isinstance(word, bool) else str(word)


def _shown(value):
    return repr(value) if not isinstance(value, str) else f"`{value}`"
