"""Plans in the report: what was predicted beside what happened and was charged, and which layouts formulas advise."""

import statistics
from dataclasses import dataclass

from parascale.report import numbers
from parascale.report.layouts import degrees_text
from parascale.report.section import Section
from parascale.report.summary import of_runs
from parascale.report.tables import Column, columns, make_table

SHOWN = 8  # layouts of an advice
# Basis of a prediction, as `Calibration.basis` has it, in words.
BASES = {
    "history": "finished runs of its kind",
    "probe": "probes of its workload",
    "fit": "other runs here",
    "formula": "formulas alone",
}
COLUMNS = (
    *map(Column, ("workload", "site", "gpus")),
    Column("layout", "Layout", below="reason"),
    *columns(secondary=True, strategy="Strategy"),
    Column("seconds", "Whole job", numbers.duration, below="rests_on"),
    Column("core_hours", "Core-hours", numbers.significant),
    Column("step_seconds", "A step", numbers.duration, secondary=True),
    Column("memory_bytes", "Memory a process", numbers.memory, secondary=True),
    Column("fits", "Fits", secondary=True),
    Column("reason"),
)
# Heading, name as in `plan-against-actual.csv`, how it is written, and what became of it.
COMPARED = (
    ("Time", "seconds", numbers.duration, "actual"),
    ("Memory", "memory_bytes", numbers.memory, "actual"),
    ("Core-hours", "core_hours", numbers.significant, "charged"),
)


@dataclass(frozen=True)
class Advice:
    """Every layout of a workload on so many GPUs of a site, the best first. thumb: the rule of thumb as a sentence, or None.

    ranked: each a parascale.plan.advise.RankedLayout.
    """

    workload: str
    site: str
    gpus: str
    basis: str
    thumb: str | None
    ranked: tuple


def plan_section(report):
    """What the plan predicted, frozen into each record before it started, beside what happened."""
    made, accounted = [], any(source != "record" for _, source in report.charges.values())
    for title, name, shown, happened in COMPARED:
        word = happened if happened == "actual" or accounted else "used"
        made += [
            Column(f"{name}_predicted", f"{title}, planned", shown, secondary=True),
            Column(f"{name}_{happened}", f"{title}, {word}", shown, secondary=True),
            Column(f"{name}_of_planned", f"{title}, {word} of planned", numbers.percent),
        ]
    made += columns(secondary=True, basis="Plan rests on", **({"source": "Charged by"} if accounted else {}))
    predicted = [record for record in report.done if record.prediction]
    caption = "Plan against actual; an empty cell was not predicted"
    table = of_runs(report, caption, made, predicted, lambda record: _plan_row(record, report.charges.get(record.name)))
    files = (
        "`plan-against-actual.csv`, where `seconds` are those of the training steps and `hours` those of the whole job"
    )
    return Section("plan", "Plan against actual", "plan.html", {"table": table, "judged": list(_judged(table))}, files)


def _judged(table):
    """Yield a sentence for each of COMPARED: by which factor its plans were off, up or down, in the median and at worst, where these differ."""
    for title, name, *_ in COMPARED:
        parts = zip(table.frame["run"], table.frame[f"{name}_of_planned"], strict=True)
        part_of = {run: part for run, part in parts if part}
        off = {run: max(part, 1 / part) for run, part in part_of.items()}
        if off:
            worst = max(off, key=off.get)
            middle, most = (numbers.significant(each, 2) for each in (statistics.median(off.values()), off[worst]))
            way = "more" if part_of[worst] > 1 else "less"
            every = ", as in all runs" if len({part > 1 for part in part_of.values()}) == 1 < len(off) else ""
            said = most if middle == most else f"{middle} in the median, {most} at worst"
            yield f"{title}: off by a factor of {said} (`{worst}`: {way} than planned{every})."


def _plan_row(record, charge):
    """charge: (core-hours, what says so) of a run; without it the run's own record says."""
    plan, summary = record.prediction, record.summary
    charged, source = charge or (summary.core_hours, "record")
    became = {"seconds": summary.seconds, "memory_bytes": summary.peak_memory_bytes, "core_hours": charged}
    row = {"basis": BASES.get(plan.get("basis"), plan.get("basis")), "source": source}
    for _, name, _, happened in COMPARED:
        expected, actual = plan.get(name), became[name]
        row |= {f"{name}_predicted": expected, f"{name}_{happened}": actual}
        row[f"{name}_of_planned"] = actual / expected if expected and actual else None
    return row


def advice_section(report):
    """Which layout formulas advise for each workload, with the reason."""
    advised = []
    for advice in report.advice:
        rows = _rows(advice)
        caption = (
            f"{advice.workload} on {advice.gpus} of {advice.site}: the best {len(rows[:SHOWN])} of {len(rows)} layouts"
        )
        advised.append((advice, BASES.get(advice.basis, advice.basis), make_table(caption, COLUMNS, rows[:SHOWN])))
    return Section(
        "advice",
        "Which layout next",
        "advice.html",
        {"advised": advised},
        "`advice.csv`, of every layout",
    )


def advice_table(report):
    """Every layout of every workload, the best first; its columns are `advice.csv`."""
    return make_table("Layouts by formula", COLUMNS, (row for advice in report.advice for row in _rows(advice)))


def _rows(advice):
    """Seconds of a step and of the whole job, its core-hours, bytes a GPU; None is unknown."""
    return [
        {
            **{"workload": advice.workload, "site": advice.site, "gpus": advice.gpus},
            **vars(each.prediction),
            "seconds": each.prediction.wall_seconds,
            "layout": degrees_text(each.run),
            "strategy": each.layout.strategy(),
            "reason": each.reason,
            "rests_on": _source(each.prediction),
        }
        for each in advice.ranked
    ]


def _source(prediction):
    if prediction.wall_seconds is None:
        return "not priced"
    return "measured here" if prediction.basis == "history" else "by formula"
