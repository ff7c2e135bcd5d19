"""What follows from the records: configurations with the runs that repeat them, and which of them stand in one scaling figure."""

import functools
import math
from dataclasses import dataclass, field

from parascale.report.comparing import compare, configuration, is_different, work_of
from parascale.report.layouts import kind_of_run, named
from parascale.report.numbers import plural, whole
from parascale.report.timing import unranked


@dataclass(frozen=True)
class Spread:
    """One figure of a configuration: its values, their arithmetic mean, and the range that chance gives them.

    The range of repeats is from the smallest to the largest; of one run it is what the run itself says, if it does.
    """

    values: tuple
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Member:
    """A configuration: one run, or repetitions of it, mostly with other seeds."""

    records: tuple

    @property
    def first(self):
        """The record that stands for the configuration."""
        return self.records[0]

    @property
    def label(self):
        """Name of the run; where it was repeated, how often."""
        count, seeds = len(self.records), len({record.run.seed for record in self.records})
        return self.first.name if count == 1 else f"{self.first.name} ({count} {'seeds' if seeds == count else 'runs'})"

    @property
    def extent(self):
        """How it is spread: `2 processes`, `8 GPUs (compiled)`."""
        return named(plural(self.first.gpus, self.first.gpu_word), self.first.run)

    def spread(self, figure, within=None):
        """Spread of `figure(record)` over the runs that have it, or None. within(record): lowest and highest value of one run."""
        values = tuple(value for value in map(figure, self.records) if value is not None)
        if not values:
            return None
        alone = within is not None and len(self.records) == 1
        low, high = within(self.first) if alone else (min(values), max(values))
        return Spread(values, math.fsum(values) / len(values), low, high)

    @property
    def time(self):
        """Spread of the training time."""
        return self.spread(
            lambda record: record.timing.training, lambda record: (record.timing.low, record.timing.high)
        )

    @property
    def unranked(self):
        """Why it is shown and not ranked, in words, or empty."""
        return next(filter(None, map(unranked, self.records)), "")


@dataclass(frozen=True)
class Experiment:
    """Configurations that may stand in one scaling figure, the baseline's first. kind: strong or weak."""

    kind: str
    baseline: str
    members: tuple

    @property
    def first(self):
        """Record of the baseline."""
        return self.members[0].first

    def gain(self, member):
        """(value, lowest, highest) of a configuration's speed-up; with weak scaling of the rate of each of its processes, over the baseline's."""
        head, scale = self.members[0], 1.0
        if member is head:
            return 1.0, 1.0, 1.0
        if self.kind == "weak":
            ours, theirs = member.first, head.first
            scale = ours.summary.work / theirs.summary.work * theirs.gpus / ours.gpus
        time, base = member.time, head.time
        return scale * base.mean / time.mean, scale * base.low / time.high, scale * base.high / time.low

    @property
    def title(self):
        """What is trained: `lm-small, 491,520 tokens`."""
        workload, (amount, unit, _) = self.first.run.workload.name, work_of(self.first)
        return f"{workload}, {whole(amount)} {unit}" if self.kind == "strong" else workload


@dataclass(frozen=True)
class Report:
    """Everything that pages, tables and figures read.

    jobs: name of a run → page of its own, beside this report's. readings: of each dataset, how fast its formats are read.
    transfers: between the processes of a run, how fast they talk.
    charges: name of a run → (core-hours charged, what says so). advice: of each workload (parascale.report.plans.Advice).
    tables: CSV files that benchmarks left, as a link on the page reaches them.
    table: the Runs of the run table; their order gives the kinds their colours, on the page of all runs and on that of one.
    """

    title: str
    records: tuple
    left_out: tuple
    comparisons: dict
    members: tuple
    experiments: tuple
    conversions: tuple = ()
    jobs: dict = field(default_factory=dict)
    readings: tuple = ()
    transfers: tuple = ()
    charges: dict = field(default_factory=dict)
    advice: tuple = ()
    tables: tuple = ()
    table: tuple = ()

    @property
    def done(self):
        """Records of finished runs."""
        return [record for record in self.records if record.done]

    @functools.cached_property
    def different(self):
        """Names of the runs that compute something other than their baseline, which tables mark."""
        return {record.name for record in self.records if is_different(record)}

    def workloads(self):
        """Workload name → its finished records."""
        return grouped(self.done, lambda record: record.run.workload.name)

    def series(self, record):
        """Number of a run's colour, the same everywhere: one for each kind of run. Runs of unknown settings have none."""
        return self.all_series.get(record.name)

    @functools.cached_property
    def all_series(self):
        """Name of a run → its `series`."""
        return series_of({record.name: record.run for record in self.records if record.run is not None}, self.table)


def series_of(runs, table=()):
    """Name of a run → number of its kind, which decides its ink. runs: name → Run; table: Runs whose kinds have the first colours."""
    kinds = list(dict.fromkeys(map(kind_of_run, (*table, *runs.values()))))
    return {name: kinds.index(kind_of_run(run)) for name, run in runs.items()}


def build_report(records, title, left_out=(), conversions=(), **others):
    """A Report of `records`. left_out: names of runs with results that were not asked for.

    conversions: rows of converted checkpoints, mappings as `checkpoint.matrix` has them. others: jobs, readings,
    charges, advice, tables and table, as in Report.
    """
    by_name = {record.name: record for record in records}
    comparisons = {
        record.name: compare(record, by_name.get(record.run.baseline)) for record in records if record.run is not None
    }
    done = [record for record in records if record.done]
    alike = grouped(done, lambda record: _repetition(record, by_name, comparisons[record.name]))
    members = tuple(Member(tuple(group)) for group in alike.values())
    experiments = tuple(_experiments(members, by_name, comparisons))
    return Report(
        title, tuple(records), tuple(left_out), comparisons, members, experiments, tuple(conversions), **others
    )


def _repetition(record, by_name, compared):
    """A key that runs share whose figures may be averaged: same configuration and reference, or reason not to be compared."""
    return configuration(record), compared.reason or configuration(by_name[record.run.baseline])


def _experiments(members, by_name, comparisons):
    """Members by the configuration of their baseline, strong and weak apart."""
    compared = [member for member in members if comparisons[member.first.name].efficiency is not None]
    groups = grouped(compared, lambda member: configuration(by_name[member.first.run.baseline]))
    for group in groups.values():
        baseline = by_name[group[0].first.run.baseline]
        head = next(member for member in members if baseline in member.records)
        for kind in ("strong", "weak"):
            # A configuration on one process may be called strong or weak: as the baseline it begins both.
            others = [member for member in group if member is not head and member.first.run.scaling == kind]
            if others:
                yield Experiment(kind, baseline.name, (head, *others))


def grouped(items, key):
    """key(item) → its items, in the order in which keys first come."""
    groups = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def idle_fraction(record):
    """Part of the held GPUs that cannot be at work at any moment, from the layout alone."""
    layout = record.run.layout
    busy = layout.processes_per_node / layout.gpus_per_node
    if layout.one_stage_at_a_time:
        busy /= layout.pp
    return 1 - busy
