"""Planned and charged costs, layouts that the formulas recommend, and next steps."""

from parascale.errors import shorten_list
from parascale.report import numbers
from parascale.report.comparing import grouped
from parascale.report.tables import Column, make_table

MUCH_BUBBLE = 0.2  # fraction of a step
GAIN = 0.95  # a layout is worth a try if its planned time is below this fraction of the best measured one
MOST = 3
ADVICE: tuple = ("workload", "site", "gpus", "layout", "strategy", "seconds", "core_hours", "step_seconds")
ADVICE += ("memory_bytes", "fits", "reason")


def planned_and_charged(report):
    """(run, planned core-hours, charged core-hours or else those of its record) for each finished run that had a plan."""
    for record in report.done:
        planned = record.prediction.get("core_hours")
        charged, _ = report.charges.get(record.name) or (record.summary.core_hours, "record")
        if planned and charged:
            yield record.name, planned, charged


def advice_table(report):
    """The table `advice.csv`: all layouts of all workloads, best first."""
    return make_table("Layouts by formula", map(Column, ADVICE), report.advice)


def next_steps(report):
    """At most MOST pairs (sentence, command): unfinished runs, large bubbles, untried layouts."""
    return [*_unfinished(report), *_bubbles(report), *_untried(report)][:MOST]


def _unfinished(report):
    if names := [record.name for record in report.records if record.status in ("failed", "missing")]:
        said = shorten_list([f"`{name}`" for name in names], 4)
        yield f"{said}: no result yet. A run continues from its checkpoint.", f"parascale launch --run {names[0]}"


def _bubbles(report):
    """The pipeline with the largest bubble, if more micro-batches help: the expected bubble is (p - 1) / (m + p - 1) of a step."""
    waiting = [record for record in report.done if (record.summary.bubble_measured or 0.0) > MUCH_BUBBLE]
    for record in sorted(waiting, key=lambda record: -record.summary.bubble_measured)[:1]:
        layout, waits = record.run.layout, record.summary.bubble_measured
        more = 2 * layout.micro_batches
        whole = record.run.global_batch % (more * layout.data_parallel) == 0
        if whole and (layout.pp - 1) / (more + layout.pp - 1) < waits:
            said = f"`{record.name}` waits {numbers.percent(waits)} of a step for other stages; more micro-batches shrink that. Set"
            said = f"{said} `micro_batches` to {more} in the row `{record.name}` of the run table, then:"
            yield said, f"parascale launch --run {record.name}"


def _untried(report):
    """Workloads whose best layout by formula is faster than all measured ones."""
    for name, rows in grouped(report.advice, lambda row: row["workload"]).items():
        best, measured = rows[0], [row["seconds"] for row in rows if row["basis"] == "history" and row["seconds"]]
        if measured and best["seconds"] and best["seconds"] < GAIN * min(measured):
            faster = numbers.significant(min(measured) / best["seconds"])
            yield (
                f"`{best['layout']}` was not tried: by formula {faster} times as fast as the best run of {name} on {best['gpus']}. Give it a row "
                "in the run table; the reasons:",
                f"parascale advise --workload {name} --gpus {best['processes']}",
            )
