"""Model families: all that is known of a kind of model stands in its family's folder, and everything else asks here.

A family is a folder beside this file: it is found, no list names it. It says in `KINDS` which kinds it has (`Kind`), and holds

- `settings.py`: what a model can be told: keys, defaults, bounds, and what does not go together
- `modules.py`: plain torch modules that know nothing of parallelism (any file `*modules.py`)
- `sizes.py`: what a plan needs to know of them by formula (`parascale.families.sizes.Sizes`; any file `*sizes.py`); without it plans
  read what was counted (`parascale.families.counted`)
- `export.py`: the same model in the words of `transformers`, where it has an equal there

A model class may *offer plans*, which are plain data and which `parascale.parallel` reads:

- `shard_units`: patterns of submodules that FSDP gathers, and that are checkpointed or compiled, one at a time (`"blocks.*"`);
- `tensor_plan`: pattern → how tensor parallelism splits that submodule (see `parallel/tensor.py`);
- `context_plan`: pattern → what a submodule does where a rank holds a part of each sample's positions (see `parallel/context.py`);
- `pipeline_plan`: which submodules stand before, in and after the sequence of blocks that is cut into stages; FSDP gathers those before and
  after by themselves, unless they are tied.

A layout that needs a plan which a model does not offer is refused, naming those that it has.
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
    """The class of settings of a kind of model; of the task's usual kind for a class of the user's own, or an unknown one."""
    known = kinds()
    if not isinstance(kind, str) or kind not in known:
        kind = next(name for name, each in known.items() if each.task == task and each.usual)
    return part_of(kind, "settings")


def families():
    return [_name(family) for family in _families(tuple(__path__))]


def families_of(kind):
    """Names of the families whose modules a kind of model is made of: its own first."""
    return (_name(family_of(kind)), *kinds()[kind].builds_on)


def family_of(kind):
    """The package of the family that has a kind of model; None if none has it, as for a user's class."""
    return next((family for family in _families(tuple(__path__)) if kind in family.KINDS), None)


def part_of(kind, part):
    """A family's part for a kind of model, imported now. part: settings | model | sizes | export. None where it has none."""
    family = family_of(kind)
    place = getattr(family.KINDS[kind], part) if family else None
    if place is None:
        return None
    module, _, name = place.partition(":")
    found = import_module(f"{family.__name__}.{module}")
    return getattr(found, name) if name else found


def model_sizes(model, outputs, *places):
    """The Sizes of a config Model with `outputs` (entries of its vocabulary, or classes), for samples of `places` (a workload's `sizes`).

    None where `unknown_sizes` says why: what is unknown is never counted as 0.
    """
    if (formula := part_of(model.kind, "sizes")) is not None:
        return formula(model, outputs, *places)
    found = count_found(model, outputs, *places)
    return CountedSizes(found) if found else None


def unknown_sizes(model, outputs, *places):
    """Why `model_sizes` knows none, in words: a model that is not counted, or a file that is missing; else None."""
    return unknown_count(model, outputs, *places) if is_counted(model) else None


def is_counted(model) -> bool:
    """Whether plans know a config Model by counting; else by a formula."""
    return part_of(model.kind, "sizes") is None


def check_class(path, name, kind):
    """Raise ConfigError where the user's file of a model `kind` has no such name. The file is read, not run: it may load torch."""
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
