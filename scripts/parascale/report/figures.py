"""Figures of the comparison page, in plain matplotlib. Each function takes a Report and returns a Chart, or None if there is nothing to draw."""

import math
import statistics
from collections import Counter

from parascale.report import numbers
from parascale.report.chart import PALETTE, Chart, bars, bars_height, shortened
from parascale.report.comparing import caveats, grouped, is_different
from parascale.report.layouts import kind_of_run, named
from parascale.report.plans import planned_and_charged
from parascale.report.summary import PARTS
from parascale.report.timing import PHASES, spent, unranked

MOST = 12  # rows or lines in a plot; the tables have all
NAMED = 10  # curves in a plot
MARKERS, LINES = "os^D", ("-", "--", ":", "-.")  # cycled when colours repeat
WAITING = ("communication", "bubble", "data")
MUCH = 0.1  # fraction of a step above which waiting is mentioned
WHOLE = "not split"  # memory that was measured only as a total
COLOURS = dict(zip((*PARTS, WHOLE), ("backward", "forward", "optimizer", "data", "bubble", "other"), strict=True))


def _plots(name, title, caption, groups, plot, height, words, legend=True):
    """A Chart with one plot below the other, one per (key, items); None if there are none. plot(axes, key, items) draws one; height(number of
    items) is in inches; words(item) is alternative text.
    """
    if not groups:
        return None
    heights = [height(len(items)) for _, items in groups]

    def draw(figure):
        places = figure.subplots(len(heights), squeeze=False, height_ratios=heights)[:, 0]
        for axes, (key, items) in zip(places, groups, strict=True):
            plot(axes, key, items)
        drawn = [axes.get_legend_handles_labels() for axes in places]
        known = {label: handle for found in drawn for handle, label in zip(*found, strict=True)}
        if legend:
            figure.legend(known.values(), known, loc="outside lower left", ncols=4)

    said = "; ".join(words(item) for _, items in groups for item in items[:MOST])
    return Chart(name, title, caption, draw, sum(heights) + 0.5 * legend, said)


def _of_workloads(records, most, more):
    """([(workload, its first `most` records)], the text `more` if some workload has more records, else empty)."""
    found = grouped(records, lambda record: record.run.workload.name).items()
    return [(name, some[:most]) for name, some in found], more * any(len(some) > most for _, some in found)


def _named(words):
    """A function that returns a record's name followed by words(record)."""
    return lambda record: f"{record.name} {words(record)}"


def with_caveats(record, text):
    """`text` followed by the run's caveats."""
    return ", ".join([text, *caveats(record), *(["not ranked"] if record.done and unranked(record) else [])])


def scaling(report):
    """Speed-up (weak scaling: efficiency) against the number of processes, one plot per experiment."""
    shown = [each for each in report.experiments if len({member.first.gpus for member in each.members}) > 1]
    hollow = " Hollow: not ranked." if any(member.unranked for each in shown for member in each.members) else ""
    groups = [(each, [(each, member) for member in each.members]) for each in shown]
    caption = f"Dotted: ideal. Whiskers: range.{hollow}"

    def plot(axes, experiment, _):
        _scaling(axes, report, experiment)

    def words(pair):
        experiment, member = pair
        return f"{member.label} on {member.extent} {experiment.gain(member)[0]:.2f}"

    return _plots("scaling", "What more hardware buys", caption, groups, plot, lambda _: 3.4, words, legend=False)


def _scaling(axes, report, experiment):
    """One line per kind of run, through measured sizes only; a kind with one size is a dot."""
    weak, head = experiment.kind == "weak", experiment.members[0]
    counts = sorted({member.first.gpus for member in experiment.members})
    axes.plot(counts, [1.0 if weak else count / head.first.gpus for count in counts], ":", color=PALETTE["muted"])
    lines = []
    for kind, members in grouped(experiment.members, lambda member: kind_of_run(member.first.run)).items():
        number = report.series[members[0].first.name]
        colour, marker = f"C{number % 10}", MARKERS[number // 10 % 4]
        members.sort(key=lambda member: member.first.gpus)
        gains, sizes = list(map(experiment.gain, members)), [member.first.gpus for member in members]
        if len(set(sizes)) == len(sizes) > 1 and head not in members:
            axes.plot(sizes, [value for value, *_ in gains], color=colour)
        for member, gpus, (last, low, high) in zip(members, sizes, gains, strict=True):
            axes.vlines(gpus, low, high, color=colour)
            face = PALETTE["paper"] if member.unranked else colour
            (dot,) = axes.plot(gpus, last, marker, color=colour, markerfacecolor=face, zorder=3)
        label = kind if len(members) > 1 else named(members[0].label, members[0].first.run)
        lines.append((last, dot, f"{shortened(label)} {numbers.percent(last) if weak else f'{last:.2f} ×'}"))
    lines.sort(key=lambda line: -line[0])
    _, dots, labels = zip(*lines[:MOST], strict=True)
    axes.legend(dots, labels, loc="upper left", bbox_to_anchor=(1, 1))
    axes.set(xscale="log", xlabel=numbers.plural(2, head.first.gpu_word).split()[1])
    axes.set_title(f"{'Rate per process against' if weak else 'Times as fast as'} {head.label}")
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    if weak:
        axes.set_ylim(0, 1.1 * max(1, lines[0][0]))
        axes.yaxis.set_major_formatter(lambda value, _: numbers.percent(value))
    else:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g} ×")
    axes.minorticks_off()


def phases(report):
    """Where the time of a step goes: a bar per run, as long as its mean step, fastest first."""
    timed = [record for record in report.done if any(record.summary.phases.values())]
    timed.sort(key=lambda record: sum(spent(record).values()))
    groups, more = _of_workloads(timed, MOST, f" The {MOST} quickest.")

    def plot(axes, _, records):
        bars(axes, records, spent, dict(zip(PHASES, PHASES, strict=True)), _step_words)

    caption = f"Length: time of a mean step.{more}"
    return _plots("phases", "Where a step's time goes", caption, groups, plot, bars_height, _named(_step_words))


def _step_words(record):
    """Duration of a step, and the largest phase of waiting if it exceeds MUCH."""
    seconds = spent(record)
    total, most = sum(seconds.values()), max(WAITING, key=lambda phase: seconds.get(phase, 0.0))
    share = seconds.get(most, 0.0) / total
    waits = f", {numbers.percent(share)} {most}" if share >= MUCH else ""
    return with_caveats(record, numbers.duration(total) + waits)


def memory(report):
    """Peak memory of the process that needs most, by parts, and the planned peak."""
    known = [record for record in report.done if record.summary.peak_memory_bytes]
    groups, more = _of_workloads(known, MOST, f" The first {MOST} runs.")
    caption = f"Peak of the process that needs most. On GPUs only tensors count, on CPUs also libraries and data (process).{more}"

    def peak(record):
        return with_caveats(record, numbers.memory(record.summary.peak_memory_bytes))

    def plot(axes, name, records):
        bars(axes, records, _parts, COLOURS, peak)
        if planned := {row: size for row, each in enumerate(records) if (size := each.prediction.get("memory_bytes"))}:
            sizes = [*planned.values()]
            axes.plot(sizes, [*planned], "D", color=PALETTE["ink"], label="planned", clip_on=False)
            axes.set_xlim(right=max(axes.get_xlim()[1], *sizes))
        axes.set_title(shortened(name))

    return _plots("memory", "Memory", caption, groups, plot, lambda count: bars_height(count) + 0.3, _named(peak))


def _parts(record):
    """Part → bytes. On GPUs the peak counts tensors only, not the process."""
    held = record.summary.memory or {WHOLE: record.summary.peak_memory_bytes}
    return {part: size for part, size in held.items() if part != "process" or record.site.device == "cpu"}


def loss(report):
    """Loss against training time, for finished and running runs."""
    known = [record for record in report.records if record.run is not None and record.curve and len(record.curve.steps)]
    # Baselines first, then runs that went wrong or differ from the others.
    known.sort(
        key=lambda each: (each.name != each.run.baseline, each.done and not is_different(each), not caveats(each))
    )
    groups, more = _of_workloads(known, NAMED, f" Of {NAMED} runs.")
    caption = f"Lines: training loss. Dots: validation loss; those far above the lines are left out.{more}"

    def plot(axes, name, records):
        _curves(axes, report, records)
        unit = "image" if records[0].run.workload.task == "classification" else "token"
        axes.set_title(f"{shortened(name)}: loss (nats per {unit})")

    words = _named(lambda record: f"ends at {record.curve.losses[-1]:.3f}")
    return _plots("loss", "Loss against training time", caption, groups, plot, lambda _: 3.2, words, legend=False)


def _curves(axes, report, records):
    """Colour shows the kind of run; runs of the same kind differ in their dashes."""
    (size, unit), again = numbers.time_unit(max(record.curve.seconds[-1] for record in records)), Counter()
    for record in records:
        curve, number = record.curve, report.series[record.name]
        label = shortened(named(record.name, record.run, caveats(record)), 36)
        look = {"color": f"C{number % 10}", "linestyle": LINES[again[number] % 4]}
        again[number] += 1
        axes.plot([seconds / size for seconds in curve.seconds], curve.losses, label=label, **look)
        for index, value in curve.evaluations:
            axes.plot(curve.seconds[index] / size, value, "o", color=look["color"], markersize=4)
    losses = [value for record in records for value in record.curve.losses]
    lowest = min([*losses, *(value for record in records for _, value in record.curve.evaluations)])
    room = 0.05 * (max(losses) - lowest) or 1
    axes.set(xlabel=f"training time ({unit})", xlim=(0, None), ylim=(lowest - room, max(losses) + 5 * room))
    if len(records) > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))


def cost(report):
    """Planned and charged core-hours, most expensive run first."""
    pairs = sorted(planned_and_charged(report), key=lambda pair: -pair[2])
    off = [charged / planned for _, planned, charged in pairs] or [1.0]
    worst = max(off, key=lambda ratio: abs(math.log(ratio)))
    middle, worst = map(_against_plan, (statistics.median(off), worst))
    title = f"Jobs cost {middle}" + (f", at worst {worst}" if worst != middle else "")
    caption, shown = "Of all runs; each plan was made before its run started.", [("", pairs[:MOST])] if pairs else []

    def words(pair):
        return f"{pair[0]}: planned {numbers.core_hours(pair[1])}, charged {numbers.core_hours(pair[2])}"

    return _plots("cost", title, caption, shown, _costs, bars_height, words)


def _against_plan(ratio):
    """Charged cost relative to the planned cost, in words."""
    if ratio >= 2:
        return f"{numbers.significant(ratio, 2)} times the planned cost"
    return f"{numbers.percent(abs(ratio - 1))} {'more' if ratio > 1 else 'less'} than planned"


def _costs(axes, _, pairs):
    size, unit = (1, "core-hours") if pairs[0][2] >= 0.1 else (1 / 3600, "core-seconds")
    names, planned, charged = zip(*((name, plan / size, paid / size) for name, plan, paid in pairs), strict=True)
    axes.hlines(rows := range(len(names)), planned, charged, color=PALETTE["line"], linewidth=3)
    axes.plot(planned, rows, "D", markerfacecolor=PALETTE["paper"], color=PALETTE["muted"], label="planned")
    axes.plot(charged, rows, "o", color="C0", label="charged")
    axes.set_yticks(rows, map(shortened, names), color=PALETTE["ink"])
    axes.set(xlabel=f"{unit} of the whole job", xlim=(0, None), ylim=(len(names) - 0.5, -0.5))


# Each function becomes a file `figures/<name>.svg`.
FIGURES = {"scaling": scaling, "phases": phases, "cost": cost, "memory": memory, "loss": loss}


def chart(report, name):
    """The Chart `name`, or None if there is nothing to draw. Cached in the Report, as the page and the file both use it."""
    if name not in report.charts:
        report.charts[name] = FIGURES[name](report)
    return report.charts[name]
