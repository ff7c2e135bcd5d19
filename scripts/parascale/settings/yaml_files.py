"""Read the YAML files of configurations, sites and workloads strictly, merge them, and keep the place of each key.

Paths are relative to the file that names them.
"""

import dataclasses
import os
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from parascale.errors import ConfigError
from parascale.paths import DEFAULTED
from parascale.settings import strict
from parascale.settings.options import declared
from parascale.settings.strict import File, Keys, Mark, Places


def plain_value(text: str) -> object:
    """The value of a text without quotes in YAML: a number, boolean, or the text itself."""
    tag = yaml.SafeLoader("").resolve(yaml.ScalarNode, text, (True, False))
    try:
        return loaded(text) if tag.rpartition(":")[2] in ("int", "float", "bool") else text
    except yaml.MarkedYAMLError as error:
        raise ConfigError(error.problem) from None


def loaded(text: str) -> object:
    """Parse YAML text as strictly as files. Raises yaml.YAMLError."""
    return yaml.load(text, _StrictLoader)


def read_yaml(path: File) -> dict[str, Any]:
    """The mapping in a YAML file. Raises ConfigError if it is not a mapping, or a key appears twice."""
    return read_placed(path)[0]


def read_placed(path: File) -> tuple[dict[str, Any], Places]:
    """(the mapping in a YAML file, its Places). Raises like `read_yaml`."""
    loader = _StrictLoader(strict.read_text(path, "a YAML file"))
    try:
        node = loader.get_single_node()
        values = loader.construct_document(node) if node is not None else {}
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        signs = mark and re.search(r"[\[%@`\\]", mark.buffer.splitlines()[mark.line] if mark.buffer else "")
        remedy = f"; text that holds `{signs[0]}` needs single quotes" if signs else ""
        raise ConfigError(f"{path}{place}: not valid YAML: {error.problem}{remedy}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(values, dict | None):
        raise ConfigError(f"{path}: must be a mapping of keys")
    return values or {}, Places(path, dict(_marks(node, path)))


def with_name(values: dict[str, Any], name: str, path: File) -> dict[str, Any]:
    """`values` with the name from their file. Raises ConfigError if they contain `name`."""
    if "name" in values:
        raise ConfigError(f"{path}: leave out `name`: the file's own name is used")
    return {**values, "name": name}


def extended(folder: File, path: File, seen: list[str]) -> tuple[dict[str, Any], Places]:
    """(values, Places) of a workload's file merged over the one it `extends`. seen: names that led here."""
    values, places = read_placed(path)
    base = values.pop("extends", None)
    if base is None:
        return values, places
    if not isinstance(base, str):
        raise ConfigError(f"{places.of(('extends',))}: `extends` must be the name of a workload, not {base!r}")
    if base in seen:
        raise ConfigError(f"{places.of(('extends',))}: `extends` is circular: {' → '.join([*seen, base])}")
    below, marks = extended(folder, named_file(folder, base, "workload"), [*seen, base])
    return merged(below, values), Places(path, marks.marks | places.marks)


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Merge `over` into `base`, key by key. `steps` and `epochs` replace each other, as do sources and models of different kinds."""
    result = dict(base)
    for one, other in (("steps", "epochs"), ("epochs", "steps")):
        if one in over:
            result.pop(other, None)
    for key, value in over.items():
        old: Any = result.get(key)
        mixable = isinstance(value, dict) and isinstance(old, dict)
        if mixable and key in ("source", "model"):
            mixable = value.get("kind") in (None, old.get("kind"))
        result[key] = merged(old, value) if mixable else value
    return result


def resolved_paths(settings: Any, places: Places, keys: Keys = ()) -> Any:
    """`settings` with paths relative to their file rewritten relative to the current folder."""
    changed = {}
    for name, setting in declared(type(settings)).items():
        value, place = getattr(settings, name), (*keys, name)
        if dataclasses.is_dataclass(value):
            changed[name] = resolved_paths(value, places, place)
        # A source's files may instead be relative to its location, or be selected from downloaded ones.
        elif setting.info.path and not (name == "files" and (settings.location or settings.kind != "files")):
            changed[name] = _relative(value, places.folder(place), name == "kind")
    return dataclasses.replace(settings, **changed)


def _relative(value: Any, folder: str | None, of_class: bool) -> Any:
    if isinstance(value, dict):
        return {key: _relative(entry, folder, of_class) for key, entry in value.items()}
    if isinstance(value, list):
        return [_relative(entry, folder, of_class) for entry in value]
    if folder is None or not isinstance(value, str) or (of_class and ":" not in value):
        return value
    if match := DEFAULTED.match(value):
        return f"${{{match[1]}:-{_relative(match[2], folder, False)}}}{value[match.end() :]}"
    return value if value.startswith(("~", "$")) else os.path.normpath(os.path.join(folder, value))


def _number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> Any:
    """Read a number. `24:00:00`, which plain YAML silently reads as 86400, stays text; `0100`, which it reads as 64, is refused."""
    plain = yaml.SafeLoader.yaml_constructors[node.tag]
    if re.fullmatch(r"[-+]?0[0-7_]+", node.value):
        said = f"`{node.value}` is octal for {plain(loader, node)}: write a number without leading zeros, and text in quotes"
        raise yaml.constructor.ConstructorError(None, None, said, node.start_mark)
    return loader.construct_scalar(node) if ":" in node.value else plain(loader, node)


class _StrictLoader(yaml.SafeLoader):
    """YAML loader in which duplicate keys are errors (plain YAML silently takes the last), and a time of day is not a number."""

    yaml_constructors: typing.ClassVar = yaml.SafeLoader.yaml_constructors | {
        f"tag:yaml.org,2002:{kind}": _number for kind in ("int", "float")
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key `{key.value}` appears twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _marks(node: Any, path: File, keys: Keys = ()) -> Iterator[tuple[Keys, Mark]]:
    """Yield (path of keys, (file, line, column)) of all nodes below a node."""
    if keys:
        yield keys, (path, node.start_mark.line + 1, node.start_mark.column + 1)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            place = (*keys, key.value)
            yield place, (path, key.start_mark.line + 1, key.start_mark.column + 1)
            yield from (mark for mark in _marks(value, path, place) if mark[0] != place)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield from _marks(value, path, (*keys, number))


def named_file(folder: File, name: str, what: str) -> Path:
    """The path of `<folder>/<name>.yaml`. Raises ConfigError with the nearest existing name if it is missing."""
    path = Path(folder) / f"{name}.yaml"
    if not Path(folder).is_dir():
        raise ConfigError(f"{folder}: no such folder (key `{what}s`)")
    if path.with_suffix(".yml").is_file() and not path.is_file():
        raise ConfigError(f"{path}: no such {what}, but there is {name}.yml: rename it")
    if not path.is_file():
        known = sorted(entry.stem for entry in Path(folder).glob("*.yaml"))
        bare, said = Path(name).name.removesuffix(".yaml"), f"{path}: no such {what}"
        if bare != name:
            said = f"{folder}: no {what} `{name}`: give a name without folder and `.yaml`"
        raise ConfigError(f"{said}{strict.nearest(bare, known)}")
    return path
