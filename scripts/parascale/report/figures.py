"""Which figures the report holds, and what each says in words. Their names are files of `figures/`."""

from parascale.report import numbers
from parascale.report.communication import communication
from parascale.report.curves import loss
from parascale.report.derived import grouped
from parascale.report.drawing import BOX, COLOURS, Entry, Figure
from parascale.report.layouts import kind_of_run, named
from parascale.report.loaders import loaders
from parascale.report.memories import memory
from parascale.report.plots import Bar, Point, bars_panels, record_bar, scaling_panel, with_caveat
from parascale.report.steps import PHASES, of_mean_rank
from parascale.report.summary import energy_per_work, of_runs
from parascale.report.tables import RUN, Column, columns, make_table


def scaling(report):
    """Strong scaling: speed-up for the same work against the named baseline."""
    experiments = [experiment for experiment in report.experiments if experiment.kind == "strong"]
    panels = [
        _against_gpus(report, experiment, "speedup")
        for experiment in experiments
        if len({member.first.gpus for member in experiment.members}) > 1
    ]
    unranked = any(member.unranked for experiment in experiments for member in experiment.members)
    again = (
        " Colours come again: marks and names tell the layouts apart."
        if max([0, *report.all_series.values()]) >= COLOURS
        else ""
    )
    hollow = " Hollow dots are not ranked; the verdict says why." if unranked else ""
    return Figure(
        "scaling",
        "Strong scaling: the same work on more hardware",
        "The dotted line is ideal. Beside a plot stands each layout's speed-up on the most hardware it ran on. "
        f"Whiskers span repeats, or blocks of steps.{hollow}{again}",
        tuple(panels),
        table=_scaling_table(report, experiments, "Strong scaling"),
    )


def weak(report):
    """Weak scaling: the batch of a rank is fixed, so efficiency is the rate per GPU against the baseline's."""
    experiments = [experiment for experiment in report.experiments if experiment.kind == "weak"]
    return Figure(
        "weak",
        "Weak scaling: more work on more hardware",
        "The batch of each data-parallel rank is fixed, so the runs do different work and have no speed-up. Efficiency "
        "is the rate per GPU, divided by the baseline's.",
        tuple(_against_gpus(report, experiment, "efficiency") for experiment in experiments),
        table=_scaling_table(report, experiments, "Weak scaling"),
    )


def phases(report):
    """Where the time of a step goes."""
    timed = [record for record in report.done if any(record.summary.phases.values())]
    groups = grouped(timed, lambda record: (record.run.workload.name, record.run.scaling))
    panels = tuple(panel for group, records in groups.items() for panel in _phase_panels(*group, records))
    used = [phase for phase in PHASES if any(_phase(record, phase) for record in report.done)]
    return Figure(
        "phases",
        "Time of a step",
        "Each bar is all of a training step, as a mean over ranks, by what its time was spent on; beside it stands how long it took.",
        panels,
        tuple(Entry(phase, phase, marker=BOX) for phase in used),
        _phase_table(report, [record for records in groups.values() for record in records], used),
    )


def throughput(report):
    """Work per second, and the energy of the GPUs for it where that was measured."""
    panels, measured = [], (("Rate", lambda record: record.summary.rate, _rate), ("Energy", energy_per_work, _energy))
    for name, records in report.workloads().items():
        for title, value, shown in measured:
            known = [(record, found) for record in records if (found := value(record)) is not None]
            bars = [record_bar(record, report.series(record), found, shown(record, found)) for record, found in known]
            panels += bars_panels(f"{title}: {name}", "Bars", bars) if bars else []
    known = any(energy_per_work(record) is not None for record in report.done)
    energy = " Energy: the sum over all GPUs of the run, where that was measured." if known else ""
    return Figure(
        "throughput",
        "Throughput and energy" if known else "Throughput",
        "Rate: work per second over all steps, warm-up included, and over all ranks; tokens are those that enter the loss (of pairs, "
        f"those of the summary). MFU is of the peak in a run's own precision.{energy}",
        tuple(panels),
        table=of_runs(
            report, "Throughput; an empty cell is not known", THROUGHPUT, report.done, _throughput_row
        ).known(),
    )


SCALING = (
    RUN,
    *columns(secondary=True, work="Work", baseline="Baseline"),
    Column("gpus", "On", numbers.whole, text="held"),
    Column("training_seconds", "Training time", numbers.duration),
    Column("speedup", "Speed-up", "{:,.2f}".format),
    Column("efficiency", "Efficiency", numbers.percent),
)
THROUGHPUT = (
    Column("rate", "Rate", numbers.short, text="rate_words"),
    Column("rate_of_each", "For each GPU or process", numbers.short, text="each_words"),
    Column("mfu", "MFU", numbers.share),
    Column("gpu_utilisation", "GPU use", numbers.percent),
    Column("energy_per_work", "Energy of all GPUs", numbers.significant, text="energy_words"),
    Column(
        "energy_joules", "Energy of all GPUs, whole run", lambda joules: f"{numbers.significant(joules / 3.6e6)} kWh"
    ),
    Column("parameters", "Parameters", numbers.short),
)
QUARTERS = {quarter / 4: numbers.percent(quarter / 4) for quarter in (1, 2, 3)}
# Name → function of a Report that makes the Figure; each becomes a file `figures/<name>.svg`.
FIGURES = {
    "scaling": scaling,
    "weak": weak,
    "phases": phases,
    "loss": loss,
    "throughput": throughput,
    "memory": memory,
    "loaders": loaders,
    "communication": communication,
}


def _against_gpus(report, experiment, figure):
    """Speed-up or efficiency against the GPUs, one line a kind of run."""
    head, *others = experiment.members
    word = numbers.plural(2, head.first.gpu_word).split()[1]
    groups = grouped(others, lambda member: kind_of_run(member.first.run))
    series = [
        (
            named(members[0].label, members[0].first.run) if len(members) == 1 else label,
            [_point(report, member, figure) for member in members],
        )
        for label, members in groups.items()
    ]
    shown = {"speedup": "Speed-up", "efficiency": f"Efficiency per {head.first.gpu_word}"}[figure]
    return scaling_panel(
        f"{shown} against {experiment.baseline}: {experiment.title}",
        f"{shown} against the baseline {experiment.baseline}, with the ideal line",
        word,
        f"{shown[0].lower()}{shown[1:]} against {experiment.baseline}",
        series,
        _point(report, head, figure),
        percent=figure == "efficiency",
    )


def _point(report, member, figure):
    def within(record):
        compared = report.comparisons[record.name]
        value, share = getattr(compared, figure), compared.low and getattr(compared, figure) / compared.speedup
        return (compared.low * share, compared.high * share) if share else (value, value)

    spread = member.spread(lambda record: getattr(report.comparisons[record.name], figure), within)
    shown = numbers.percent(spread.mean) if figure == "efficiency" else f"{spread.mean:.2f} ×"
    note = f"{member.label} on {member.extent}: {shown}{', not ranked' if member.unranked else ''}"
    return Point(member.first.gpus, spread, report.series(member.first), note, shown, not member.unranked)


def _scaling_table(report, experiments, caption):
    rows = [
        {
            **{"run": record.name, "work": experiment.title, "baseline": record.run.baseline, "gpus": record.gpus},
            **{"held": numbers.plural(record.gpus, record.gpu_word), "training_seconds": record.timing.training},
            **vars(report.comparisons[record.name]),
        }
        for experiment in experiments
        for member in experiment.members
        for record in member.records
    ]
    return make_table(caption, SCALING, rows, report.all_series)


def _phase(record, phase):
    """Mean seconds a step of a phase; None where it was not measured, as a bubble is in pipelines alone."""
    seconds = _phases(record).get(phase)
    return None if seconds is None else seconds / max(record.summary.steps, 1)


def _phases(record):
    return of_mean_rank(record.summary.phases, record.summary.bubble_measured, record.run.layout.world_size)


def _spent(record):
    """The phases that were measured, in their order → mean seconds a step."""
    return {phase: value for phase in PHASES if (value := _phase(record, phase)) is not None}


def _phase_panels(workload, kind, records):
    bars = []
    for record in records:
        spent = _spent(record)
        total = sum(spent.values())
        parts = tuple((phase, value / total, _phase_note(record, phase)) for phase, value in spent.items())
        text = with_caveat(record, numbers.duration_of_step(total))
        bars.append(Bar(record.name, parts, text, strong=record.name == record.run.baseline))
    title = f"Shares of a step: {workload}{' (weak scaling)' if kind == 'weak' else ''}"
    return bars_panels(title, "Stacked bars of the parts of a step, its mean time in words", bars, QUARTERS)


def _phase_note(record, phase):
    share = _phases(record).get(phase, 0.0) / max(sum(_phases(record).values()), 1e-12)
    return f"{record.name}: {phase} {numbers.duration_of_step(_phase(record, phase))} ({numbers.percent(share)})"


def _phase_table(report, records, used):
    shown = [
        Column(f"{phase}_seconds_per_step", phase.capitalize(), numbers.duration_of_step, below=f"{phase}_share")
        for phase in used
    ]

    def more(record):
        spent = _spent(record)
        total, row = sum(spent.values()), {}
        for phase, value in spent.items():
            row[f"{phase}_seconds_per_step"] = value
            row[f"{phase}_share"] = numbers.tenths(value / total) if total else ""
        return {**row, "seconds_per_step": total}

    shown += columns(numbers.duration_of_step, seconds_per_step="Step")
    return of_runs(report, "Mean time of a training step by phase", shown, records, more)


def _rate(record, value):
    return f"{numbers.short(value)} {record.summary.work_unit}/s"


def _energy(record, value):
    return f"{numbers.significant(value)} J/{record.summary.work_unit.removesuffix('s')}"


def _throughput_row(record):
    summary, each = record.summary, record.summary.rate / record.run.layout.world_size
    energy = energy_per_work(record)
    return {
        "rate_words": _rate(record, summary.rate),
        "rate_of_each": each,
        "each_words": _rate(record, each),
        "energy_words": _energy(record, energy) if energy else "",
    }
