"""What stands for the code of a training in its key: the declared numerics of its parts, not the code as it is edited.

A part is a kind of `provenance.CODE` (`training`, a task, `lightning`) or a family, `families/<name>`. `numerics.json` holds

    declared   part → version, and its modules with their digests when version 1 was declared
    proven     module → its digest when `make same-numbers` last showed that it trains the same bits

An edit that changes no number leaves keys alone. An edit that changes one raises the version of a part: its results are recomputed.
Until one of the two is done, plans, trainings and records name what was edited (`unproven`).
"""

import functools

from parascale import provenance
from parascale.errors import shorten_list
from parascale.files import read_json

FAMILY = "families/"
TABLE = "numerics.json"


@functools.cache
def training_modules(task: str, engine: str, families: tuple[str, ...], files: tuple[str, ...] = ()) -> dict[str, str]:
    """Module → digest, in the key of a training: as declared for our own, as they are now for `files` of the user's own.

    A part that is not declared yet, as a family under development, counts as it is now. Once a process: thousands of runs share
    few kinds.
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
    """Module → digest of a part as its code is now."""
    family = part.removeprefix(FAMILY)
    return provenance.modules_of(part) if family == part else provenance.modules_of(families=[family])


@functools.cache
def unproven(parts: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Modules of some parts (default: the declared ones) whose code is not the one that was last proven, once a process."""
    table = read_json(provenance.PACKAGE / TABLE)
    now, proven = dict[str, str](), table["proven"]
    for part in parts or table["declared"]:
        now |= modules_now(part)
    return tuple(sorted(name for name in now.keys() | proven if now.get(name) != proven.get(name)))


def warning() -> str:
    """What to know of edited training code that is not proven; empty where there is none."""
    if not (names := unproven()):
        return ""
    return (
        f"{shorten_list(names, 3)}: edited since it was shown to train the same numbers. Results of the earlier code count as its own until "
        "`make same-numbers` has compared them, or raised the version"
    )
