"""Loss against steps, training time and core-hours, from the lines of `steps.jsonl`."""

from dataclasses import replace

from parascale.report import numbers
from parascale.report.comparing import caveats, is_different
from parascale.report.derived import grouped
from parascale.report.drawing import COLOURS, DASHES, PATTERNS, Entry, Figure, series_ink
from parascale.report.layouts import named
from parascale.report.plots import Line, curves_panel, over_the_top
from parascale.report.summary import perplexity
from parascale.report.tables import RUN, Column, columns, make_table
from parascale.report.verdict import verdicts

MOST = 12  # runs of a workload that each have an ink of their own
FAINT = "other"  # colour of the others
BUCKETS = (40, 150)  # fewest and most intervals of a curve that keep two points each
POINTS = 6_000  # intervals over all curves of a figure: bounds the size of the page
TABLE_ROWS = 8  # rows of a run in the figure's table
COLUMNS = (
    RUN,
    Column("step", "Step", numbers.whole),
    Column("step_end", "Time", numbers.duration),
    Column("step_core_hours", "Core-hours", numbers.significant),
    *columns(numbers.loss, step_loss="Training loss", step_validation_loss="Validation loss"),
    Column("step_perplexity", "Validation perplexity", numbers.significant),
)


def loss(report):
    """The loss of every run, finished or under way, one row of panels a workload."""
    drawn = [record for record in report.records if record.run is not None and record.curve and len(record.curve.steps)]
    groups = grouped(drawn, lambda record: (record.run.workload.name, _unit(record)))
    records = [record for group in groups.values() for record in group]
    buckets = min(BUCKETS[1], max(BUCKETS[0], POINTS // max(len(records), 1)))
    inks = {key: _inks(report, group) for key, group in groups.items()}
    panels = [panel for key, group in groups.items() for panel in _panels(*key, group, inks[key], buckets)]
    above = any(_leaves_the_plot(group, inks[key], buckets) for key, group in groups.items())
    arrow = " A number with an arrow is a validation loss above the plot." if above else ""
    crowd = any(len(group) > len(inks[key]) for key, group in groups.items())
    told = f"of more than {MOST} runs the baseline, the best of the verdict and those that are unlike the others"
    faint = f" Not all have colours: {told}, and no more than {DASHES} of a kind." if crowd else ""
    dashed = any(ink[1] != PATTERNS[0] for some in inks.values() for ink in some.values())
    kinds = " A colour is a kind of layout"
    kinds += f"; dashes tell runs of a kind, and kinds beyond {COLOURS}, apart." if dashed else "."
    return Figure(
        "loss",
        "Loss against steps, time and core-hours",
        "Lines: training loss of a step (of a long run, the lowest and the highest of each stretch). Dots: loss on the "
        f"validation split. Where losses are equal, lines overlap.{kinds}{faint}{arrow}",
        tuple(panels),
        table=_table(report, records),
        samples=True,
    )


def _inks(report, records):
    """Run → ink of its kind's colour that it alone has in its panels, while there are free ones. The first is on top.

    Of many runs, only the baseline, what the verdict names, and those that are different, not finished or of another kind.
    """
    best = {winner.best.first.name for verdict in verdicts(report) for winner in verdict.winners}

    def rank(record):
        if record.name in {*best, record.run.baseline}:
            return 0
        return 1 if is_different(record) or not record.done else 2 if caveats(record) else 3

    inks = {}
    for record in sorted(records, key=rank):
        first, end = report.series(record), COLOURS * DASHES
        kind = map(series_ink, range(first, max(end, first + 1), COLOURS))
        free = [ink for ink in kind if ink not in inks.values()]
        if free and (len(records) <= MOST or (rank(record) < 3 and len(inks) < MOST)):
            inks[record.name] = free[0]
    return inks


def _leaves_the_plot(records, inks, buckets):
    lines = [_line(record, inks, lambda record, index: index, buckets) for record in records]
    return any(y > over_the_top(lines) for line in lines for _, y, _ in line.marked)


def _unit(record):
    return "nats per image" if record.run.workload.task == "classification" else "nats per token"


def _named(record):
    words = caveats(record)
    if record.run.method:
        words.append("not comparable step by step")
    if record.run.workload.training.label_smoothing:
        words.append("training loss of smoothed labels")
    return named(record.name, record.run, words)


def _panels(workload, unit, records, inks, buckets):
    longest = max(record.curve.seconds[-1] for record in records)
    size, time_unit = numbers.time_unit(longest)
    legend = [Entry(_named(record), *inks[record.name]) for record in records if record.name in inks]
    if others := len(records) - len(legend):
        legend.append(Entry(numbers.plural(others, "other run"), FAINT))
    order = {name: -number for number, name in enumerate(inks)}
    records = sorted(records, key=lambda record: order.get(record.name, -len(records)))
    axes = [
        ("steps", "optimizer steps", lambda record, index: record.curve.steps[index]),
        ("time", f"training time with warm-up ({time_unit})", lambda record, index: record.curve.seconds[index] / size),
        ("core-hours", "core-hours of training with warm-up", _core_hours),
    ]
    for name, axis, position in axes:
        shown = [record for record in records if name != "core-hours" or record.cores]
        if shown:
            lines = [_line(record, inks, position, buckets) for record in shown]
            last = [f"{record.name} ends at {record.curve.losses[-1]:.3f}" for record in shown if record.name in inks]
            text = f"Curves of the training loss against {axis}: {'; '.join(last)}. The table has the values."
            panel = curves_panel(f"Loss against {name}: {workload}", text, axis, f"loss ({unit})", lines)
            yield replace(panel, row=f"Loss of {workload}", legend=tuple(legend))


def _line(record, inks, position, buckets):
    curve, told = record.curve, record.name in inks
    kept = thinned(len(curve.losses), buckets, curve.losses)
    return Line(
        inks.get(record.name, (FAINT, "solid")),
        tuple((position(record, index), curve.losses[index]) for index in kept),
        tuple((position(record, index), value, "") for index, value in curve.evaluations if told),
        _named(record),
        not told,
    )


def thinned(count, buckets, values):
    """Indices that keep a curve's shape: first, last, and the lowest and highest of each bucket. Never a made-up point."""
    if count <= 2 * buckets + 2:
        return list(range(count))
    kept = {0, count - 1}
    for bucket in range(buckets):
        inside = range(bucket * count // buckets, (bucket + 1) * count // buckets)
        kept.update((min(inside, key=values.__getitem__), max(inside, key=values.__getitem__)))
    return sorted(kept)


def _core_hours(record, index):
    return record.cores * record.curve.seconds[index] / 3600


def _table(report, records):
    """First and last step of each run and its evaluations, evenly thinned where there are many."""
    rows = (_row(record, index) for record in records for index in _chosen(record))
    caption = "Loss at the first and last step and at evaluations (all of them are in steps.jsonl)"
    return make_table(caption, COLUMNS, rows, report.all_series)


def _chosen(record):
    marks = [index for index, _ in record.curve.evaluations]
    stride = -(-len(marks) // TABLE_ROWS) or 1
    # Counted from the end, so that the last evaluation stays.
    return sorted({0, len(record.curve.steps) - 1, *marks[::-1][::stride]})


def _row(record, index):
    curve, validation = record.curve, dict(record.curve.evaluations).get(index)
    return {
        "run": record.name,
        "step": curve.steps[index],
        "step_end": curve.seconds[index],
        "step_core_hours": _core_hours(record, index) if record.cores else None,
        "step_loss": curve.losses[index],
        "step_validation_loss": validation,
        "step_perplexity": perplexity(record, validation),
    }
