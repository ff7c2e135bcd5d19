"""The verdict: which configuration is best here for time, for core-hours and for memory, in two sentences and what they rest on."""

from dataclasses import dataclass

from parascale.errors import few
from parascale.report import numbers
from parascale.report.comparing import is_different, is_less
from parascale.report.derived import Member, Spread
from parascale.report.timing import cores_there, wanted_cores


@dataclass(frozen=True)
class Aim:
    """Something of which less is better: `spread` of a Member, in words by `shown`."""

    key: str
    title: str
    spread: object
    shown: object


def core_hours(value):
    """Core-hours with their unit."""
    return f"{numbers.significant(value)} core-hours"


def training_core_hours(member):
    """Spread of the core-hours of training alone, or None."""
    cores, time = member.first.cores, member.time
    if not cores:
        return None
    hours = [each * cores / 3600 for each in (time.mean, time.low, time.high)]
    return Spread(tuple(each * cores / 3600 for each in time.values), *hours)


AIMS = (
    Aim("seconds", "Training time", lambda member: member.time, numbers.duration),
    Aim("training_core_hours", "Core-hours of training", training_core_hours, core_hours),
    Aim(
        "peak_memory_bytes",
        "Memory",
        lambda member: member.spread(lambda record: record.summary.peak_memory_bytes),
        numbers.memory,
    ),
)


@dataclass(frozen=True)
class Winner:
    """The best configuration for an aim beside the baseline. beats: it is measurably less.

    alike: other configurations that no measured difference tells from the best one, and worse: how many others there are.
    unused: as `_unused` of the baseline; of core-hours alone.
    """

    aim: Aim
    best: Member
    value: Spread
    reference: str
    baseline: Spread
    beats: bool
    alike: tuple
    runner_up: tuple | None
    worse: int = 0
    unused: tuple | None = None

    @property
    def shown(self):
        """The value with its unit."""
        of_each = f" per {self.best.first.gpu_word}" if self.aim.key == "peak_memory_bytes" else ""
        return f"{self.aim.shown(self.value.mean)}{of_each}"

    @property
    def saving(self):
        """How much less than the baseline's."""
        return numbers.percent(1 - self.value.mean / self.baseline.mean)

    @property
    def beside(self):
        """What a card says below the name."""
        if not self.beats:
            counts = [(len(self.alike), "no different"), (self.worse, "measurably worse")]
            said = [f", {count} {word}" for count, word in counts if count]
            return f"the baseline; nothing is measurably better{''.join(said)}"
        pays = f", which pays for {self.unused[2]} that it does not use" if self.unused else ""
        return f"{self.saving} less than `{self.reference}`{pays}{_alike(self)}"


@dataclass(frozen=True)
class Verdict:
    """Two sentences about one experiment, the winners behind them, and what they rest on, also in a sentence or more."""

    title: str
    sentences: tuple
    winners: tuple
    basis: tuple = ()


def verdicts(report):
    """A Verdict for each strong-scaling experiment: only runs that do the same work are set against each other."""
    return [
        _verdict(experiment, _left_out(report, experiment))
        for experiment in report.experiments
        if experiment.kind == "strong"
    ]


def _left_out(report, experiment):
    """Names of finished runs that share the baseline and are another training, as in another precision: where they differ, the page says."""
    finished = (record for record in report.done if record.run.baseline == experiment.first.name)
    return [record.name for record in finished if report.comparisons[record.name].reason and not is_different(record)]


def _verdict(experiment, left_out):
    head, *others = experiment.members
    if head.unranked:
        return Verdict(experiment.title, (_unranked_baseline(experiment),), (), _basis(experiment, left_out))
    rivals = [head, *(member for member in others if not member.unranked)]
    winners = tuple(winner for aim in AIMS if (winner := _winner(aim, head, rivals)) is not None)
    by_key = {winner.aim.key: winner for winner in winners}
    first = _time_sentence(experiment, by_key.get("seconds"))
    second = _cost_sentence(head, [by_key[aim.key] for aim in AIMS[1:] if aim.key in by_key])
    said = tuple(sentence for sentence in (first, second) if sentence)
    return Verdict(experiment.title, said or (_nothing_ranked(experiment),), winners, _basis(experiment, left_out))


def _subject(experiment):
    workload, _, work = experiment.title.partition(", ")
    return f"To train `{workload}` ({work})"


def _unranked_baseline(experiment):
    head = experiment.members[0]
    return f"{_subject(experiment)}, no layout is ranked: of the baseline `{head.label}`, {head.unranked}. Measure it again."


def _nothing_ranked(experiment):
    return f"{_subject(experiment)}, there is no layout to rank beside the baseline `{experiment.members[0].label}`."


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
    unused = _unused(head.first) if aim.key == "training_core_hours" else None
    return Winner(aim, best, value, head.label, baseline, beats, alike, others[0], len(others) - len(alike), unused)


def _time_sentence(experiment, winner):
    if winner is None:
        return ""
    what = _subject(experiment)
    if not winner.beats:
        spread, member = winner.runner_up
        if member in winner.alike:
            more = f" and from {numbers.plural(len(winner.alike) - 1, 'other')}" if len(winner.alike) > 1 else ""
            how = f"no measurable difference from `{member.label}` on {member.extent} ({_ranged(spread)}){more}"
        else:
            how = f"`{member.label}` on {member.extent} comes next with {_ranged(spread)}"
        return f"{what}, nothing is measurably faster than the baseline `{winner.reference}` ({_ranged(winner.value)}); {how}."
    value, baseline = winner.value, winner.baseline
    growth = winner.best.first.gpus / experiment.members[0].first.gpus
    speedup, hours = baseline.mean / value.mean, training_core_hours(winner.best)
    price = f" for {core_hours(hours.mean)} of training" if hours else ""
    return (
        f"{what}, `{winner.best.label}` on {winner.best.extent} is the fastest: {winner.shown}, {speedup:.2f} times as fast as the "
        f"baseline `{winner.reference}` (range {baseline.low / value.high:.2f} to {baseline.high / value.low:.2f}) at "
        f"{numbers.percent(speedup / growth)} efficiency{price}{_alike(winner)}."
    )


def _ranged(spread):
    """A time with its range."""
    shown, low, high = map(numbers.duration, (spread.mean, spread.low, spread.high))
    return shown if low == high else f"{shown}, range {low} to {high}"


def _alike(winner):
    names = few([f"`{member.label}`" for member in winner.alike], most=4)
    return f"; no measurable difference from {names}" if names else ""


def _cost_sentence(head, winners):
    parts, last = [], None
    for winner in winners:
        memory = winner.aim.key == "peak_memory_bytes"
        of_each = f" per {head.first.gpu_word}"
        verb = f"needs the least memory{of_each}" if memory else "costs the fewest core-hours"
        shown = winner.aim.shown(winner.value.mean) if memory else _hours(winner)
        if winner.beats:
            shown = f"{shown}, {winner.saving} less than `{head.label}`" if memory else _hours(winner, head)
            subject = "" if winner.best is last else f"`{winner.best.label}` "
            parts.append(f"{subject}{verb} ({shown}{_alike(winner)})")
            last = winner.best
        else:
            beaten = (
                f"needs measurably less memory{of_each} than" if memory else "costs measurably fewer core-hours than"
            )
            parts.append(f"nothing {beaten} `{head.label}` ({shown})")
    sentence = numbers.listed(parts)
    # A sentence begins with a capital, a run's name keeps its own spelling.
    return f"{sentence[0].upper()}{sentence[1:]}." if sentence else ""


def _hours(winner, head=None):
    """Core-hours of training and of the whole job; each beside those of `head`, which start-up may bring nearer or ahead."""

    def said(value, reference, what):
        shown = f"{numbers.significant(value)} {what}"
        if head is None or not reference:
            return shown
        difference = numbers.percent(abs(1 - value / reference))
        return f"{shown}, {difference} {'less' if value <= reference else 'more'} than `{head.label}`"

    values = [said(winner.value.mean, winner.baseline.mean, "for training")]
    whole, theirs = (
        member and member.spread(lambda record: record.summary.core_hours) for member in (winner.best, head)
    )
    if whole:
        values.append(said(whole.mean, theirs and theirs.mean, "for the whole job"))
    return "; ".join(values)
