"""Model families (to be merged)."""

import functools
import pkgutil
from importlib import import_module


def kinds():
    """Name of each kind of model → its Kind."""
    return {name: kind for family in _families(tuple(__path__)) for name, kind in family.KINDS.items()}


def settings_of(task, kind):
    """The class of settings of a kind of model; of the task's usual one for a class of the user's own, or an unknown kind."""
    known = kinds()
    if not isinstance(kind, str) or kind not in known:
        kind = next((name for name, each in known.items() if each.task == task and each.usual), "transformer_lm")
    return part_of(kind, "settings")


def family_of(kind):
    return next((family for family in _families(tuple(__path__)) if kind in family.KINDS), None)


def part_of(kind, part):
    family = family_of(kind)
    place = getattr(family.KINDS[kind], part) if family else None
    if place is None:
        return None
    module, _, name = place.partition(":")
    found = import_module(f"{family.__name__}.{module}")
    return getattr(found, name) if name else found


@functools.cache
def _families(path):
    return [import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(path) if found.ispkg]


def families():
    """Names of all families."""
    return [family.__name__.rpartition(".")[2] for family in _families(tuple(__path__))]


def families_of(kind):
    """Names of the families whose modules a kind of model is made of: its own first."""
    return (family_of(kind).__name__.rpartition(".")[2], *kinds()[kind].builds_on)
