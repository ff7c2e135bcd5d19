"""How a setting is declared: its default, its meaning and its bounds stand in one place.

`config/README.md` is made from these declarations, and `strict.py` checks values against them.
"""

from dataclasses import field


def option(default, doc, *, choices=None, low=None, above=None, high=None):
    """A setting with its default.

    choices: the values that are allowed; of a mapping, its keys. low, high: inclusive bounds. above: an exclusive one.
    """
    metadata = {"doc": doc, "choices": choices, "low": low, "above": above, "high": high}
    if isinstance(default, (dict, list)):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def required(doc, *, choices=None, low=None):
    """A setting that has no default."""
    return field(metadata={"doc": doc, "choices": choices, "low": low})


def section(kind, doc):
    """A group of settings, itself a dataclass whose defaults hold when the group is left out."""
    return field(default_factory=kind, metadata={"doc": doc})
