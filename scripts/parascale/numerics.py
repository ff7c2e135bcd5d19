"""The declared numerics of the training code. A training's key contains these instead of the current code.

A part is a kind of `provenance.CODE` (`training`, a task, `lightning`) or a family, `families/<name>`. `numerics.json` has

    declared   part → version, and its modules with their digests when version 1 was declared
    proven     module → its digest when `make same-numbers` last showed that it trains the same bits

An edit that changes no number keeps the keys. For an edit that changes numbers, raise the version of the part: its results are then
recomputed. Until the edit is proven or the version raised, plans, trainings and records name the edited modules (`unproven`).
"""

import functools

from parascale import provenance
from parascale.errors import shorten_list
from parascale.files import read_json

FAMILY = "families/"
TABLE = "numerics.json"


@functools.cache
def training_modules(task: str, engine: str, families: tuple[str, ...], files: tuple[str, ...] = ()) -> dict[str, str]:
    """Module → digest for the key of a training: declared digests of our modules, current ones of the user's `files`.

    A part that is not declared yet, such as a family under development, counts with its current code. Cached, since thousands of runs
    share few kinds.
    """
    parts = ["training", task, *(["lightning"] if engine == "lightning" else []), *(FAMILY + name for name in families)]
    declared, found = read_json(provenance.PACKAGE / TABLE)["declared"], dict[str, str]()
    for part in parts:
        known = declared.get(part) or {"version": 1, "modules": modules_now(part)}
        found |= known["modules"]
        if known["version"] > 1:
            found[part] = f"version {known['version']}"
    return dict(sorted(found.items())) | provenance.modules_of(files=files)


def modules_now(part: str) -> dict[str, str]:
    """Module → digest of a part's current code."""
    family = part.removeprefix(FAMILY)
    return provenance.modules_of(part) if family == part else provenance.modules_of(families=[family])


@functools.cache
def unproven(parts: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Modules of some parts (default: all declared ones) whose current code is not proven. Cached."""
    table = read_json(provenance.PACKAGE / TABLE)
    now, proven = dict[str, str](), table["proven"]
    for part in parts or table["declared"]:
        now |= modules_now(part)
    return tuple(sorted(name for name in now.keys() | proven if now.get(name) != proven.get(name)))


def warning() -> str:
    """A warning about edited training code that is not proven, or ""."""
    if not (names := unproven()):
        return ""
    return (
        f"{shorten_list(names, 3)}: edited since it was shown to train the same numbers. Results of the earlier code stay valid until "
        "`make same-numbers` has compared the two, or raised the version"
    )
