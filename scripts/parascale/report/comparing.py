"""A run beside its baseline: speed-up and efficiency, and why there is none.

Speed-up is the baseline's training time over the run's (`timing`: neither start-up nor warm-up), for the same training: workload,
machine, amount of work (of pairs, their number: their tokens follow from the seed), and global batch. Efficiency is the speed-up over the
ratio of the GPUs held, idle ones included. Weak scaling keeps the batch of a data-parallel rank: its runs do other work and have no
speed-up; their efficiency is the rate per GPU over the baseline's (Gustafson 1988, doi:10.1145/42411.42415).
"""

import functools
import json
import statistics
from dataclasses import dataclass, field

from parascale.report.layouts import kind_of_run, named
from parascale.report.numbers import plural, whole
from parascale.report.timing import unranked
from parascale.settings import identity

# Smaller differences count as zero, however narrow the ranges: two starts of the same run may differ by as much.
MARGIN = 0.02


@dataclass(frozen=True)
class Comparison:
    """A run beside its baseline. Without an efficiency, `reason` says why.

    high: end of the speed-up's range. measured: how it was measured under other conduct or code than the baseline, in words.
    """

    speedup: float | None = None
    efficiency: float | None = None
    reason: str = ""
    measured: str = ""
    high: float | None = None


def is_less(mean, highest, other, lowest):
    """Whether a mean is measurably less than another: by more than MARGIN, without overlap. highest: end of its own range; lowest: of the other's."""
    return mean < (1 - MARGIN) * other and highest < lowest


def compare(record, baseline):
    """The Comparison of a run with its baseline. baseline: None where it is not in the report."""
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
    """How a run's conduct or code differs from its baseline's, in words; empty where they are the same."""
    words = [identity.conduct_difference(record.run, baseline.run)]
    codes = {(each.provenance or {}).get("code_digest") for each in (record, baseline)}
    if len(codes) > 1 and record.run.engine == baseline.run.engine:
        words.append("other training code")
    return ", ".join(filter(None, words))


def difference(record, baseline):
    """Why the two do not do the same training on the same machine, in words; empty where they do."""
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
    # One seed draws the same samples, however they are spread.
    other_tokens = run.seed == other.seed and record.summary.work != baseline.summary.work
    if work_of(record) != work_of(baseline) or other_tokens:
        return f"other work than `{baseline.name}`"
    return ""


def work_of(record):
    """(amount, unit, what tells other data): the same for runs of the same work, whatever their seeds."""
    summary, run = record.summary, record.run
    if run.workload.of_pairs:
        return summary.steps * run.global_batch, "pairs", summary.evaluated_tokens
    return summary.work, summary.work_unit, None


def configuration(record):
    """A key that runs share when they differ in their seed (and name and baseline) alone."""
    done = work_of(record) if record.done else None
    return json.dumps([identity.configuration_of(record.run), _machine(record), done], sort_keys=True)


def is_different(record):
    """The run was found to compute something other than its baseline."""
    return record.parity is not None and record.parity.verdict == "different"


def caveats(record, marked=False):
    """Differences of a run from the others of its workload, each in few words; mostly none. marked: a mark says that it is different."""
    said = ("" if record.done else record.status, "different" if is_different(record) and not marked else "")
    return list(filter(None, (*said, "weak scaling" if record.run.scaling == "weak" else "", record.run.way)))


def _machine(record):
    return record.site.name, record.site.gpu, record.site.cores_per_node


@dataclass(frozen=True)
class Spread:
    """One figure of a configuration: its mean, and the range of its repeats."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Member:
    """A configuration: one run, or repetitions of it, mostly with other seeds."""

    records: tuple

    @property
    def first(self):
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

    def spread(self, figure):
        """Spread of `figure(record)` over the runs that have it, or None."""
        values = [value for value in map(figure, self.records) if value is not None]
        return Spread(statistics.mean(values), min(values), max(values)) if values else None

    @property
    def time(self):
        """Spread of the training time; of one run, what the run itself says of its range."""
        if len(self.records) > 1:
            return self.spread(lambda each: each.timing.training)
        timing = self.first.timing
        return Spread(timing.training, timing.low, timing.high)

    @property
    def unranked(self):
        """Why it is shown and not ranked, in words, or empty."""
        return next(filter(None, map(unranked, self.records)), "")


@dataclass(frozen=True)
class Experiment:
    """Configurations that may stand in one scaling figure, the baseline's first. kind: strong or weak."""

    kind: str
    members: tuple

    @property
    def first(self):
        return self.members[0].first

    def gain(self, member):
        """(value, lowest, highest) of a configuration's speed-up over the baseline's mean; with weak scaling of the rate of each of its processes."""
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

    left_out: names of runs with results that were not asked for. conversions: rows of converted checkpoints, as `checkpoint.matrix` has
    them. jobs: name of a run → page of its own. charges: name → (core-hours charged, what says so). advice: layouts of each workload, rows of `advice.csv`. tables: CSV files that benchmarks left,
    as a link on the page reaches them. studies: a Part of the page. series: name of a run → number of its colour, as `series_of` has it.
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
    charts: dict = field(default_factory=dict, init=False)  # those that `figures.chart` has made

    @functools.cached_property
    def done(self):
        return [record for record in self.records if record.done]


def series_of(runs, table=()):
    """Name of a run → number of its kind, which decides its colour. runs: name → Run; table: Runs whose kinds have the first colours."""
    kinds = list(dict.fromkeys(map(kind_of_run, (*table, *runs.values()))))
    return {name: kinds.index(kind_of_run(run)) for name, run in runs.items()}


def build_report(records, title, table=(), **others):
    """A Report of `records`. table: the Runs of the run table, whose kinds have the first colours on every page; others: as in Report."""
    by_name = {record.name: record for record in records}
    runs = {record.name: record.run for record in records if record.run is not None}
    comparisons = {name: compare(by_name[name], by_name.get(run.baseline)) for name, run in runs.items()}

    def repetition(record):
        """Figures may be averaged of the same configuration and reference, or reason not to be compared."""
        return configuration(record), comparisons[record.name].reason or configuration(by_name[record.run.baseline])

    alike = grouped((record for record in records if record.done), repetition)
    members = tuple(Member(tuple(group)) for group in alike.values())
    experiments = tuple(_experiments(members, by_name, comparisons))
    return Report(title, tuple(records), comparisons, members, experiments, series=series_of(runs, table), **others)


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
                yield Experiment(kind, (head, *others))


def grouped(items, key):
    """key(item) → its items, in the order in which keys first come."""
    groups = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
