"""Calibration: what short probe jobs and finished runs say about a machine's prices.

`results/calibration/<site>.json` holds observations, nothing derived: {schema_version, site, observations: [{source:
"probe" | "run", run, settings, vocabulary, step_seconds, phases, startup_seconds, peak_memory_bytes}]}. Prices are fitted
anew whenever a plan is made, so that every further record refines them.
"""

import dataclasses
import statistics
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

from parascale.families.sizes import model_sizes
from parascale.files import read_json, read_json_lines, write_json
from parascale.plan.memory import OPTIMIZER_COPIES, peak_memory, total
from parascale.plan.time import COMPUTING, NAMES, Rates, step_work
from parascale.settings import identity, run_from_dict

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
    save_seconds: float | None = None
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

    def basis(self, run):
        """What the Rates for a run rest on: `history` of finished runs of its workload, a `probe`, or the `formula` alone.

        What was seen of other workloads is a probe of the machine; what was seen in other precisions is nothing.
        """
        return self._seen(run)[1]

    def _seen(self, run):
        """(the observations that speak of a run, their basis): those of its workload in its precision, else those of others in it.

        Looked up once for a workload and precision: plans of thousands of runs ask for each.
        """
        wanted = "seen", run.workload.name, run.precision
        if wanted not in self._found:
            seen = [o for o in self.observations if o.resolved.precision == run.precision]
            own = [o for o in seen if o.resolved.workload.name == run.workload.name]
            basis = "history" if any(o.source == "run" for o in own) else "probe" if seen else "formula"
            self._found[wanted] = own or seen, basis
        return self._found[wanted]

    def same(self, run):
        """Median seconds (a step, beside the steps) of finished runs that differ from `run` in name and seed alone, or None."""
        seen = self._finished.get(identity.speed_of(run))
        if seen is None:
            return None
        return statistics.median(o.step_seconds for o in seen), statistics.median(o.extra_seconds for o in seen)

    @cached_property
    def _finished(self):
        """What decides a run's speed → the observations of finished runs like it."""
        groups = defaultdict(list)
        for observation in self.observations:
            if observation.source == "run":
                groups[identity.speed_of(observation.resolved)].append(observation)
        return dict(groups)

    @cached_property
    def _found(self):
        """What was worked out before: plans ask for it with every run."""
        return {}

    def measured(self, site):
        """`site` with what it assumes of start-up, saving and, on CPUs, constant memory replaced by what probes showed."""
        if "assumed" not in self._found:
            self._found["assumed"] = dataclasses.replace(site.assumed, **self._constants(site))
        return dataclasses.replace(site, assumed=self._found["assumed"])

    def _constants(self, site):
        """{what is assumed: median of what was observed}, as far as it was."""
        starts, saves, constants = [], [], []
        for observation in self.observations:
            run, vocabulary = observation.resolved, observation.vocabulary
            if observation.startup_seconds is not None:
                starts.append(observation.startup_seconds / site.crowding(run.layout.processes_per_node))
            size = saved_bytes(run, vocabulary)
            if observation.save_seconds and size is not None:
                saves.append(size / observation.save_seconds / 1e9)
            # Of a GPU the record knows what torch allocated. NVML's figure has what torch keeps in reserve in it as well, so
            # that what libraries and communicators take stays assumed.
            tensors = peak_memory(run, vocabulary, site.device) if site.device == "cpu" else None
            if tensors is not None and observation.peak_memory_bytes is not None:
                constants.append(max(0, observation.peak_memory_bytes - total(tensors)) / 1e9)
        lists = {"startup_seconds": starts, "save_gigabytes_per_second": saves, "library_gigabytes": constants}
        return {name: statistics.median(values) for name, values in lists.items() if values}

    def rates(self, site, run):
        """The Rates of `site` for a run: fitted to what was observed of its workload, else of others, in its precision.

        Where nothing was, the formula's; None where that is not known either.
        """
        wanted = "rates", run.workload.name, run.precision
        if wanted not in self._found:
            prior = formula_rates(site, run.precision)
            seen = self._seen(run)[0] if prior else []
            equations = [row for observation in seen for row in _equations(observation, site)]
            self._found[wanted] = fit(prior, equations) if equations else prior
        return self._found[wanted]


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
        samples=assumed.sample_microseconds / 1e6,
        flops=1 / flops,
        contended_flops=assumed.contention / flops,
        passes=assumed.pass_microseconds / 1e6,
        split_passes=assumed.split_pass_microseconds / 1e6,
        shard_passes=assumed.shard_pass_microseconds / 1e6,
        optimizer_elements=7 * 4 / memory,
        node_bytes=1 / (site.node_link.gigabytes_per_second * 1e9),
        node_messages=site.node_link.microseconds / 1e6,
        network_bytes=1 / (site.network_link.gigabytes_per_second * 1e9),
        network_messages=site.network_link.microseconds / 1e6,
    )


def fit(prior, equations):
    """The Rates that explain the observed seconds best, held near `prior` where observations say nothing.

    equations: list of ({price: amount}, seconds). Least squares of the relative errors over the prices' factors x:
    minimise Σ (Σ amount·prior·x / seconds − 1)² + TRUST·Σ (x / common − 1)², by coordinate descent, x ≥ SMALLEST·common.
    common is the factor by which the prior is off as a whole, so that a slow machine is slow in all it does.
    """
    rows = [
        [amounts.get(name, 0.0) * getattr(prior, name) / seconds for name in NAMES]
        for amounts, seconds in equations
        if seconds > 0
    ]
    common = statistics.median(1 / sum(row) for row in rows if sum(row) > 0)
    # The normal equations: however many rows, a round takes as long. In units of the common factor, so that trust means
    # the same on a fast and on a slow machine.
    count = range(len(NAMES))
    products = [[common**2 * sum(row[i] * row[j] for row in rows) for j in count] for i in count]
    sums = [common * sum(row[i] for row in rows) for i in count]
    factors = [1.0] * len(NAMES)
    for _ in range(ROUNDS):
        for i in count:
            rest = sum(products[i][j] * factors[j] for j in count if j != i)
            factors[i] = max(SMALLEST, (sums[i] - rest + TRUST) / (products[i][i] + TRUST))
    return Rates(**{name: getattr(prior, name) * common * factor for name, factor in zip(NAMES, factors, strict=True)})


def _equations(observation, site):
    """Sums of prices that an observed run says the seconds of: phases where one process did all, else the whole step."""
    run = observation.resolved
    sizes = model_sizes(run.workload.model, observation.vocabulary, *run.workload.sizes)
    if sizes is None:
        return []
    work = step_work(run, sizes, site.device)
    shared = Rates(**dict.fromkeys(NAMES, 1.0)).shared(site, run.layout.processes_per_node)
    amounts = {name: getattr(work, name) * getattr(shared, name) for name in NAMES}
    crowding = site.crowding(run.layout.processes_per_node)
    for name in COMPUTING:
        amounts[name] *= max(1 + work.bubble, work.balance * crowding) / crowding
    if run.layout.world_size > 1:
        return [(amounts, observation.step_seconds)]
    phases = observation.phases
    groups = (
        (COMPUTING, phases.get("forward", 0.0) + phases.get("backward", 0.0)),
        (("optimizer_elements",), phases.get("optimizer", 0.0)),
        (("samples",), phases.get("data", 0.0)),
        (("steps",), phases.get("communication", 0.0) + phases.get("other", 0.0)),
    )
    return [({name: amounts[name] for name in names}, seconds) for names, seconds in groups if seconds > 0]


def saved_bytes(run, vocabulary):
    """Bytes of a resumable checkpoint: fp32 weights and the optimizer's copies of them; None where shapes are unknown."""
    sizes = model_sizes(run.workload.model, vocabulary, *run.workload.sizes)
    return None if sizes is None else 4 * sizes.count * (1 + OPTIMIZER_COPIES[run.workload.optim.name])


def observe_probe(folder):
    """The Observation in a probe's folder, from its single steps: medians, the first ones left out."""
    lines = read_json_lines(folder / "steps.jsonl")
    saves = [line["checkpoint_seconds"] for line in lines if "checkpoint_seconds" in line]
    beside = sum(line.get("evaluation_seconds", 0.0) for line in lines) + sum(saves)
    whole = observe_run(folder)
    lines = lines[WARM_UP:] or lines
    names = sorted({name for line in lines for name in line["seconds"] if name != "total"})
    return dataclasses.replace(
        whole,
        source="probe",
        startup_seconds=max(0.0, whole.extra_seconds - beside),
        save_seconds=statistics.median(saves) if saves else None,
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


def site_name(folder):
    """Where the run in a folder ran."""
    return read_json(folder / "run.json")["site"]["name"]


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


def known(paths, site):
    """The Calibration of a site (a name): what its probes said, and its finished runs."""
    probed = load(paths.calibration(site), site)
    here = [_observed(path.parent, site) for path in sorted(paths.run("").glob("*/summary.json"))]
    return dataclasses.replace(probed, observations=(*probed.observations, *filter(None, here)))


def _observed(folder, site):
    """The Observation of a finished run; None for one of another site.

    None as well for a damaged record: it must not keep others from running, teaches nothing, and the report names it.
    """
    try:
        return observe_run(folder) if site_name(folder) == site else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
