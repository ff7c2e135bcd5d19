"""Hours of jobs: expected wall time, the node-, GPU- and core-hours charged for it, and totals over jobs."""

import bisect
import graphlib
import heapq
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any, NamedTuple, Self

# Quantiles of the normal distribution: a price lies between low and high in 80 of 100 cases, below its limit in 95.
RANGE, LIMIT = 1.2816, 1.6449
UNITS = {"node_hours": "nodes", "gpu_hours": "gpus", "core_hours": "charged"}  # attributes of a Job: charge per hour


class Part(NamedTuple):
    """A part of a price: its mean, and the log standard deviations of its own and its shared error.

    The own error is independent of all other prices. The shared error is the same for all jobs: a wrong rate of the machine shifts
    each of them in the same direction.

    `value` is the mean over the own error, because means add up and medians do not: many jobs together cost more than the sum of
    their medians. It is the median over the shared error, which does not average out.
    """

    value: float
    own: float = 0.0
    shared: float = 0.0

    def times(self, factor: float) -> Self:
        return self._replace(value=factor * self.value)


def quantile(parts: Any, z: float) -> float:
    """The sum of Parts at `z` standard deviations (not 0) from its median.

    Own errors add in quadrature; the sum is approximated by a log-normal distribution of the same mean and variance (Fenton 1960,
    doi:10.1109/TCOM.1960.1097606). Shared errors have correlation 1 and add linearly (JCGM 100:2008, 5.2.2, note 1): all parts are at
    `z` at once. The result is exact for a single part, and for parts without own errors.
    """
    mean = sum(part.value for part in parts)
    if not mean:
        return 0.0
    own = math.log1p(sum((part.value / mean) ** 2 * math.expm1(part.own**2) for part in parts))
    shared = math.log(sum(part.value / mean * math.exp(z * part.shared) for part in parts)) / z
    return mean * math.exp(z * math.hypot(math.sqrt(own), shared) - own / 2)


def chance_above(parts: Any, limit: float) -> float:
    """The probability, to a thousandth, that the sum of Parts is more than `limit`."""
    deviations = [each / 1000 for each in range(-3999, 4000, 2)]  # odd, because `quantile` excludes 0
    number = bisect.bisect(deviations, limit, key=lambda z: quantile(parts, z))
    return 1 - NormalDist().cdf(deviations[number - 1]) if number else 1.0


@dataclass(frozen=True)
class Job:
    """A job that still has to run, as the workflow describes it; once priced, a row of `plan.json`.

    nodes: 0 for a local rule, which runs where the workflow runs and costs nothing. gpus, cores: on all nodes together.
    limit_hours: None if the job requests no limit. after: ids of jobs it waits for. together: ids of the jobs that share one scheduler
    job with it, itself included, in the order in which they run; empty if it has its own.
    benchmark: Snakemake's benchmark file of the job, or None. kind: what it trains, `run`, `parity` or `probe`; None: nothing.

    charged: cores charged. parts: Parts of the hours of wall time; None: unknown, and `note` says why. worst: hours in the worst case,
    or None. why: reason why a training has to run. repeats: core-hours of the finished training that it replaces.
    assumed: {key of `price.ASSUMPTIONS`: hours that depend on it}.
    """

    id: int
    rule: str
    wildcards: dict
    nodes: int = 1
    gpus: int = 0
    cores: int | None = None
    limit_hours: float | None = None
    attempts: int = 1
    partition: str | None = None
    slots: int = 1
    after: tuple = ()
    together: tuple = ()
    benchmark: str | None = None
    kind: str | None = None
    strategy: str | None = None
    charged: int = 0
    parts: tuple | None = None
    worst: float | None = None
    fits: str | None = None
    basis: str | None = None
    note: str | None = None
    remedy: str | None = None
    why: str | None = None
    repeats: float = 0.0
    assumed: dict = field(default_factory=dict)

    @property
    def run(self) -> str | None:
        return self.wildcards.get("run")

    @property
    def title(self) -> str:
        """The job's name in messages."""
        values = ", ".join(map(str, self.wildcards.values()))
        return f"{self.rule} ({values})" if values else self.rule

    @property
    def gpus_per_node(self) -> int:
        return self.gpus // self.nodes if self.nodes else 0

    @property
    def expected(self) -> float | None:
        """Hours of wall time."""
        return None if self.parts is None else sum((part.value for part in self.parts), 0.0)

    @property
    def core_hours(self) -> float | None:
        """Expected charge in core-hours."""
        return None if self.parts is None else self.charged * self.expected

    def rest(self, left: float) -> Self:
        """This job with only the fraction `left` still to do."""
        return replace(self, parts=tuple(part.times(left) for part in self.parts))

    def as_dict(self) -> dict[str, Any]:
        """The job's row in `plan.json`; None means unknown."""
        row = {name: value for name, value in vars(self).items() if name not in ("charged", "worst")}
        row |= {"run": self.run, "parts": self.parts or (), "hours_expected": self.expected, "hours_worst": self.worst}
        worst = self.worst and self.charged * self.worst
        return row | {"core_hours_expected": self.core_hours, "core_hours_worst": worst}


def grouped(jobs: Iterable[Job], key: Callable[[Job], Any]) -> dict[Any, list[Job]]:
    """Group jobs by `key`, in their order."""
    groups: dict[Any, list[Job]] = {}
    for job in jobs:
        groups.setdefault(key(job), []).append(job)
    return groups


def charges(jobs: Iterable[Job], unit: str = "core_hours") -> list[Part]:
    """Parts of the charges of jobs in one of UNITS; jobs of unknown length are left out."""
    return [part.times(getattr(job, UNITS[unit])) for job in jobs if job.nodes for part in job.parts or ()]


def total(jobs: Collection[Job]) -> dict[str, Any]:
    """Sums over jobs, with an 80 % range. Unknown jobs add nothing and are counted separately."""
    costly = [job for job in jobs if job.nodes]
    known, limited = ([job for job in costly if getattr(job, what) is not None] for what in ("parts", "worst"))
    sums = {
        "jobs": len(jobs),
        "jobs_unknown": len(costly) - len(known),
        "jobs_without_limit": len(costly) - len(limited),
        "hours_expected": sum(job.expected for job in known),
        "hours_worst": sum(job.worst for job in limited),
        "core_hours_worst": sum(job.charged * job.worst for job in limited),
        "core_hours_repeated": sum(job.repeats for job in costly),
    }
    for unit in UNITS:
        parts = charges(known, unit)
        sums[f"{unit}_expected"] = sum(part.value for part in parts)
        sums |= {f"{unit}_{end}": quantile(parts, z) for end, z in (("low", -RANGE), ("high", RANGE))}
    return sums


def wall_hours(jobs: Sequence[Job], capacity: int | None = None) -> float:
    """Hours until the last of `jobs` (uses id, expected, slots, after, together) ends; jobs of unknown length count as 0.

    capacity: slots for running jobs (jobs of a queue, cores of a machine). None: no limit; the result is the longest chain. With a
    limit each job starts as early as possible, in their order (list scheduling: Graham 1969, doi:10.1137/0117039, at most twice the
    optimum).
    """
    numbers = {job.id: number for number, job in enumerate(jobs)}
    waits = {}
    for job in jobs:
        turns = job.together[: job.together.index(job.id)] if job.together else ()
        waits[numbers[job.id]] = {numbers[each] for each in (*job.after, *turns) if each in numbers}
    graph = graphlib.TopologicalSorter(waits)
    graph.prepare()
    slots = [job.slots if capacity is None else min(job.slots, capacity) for job in jobs]
    ready: list[int] = []
    running: list[tuple[float, int]] = []
    now, free = 0.0, math.inf if capacity is None else capacity
    while graph.is_active():
        for number in graph.get_ready():
            heapq.heappush(ready, number)
        while ready and slots[ready[0]] <= free:
            started = heapq.heappop(ready)
            free -= slots[started]
            heapq.heappush(running, (now + (jobs[started].expected or 0.0), started))
        now, ended = heapq.heappop(running)
        free += slots[ended]
        graph.done(ended)
    return now
