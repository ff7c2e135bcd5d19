"""The verdict for each workload: the best configurations by time, core-hours and memory, as sentences and a table."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from parascale.errors import shorten_list
from parascale.report import layouts, numbers
from parascale.report.comparing import MARGIN, Member, Spread, caveats, grouped, is_different, is_less
from parascale.report.summary import stands_out
from parascale.report.tables import Column, Table, make_table
from parascale.report.timing import cores_there, wanted_cores


@dataclass(frozen=True)
class Aim:
    """A quantity to minimise. spread: function of a Member; badge: word for the best one; ranked: exclude members that are not ranked by time."""

    badge: str
    spread: Callable
    ranked: bool = True


def training_core_hours(member):
    """Spread of the core-hours of training alone, or None."""
    cores, time = member.first.cores, member.time
    return cores and Spread(*(seconds * cores / 3600 for seconds in (time.mean, time.low, time.high)))


MOST_LINES = 8  # lines per workload on a terminal
AIMS = (
    Aim("fastest", lambda member: member.time),
    Aim("cheapest", training_core_hours),
    Aim("leanest", lambda member: member.spread(lambda run: run.summary.peak_memory_bytes), ranked=False),
)
RANKING = (
    Column("label", "Layout", below="below", link="page", kind="badge"),
    Column("training_seconds", "Training", numbers.duration, below="range", bar="part"),
    Column("speedup", "Times as fast", numbers.significant),
    Column("checked", "Result", kind="checked"),
    Column("core_hours", "Cost, whole job", numbers.core_hours),
    Column("peak_memory_bytes", "Memory of a process", numbers.memory),
)


@dataclass(frozen=True)
class Winner:
    """The best configuration for an aim: the baseline, or one that is measurably better.

    alike: configurations without a measurable difference from the best one; worse: True if there are others.
    """

    aim: Aim
    best: Member
    alike: tuple
    worse: bool


@dataclass(frozen=True)
class Verdict:
    """The verdict for a workload. table: its runs by RANKING; sentences: on the fastest configuration; basis: sentences on how it was decided."""

    name: str
    title: str
    table: Table
    runs: tuple = ()
    sentences: tuple = ()
    basis: tuple = ()
    winners: tuple = ()

    @property
    def identity(self):
        """The name in a form that is valid in an HTML id."""
        return re.sub(r"[^\w-]", "-", self.name)


def verdicts(report):
    """The Verdict for each workload. Only runs that do the same work are compared."""
    named = grouped(report.records, lambda record: record.run.workload.name if record.run else "without a record")
    return [_verdict(report, name, records) for name, records in named.items()]


def _verdict(report, name, records):
    names = {record.name for record in records}
    strong = [each for each in report.experiments if each.kind == "strong" and each.first.name in names]
    found = [(each, _winners(each)) for each in strong]
    winners = tuple(winner for _, some in found for winner in some)
    sentences = tuple(_sentence(experiment, some) for experiment, some in found)
    title = strong[0].title if len(strong) == 1 else name
    table = _table(report, title, records, winners, strong)
    return Verdict(name, title, table, tuple(names), sentences, tuple(_basis(strong)), winners)


def _winners(experiment):
    found = (_winner(aim, [each for each in experiment.members if not (aim.ranked and each.unranked)]) for aim in AIMS)
    return tuple(filter(None, found)) if not experiment.members[0].unranked else ()


def _apart(low, high):
    """True if the Spread `low` is measurably below `high`."""
    return is_less(low.mean, low.high, high.mean, high.low)


def _winner(aim, rivals):
    head, baseline = rivals[0], aim.spread(rivals[0])
    ranked = [(spread, member) for member in rivals if (spread := aim.spread(member)) is not None]
    if baseline is None or not baseline.mean or len(ranked) < 2:
        return None
    ranked.sort(key=lambda entry: entry[0].mean)
    # The lowest mean may belong to a noisy run that does not differ measurably from the baseline, while a steadier one does.
    value, best = next((entry for entry in ranked if _apart(entry[0], baseline)), (baseline, head))
    others = [entry for entry in ranked if entry[1] is not best]
    alike = tuple(member for spread, member in others if not _apart(value, spread) and not _apart(spread, value))
    return Winner(aim, best, alike, len(alike) < len(others))


def _sentence(experiment, winners):
    """A sentence on the fastest member and those that do not clearly differ from it."""
    head = experiment.members[0]
    if head.unranked:
        return f"Nothing is ranked: baseline `{head.label}`: {head.unranked}. Measure it again."
    winner = next((each for each in winners if each.aim.badge == "fastest"), None)
    if winner is None:
        return f"There is no layout to rank beside the baseline `{head.label}`."
    alike = shorten_list([f"`{member.label}`" for member in winner.alike], most=4)
    mean, alike = (" by its mean", f"; no clear difference from {alike}") if alike else ("", "")
    best, took = winner.best, numbers.duration(winner.best.time.mean)
    if best is head:
        return f"Nothing is measurably faster than the baseline `{head.label}` ({took}){alike}."
    faster = f"{head.time.mean / best.time.mean:.2f} times as fast as the baseline `{head.label}`"
    return f"`{best.label}` on {best.extent} is the fastest{mean}: {took}, {faster}{alike}."


def _basis(experiments):
    """Sentences on how a verdict was decided."""
    if experiments:
        spread = "Ranges span blocks of a run's steps or, where it was repeated, its repeats."
        yield f"{spread} Two runs differ if their means are more than {numbers.percent(MARGIN)} apart and their ranges do not overlap."
    for record in (experiment.first for experiment in experiments if experiment.first.site.charges == "whole_nodes"):
        used, there, what = record.run.layout.gpus_per_node, record.site.gpus_per_node or 0, "GPUs"
        if record.site.device == "cpu":
            used, there, what = wanted_cores(record), cores_there(record), "cores"
        if used < there:
            computes = f"`{record.name}` computes on {used} of {there} {what}"
            yield f"{computes}, but whole nodes are charged: faster on a node is also cheaper."


def _table(report, title, records, winners, strong):
    """All runs of a workload: ranked ones, fastest first, then unranked ones with the reason, then unfinished ones. Runs with the same
    baseline are grouped."""
    names = {record.name for record in records}
    members = [member for member in report.members if member.first.name in names]
    best = {}
    for winner in winners:
        for member in (winner.best, *winner.alike) if winner.worse else ():
            best.setdefault(member.label, []).append(winner.aim.badge)
    longest = max((member.time.mean for member in members), default=0.0) or 1.0
    compared = {member.label: each for each in report.experiments for member in each.members}
    rows = [_row(report, member, compared.get(member.label), longest, best.get(member.label, ())) for member in members]
    place = {member.label: number for number, each in enumerate(strong) for member in each.members}
    rows.sort(key=lambda row: (place.get(row["run"], len(place)), row["faded"], row["training_seconds"]))
    for record in (record for record in records if not record.done):
        notes = dict.fromkeys([record.status, *stands_out(record, None), *record.notes])
        rows.append(heading(record, record.name, notes, report.jobs.get(record.name)) | {"faded": True})
    series = {row["run"]: report.series.get(row["first"]) for row in rows}
    return make_table(f"{title}, the fastest first", RANKING, rows, series)


def _row(report, member, experiment, longest, badges):
    record, time, memory = member.first, member.time, AIMS[-1].spread(member)
    hours = member.spread(lambda each: each.summary.core_hours)
    compared = report.comparisons[record.name]
    gain = experiment.gain(member)[0] if experiment else None
    strong = gain is not None and compared.speedup is not None
    otherwise = dict.fromkeys(report.comparisons[each.name].measured for each in member.records)
    said = [f"not compared: {compared.reason}"] if compared.reason and not is_different(record) else []
    said += [f"each process at {numbers.percent(gain)} of the rate"] if gain and not strong else []
    said += [*stands_out(record, compared), *caveats(record, True)]
    said += [*(f"measured differently: {words}" for words in otherwise if words), *record.notes]
    return heading(record, member.label, said, report.jobs.get(record.name)) | {
        "training_seconds": time.mean,
        "range": "" if time.low == time.high else f"{numbers.duration(time.low)} to {numbers.duration(time.high)}",
        "part": time.mean / longest,
        "speedup": gain if strong else None,
        "core_hours": hours and hours.mean,
        "peak_memory_bytes": memory and memory.mean,
        "badge": ", ".join(badges),
        "faded": bool(member.unranked or not compared.speedup),
    }


def heading(record, label, notes, page=None):
    """The first values of a row of RANKING. notes: remarks shown below the layout; page: link to the run's page."""
    extent = f"{layouts.degrees_text(record.run)}; {layouts.hardware_text(record)}" if record.run else ""
    checked = record.parity.verdict if record.parity else "not checked" if record.done else ""
    row = {"run": label, "label": label, "first": record.name, "page": page, "extent": extent, "checked": checked}
    return row | {"notes": (notes := "; ".join(notes)), "below": "\n".join(filter(None, (extent, notes)))}


def lines(verdict):
    """A Verdict as lines for a terminal: configurations, fastest first, and why some are not ranked."""
    rows = [(verdict.title, "", *(column.title for column in RANKING[1:]), "Best")]
    for row, values in zip(verdict.table.rows, verdict.table.frame.to_dict("records"), strict=True):
        said = "; ".join(filter(None, (values["badge"], values["notes"] if row.faded else "")))
        rows.append((f"  {values['label']}", values["extent"], *(cell.text for cell in row.cells[1:]), said))
    last = [f"and {more} more, on the page"] if (more := len(rows) - 1 - MOST_LINES) > 0 else []
    return numbers.aligned(rows[: MOST_LINES + 1]) + last
