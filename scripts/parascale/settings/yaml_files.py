"""The YAML files of configurations, sites and workloads: read strictly, and laid on top of each other."""

from pathlib import Path

import yaml

from parascale.errors import ConfigError
from parascale.settings import strict


def with_name(values, name, path):
    """`values` with the name that their file gives them."""
    if "name" in values:
        raise ConfigError(f"{path}: leave out `name`: the file's own name is taken")
    return {**values, "name": name}


def extended(folder, path, seen):
    """The values of a workload's file on top of those it `extends`; `seen` are the names on the way here."""
    values = read_yaml(path)
    base = values.pop("extends", None)
    if base is None:
        return values
    if base in seen:
        raise ConfigError(f"{path}: `extends` goes in a circle: {' → '.join([*seen, base])}")
    return _merged(extended(folder, named_file(folder, base, "workload"), [*seen, base]), values)


def _merged(base, over):
    """`over` on top of `base`, key by key through nested mappings.

    `steps` and `epochs` replace each other. So do sources of different kinds, and a pretrained model what was built from
    settings: their keys do not mix.
    """
    merged = dict(base)
    for one, other in (("steps", "epochs"), ("epochs", "steps")):
        if one in over:
            merged.pop(other, None)
    for key, value in over.items():
        old = merged.get(key)
        mixable = isinstance(value, dict) and isinstance(old, dict)
        if mixable and (key == "source" or (key == "model" and "pretrained" in (value.get("kind"), old.get("kind")))):
            mixable = value.get("kind") in (None, old.get("kind"))
        merged[key] = _merged(old, value) if mixable else value
    return merged


class _StrictLoader(yaml.SafeLoader):
    """YAML in which a key that stands twice is an error; plain YAML quietly takes the second."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key, _ in node.value:
            if keys.count(key.value) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"key `{key.value}` stands twice", key.start_mark)
        return super().construct_mapping(node, deep)


def read_yaml(path):
    """The mapping in a YAML file. Raises ConfigError where it is none, or a key stands twice."""
    try:
        values = yaml.load(strict.read_text(path, "a YAML file"), _StrictLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(values, dict | None):
        raise ConfigError(f"{path}: must be a mapping of keys")
    return values or {}


def named_file(folder, name, what):
    """The path of `<folder>/<name>.yaml`. Raises ConfigError, with the nearest name that there is, where it is missing."""
    path = Path(folder) / f"{name}.yaml"
    if not path.is_file():
        known = sorted(entry.stem for entry in Path(folder).glob("*.yaml"))
        raise ConfigError(f"{path}: no such {what}{strict.nearest(str(name), known)}")
    return path
