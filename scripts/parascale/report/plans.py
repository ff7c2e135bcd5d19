"""Plans in the report: what was foretold beside what happened and was charged, and which layouts formulas advise."""

from dataclasses import dataclass

from parascale.files import csv_text
from parascale.report import numbers
from parascale.report.layouts import degrees_text
from parascale.report.section import Section
from parascale.report.tables import make_table, number, records_table

SHOWN = 8  # layouts of an advice


FIGURES = ("layout", "strategy", "step_seconds", "seconds", "core_hours", "memory_bytes", "fits", "reason")


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
    """What the plan foretold, frozen into each record before it started, beside what happened."""
    foretold = [record for record in report.done if record.prediction]
    caption = "Plan against actual; an empty cell was not foretold"
    table = records_table(report, caption, foretold, lambda record: _plan_row(record, report.charges.get(record.name)))
    files = (
        "`plan-against-actual.csv`, where `seconds` are those of the training steps and `hours` those of the whole job"
    )
    return Section("plan", "Plan against actual", "plan.html", {"table": table}, files)


def _plan_row(record, charge):
    """charge: (core-hours, what says so) of a run; without it the run's own record says."""
    plan, summary = record.prediction, record.summary
    charged, source = charge or (summary.core_hours, "record")

    def pair(heading, name, expected, actual, shown, happened="actual"):
        part = actual / expected if expected and actual else None
        return {
            f"{heading}, planned": number(expected, shown, f"planned_{name}"),
            f"{heading}, {happened}": number(actual, shown, f"actual_{name}"),
            f"{heading}, {happened} of planned": number(part, numbers.percent),
        }

    return {
        **pair("Time", "seconds", plan.get("seconds"), summary.seconds, numbers.duration),
        **pair("Memory", "memory_bytes", plan.get("memory_bytes"), summary.peak_memory_bytes, numbers.memory),
        **pair("Core-hours", "core_hours", plan.get("core_hours"), charged, numbers.significant, "charged"),
        "Plan rests on": plan.get("basis") or "",
        "Charged by": source,
    }


def advice_section(report):
    """Which layout formulas advise for each workload, with the reason."""
    advised = [(advice, _advice_table(advice)) for advice in report.advice]
    return Section("advice", "Which layout next", "advice.html", {"advised": advised}, "`advice.csv`, of every layout")


def advice_csv(report):
    """The text of `advice.csv`: every layout of every workload, the best first; an empty cell is unknown."""
    rows = [
        {"workload": advice.workload, "site": advice.site, "gpus": advice.gpus, **_figures(each)}
        for advice in report.advice
        for each in advice.ranked
    ]
    return csv_text(("workload", "site", "gpus", *FIGURES), rows)


def _figures(ranked):
    """FIGURES of a layout: seconds of a step and of the whole job, its core-hours, bytes a GPU; None is unknown."""
    foretold = ranked.prediction
    figures = foretold.step_seconds, foretold.wall_seconds, foretold.core_hours, foretold.memory_bytes
    words = degrees_text(ranked.run), ranked.layout.strategy()
    return dict(zip(FIGURES, (*words, *figures, foretold.fits, ranked.reason), strict=True))


def _advice_table(advice):
    shown = [_figures(each) for each in advice.ranked[:SHOWN]]
    caption = (
        f"{advice.workload} on {advice.gpus} of {advice.site}: the best {len(shown)} of {len(advice.ranked)} layouts"
    )
    return make_table(caption, [(each["layout"], _advice_row(each)) for each in shown])


def _advice_row(figures):
    return {
        "Layout": figures["layout"],
        "Strategy": figures["strategy"],
        "A step": number(figures["step_seconds"], numbers.duration),
        "Whole job": number(figures["seconds"], numbers.duration),
        "Core-hours": number(figures["core_hours"], numbers.significant),
        "Memory a process": number(figures["memory_bytes"], numbers.memory),
        "Fits": figures["fits"],
        "Why": figures["reason"],
    }
