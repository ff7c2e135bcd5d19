"""Which figures the report holds, and what each says in words. Their names are files of `figures/`."""

import functools
from dataclasses import replace

from parascale.report import numbers
from parascale.report.communication import communication
from parascale.report.curves import loss
from parascale.report.derived import grouped
from parascale.report.drawing import Entry, Figure, series_colour
from parascale.report.layouts import kind_of_run, named
from parascale.report.loaders import loaders
from parascale.report.memories import memory
from parascale.report.plots import Bar, Point, bars_panel, record_bar, scaling_panel
from parascale.report.records import PHASES
from parascale.report.summary import energy_per_work, model_flops_utilisation
from parascale.report.tables import Cell, make_table, number, records_table


def scaling(report):
    """Strong scaling: time for the same work, speed-up and efficiency against the named baseline."""
    experiments = [experiment for experiment in report.experiments if experiment.kind == "strong"]
    panels = []
    for experiment in experiments:
        row = [_time_panel(report, experiment)]
        if len({member.first.gpus for member in experiment.members}) > 1:
            row += [_against_gpus(report, experiment, "speedup"), _against_gpus(report, experiment, "efficiency")]
        panels += [replace(panel, row=experiment.title) for panel in row]
    return Figure(
        "scaling",
        "Strong scaling: the same work on more hardware",
        "Each panel holds runs of one workload, one amount of work and one global batch. The dotted line is ideal "
        "scaling from the named baseline. Whiskers span repeats, or blocks of steps of a run that was not repeated.",
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
    panels = tuple(_phase_panel(workload, kind, records) for (workload, kind), records in groups.items())
    used = [phase for phase in PHASES if any(_phase(record, phase) for record in report.done)]
    return Figure(
        "phases",
        "Time of a step",
        "Mean time of a training step, by what it was spent on. Evaluation and saving are not in it.",
        panels,
        tuple(Entry(phase, phase, box=True) for phase in used),
        _phase_table(report, [record for records in groups.values() for record in records], used),
    )


def throughput(report):
    """Work per second."""
    panels = []
    for name, records in report.workloads().items():
        rates = [(record, record.summary.rate) for record in records]
        bars = [record_bar(record, report.series(record), rate, _rate(record, rate)) for record, rate in rates]
        panels.append(bars_panel(f"Rate: {name}", "Bars", bars))
    return Figure(
        "throughput",
        "Throughput",
        "Work per second of training time, over all ranks.",
        tuple(panels),
        table=records_table(report, "Throughput; an empty cell is not known", report.done, _throughput_row),
    )


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


def _time_panel(report, experiment):
    bars = []
    for member in experiment.members:
        seconds = member.time
        text = numbers.duration(seconds.mean)
        parts = ((series_colour(report.series(member.first)), seconds.mean, f"{member.label}: {text}"),)
        whisker = seconds.low, seconds.high
        bars.append(Bar(member.label, parts, text, whisker, member is experiment.members[0]))
    return bars_panel(f"Time: {experiment.title}", "Bars of training time", bars)


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
    shown = {"speedup": "Speed-up", "efficiency": "Efficiency"}[figure]
    return scaling_panel(
        f"{shown} against {experiment.baseline}: {experiment.title}",
        f"{shown} against the baseline {experiment.baseline}, with the ideal line",
        f"{word} held",
        f"{shown.lower()} against {experiment.baseline}",
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
    colour = series_colour(report.series(member.first))
    note = f"{member.label} on {member.extent}: {shown}"
    return Point(member.first.gpus, spread, colour, note)


def _scaling_table(report, experiments, caption):
    rows = [
        (record.name, _scaling_row(report, experiment, record))
        for experiment in experiments
        for member in experiment.members
        for record in member.records
    ]
    return make_table(caption, rows, report.all_series)


def _scaling_row(report, experiment, record):
    compared = report.comparisons[record.name]
    return {
        "Run": record.name,
        "Work": experiment.title,
        "Baseline": record.run.baseline,
        "Held": number(record.gpus, lambda gpus: numbers.plural(gpus, record.gpu_word)),
        "Training time": number(record.timing.training, numbers.duration),
        "Speed-up": number(compared.speedup, "{:,.2f}".format),
        "Efficiency": number(compared.efficiency, numbers.percent),
    }


def _phase(record, phase):
    """Mean seconds a step of a phase."""
    return _phases(record).get(phase, 0.0) / max(record.summary.steps, 1)


def _phases(record):
    """Seconds by phase, as rank 0 spent them; in a pipeline it waits as long as the mean rank does, so that no figure says other than
    the table of bubbles."""
    phases, waited = record.summary.phases, record.summary.bubble_measured
    total, own = sum(phases.values()), phases.get("bubble", 0.0)
    if waited is None or own >= total:
        return phases
    scale = total * (1 - waited) / (total - own)
    return {name: scale * seconds for name, seconds in phases.items()} | {"bubble": total * waited}


def _phase_panel(workload, kind, records):
    bars = []
    for record in records:
        parts = tuple((phase, _phase(record, phase), _phase_note(record, phase)) for phase in PHASES)
        total = numbers.duration_of_step(sum(value for _, value, _ in parts))
        bars.append(Bar(record.name, parts, total, strong=record.name == record.run.baseline))
    title = f"Time of a step: {workload}{' (weak scaling)' if kind == 'weak' else ''}"
    return bars_panel(title, "Stacked bars of the mean time of a step", bars)


def _phase_note(record, phase):
    share = _phases(record).get(phase, 0.0) / max(sum(_phases(record).values()), 1e-12)
    return f"{record.name}: {phase} {numbers.duration_of_step(_phase(record, phase))} ({numbers.percent(share)})"


def _phase_table(report, records, used):
    def cells(record):
        total = sum(_phase(record, phase) for phase in used)
        row = {}
        for phase in used:
            value = _phase(record, phase)
            share = Cell(numbers.percent(value / total, 1) if total else "")
            figure = f"{phase}_seconds_per_step"
            row[phase.capitalize()] = number(value, numbers.duration_of_step, figure, small=share)
        return {**row, "Step": number(total, numbers.duration_of_step)}

    return records_table(report, "Mean time of a training step by phase", records, cells)


def _rate(record, value):
    return f"{numbers.short(value)} {record.summary.work_unit}/s"


def _throughput_row(record):
    summary, rate = record.summary, functools.partial(_rate, record)

    def energy(joules):
        return f"{numbers.significant(joules)} J/{summary.work_unit.removesuffix('s')}"

    return {
        "Rate": number(summary.rate, rate),
        "For each GPU or process": number(summary.rate / record.run.layout.world_size, rate),
        "MFU": number(model_flops_utilisation(record), lambda part: numbers.percent(part, 1), "mfu"),
        "GPU use": number(summary.gpu_utilisation, numbers.percent, "gpu_utilisation"),
        "Energy": number(energy_per_work(record), energy, "energy_per_work"),
        "Energy in all": number(summary.energy_joules, numbers.energy, "energy_joules"),
        "Parameters": number(summary.parameters, numbers.short, "parameters"),
    }
