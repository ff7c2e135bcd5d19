"""The verdict: which configuration is best here for time, for core-hours and for memory, in a table and a sentence, and what they rest on."""

from dataclasses import dataclass

from parascale.errors import few
from parascale.report import numbers
from parascale.report.comparing import is_different, is_less
from parascale.report.derived import Member, Spread
from parascale.report.tables import Column, Table, make_table
from parascale.report.timing import cores_there, wanted_cores


@dataclass(frozen=True)
class Aim:
    """Something of which less is better: `spread` of a Member. badge: what the best one is called."""

    key: str
    badge: str
    spread: object


def training_core_hours(member):
    """Spread of the core-hours of training alone, or None."""
    cores, time = member.first.cores, member.time
    if not cores:
        return None
    hours = [each * cores / 3600 for each in (time.mean, time.low, time.high)]
    return Spread(tuple(each * cores / 3600 for each in time.values), *hours)


AIMS = (
    Aim("seconds", "fastest", lambda member: member.time),
    Aim("training_core_hours", "cheapest", training_core_hours),
    Aim(
        "peak_memory_bytes",
        "leanest",
        lambda member: member.spread(lambda record: record.summary.peak_memory_bytes),
    ),
)
RANKING = (
    Column("label", "Layout", below="extent"),
    Column("training_seconds", "Training", numbers.duration, below="range", bar="part"),
    Column("speedup", "Times as fast", numbers.significant, below="between"),
    Column("core_hours", "Core-hours, whole job", numbers.significant),
    Column("peak_memory_bytes", "Memory of a process", numbers.memory),
    Column("checked", "Result", kind="checked"),
    Column("best", "Best"),
)


@dataclass(frozen=True)
class Winner:
    """The best configuration for an aim beside the baseline, which it may be itself. beats: it is measurably less.

    alike: other configurations that no measured difference tells from the best one.
    """

    aim: Aim
    best: Member
    value: Spread
    baseline: Spread
    beats: bool
    alike: tuple
    runner_up: tuple


@dataclass(frozen=True)
class Verdict:
    """One experiment: a sentence on the fastest configuration, a Table of RANKING, the winners, and sentences on what they rest on."""

    title: str
    sentence: str
    table: Table
    winners: tuple
    basis: tuple = ()


def verdicts(report):
    """A Verdict for each strong-scaling experiment: only runs that do the same work are set against each other."""
    return [_verdict(report, experiment) for experiment in report.experiments if experiment.kind == "strong"]


def _figure(spread):
    """The mean of a Spread, to the last digit where it is of one run; None of none."""
    return spread and (spread.mean if spread.values[1:] else spread.values[0])


def _left_out(report, experiment):
    """Names of finished runs that share the baseline and are another training, as in another precision: where they differ, the page says."""
    finished = (record for record in report.done if record.run.baseline == experiment.first.name)
    return [record.name for record in finished if report.comparisons[record.name].reason and not is_different(record)]


def _verdict(report, experiment):
    head, *others = experiment.members
    rivals = [head, *(member for member in others if not member.unranked)]
    winners = () if head.unranked else tuple(filter(None, (_winner(aim, head, rivals) for aim in AIMS)))
    fastest = next((winner for winner in winners if winner.aim.key == "seconds"), None)
    sentence = _unranked_baseline(experiment) if head.unranked else _time_sentence(experiment, fastest)
    basis = _basis(experiment, _left_out(report, experiment))
    return Verdict(experiment.title, sentence, _ranking(report, experiment, winners), winners, basis)


def _ranking(report, experiment, winners):
    """A Table of an Experiment's configurations, the fastest first, those that are not ranked last."""
    members = sorted(experiment.members, key=lambda member: (bool(member.unranked), member.time.mean))
    longest = max(member.time.mean for member in members)
    best = {}
    for winner in winners:
        for member in (winner.best, *winner.alike):
            best.setdefault(member.label, []).append(winner.aim.badge)
    rows = [_row(report, member, longest, best.get(member.label, ())) for member in members]
    series = {member.label: report.series(member.first) for member in members}
    return make_table(f"{experiment.title}, the fastest first", RANKING, rows, series)


def _row(report, member, longest, badges):
    record, time = member.first, member.time
    comparison = report.comparisons[record.name]
    whole = member.spread(lambda each: each.summary.core_hours)
    compared = (
        comparison.speedup is not None and record.name != record.run.baseline and comparison.low != comparison.high
    )
    return {
        "run": member.label,
        "label": member.label,
        "extent": member.extent,
        "training_seconds": _figure(time),
        "range": "" if time.low == time.high else f"{numbers.duration(time.low)} to {numbers.duration(time.high)}",
        "part": time.mean / longest,
        "speedup": comparison.speedup,
        "between": f"{comparison.low:.2f} to {comparison.high:.2f}" if compared else "",
        "core_hours": _figure(whole),
        "peak_memory_bytes": _figure(AIMS[-1].spread(member)),
        "checked": record.parity.verdict if record.parity else "not checked",
        "best": f"not ranked: {member.unranked}" if member.unranked else ", ".join(badges),
    }


def _unranked_baseline(experiment):
    head = experiment.members[0]
    return f"No layout is ranked: of the baseline `{head.label}`, {head.unranked}. Measure it again."


def _basis(experiment, left_out):
    """Sentences on what the verdict rests on. left_out: names of runs that are in no comparison."""
    once = [member for member in experiment.members if len(member.records) == 1]
    if len(once) == len(experiment.members):
        said = ["One run each: a range is the spread of blocks of steps within the run."]
    elif once:
        names = few([f"`{member.label}`" for member in once], most=4)
        said = [
            f"One run each of {names}, whose ranges are the spread of blocks of steps; those of the others span repeats."
        ]
    else:
        said = ["Ranges span repeated runs."]
    if unused := _unused(experiment.first):
        used, there, what = unused
        held = f"{used} of the {there} {what} of a node"
        said.append(f"Whole nodes are charged: `{experiment.baseline}` uses {held} and pays for all.")
    others = [f"`{member.label}` ({member.unranked})" for member in experiment.members[1:] if member.unranked]
    if others:
        said.append(f"Shown but not ranked: {numbers.listed(others)}.")
    if left_out:
        names = few([f"`{name}`" for name in left_out], most=4)
        said.append(
            f"Not compared, because they train differently from the baseline: {names}; “What more hardware buys” says how. "
            "`same` beside one of them is said of its layout."
        )
    return tuple(said)


def _unused(record):
    """(used, paid for, what) where a run pays for more cores or GPUs of a node than it uses; else None."""
    site = record.site
    if site.device == "cpu":
        used, there, what = wanted_cores(record), cores_there(record), "cores"
    else:
        used, there, what = record.run.layout.gpus_per_node, site.gpus_per_node or 0, "GPUs"
    return (used, there, what) if site.charges == "whole_nodes" and used < there else None


def _apart(low, high):
    """Whether the first Spread is measurably below the second."""
    return is_less(low.mean, low.high, high.mean, high.low)


def _winner(aim, head, rivals):
    baseline = aim.spread(head)
    ranked = [(spread, member) for member in rivals if (spread := aim.spread(member)) is not None]
    if baseline is None or not baseline.mean or len(ranked) < 2:
        return None
    ranked.sort(key=lambda entry: entry[0].mean)
    # Not the lowest mean alone: that of a disturbed run may be no different from the baseline's, and a steadier one's is.
    value, best = next((entry for entry in ranked if _apart(entry[0], baseline)), (baseline, head))
    beats = best is not head
    others = [entry for entry in ranked if entry[1] is not best]
    alike = tuple(member for spread, member in others if not _apart(value, spread) and not _apart(spread, value))
    return Winner(aim, best, value, baseline, beats, alike, others[0])


def _time_sentence(experiment, winner):
    head = experiment.members[0]
    if winner is None:
        return f"There is no layout to rank beside the baseline `{head.label}`."
    if not winner.beats:
        spread, member = winner.runner_up
        if member in winner.alike:
            more = f" and from {numbers.plural(len(winner.alike) - 1, 'other')}" if len(winner.alike) > 1 else ""
            how = f"no measurable difference from `{member.label}` on {member.extent} ({_ranged(spread)}){more}"
        else:
            how = f"`{member.label}` on {member.extent} comes next with {_ranged(spread)}"
        return f"Nothing is measurably faster than the baseline `{head.label}` ({_ranged(winner.value)}); {how}."
    value, baseline = winner.value, winner.baseline
    growth = winner.best.first.gpus / head.first.gpus
    speedup = baseline.mean / value.mean
    return (
        f"`{winner.best.label}` on {winner.best.extent} is the fastest: {numbers.duration(value.mean)}, {speedup:.2f} times as fast as the "
        f"baseline `{head.label}` (range {baseline.low / value.high:.2f} to {baseline.high / value.low:.2f}) at "
        f"{numbers.percent(speedup / growth)} efficiency{_alike(winner)}."
    )


def _ranged(spread):
    """A time with its range."""
    shown, low, high = map(numbers.duration, (spread.mean, spread.low, spread.high))
    return shown if low == high else f"{shown}, range {low} to {high}"


def _alike(winner):
    names = few([f"`{member.label}`" for member in winner.alike], most=4)
    return f"; no measurable difference from {names}" if names else ""
