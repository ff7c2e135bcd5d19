"""What a user can set, call and ask for, and the lines of each room, are listed: one more fails until the list is edited, with the reason
in the commit. `python -m tests.unit.test_surface` writes both lists anew; the totals in `tests/lines.txt` are set by hand."""

import re
from itertools import groupby
from pathlib import Path

import click

from parascale.settings.config import Config
from parascale.settings.options import walk
from parascale.settings.reference import _rows_of_workloads
from parascale.settings.runtable import COLUMNS
from parascale.settings.site import Site

from .test_cli import verbs

ROOT = Path(__file__).parents[2]
SURFACE, LINES = ROOT / "tests/surface.txt", ROOT / "tests/lines.txt"
COUNTED = {"scripts": ROOT / "scripts", "tests": ROOT / "tests"}  # those with a total


def surface() -> dict[str, list[str]]:
    """What a line of the list is about → its words."""
    keys = {
        "config": (setting.key for setting in walk(Config)),
        "site": (setting.key for setting in walk(Site)),
        "workload": dict.fromkeys(row.key for row in _rows_of_workloads()),
    }
    found = {
        f"{file} {group}".strip(): [*words]
        for file, names in keys.items()
        for group, words in groupby(sorted(names, key=_group), key=_group)
    }
    found["runs"] = COLUMNS
    options = {" ".join(words): [*_options(verb)] for words, verb in verbs()}
    shared = set.intersection(*(set(each) for verb, each in options.items() if verb.startswith("data ")))
    found["parascale (most verbs)"] = sorted(shared - {"--dataset", "--workload"})
    for verb, each in options.items():
        found[f"parascale {verb}"] = [option for option in each if option not in found["parascale (most verbs)"]]
    places = (ROOT / "Snakefile", *sorted(ROOT.glob("rules/*.smk")))
    rules = "".join(path.read_text(encoding="utf-8") for path in places)
    found["targets"] = re.findall(r"^(?:use )?rule (?:\w+ as )?(\w+)", rules, re.MULTILINE)
    return found


def _group(key):
    return key.rpartition(".")[0].partition(".")[0]


def _options(verb):
    for each in verb.params:
        yield from each.opts[:1] if isinstance(each, click.Option) else [each.name.upper()]


def lines() -> dict[str, int]:
    """Lines of Python in each room of `scripts/`, and in `tests/` without benchmarks; files beside the rooms together are one."""
    found = {}
    for root in COUNTED.values():
        for path in sorted(root.rglob("*.py")):
            package, *inner = path.relative_to(root).parts
            if root.name == "tests" and package != "benchmarks":
                room = "tests"
            elif root.name == "scripts":
                room = "/".join(("scripts", package, *inner[:1])) if len(inner) > 1 else f"scripts/{package}"
            else:
                continue
            found[room] = found.get(room, 0) + len(path.read_text(encoding="utf-8").splitlines())
    return found


def read(path) -> dict[str, list[str]]:
    """What each line of a list is about → its words."""
    parts = (line.partition(":") for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    return {name: words.split() for name, _, words in parts}


def write():
    """Write both lists as they are now; totals stay."""
    totals = {name: words for name, words in read(LINES).items() if name in COUNTED} if LINES.is_file() else {}
    head = f"# {' '.join(__doc__.split())}\n"
    SURFACE.write_text(
        head + "".join(f"{name}: {' '.join(words)}\n" for name, words in surface().items()), encoding="utf-8"
    )
    counts = {name: [str(count)] for name, count in lines().items()} | totals
    LINES.write_text(head + "".join(f"{name}: {' '.join(words)}\n" for name, words in counts.items()), encoding="utf-8")


def test_nothing_can_be_set_or_called_that_is_not_listed():
    listed, found = read(SURFACE), surface()
    differs = {name for name in listed.keys() | found.keys() if listed.get(name, []) != found.get(name, [])}
    changed = {name: sorted({*listed.get(name, [])} ^ {*found.get(name, [])}) for name in differs}
    assert not changed, "not as tests/surface.txt lists it: say why in the commit; python -m tests.unit.test_surface"


def test_no_room_grows_but_by_what_another_loses():
    listed = {name: int(count) for name, (count,) in read(LINES).items()}
    grown = {name: count for name, count in lines().items() if count > listed.get(name, 0)}
    assert not grown, "above their numbers in tests/lines.txt: raise one only by lowering another"
    assert sum(count for name, count in listed.items() if name.startswith("scripts/")) <= listed["scripts"]


if __name__ == "__main__":
    write()
