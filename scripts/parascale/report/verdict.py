"""The verdict: which configuration is best here for time, for core-hours and for memory, in two sentences."""

from dataclasses import dataclass

from parascale.report import numbers
from parascale.report.derived import Member, Spread, is_different

# Smaller differences are called a tie. A choice, not a measurement; repeated seeds show how large chance is.
MARGIN = 0.02


@dataclass(frozen=True)
class Aim:
    """Something of which less is better. `figure` takes a record, `shown` the value."""

    key: str
    title: str
    figure: object
    shown: object
    unit: str = ""


AIMS = (
    Aim("seconds", "Time", lambda record: record.summary.seconds, numbers.duration),
    Aim("core_hours", "Core-hours", lambda record: record.summary.core_hours, numbers.significant, " core-hours"),
    Aim("peak_memory_bytes", "Memory", lambda record: record.summary.peak_memory_bytes, numbers.memory),
)


@dataclass(frozen=True)
class Winner:
    """The best configuration for an aim beside the baseline. `beats`: by more than the margin and the seeds' spread."""

    aim: Aim
    best: Member
    value: Spread
    reference: str
    baseline: Spread
    beats: bool
    runner_up: tuple | None

    @property
    def shown(self):
        """The value with its unit."""
        return f"{self.aim.shown(self.value.mean)}{self.aim.unit}"

    @property
    def saving(self):
        """How much less than the baseline's."""
        return numbers.percent(1 - self.value.mean / self.baseline.mean)


@dataclass(frozen=True)
class Verdict:
    """Two sentences about one experiment, and the winners behind them."""

    title: str
    sentences: tuple
    winners: tuple


def verdicts(report):
    """A Verdict for each strong-scaling experiment: only runs that do the same work are set against each other."""
    return [_verdict(experiment) for experiment in report.experiments if experiment.kind == "strong"]


def _verdict(experiment):
    head = experiment.members[0]
    rivals = [member for member in experiment.members if not is_different(member.first)]
    winners = tuple(winner for aim in AIMS if (winner := _winner(aim, head, rivals)) is not None)
    by_key = {winner.aim.key: winner for winner in winners}
    first = _time_sentence(experiment, by_key.get("seconds"))
    costs = [by_key[key] for key in ("core_hours", "peak_memory_bytes") if key in by_key]
    second = _cost_sentence(head, costs)
    return Verdict(experiment.title, tuple(sentence for sentence in (first, second) if sentence), winners)


def _winner(aim, head, rivals):
    baseline = head.spread(aim.figure)
    ranked = [(spread, member) for member in rivals if (spread := member.spread(aim.figure)) is not None]
    if baseline is None or not baseline.mean or len(ranked) < 2:
        return None
    ranked.sort(key=lambda entry: entry[0].mean)
    value, best = ranked[0]
    beats = value.mean < (1 - MARGIN) * baseline.mean and value.high < baseline.low
    if not beats:
        value, best = baseline, head
    runner_up = next((entry for entry in ranked if entry[1] is not best), None)
    return Winner(aim, best, value, head.label, baseline, beats, runner_up)


def _time_sentence(experiment, winner):
    if winner is None:
        return ""
    workload, _, work = experiment.title.partition(", ")
    what = f"To train `{workload}` ({work})"
    if not winner.beats:
        spread, member = winner.runner_up
        return (
            f"{what}, nothing beats the baseline `{winner.reference}` in time ({winner.shown}); "
            f"`{member.label}` on {member.extent} comes next with {numbers.duration(spread.mean)}."
        )
    speedup = winner.baseline.mean / winner.value.mean
    growth = winner.best.first.gpus / experiment.members[0].first.gpus
    return (
        f"{what}, `{winner.best.label}` on {winner.best.extent} is the fastest: {winner.shown}, "
        f"{speedup:.2f} times as fast as the baseline `{winner.reference}` "
        f"at {numbers.percent(speedup / growth)} efficiency."
    )


def _cost_sentence(head, winners):
    parts = []
    for winner in winners:
        verb = "costs the fewest core-hours" if winner.aim.key == "core_hours" else "needs the least memory"
        shown = winner.aim.shown(winner.value.mean)
        each = f" per {winner.best.first.gpu_word}" if winner.aim.key == "peak_memory_bytes" else ""
        if winner.beats:
            parts.append(f"`{winner.best.label}` {verb} ({shown}{each}, {winner.saving} less than `{head.label}`)")
        else:
            parts.append(f"nothing {_beaten(winner)} `{head.label}` ({shown}{each})")
    sentence = numbers.listed(parts)
    # A sentence begins with a capital, a run's name keeps its own spelling.
    return f"{sentence[0].upper()}{sentence[1:]}." if sentence else ""


def _beaten(winner):
    return "costs fewer core-hours than" if winner.aim.key == "core_hours" else "needs less memory than"
