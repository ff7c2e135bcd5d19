"""What was planned beside what was charged, which layouts formulas advise, and what to do next."""

from dataclasses import dataclass

from parascale.errors import few
from parascale.report import numbers
from parascale.report.layouts import degrees_text
from parascale.report.tables import Column, make_table

MUCH_BUBBLE = 0.2  # part of a step
GAIN = 0.95  # of the best measured time, that a layout must be planned to stay below to be worth a try
MOST = 3
ADVICE = (
    "workload",
    "site",
    "gpus",
    "layout",
    "strategy",
    "seconds",
    "core_hours",
    "step_seconds",
    "memory_bytes",
    "fits",
    "reason",
)


@dataclass(frozen=True)
class Advice:
    """Every layout of a workload on so many GPUs of a site, the best first. gpus, command: in words, and to see all of it.

    ranked: each a parascale.plan.advise.RankedLayout.
    """

    workload: str
    site: str
    gpus: str
    ranked: tuple
    command: str = ""


def planned_and_charged(report):
    """(run, core-hours that were planned, and that were charged, else by its record) of each finished run that had a plan."""
    for record in report.done:
        planned = record.prediction.get("core_hours")
        charged, _ = report.charges.get(record.name) or (record.summary.core_hours, "record")
        if planned and charged:
            yield record.name, planned, charged


def advice_table(report):
    """Every layout of every workload, the best first: `advice.csv`."""
    return make_table(
        "Layouts by formula", map(Column, ADVICE), (row for advice in report.advice for row in _rows(advice))
    )


def _rows(advice):
    """Seconds of a step and of the whole job, its core-hours, bytes a GPU; None is unknown."""
    for each in advice.ranked:
        known = {"workload": advice.workload, "site": advice.site, "gpus": advice.gpus, **vars(each.prediction)}
        known |= {"seconds": each.prediction.wall_seconds, "memory_bytes": each.prediction.memory_bytes}
        yield known | {"layout": degrees_text(each.run), "strategy": each.layout.strategy(), "reason": each.reason}


def next_steps(report):
    """At most three (sentence, command): what did not finish, what waits, and what nobody tried."""
    return [*_unfinished(report), *_bubbles(report), *_untried(report)][:MOST]


def _unfinished(report):
    names = [record.name for record in report.records if record.status in ("failed", "missing")]
    if names:
        yield (
            f"{few([f'`{name}`' for name in names], 4)}: no result yet. A run goes on from its checkpoint.",
            f"parascale launch --run {names[0]}",
        )


def _bubbles(report):
    """The pipeline that waits most for its stages, as far as more micro-batches help: (p - 1) / (m + p - 1) of a step is expected."""
    found = [
        (waits, record) for record in report.done if (waits := record.summary.bubble_measured or 0.0) > MUCH_BUBBLE
    ]
    for waits, record in sorted(found, key=lambda pair: -pair[0])[:1]:
        layout = record.run.layout
        more = 2 * layout.micro_batches
        expected = (layout.pp - 1) / (more + layout.pp - 1)
        if expected < waits and record.run.global_batch % (more * layout.data_parallel) == 0:
            text = f"`{record.name}` waits {numbers.percent(waits)} of a step for other stages: try `micro_batches` {more}, of which {numbers.percent(expected)} is expected."
            yield text, f"parascale advise --workload {record.run.workload.name} --gpus {layout.world_size}"


def _untried(report):
    for advice in report.advice:
        best = advice.ranked[0]
        priced = [each for each in advice.ranked if each.prediction.wall_seconds]
        measured = [each.prediction.wall_seconds for each in priced if each.prediction.basis == "history"]
        if measured and best in priced and best.prediction.wall_seconds < GAIN * min(measured):
            faster = numbers.fixed(min(measured) / best.prediction.wall_seconds, 2)
            text = f"`{degrees_text(best.run)}` was not tried: by formula {faster} times as fast as the best run of {advice.workload} on {advice.gpus}."
            yield text, advice.command
