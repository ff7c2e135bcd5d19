"""The figures of the comparison page, in plain matplotlib. Each is a function of a Report: a Chart, or None where nothing is to be drawn."""

import statistics

from parascale.report import numbers
from parascale.report.chart import PALETTE, Chart, bars, bars_height, shortened
from parascale.report.comparing import caveats, is_different
from parascale.report.derived import grouped
from parascale.report.layouts import kind_of_run, named
from parascale.report.machines import gpu_memory
from parascale.report.plans import planned_and_charged
from parascale.report.summary import PARTS
from parascale.report.timing import PHASES, of_mean_rank, unranked

MOST = 20  # rows or lines of a plot; the tables have all
MARKERS, LINES = "os^D", ("-", "--", ":", "-.")  # of the first kinds, and of those whose colours come again
BUCKETS = 60  # intervals of a curve that keep two points each
WAITING = ("communication", "bubble", "data")
MUCH = 0.1  # part of a step that is told in words
WHOLE = "not split"  # memory that was measured without its parts
COLOUR_OF_PART = dict(
    zip((*PARTS, WHOLE), ("backward", "forward", "optimizer", "data", "bubble", "other"), strict=True)
)
FAR = 5  # times the largest bar, a limit is told in the title


def _stacked(figure, heights):
    """Axes below each other."""
    return figure.subplots(len(heights), squeeze=False, height_ratios=heights)[:, 0]


def _colour(number):
    return f"C{number % 10}"


def _of_workloads(records):
    return grouped(records, lambda record: record.run.workload.name)


def with_caveats(record, text):
    """A value of a run in words, with what sets the run apart."""
    return ", ".join([text, *caveats(record), *(["not ranked"] if record.done and unranked(record) else [])])


def scaling(report):
    """Speed-up against processes; of weak scaling, the efficiency. A plot for each experiment."""
    shown = [each for each in report.experiments if len({member.first.gpus for member in each.members}) > 1]
    if not shown:
        return None

    def draw(figure):
        for axes, experiment in zip(_stacked(figure, [1] * len(shown)), shown, strict=True):
            _scaling(axes, report, experiment)

    hollow = any(member.unranked for each in shown for member in each.members)
    caption = "Dotted: ideal. Whiskers: range." + (" Hollow: not ranked." if hollow else "")
    said = "; ".join(_said(report, member) for each in shown for member in each.members[1:])
    return Chart("scaling", "What more hardware buys", caption, draw, 3.4 * len(shown), said)


def _gain(report, record):
    """(value, lowest, highest) of a run's speed-up, or of its efficiency, which weak scaling has alone."""
    compared = report.comparisons[record.name]
    if compared.speedup is None:
        return (compared.efficiency,) * 3
    return compared.speedup, compared.low or compared.speedup, compared.high or compared.speedup


def _spread(report, member):
    return member.spread(lambda record: _gain(report, record)[0], lambda record: _gain(report, record)[1:])


def _said(report, member):
    return f"{member.label} on {member.extent} {_spread(report, member).mean:.2f}"


def _scaling(axes, report, experiment):
    """One line a kind of run, over what was measured alone; a kind of one size is a dot."""
    weak, head = experiment.kind == "weak", experiment.members[0]
    counts = sorted({member.first.gpus for member in experiment.members})
    ideal = [1.0 if weak else count / head.first.gpus for count in counts]
    axes.plot(counts, ideal, ":", color=PALETTE["muted"])
    lines = []
    for kind, members in grouped(experiment.members, lambda member: kind_of_run(member.first.run)).items():
        members.sort(key=lambda member: member.first.gpus)
        points = [(member.first.gpus, _spread(report, member)) for member in members]
        number = report.series(members[0].first)
        look = {"color": _colour(number), "marker": MARKERS[number // 10 % 4], "zorder": 3}
        curve = len({gpus for gpus, _ in points}) == len(points) > 1 and head not in members
        if curve:
            axes.plot([gpus for gpus, _ in points], [spread.mean for _, spread in points], color=_colour(number))
        for (gpus, spread), member in zip(points, members, strict=True):
            axes.vlines(gpus, spread.low, spread.high, color=_colour(number))
            hollow = {"markerfacecolor": PALETTE["paper"]} if member.unranked else {}
            (dot,) = axes.plot(gpus, spread.mean, linestyle="none", **look, **hollow)
        last = points[-1][1].mean
        label = kind if len(members) > 1 else named(members[0].label, members[0].first.run)
        lines.append((last, dot, f"{shortened(label)} {numbers.percent(last) if weak else f'{last:.2f} ×'}"))
    lines.sort(key=lambda line: -line[0])
    _, dots, labels = zip(*lines[:MOST], strict=True)
    axes.legend(dots, labels, loc="upper left", bbox_to_anchor=(1, 1))
    word = numbers.plural(2, head.first.gpu_word).split()[1]
    axes.set(
        xscale="log",
        xlabel=word,
        title=f"{'Rate per process against' if weak else 'Times as fast as'} {experiment.baseline}",
    )
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    if weak:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: numbers.percent(value))
    else:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g} ×")
    axes.minorticks_off()


def spent(record):
    """Phase → mean seconds a step, of those that were measured."""
    summary = record.summary
    seconds = of_mean_rank(summary.phases, summary.bubble_measured, record.run.layout.world_size)
    return {phase: seconds[phase] / max(summary.steps, 1) for phase in PHASES if phase in seconds}


def phases(report):
    """Where the time of a step goes: bars of one length, the quickest step first."""
    timed = [record for record in report.done if any(record.summary.phases.values())]
    groups = {
        name: sorted(some, key=lambda each: sum(spent(each).values()))[:MOST]
        for name, some in _of_workloads(timed).items()
    }
    if not groups:
        return None
    used = [phase for phase in PHASES if any(spent(record).get(phase) for some in groups.values() for record in some)]

    def draw(figure):
        for axes, records in zip(_stacked(figure, list(map(len, groups.values()))), groups.values(), strict=True):
            shares = [_shares(record) for record in records]
            parts = [(phase, PALETTE[phase], [share.get(phase, 0.0) for share in shares]) for phase in used]
            names = [record.name for record in records]
            bars(axes, names, parts, list(map(_step_words, records)), {record.run.baseline for record in records})
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=4)

    more = "" if sum(map(len, groups.values())) == len(timed) else f" The {MOST} quickest."
    said = "; ".join(f"{record.name} {_step_words(record)}" for some in groups.values() for record in some)
    height = bars_height(sum(map(len, groups.values()))) + 0.5
    return Chart(
        "phases",
        "Where a step's time goes",
        f"Shares of a mean step; beside it how long it takes.{more}",
        draw,
        height,
        said,
    )


def _shares(record):
    seconds = spent(record)
    total = sum(seconds.values())
    return {phase: value / total for phase, value in seconds.items()}


def _step_words(record):
    """How long a step takes, and the largest part of it that computes nothing, where that is much."""
    shares = _shares(record)
    most = max(WAITING, key=lambda phase: shares.get(phase, 0.0))
    waits = f", {numbers.percent(shares[most])} {most}" if shares.get(most, 0.0) >= MUCH else ""
    return with_caveats(record, numbers.duration_of_step(sum(spent(record).values())) + waits)


def memory(report):
    """Peak memory of the rank that needs most, by its parts, with what was planned."""
    known = [record for record in report.done if record.summary.peak_memory_bytes]
    groups = {name: some[:MOST] for name, some in _of_workloads(known).items()}
    if not groups:
        return None

    def draw(figure):
        for axes, (name, records) in zip(
            _stacked(figure, list(map(len, groups.values()))), groups.items(), strict=True
        ):
            held = [_parts(record) for record in records]
            parts = [
                (part, PALETTE[COLOUR_OF_PART[part]], [each.get(part, 0) / 2**30 for each in held])
                for part in COLOUR_OF_PART
                if any(part in each for each in held)
            ]
            texts = [with_caveats(record, numbers.memory(record.summary.peak_memory_bytes)) for record in records]
            bars(axes, [record.name for record in records], parts, texts)
            planned = [
                (size / 2**30, row) for row, each in enumerate(records) if (size := each.prediction.get("memory_bytes"))
            ]
            if planned:
                axes.plot(
                    *zip(*planned, strict=True), "D", color=PALETTE["ink"], label="planned", zorder=3, clip_on=False
                )
                axes.set_xlim(right=max(axes.get_xlim()[1], *(size for size, _ in planned)))
            axes.set_title(f"{shortened(name)}{_limit(axes, records)}")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=4)

    caption = "Of the process that needs most, at its peak. On a GPU tensors alone count, on CPUs also libraries and data (process)."
    said = "; ".join(f"{record.name} {numbers.memory(record.summary.peak_memory_bytes)}" for record in known[:MOST])
    return Chart(
        "memory", "Memory", caption, draw, bars_height(sum(map(len, groups.values()))) + 0.3 * len(groups) + 0.5, said
    )


def _limit(axes, records):
    """The memory of a GPU: a line, or words where no bar would be seen beside it."""
    limit = min((limit for record in records if (limit := gpu_memory(record))), default=None)
    if limit is None:
        return ""
    if limit / 2**30 < FAR * axes.get_xlim()[1]:
        axes.axvline(limit / 2**30, color=PALETTE["muted"], linestyle=":")
        axes.set_xlim(right=1.02 * limit / 2**30)
    return f" (GPU: {numbers.memory(limit)})"


def _parts(record):
    """Part → bytes. A GPU's peak is of tensors alone, without the process."""
    held = record.summary.memory or {WHOLE: record.summary.peak_memory_bytes}
    return {part: size for part, size in held.items() if part != "process" or record.site.device == "cpu"}


def loss(report):
    """Loss against training time of every run, finished or under way."""
    drawn = [record for record in report.records if record.run is not None and record.curve and len(record.curve.steps)]
    groups = _of_workloads(drawn)
    if not groups:
        return None

    def draw(figure):
        for axes, (name, records) in zip(_stacked(figure, [1] * len(groups)), groups.items(), strict=True):
            _curves(axes, report, records)
            axes.set_title(
                f"{name}: loss ({'nats per image' if records[0].run.workload.task == 'classification' else 'nats per token'})"
            )

    said = "; ".join(f"{record.name} ends at {record.curve.losses[-1]:.3f}" for record in drawn[:MOST])
    caption = "Lines: training loss (of a long run the lowest and highest of each stretch). Dots: validation loss; those far above the lines are left out."
    return Chart("loss", "Loss against training time", caption, draw, 3.2 * len(groups), said)


def _curves(axes, report, records):
    """Those that must not be overlooked have colours; beyond MOST, the others are grey."""
    records = sorted(
        records,
        key=lambda each: (each.name != each.run.baseline, not is_different(each) and each.done, not caveats(each)),
    )
    size, unit = numbers.time_unit(max(record.curve.seconds[-1] for record in records))
    kinds = {}
    for place, record in enumerate(records):
        curve, number = record.curve, report.series(record)
        colour, told = _colour(number), place < MOST // 2
        again = kinds[number] = kinds.get(number, -1) + 1
        kept = thinned(len(curve.losses), BUCKETS, curve.losses)
        look = (
            {"color": colour, "linestyle": LINES[again % 4], "zorder": 2 + 1 / (1 + place)}
            if told
            else {"color": PALETTE["other"], "linewidth": 0.8, "zorder": 1}
        )
        label = shortened(named(record.name, record.run, caveats(record)), 36) if told else None
        axes.plot(
            [curve.seconds[index] / size for index in kept],
            [curve.losses[index] for index in kept],
            label=label,
            **look,
        )
        if told and curve.evaluations:
            axes.plot(
                *zip(*((curve.seconds[index] / size, value) for index, value in curve.evaluations), strict=True),
                "o",
                color=colour,
                markersize=4,
            )
    if len(records) > MOST // 2:
        axes.plot(
            [], color=PALETTE["other"], linewidth=0.8, label=numbers.plural(len(records) - MOST // 2, "other run")
        )
    losses = [value for record in records for value in record.curve.losses]
    lowest = min([*losses, *(value for record in records for _, value in record.curve.evaluations)])
    room = 0.05 * (max(losses) - lowest) or 1
    axes.set(xlabel=f"training time ({unit})", xlim=(0, None), ylim=(lowest - room, max(losses) + 5 * room))
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))


def thinned(count, buckets, values):
    """Indices that keep a curve's shape: first, last, and the lowest and highest of each bucket. Never a made-up point."""
    if count <= 2 * buckets + 2:
        return list(range(count))
    kept = {0, count - 1}
    for bucket in range(buckets):
        inside = range(bucket * count // buckets, (bucket + 1) * count // buckets)
        kept.update((min(inside, key=values.__getitem__), max(inside, key=values.__getitem__)))
    return sorted(kept)


def cost(report):
    """Planned core-hours beside those that were charged, the dearest run first."""
    pairs = sorted(planned_and_charged(report), key=lambda pair: -pair[2])
    if not pairs:
        return None
    shown = pairs[:MOST]
    size, unit = (1, "core-hours") if shown[0][2] >= 0.1 else (1 / 3600, "core-seconds")
    off = [max(charged / planned, planned / charged) for _, planned, charged in pairs]

    def draw(figure):
        axes = figure.subplots()
        rows = range(len(shown))
        planned, charged = ([pair[place] / size for pair in shown] for place in (1, 2))
        axes.hlines(rows, planned, charged, color=PALETTE["line"], linewidth=3)
        axes.plot(planned, rows, "D", markerfacecolor=PALETTE["paper"], color=PALETTE["muted"], label="planned")
        axes.plot(charged, rows, "o", color="C0", label="charged")
        axes.set_yticks(rows, [shortened(name) for name, *_ in shown], color=PALETTE["ink"])
        axes.set(xlabel=f"{unit} of the whole job", xlim=(0, None), ylim=(len(shown) - 0.5, -0.5))
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=2)

    middle, worst = (numbers.significant(each, 2) for each in (statistics.median(off), max(off)))
    title = f"Plans were off by a factor of {middle}" + (f", at worst {worst}" if worst != middle else "")
    said = "; ".join(
        f"{name}: planned {numbers.core_hours(planned)}, charged {numbers.core_hours(charged)}"
        for name, planned, charged in shown
    )
    return Chart("cost", title, "Each plan was made before its run started.", draw, bars_height(len(shown)) + 0.5, said)


# Name → function of a Report; each becomes a file `figures/<name>.svg`.
FIGURES = {"scaling": scaling, "phases": phases, "cost": cost, "memory": memory, "loss": loss}
