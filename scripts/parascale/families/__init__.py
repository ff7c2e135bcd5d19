"""Model families: a family's folder has all code specific to its kinds of models, and other code accesses it through this module.

A family is a folder next to this file and is discovered automatically. Its `KINDS` lists its kinds (`Kind`), and it contains

- `settings.py`: a model's settings: keys, defaults, bounds, and incompatible combinations
- `modules.py`: plain torch modules that know nothing about parallelism (any file `*modules.py`)
- `sizes.py`: formulas for plans (`parascale.families.sizes.Sizes`; any file `*sizes.py`); without it plans use counts
  (`parascale.families.counted`)
- `export.py`: conversion to `transformers`, if it has an equivalent model

A model class may *offer plans*, which are plain data and which `parascale.parallel` reads:

- `shard_units`: patterns of submodules that FSDP gathers, and that are checkpointed or compiled, one at a time (`"blocks.*"`);
- `tensor_plan`: pattern → how tensor parallelism splits that submodule (see `parallel/tensor.py`);
- `context_plan`: pattern → a submodule's role if a rank holds a part of each sample's positions (see `parallel/context.py`);
- `pipeline_plan`: the submodules before, in and after the sequence of blocks that is cut into stages; FSDP gathers those before and
  after as separate units, unless they are tied.

A layout that needs a plan that a model does not offer is refused; the message names the layouts that it can be trained with.
"""

import ast
import functools
import pkgutil
from importlib import import_module

from parascale.errors import ConfigError
from parascale.families.counted import CountedSizes, count_found, unknown_count
from parascale.settings.strict import nearest


def kinds():
    return {name: kind for family in _families(tuple(__path__)) for name, kind in family.KINDS.items()}


def settings_of(task, kind):
    """The settings class of a kind of model. For a user's class or an unknown kind, that of the task's default kind."""
    known = kinds()
    if not isinstance(kind, str) or kind not in known:
        kind = next(name for name, each in known.items() if each.task == task and each.usual)
    return part_of(kind, "settings")


def families():
    return [_name(family) for family in _families(tuple(__path__))]


def families_of(kind):
    """Names of the families whose modules a kind of model uses, its own first."""
    return (_name(family_of(kind)), *kinds()[kind].builds_on)


def family_of(kind):
    """The package of the family with this kind of model, or None, as for a user's class."""
    return next((family for family in _families(tuple(__path__)) if kind in family.KINDS), None)


def part_of(kind, part):
    """Import and return a family's part for a kind of model, or None if it has none. part: settings | model | sizes | export."""
    family = family_of(kind)
    place = getattr(family.KINDS[kind], part) if family else None
    if place is None:
        return None
    module, _, name = place.partition(":")
    found = import_module(f"{family.__name__}.{module}")
    return getattr(found, name) if name else found


def model_sizes(model, outputs, *places):
    """The Sizes of a config Model with `outputs` (vocabulary entries or classes), for samples of `places` (a workload's `sizes`).

    None if unknown, which is never counted as 0; `unknown_sizes` gives the reason.
    """
    if (formula := part_of(model.kind, "sizes")) is not None:
        return formula(model, outputs, *places)
    found = count_found(model, outputs, *places)
    return CountedSizes(found) if found else None


def unknown_sizes(model, outputs, *places):
    """The reason why `model_sizes` returns None: the model is not counted, or a file is missing. None if sizes are known."""
    return unknown_count(model, outputs, *places) if is_counted(model) else None


def is_counted(model) -> bool:
    """True if plans get a config Model's sizes by counting, False if by formula."""
    return part_of(model.kind, "sizes") is None


def check_class(path, name, kind):
    """Raise ConfigError if the user's file for a model `kind` has no such name. The file is parsed, not run, as it may import torch."""
    try:
        nodes = list(ast.iter_child_nodes(ast.parse(path.read_bytes())))
    except SyntaxError as error:
        raise ConfigError(f"model.kind = `{kind}`: `{path}`, line {error.lineno}: not Python: {error.msg}") from None
    classes = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
    aliases = [alias for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names]
    stored = {each.id for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name)}
    if name not in {*classes, *stored, *(alias.asname or alias.name for alias in aliases)} and all(
        alias.name != "*" for alias in aliases
    ):
        raise ConfigError(f"model.kind = `{kind}`: `{path}` has no class `{name}`{nearest(name, classes)}")


@functools.cache
def _families(path):
    """The packages of all families below the folders of `path`."""
    return [import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(path) if found.ispkg]


def _name(family):
    return family.__name__.rpartition(".")[2]
