"""What a score says as an examiner would ask: errors by group, ranges, order of layouts, and a rule of thumb beside it."""

import statistics
from pathlib import Path
from unittest import mock

import yaml

from parascale.plan import time
from parascale.plan.hours import RANGE
from parascale.plan.predict import formula_error, predict
from parascale.settings import load_project_file

CONFIG = Path(__file__).resolve().parents[2] / "config"

ALIKE = ("torch", "megatron", "deepspeed-2021")  # stacks for which the plan answers
KEPT = 0.95
GRID = ("source", "machine", "gpus", "model", "window", "tuned")  # rows alike in these are layouts of the same training
FIRST = 3


def apart(cells):
    """nanotron's pipelines, and what it ran on two nodes (see README.md beside the table)."""
    return cells.get("source") == "nanotron" and (cells["pp"] != "1" or cells["gpus"] != cells["gpus_per_node"])


def examined(scored):
    """Rows that the plan answers for: of grade A or B, of torch's own code or like it, and not set apart."""
    return [
        row
        for row in scored
        if row.ratio and row.groups["grade"] in "AB" and row.groups["stack"] in ALIKE and not apart(row.cells)
    ]


def error(row):
    """Relative error of a row's rate."""
    return abs(row.ratio - 1)


def summary(rows):
    """{rows, median, kept, worst, covered}: relative errors, the one that 95 of 100 stay below, and the part within the range of 80 %."""
    off = sorted(map(error, rows))
    inside = sum(abs(row.off) <= RANGE * formula_error("cuda", int(row.cells["gpus"])) for row in rows)
    found = {"rows": len(off), "median": statistics.median(off), "worst": off[-1], "covered": inside / len(off)}
    return found | {"kept": off[min(len(off) - 1, int(KEPT * len(off)))]}


def grids(rows):
    """[(what choosing by prediction loses of the best rate, place of the best among the predicted)] of trainings in several layouts."""
    found = {}
    for row in rows:
        found.setdefault(tuple(row.cells.get(name) for name in GRID), []).append(row)
    chosen = []
    for layouts in found.values():
        if len(layouts) > 1:
            order = sorted(layouts, key=lambda row: -row.predicted)
            best = max(row.published for row in layouts)
            places = [place for place, row in enumerate(order) if row.published == best]
            chosen.append((1 - order[0].published / best, places[0]))
    return chosen


def by_rule_of_thumb(rows):
    """Median error of one utilisation for each machine: the median of the other sources' there, or of all others' where it has none."""
    off = []
    for row in rows:
        others = [each for each in rows if each.groups["source"] != row.groups["source"]]
        alike = [each for each in others if each.groups["machine"] == row.groups["machine"]] or others
        if alike:
            off.append(abs(statistics.median(each.utilisation for each in alike) / row.utilisation - 1))
    return statistics.median(off) if off else None


def constants(rows, rate, small):
    """{constant of gpus.yaml: what twice of it moves a rate by at most, in published rows and in shipped runs; the median error then}.

    rate: function from a row's cells to what is predicted of it; small: function to seconds of a step of shipped runs.
    """
    shipped = yaml.safe_load(time.KINDS.read_text(encoding="utf-8"))
    found, seconds = {}, small()
    for name in (name for name in shipped["other"] if name != "names"):
        kinds = {kind: values | {name: 2 * values[name]} for kind, values in shipped.items()}
        with mock.patch.object(time, "_kinds", lambda kinds=kinds: kinds):
            rates, slower = [rate(row.cells) for row in rows], small()
        found[name] = (
            max(abs(changed / row.predicted - 1) for changed, row in zip(rates, rows, strict=True)),
            max(abs(changed / before - 1) for changed, before in zip(slower, seconds, strict=True)),
            statistics.median(abs(changed / row.published - 1) for changed, row in zip(rates, rows, strict=True)),
        )
    return found


def shipped_steps():
    """Seconds of a step of each run of config/jureca.yaml that has a price."""
    project = load_project_file(CONFIG / "config.yaml", CONFIG / "jureca.yaml")
    predicted = (predict(run, project.site, remedy=False).step_seconds for run in project.runs.values())
    return [seconds for seconds in predicted if seconds]


def perturbed(scored, rate):
    """What twice of each constant does, for people. rate: see `constants`."""
    yield f"{'twice of it moves by at most':26} {'published':>9} {'JURECA runs':>12} {'median error':>13}"
    for name, values in constants(examined(scored), rate, shipped_steps).items():
        yield "  {:24} {:9.1%} {:12.1%} {:13.1%}".format(name, *values)


def lines(scored):
    """The exam, for people."""
    rows = examined(scored)
    if not rows:
        return
    yield f"{len(rows)} rows of grade A or B, of torch's code or like it:"
    yield f"  {'':24} {'rows':>5} {'median':>7} {'95 of 100':>10} {'worst':>7} {'in range':>9}"
    for kind in ("all", *rows[0].groups):
        names = sorted({row.groups.get(kind, "all") for row in rows}, key=lambda name: (len(name), name))
        for name in names:
            told = summary([row for row in rows if row.groups.get(kind, "all") == name])
            label = name if kind == "all" else f"{kind} {name}"
            yield (
                f"  {label:24} {told['rows']:5} {told['median']:7.1%} {told['kept']:10.1%} {told['worst']:7.1%} "
                f"{told['covered']:9.0%}"
            )
    thumb = by_rule_of_thumb(rows)
    if thumb is not None:
        yield f"one utilisation a machine, of the other sources, is off by {thumb:.1%} in the median"
    lost = grids(rows)
    if lost:
        losses = [loss for loss, _ in lost]
        yield (
            f"of {len(lost)} trainings in several layouts the predicted best loses {statistics.median(losses):.1%} in the median, "
            f"{max(losses):.1%} at worst; the best is among the first {FIRST} in {sum(place < FIRST for _, place in lost)}"
        )
    reached = {}
    for row in scored:
        if row.ratio and (stack := row.groups["stack"]) not in ALIKE:
            reached.setdefault(stack, []).append(1 / row.ratio)
    for stack, speeds in sorted(reached.items()):
        yield f"{stack} reaches {statistics.median(speeds):.2f} times what is predicted of ours"
