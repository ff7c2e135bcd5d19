"""Calibration: what short probe jobs and finished runs say about a machine's prices.

`results/calibration/<site>.json` holds observations, nothing derived: {schema_version, site, observations: [{source:
"probe" | "run", run, settings, vocabulary, step_seconds, phases, startup_seconds, peak_memory_bytes}]}. Prices are fitted
anew whenever a plan is made, so that every further record refines them.
"""

import dataclasses
import statistics
from dataclasses import dataclass
from functools import cached_property

from parascale.config import run_from_dict
from parascale.files import read_json, read_json_lines, write_json
from parascale.plan.shapes import model_sizes
from parascale.plan.time import Rates, step_work

SCHEMA_VERSION = 1
WARM_UP = 5  # first steps that are left out: allocators, caches and compilers settle
TRUST = 0.002  # weight of the formula's prices against one observation's equation
ROUNDS = 400
SMALLEST = 0.02  # a price never falls below this part of the others' common factor


@dataclass(frozen=True)
class Observation:
    """How one run went: seconds a step and by phase, before the first step, and (extra) beside all training steps."""

    source: str
    run: str
    settings: dict
    vocabulary: int
    step_seconds: float
    phases: dict
    startup_seconds: float | None = None
    extra_seconds: float | None = None
    peak_memory_bytes: int | None = None

    @cached_property
    def resolved(self):
        """The Run that was observed."""
        return run_from_dict(self.settings)


@dataclass(frozen=True)
class Calibration:
    """All observations of a site."""

    site: str
    observations: tuple = ()

    @property
    def basis(self):
        """What a prediction for an unseen run rests on: formula, probe or history."""
        sources = {observation.source for observation in self.observations}
        return "history" if "run" in sources else "probe" if sources else "formula"

    def same(self, run):
        """Median seconds (a step, beside the steps) of finished runs that differ from `run` in name and seed alone, or None."""
        wanted = _signature(run)
        seen = [o for o in self.observations if o.source == "run" and _signature(o.resolved) == wanted]
        if not seen:
            return None
        return statistics.median(o.step_seconds for o in seen), statistics.median(o.extra_seconds for o in seen)

    def startup_seconds(self, site):
        """From a job's start to its first step."""
        seen = [o.startup_seconds for o in self.observations if o.startup_seconds is not None]
        return statistics.median(seen) if seen else site.assumed.startup_seconds

    def rates(self, site, precision):
        """The Rates of `site`: the formula's, or fitted where runs of this precision were observed."""
        prior = formula_rates(site, precision)
        if prior is None:
            return None
        seen = [o for o in self.observations if o.resolved.precision == precision]
        return fit(prior, [row for o in seen for row in _equations(o, site)]) if seen else prior


def formula_rates(site, precision):
    """Rates from a site's data sheet and what it assumes; None where no peak rate is known for the precision.

    AdamW reads weight, gradient and two moments and writes three of them: 7 × 4 bytes an element.
    """
    assumed = site.assumed
    if site.device == "cuda":
        if precision not in site.peak_tflops or site.memory_gigabytes_per_second is None:
            return None
        flops = site.peak_tflops[precision] * 1e12 * assumed.efficiency
        memory = site.memory_gigabytes_per_second * 1e9
    else:
        flops = assumed.core_gigaflops * 1e9 / (2 if precision == "fp64" else 1)
        memory = assumed.core_gigabytes_per_second * 1e9
    return Rates(
        steps=assumed.step_milliseconds / 1e3,
        flops=1 / flops,
        passes=assumed.pass_microseconds / 1e6,
        optimizer_elements=7 * 4 / memory,
        node_bytes=1 / (site.node_link.gigabytes_per_second * 1e9),
        node_messages=site.node_link.microseconds / 1e6,
        network_bytes=1 / (site.network_link.gigabytes_per_second * 1e9),
        network_messages=site.network_link.microseconds / 1e6,
    )


def fit(prior, equations):
    """The Rates that explain the observed seconds best, held near `prior` where observations say nothing.

    equations: list of ({price: amount}, seconds). Least squares of the relative errors over the prices' factors x:
    minimise Σ (Σ amount·prior·x / seconds − 1)² + TRUST·Σ (x − common)², by coordinate descent, x ≥ SMALLEST·common.
    common is the factor by which the prior is off as a whole, so that a slow machine is slow in all it does.
    """
    names = [item.name for item in dataclasses.fields(Rates)]
    rows = [
        [amounts.get(name, 0.0) * getattr(prior, name) / seconds for name in names]
        for amounts, seconds in equations
        if seconds > 0
    ]
    common = statistics.median(1 / sum(row) for row in rows if sum(row) > 0)
    factors = [common] * len(names)
    # In units of the common factor, so that trust means the same on a fast and on a slow machine.
    for _ in range(ROUNDS):
        for index in range(len(names)):
            others = [
                sum(a * x for a, x in zip(row, factors, strict=True)) - row[index] * factors[index] for row in rows
            ]
            numerator = sum(row[index] * (1 - rest) for row, rest in zip(rows, others, strict=True)) + TRUST / common
            denominator = sum(row[index] ** 2 for row in rows) + TRUST / common**2
            factors[index] = max(SMALLEST * common, numerator / denominator)
    return Rates(**{name: getattr(prior, name) * factor for name, factor in zip(names, factors, strict=True)})


def _equations(observation, site):
    """Sums of prices that an observed run says the seconds of: phases where one process did all, else the whole step."""
    run = observation.resolved
    sizes = model_sizes(run.workload.model, observation.vocabulary, *run.workload.sizes)
    if sizes is None:
        return []
    work = step_work(run, sizes, observation.vocabulary, site.device)
    unit = Rates(**{item.name: 1.0 for item in dataclasses.fields(Rates)})
    shared = unit.shared(site, run.layout.processes_per_node)
    amounts = {item.name: getattr(work, item.name) * getattr(shared, item.name) for item in dataclasses.fields(Rates)}
    for name in ("flops", "passes"):
        amounts[name] *= 1 + work.bubble
    if run.layout.world_size > 1:
        return [(amounts, observation.step_seconds)]
    phases = observation.phases
    groups = (
        (("flops", "passes"), phases.get("forward", 0.0) + phases.get("backward", 0.0)),
        (("optimizer_elements",), phases.get("optimizer", 0.0)),
        (("steps",), phases.get("data", 0.0) + phases.get("communication", 0.0) + phases.get("other", 0.0)),
    )
    return [({name: amounts[name] for name in names}, seconds) for names, seconds in groups if seconds > 0]


def store(results, site_name):
    """The file that holds a site's calibration."""
    return results / "calibration" / f"{site_name}.json"


def observe_probe(folder):
    """The Observation in a probe's folder, from its single steps: medians, the first ones left out."""
    lines = read_json_lines(folder / "steps.jsonl")
    beside = sum(line.get("evaluation_seconds", 0.0) + line.get("checkpoint_seconds", 0.0) for line in lines)
    whole = observe_run(folder)
    lines = lines[WARM_UP:] or lines
    names = sorted({name for line in lines for name in line["seconds"] if name != "total"})
    return dataclasses.replace(
        whole,
        source="probe",
        startup_seconds=max(0.0, whole.extra_seconds - beside),
        step_seconds=statistics.median(line["seconds"]["total"] for line in lines),
        phases={name: statistics.median(line["seconds"].get(name, 0.0) for line in lines) for name in names},
    )


def observe_run(folder):
    """The Observation in a finished run's folder, from its sums: a plan over thousands of runs reads no single step."""
    described, summary = read_json(folder / "run.json"), read_json(folder / "summary.json")
    return Observation(
        source="run",
        run=described["run"],
        settings=described["settings"],
        vocabulary=described["vocabulary"],
        step_seconds=summary["seconds"] / summary["steps"],
        phases={name: seconds / summary["steps"] for name, seconds in summary["phases"].items() if seconds is not None},
        extra_seconds=summary["wall_seconds"] - summary["seconds"],
        peak_memory_bytes=summary.get("peak_memory_bytes"),
    )


def save(calibration, path):
    """Write a Calibration to its file."""
    observations = [dataclasses.asdict(observation) for observation in calibration.observations]
    write_json(path, {"schema_version": SCHEMA_VERSION, "site": calibration.site, "observations": observations})


def load(path, site_name):
    """The Calibration in a file; without the file one that has observed nothing."""
    if not path.is_file():
        return Calibration(site_name)
    values = read_json(path)
    return Calibration(values["site"], tuple(Observation(**entry) for entry in values["observations"]))


def with_runs(calibration, results):
    """`calibration` and the finished runs of this site below `results/runs`."""
    folders = [path.parent for path in sorted((results / "runs").glob("*/summary.json"))]
    here = [folder for folder in folders if read_json(folder / "run.json")["site"]["name"] == calibration.site]
    return dataclasses.replace(calibration, observations=(*calibration.observations, *map(observe_run, here)))


def _signature(run):
    """What decides a run's speed: everything but its name, seed and baseline."""
    plain = dataclasses.replace(run, run="", seed=0, baseline=None, init_from=None)
    return repr(plain)
