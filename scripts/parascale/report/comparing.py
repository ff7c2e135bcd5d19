"""Comparison of runs with their baselines: speed-up and efficiency, or the reason why there is none.

Speed-up is the baseline's training time divided by the run's (without start-up and warm-up, see `timing`). Both must do the same training: same
workload, machine, global batch and amount of work (for pairs, the number of pairs, as their tokens depend on the seed). Efficiency is the speed-up
divided by the ratio of allocated GPUs, idle ones included. Weak scaling fixes the batch per data-parallel rank, so the work differs and
there is no speed-up; efficiency is the rate per GPU relative to the baseline's (Gustafson 1988, doi:10.1145/42411.42415).
"""

import functools
import json
import statistics
from dataclasses import dataclass, field

from parascale.report.layouts import kind_of_run, named
from parascale.report.numbers import plural, whole
from parascale.report.timing import unranked
from parascale.settings import identity

# Smaller relative differences count as none, however narrow the ranges: two starts of the same run may differ by as much.
MARGIN = 0.02


@dataclass(frozen=True)
class Comparison:
    """A run compared with its baseline. `reason` says why there is no efficiency.

    high: upper end of the speed-up's range. measured: how conduct or code differed from the baseline's, in words.
    """

    speedup: float | None = None
    efficiency: float | None = None
    reason: str = ""
    measured: str = ""
    high: float | None = None


def is_less(mean, highest, other, lowest):
    """True if `mean` is less than `other` by more than MARGIN and the ranges do not overlap. highest: top of its range; lowest: bottom of the other's."""
    return mean < (1 - MARGIN) * other and highest < lowest


def compare(record, baseline):
    """Compare a run with its baseline. baseline is None if it is not in the report."""
    if not record.done:
        return Comparison(reason=f"not finished ({record.status})")
    if is_different(record):
        return Comparison(reason="the result is different from the baseline's")
    if baseline is None or not baseline.done:
        state = "not in this report" if baseline is None else baseline.status
        return Comparison(reason=f"its baseline `{record.run.baseline}` is {state}")
    if reason := difference(record, baseline):
        return Comparison(reason=reason)
    ours, theirs, measured = record.timing, baseline.timing, measured_otherwise(record, baseline)
    speedup, growth = theirs.training / ours.training, record.gpus / baseline.gpus
    if record.run.scaling == "weak":
        efficiency = record.summary.work / baseline.summary.work * speedup / growth
        return Comparison(efficiency=efficiency, measured=measured)
    high = 1.0 if record is baseline else theirs.high / ours.low
    return Comparison(speedup, speedup / growth, "", measured, high)


def measured_otherwise(record, baseline):
    """Describe how a run's conduct or code differs from its baseline's; empty if it does not."""
    words = [identity.conduct_difference(record.run, baseline.run)]
    codes = {(each.provenance or {}).get("code_digest") for each in (record, baseline)}
    if len(codes) > 1 and record.run.engine == baseline.run.engine:
        words.append("other training code")
    return ", ".join(filter(None, words))


def difference(record, baseline):
    """Describe why two runs are not the same training on the same machine; empty if they are."""
    run, other = record.run, baseline.run
    if not (record.summary.seconds > 0 and baseline.summary.seconds > 0):
        return "no training time was recorded"
    if run.profile or other.profile:
        return "steps were profiled, which takes time"
    if run.method and not other.method:
        return f"{run.method} is another method: compare its loss against time"
    if changed := identity.difference(run, other):
        return f"other settings than `{baseline.name}`: {changed}"
    if _machine(record) != _machine(baseline):
        return f"measured on another machine than `{baseline.name}`"
    if run.scaling == "weak" and None in (record.summary.work, baseline.summary.work):
        return "the script records no `samples`, so that its work is unknown"
    if run.scaling == "weak":
        same = run.global_batch * other.layout.data_parallel == other.global_batch * run.layout.data_parallel
        return "" if same else f"another batch per rank than `{baseline.name}`"
    if run.global_batch != other.global_batch:
        return f"another global batch than `{baseline.name}`"
    # The same seed draws the same samples in every layout.
    other_tokens = run.seed == other.seed and record.summary.work != baseline.summary.work
    if work_of(record) != work_of(baseline) or other_tokens:
        return f"other work than `{baseline.name}`"
    return ""


def work_of(record):
    """(amount, unit, evaluated tokens or None): equal for runs that do the same work, whatever their seeds."""
    summary, run = record.summary, record.run
    if run.workload.of_pairs:
        return summary.steps * run.global_batch, "pairs", summary.evaluated_tokens
    return summary.work, summary.work_unit, None


def configuration(record):
    """A key that is equal for runs that differ only in seed, name and baseline."""
    done = work_of(record) if record.done else None
    return json.dumps([identity.configuration_of(record.run), _machine(record), done], sort_keys=True)


def is_different(record):
    """True if the parity check found that the run does not compute the same as its baseline."""
    return record.parity is not None and record.parity.verdict == "different"


def caveats(record, marked=False):
    """Short words on how a run differs from the others of its workload; mostly none. marked: the page already marks it as different."""
    said = ("" if record.done else record.status, "different" if is_different(record) and not marked else "")
    return list(filter(None, (*said, "weak scaling" if record.run.scaling == "weak" else "", record.run.way)))


def _machine(record):
    return record.site.name, record.site.gpu, record.site.cores_per_node


@dataclass(frozen=True)
class Spread:
    """Mean and range of a figure over the repeats of a configuration."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Member:
    """A configuration: one run or several repeats of it, mostly with different seeds."""

    records: tuple

    @property
    def first(self):
        return self.records[0]

    @property
    def label(self):
        """Name of the run, and the number of repeats if there are several."""
        count, seeds = len(self.records), len({record.run.seed for record in self.records})
        return self.first.name if count == 1 else f"{self.first.name} ({count} {'seeds' if seeds == count else 'runs'})"

    @property
    def extent(self):
        """Its size and switches: `2 processes`, `8 GPUs (compiled)`."""
        return named(plural(self.first.gpus, self.first.gpu_word), self.first.run)

    def spread(self, figure):
        """Spread of `figure(record)` over the runs where it is known, or None."""
        values = [value for value in map(figure, self.records) if value is not None]
        return Spread(statistics.mean(values), min(values), max(values)) if values else None

    @property
    def time(self):
        """Spread of the training time, over repeats or, for a single run, over blocks of its steps."""
        if len(self.records) > 1:
            return self.spread(lambda each: each.timing.training)
        timing = self.first.timing
        return Spread(timing.training, timing.low, timing.high)

    @property
    def unranked(self):
        """Why it is shown but not ranked, in words, or empty."""
        return next(filter(None, map(unranked, self.records)), "")


@dataclass(frozen=True)
class Experiment:
    """Configurations that one scaling figure may compare, the baseline first. kind: strong or weak."""

    kind: str
    members: tuple

    @property
    def first(self):
        return self.members[0].first

    def gain(self, member):
        """(value, lowest, highest) of the speed-up over the baseline's mean; in weak scaling, of the rate per process relative to it."""
        head, scale = self.members[0], 1.0
        if member is head:
            return 1.0, 1.0, 1.0
        if self.kind == "weak":
            ours, theirs = member.first, head.first
            scale = ours.summary.work / theirs.summary.work * theirs.gpus / ours.gpus
        time, base = member.time, head.time
        return tuple(scale * base.mean / seconds for seconds in (time.mean, time.high, time.low))

    @property
    def title(self):
        """The workload: `lm-small, 491,520 tokens`."""
        workload, (amount, unit, _) = self.first.run.workload.name, work_of(self.first)
        return f"{workload}, {whole(amount)} {unit}" if self.kind == "strong" and amount is not None else workload


@dataclass(frozen=True)
class Report:
    """Everything that pages, tables and figures read.

    left_out: names of runs that have results but were not requested. conversions: rows of converted checkpoints, from `checkpoint.matrix`.
    jobs: run name → link to its own page. charges: run name → (core-hours charged, source). advice: rows of `advice.csv`. tables: links to
    CSV files of benchmarks. studies: Sections of scaling studies. series: run name → colour number, from `series_of`.
    """

    title: str
    records: tuple
    comparisons: dict
    members: tuple
    experiments: tuple
    left_out: tuple = ()
    conversions: tuple = ()
    jobs: dict = field(default_factory=dict)
    readings: tuple = ()
    charges: dict = field(default_factory=dict)
    advice: tuple = ()
    tables: tuple = ()
    series: dict = field(default_factory=dict)
    studies: tuple = ()
    charts: dict = field(default_factory=dict, init=False)  # cache of `figures.chart`

    @functools.cached_property
    def done(self):
        return [record for record in self.records if record.done]


def series_of(runs, table=()):
    """Run name → number of its kind, which decides its colour. runs: name → Run; table: Runs whose kinds get the first colours."""
    kinds = list(dict.fromkeys(map(kind_of_run, (*table, *runs.values()))))
    return {name: kinds.index(kind_of_run(run)) for name, run in runs.items()}


def build_report(records, title, table=(), **others):
    """Build a Report. table: Runs of the run table, whose kinds get the first colours on every page; others: further fields of Report."""
    by_name = {record.name: record for record in records}
    runs = {record.name: record.run for record in records if record.run is not None}
    comparisons = {name: compare(by_name[name], by_name.get(run.baseline)) for name, run in runs.items()}

    def repetition(record):
        """Key of runs that may be averaged: same configuration, and same baseline or reason not to be compared."""
        return configuration(record), comparisons[record.name].reason or configuration(by_name[record.run.baseline])

    alike = grouped((record for record in records if record.done), repetition)
    members = tuple(Member(tuple(group)) for group in alike.values())
    experiments = tuple(_experiments(members, by_name, comparisons))
    return Report(title, tuple(records), comparisons, members, experiments, series=series_of(runs, table), **others)


def _experiments(members, by_name, comparisons):
    """Group members by the configuration of their baseline and by kind of scaling."""
    compared = [member for member in members if comparisons[member.first.name].efficiency is not None]
    groups = grouped(compared, lambda member: configuration(by_name[member.first.run.baseline]))
    for group in groups.values():
        baseline = by_name[group[0].first.run.baseline]
        head = next(member for member in members if baseline in member.records)
        for kind in ("strong", "weak"):
            # The baseline belongs to both kinds, whichever kind its own run names.
            others = [member for member in group if member is not head and member.first.run.scaling == kind]
            if others:
                yield Experiment(kind, (head, *others))


def grouped(items, key):
    """key → items with that key, in order of first appearance."""
    groups = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
