"""`make same-numbers`: check that edited training code still trains the same bits.

Trains tiny runs of every family in every kind of layout twice on this machine, with the code of the commit that last changed
`numerics.json` and with this tree, and compares every loss, norm, weight and optimizer state. If all have the same bits, the tree is
recorded as proven. If some differ, nothing is recorded: fix the edit, or raise the version of the part that now trains different
numbers (`RAISE=families/images`), which makes its results stale, and say so in CHANGELOG.md.
"""

import argparse
import functools
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from parascale import families, numerics, provenance
from parascale.settings.workload import TASKS

from . import tiny_trainings
from .tiny_trainings import CASES, PREPARATION, numbers_of, write_project

ROOT = Path(__file__).parents[1]
TABLE = provenance.PACKAGE / numerics.TABLE


def compare(against, place):
    """Train all cases with a commit and with this tree below `place`. Returns case → names of different numbers, for cases that differ."""
    archive = subprocess.run(["git", "archive", against, "scripts"], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(place / "before", filter="data")
    shutil.copytree(ROOT / "scripts", place / "now/scripts")  # the user may edit the original meanwhile
    folder = place / "project"
    folder.mkdir()
    write_project(folder)
    for tree in ("before", "now"):
        root, environment = place / tree, {**os.environ, "PYTHONPATH": str(place / tree / "scripts")}
        run = functools.partial(subprocess.run, cwd=folder, env=environment, check=True)
        if tree == "before":
            for verb, dataset, *options in PREPARATION:
                words = ["data", verb, "--dataset", dataset, *options, "--root", root]
                run([sys.executable, "-m", "parascale", *words], stdout=subprocess.DEVNULL)
        else:
            shutil.copytree(place / "before/results/data", root / "results/data")
        print(f"{tree}:", flush=True)
        run([sys.executable, tiny_trainings.__file__, folder, root])
    found = {}
    for name in CASES:
        before, now = (numbers_of(place / tree, name) for tree in ("before", "now"))
        if before is None or now is None:
            found[name] = ["not trained"]
        elif before != now:
            found[name] = [key for key in before if before[key] != now.get(key)] or ["more tensors"]
    return found


def parts_of(root, name):
    """The parts (of `numerics`) that a trained case uses."""
    settings = json.loads((root / "results/runs" / name / "run.json").read_text())["settings"]
    task, kind = settings["workload"]["task"], settings["workload"]["model"]["kind"]
    made_of = families.families() if ":" in kind else families.families_of(kind)
    return {"training", task, settings["engine"], *(numerics.FAMILY + family for family in made_of)}


def modules():
    """Part → {module: digest} of the current code of all parts."""
    trained = [task for task in TASKS if task in provenance.CODE]  # a script trains with its own code
    parts = ["training", *trained, "lightning", *(numerics.FAMILY + family for family in families.families())]
    return {part: numerics.modules_now(part) for part in parts}


def record(now, raised=()):
    """Record the code in `now` (from `modules`) as proven; raise the version of some parts, and declare new ones."""
    declared = json.loads(TABLE.read_text())["declared"]
    declared = {part: declared.get(part, {"version": 1, "modules": now[part]}) for part in now}
    for part in raised:
        declared[part]["version"] += 1
    table = {"declared": declared, "proven": dict(sorted(_flat(now).items()))}
    TABLE.write_text(json.dumps(table, indent=1) + "\n")


def _flat(parts):
    return {name: digest for found in parts.values() for name, digest in found.items()}


def main():
    now = modules()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="COMMIT", help="the commit to compare with")
    parser.add_argument(
        "--raise", dest="raised", nargs="+", default=[], choices=now, help="parts that train different numbers"
    )
    options = parser.parse_args()
    last = subprocess.run(["git", "log", "-1", "--format=%H", "--", TABLE], cwd=ROOT, capture_output=True, text=True)
    against, place = options.against or last.stdout.strip(), Path(tempfile.mkdtemp(prefix="same-numbers-"))
    print(f"{len(CASES)} runs with {against[:12]} and with this tree, in {place}", flush=True)
    differ = compare(against, place)
    for name, what in differ.items():
        print(f"{name}: {', '.join(what[:4])} differ{' …' if len(what) > 4 else ''}")
    if any(
        what == ["not trained"] or not parts_of(place / "now", name) & set(options.raised)
        for name, what in differ.items()
    ):
        sys.exit(
            f"{len(differ)} of {len(CASES)} runs train different numbers, or fail ({place} has their logs). Fix the edit; or, if it should "
            "change numbers, raise the version of its parts (`make same-numbers RAISE=families/images`) and say so in CHANGELOG.md"
        )
    shutil.rmtree(place)
    record(now, options.raised)
    print(f"recorded in {TABLE.relative_to(ROOT)}: commit it with your edit")


if __name__ == "__main__":
    main()
