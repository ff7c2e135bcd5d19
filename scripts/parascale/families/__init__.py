"""Model families: all that is known of a kind of model stands in its family's folder, and everything else asks here.

A family is a folder beside this file: it is found, no list names it. It says in `KINDS` which kinds it has (`Kind`), and holds

- `settings.py`: what a model can be told: keys, defaults, bounds, and what does not go together
- `modules.py`: plain torch modules that know nothing of parallelism (any file `*modules.py`)
- `sizes.py`: what a plan counts of them, without torch (`parascale.families.sizes.Sizes`)
- `export.py`: the same model in the words of `transformers`, where it has an equal there

A model class may *offer plans*, which are plain data and which `parascale.parallel` reads:

- `shard_units`: patterns of submodules that FSDP gathers, and that are checkpointed or compiled, one at a time (`"blocks.*"`);
- `tensor_plan`: pattern → how tensor parallelism splits that submodule (see `parallel/tensor.py`);
- `pipeline_plan`: which submodules stand before, in and after the sequence of blocks that is cut into stages.

A layout that needs a plan which a model does not offer is refused, naming those that it has.
"""

import functools
import pkgutil
from importlib import import_module


def kinds():
    """Name of each kind of model → its Kind."""
    return {name: kind for family in _families(tuple(__path__)) for name, kind in family.KINDS.items()}


def settings_of(task, kind):
    """The class of settings of a kind of model; of the task's usual kind for a class of the user's own, or an unknown one."""
    known = kinds()
    if not isinstance(kind, str) or kind not in known:
        kind = next(name for name, each in known.items() if each.task == task and each.usual)
    return part_of(kind, "settings")


def families():
    """Names of all families."""
    return [_name(family) for family in _families(tuple(__path__))]


def families_of(kind):
    """Names of the families whose modules a kind of model is made of: its own first."""
    return (_name(family_of(kind)), *kinds()[kind].builds_on)


def family_of(kind):
    """The package of the family that has a kind of model; None where none has, as of a class of the user's own."""
    return next((family for family in _families(tuple(__path__)) if kind in family.KINDS), None)


def part_of(kind, part):
    """What a family has for a kind of model, imported now. part: settings | model | sizes | export. None where it has none."""
    family = family_of(kind)
    place = getattr(family.KINDS[kind], part) if family else None
    if place is None:
        return None
    module, _, name = place.partition(":")
    found = import_module(f"{family.__name__}.{module}")
    return getattr(found, name) if name else found


@functools.cache
def _families(path):
    """The packages of all families below the folders of `path`."""
    return [import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(path) if found.ispkg]


def _name(family):
    return family.__name__.rpartition(".")[2]
