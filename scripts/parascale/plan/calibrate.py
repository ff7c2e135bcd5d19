"""Calibration: measure a machine's prices from short probe jobs and finished runs.

`results/calibration/<site>.json` holds only raw measurements of probes: {schema_version, site, observations: [the fields of an
Observation]}. Finished runs are read from their records. Each plan fits the prices again, so every new record refines them.
"""

import dataclasses
import itertools
import math
import statistics
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from parascale.families import model_sizes
from parascale.files import read_json, write_json
from parascale.paths import Paths, RunFolder
from parascale.plan.memory import peak_memory, saved_bytes, total
from parascale.plan.predict import (
    DataFacts,
    Known,
    Prediction,
    beside_seconds,
    expected_facts,
    formula_error,
    predict,
    run_steps,
)
from parascale.plan.time import as_measured, formula_rates, forward_seconds
from parascale.plan.work import link_of, step_work
from parascale.settings import Layout, Run, Site, identity, run_from_dict
from parascale.store.keys import code_of_run

SCHEMA_VERSION = 1
WARM_UP = 5  # first steps are left out while allocators, caches and compilers settle
OWN, OTHERS = 0.05, 0.2  # log standard deviation of an observed step of the same workload, of another one
MOST = 64  # runs that a fit uses; thousands would give the same result
HISTORY_ERROR = 0.05  # lower bound on the log standard deviation of a run like finished ones


@dataclass(frozen=True)
class Observation:
    """Measurements of one run: seconds per step and per phase, before the first step, and (`extra`) outside all training steps."""

    source: str
    run: str
    settings: dict
    vocabulary: int | None  # None for a user's own script
    step_seconds: float
    phases: dict
    startup_seconds: float | None = None
    extra_seconds: float | None = None
    save_seconds: float | None = None
    peak_memory_bytes: int | None = None
    code: str | None = None  # digest of the run's code

    @cached_property
    def resolved(self) -> Run:
        return run_from_dict(self.settings)


@dataclass(frozen=True)
class Calibration:
    """All observations of a site. machine: measured speed of its processors (`parascale.train.processors`).

    reading: {(dataset, decoder, side): core-seconds to read and decode an image}, measured by the target `loaders`.
    """

    site: str
    observations: tuple = ()
    machine: dict | None = field(default=None, hash=False)
    reading: dict = field(default_factory=dict, hash=False)
    _found: dict = field(default_factory=dict, init=False, repr=False, compare=False)  # cache

    def basis(self, run: Run) -> str:
        """The basis of a run's price.

        `history`: finished runs that differ only in name and seed. `probe`: runs of its workload in its precision that cover each of
        its kinds of parallelism over the same link. `fit`: other runs on this machine. `formula`: no observations.
        """
        if self.same(run):
            return "history"
        own, others = self._seen(run)
        if not (own or others):
            return "formula"
        known = {kind for observation in own for kind in _kinds(observation.resolved.layout)}
        return "probe" if own and known >= _kinds(run.layout) else "fit"

    def _seen(self, run: Run) -> Any:
        """(observations of the same workload, observations of others), both with the precision, determinism and compiling of `run`.

        Cached, because a plan asks for each of thousands of runs.
        """
        wanted = "seen", run.workload.name, *computes(run)
        if wanted not in self._found:
            own: list[Observation] = []
            others: list[Observation] = []
            self._found[wanted] = own, others
            for seen in self._different:
                if computes(seen.resolved) == computes(run):
                    (own if seen.resolved.workload.name == run.workload.name else others).append(seen)
        return self._found[wanted]

    @property
    def _ours(self) -> list[Observation]:
        """The observations that formulas describe: all but those of scripts."""
        return [each for each in self.observations if each.vocabulary is not None]

    @cached_property
    def _different(self) -> list[Observation]:
        """One observation for each set of runs with the same speed settings, with the median of their step times."""
        groups = _equally_fast(self._ours).values()
        steps = [statistics.median(each.step_seconds for each in group) for group in groups]
        return [dataclasses.replace(group[0], step_seconds=step) for group, step in zip(groups, steps, strict=True)]

    def same(self, run: Run) -> Any:
        """Median (seconds per step, seconds outside the steps) of finished runs that differ from `run` only in name and seed, or None."""
        if not (seen := self._like(run)):
            return None
        return statistics.median(o.step_seconds for o in seen), statistics.median(o.extra_seconds for o in seen)

    def _scatter(self, run: Run, steps: int | None) -> float:
        """Standard deviation of the logarithm of the wall time of finished runs like `run`, scaled to `steps` steps."""
        walls = [math.log((steps or 1) * each.step_seconds + each.extra_seconds) for each in self._like(run)]
        return max(HISTORY_ERROR, statistics.stdev(walls)) if len(walls) > 1 else HISTORY_ERROR

    def peak(self, run: Run) -> int | None:
        """The most bytes that a rank of finished runs like `run` needed, or None."""
        return max((each.peak_memory_bytes for each in self._like(run) if each.peak_memory_bytes), default=None)

    def _like(self, run: Run) -> Any:
        """The observations of `_finished` with the speed settings of `run`; for a script, those of its current code."""
        if not self._finished:
            return ()
        return self._finished.get(_speed_of(run, run.workload.is_script and code_of_run(run)), ())

    @property
    def trained(self) -> list[Run]:
        """A Run for each set of finished runs with the same speed settings."""
        return [observations[0].resolved for observations in self._finished.values()]

    @cached_property
    def _finished(self) -> dict[Any, Any]:
        """Speed settings → observations of finished runs and of the probes of scripts, which may have any length."""
        return _equally_fast(each for each in self.observations if each.source == "run" or each.vocabulary is None)

    def measured(self, site: Site) -> Site:
        """`site` with its assumptions on start-up, saving and, on CPUs, constant memory replaced by measured values."""
        if "assumed" not in self._found:
            constants = self._constants(site)
            self._found["assumed"] = constants and dataclasses.replace(site.assumed, **constants)
        if self._found["assumed"]:
            site = dataclasses.replace(site, assumed=self._found["assumed"])
        return as_measured(site, self.machine) if self.machine and site.device == "cpu" else site

    def _constants(self, site: Site) -> dict[str, float]:
        """{name of an assumption: median of its observed values}, for those that were observed."""
        starts, saves, constants = [], [], []
        for observation in self._ours:
            run, vocabulary = observation.resolved, observation.vocabulary
            if observation.startup_seconds is not None:
                starts.append(observation.startup_seconds / site.startup_factor(run.layout))
            size = saved_bytes(run, vocabulary)
            if observation.save_seconds and size is not None:
                saves.append(size / observation.save_seconds / 1e9 / site.effective_layout(run.layout).nodes)
            # On GPUs the memory of libraries and communicators stays an assumption: the record has only what torch allocated, and
            # NVML's figure includes torch's reserve.
            tensors = peak_memory(run, vocabulary, site.device) if site.device == "cpu" else None
            if tensors is not None and observation.peak_memory_bytes is not None:
                constants.append(max(0, observation.peak_memory_bytes - total(tensors)) / 1e9)
        lists = {"startup_seconds": starts, "save_gigabytes_per_second": saves, "library_gigabytes": constants}
        return {name: statistics.median(values) for name, values in lists.items() if values}

    def rates(self, site: Site, run: Run, sample_bytes: float = 0) -> Any:
        """(Rates of `site` for a run, or None if its data sheet lacks the peak rate; the Fitted that they come from, or None)."""
        wanted = "rates", run.workload.name, *computes(run)
        if wanted not in self._found:
            self._found[wanted] = self._fitted(site, run, sample_bytes)
        return self._found[wanted]

    def _fitted(self, site: Site, run: Run, sample_bytes: float) -> Any:
        prior, training = formula_rates(site, run.precision, sample_bytes), run.workload.training
        if prior and run.workload.of_images:
            read = self.reading.get((run.workload.data.dataset, training.decoder, training.image_size))
            prior = dataclasses.replace(prior, samples=read or prior.samples)
        own, others = self._seen(run)
        seen = [_seen_step(each, site, OWN) for each in own[-MOST:]]
        seen += [_seen_step(each, site, OTHERS) for each in others[-MOST:]] if len(own) < MOST else []
        seen = [each for each in seen if each is not None]
        if prior is None or not seen:
            return prior, None
        from parascale.plan.fit import fit  # needs NumPy, which a plan without observations does not

        fitted = fit(prior, seen, site, stated=site.device == "cuda" or self.machine is not None)
        return fitted.rates, fitted

    def predict(self, run: Run, site: Site, facts: DataFacts | None = None, remedy: bool = True) -> Prediction:
        """The Prediction for `run` at `site` from these observations."""
        facts, site = facts or expected_facts(run), self.measured(site)
        return predict(run, site, facts, remedy, self.of(run, site, facts))

    def of(self, run: Run, site: Site, facts: DataFacts) -> Known:
        """What is known of a run's prices at a site that went through `measured`.

        The scatter of finished runs and the residuals of a fit are errors of a single run (`own`). Errors of prices are the same for
        all runs on the machine (`shared`).
        """
        seen, basis = self.same(run), self.basis(run)
        if run.workload.is_script:
            workload: Any = run.workload
            if seen is None:  # a probe may have any length
                run = dataclasses.replace(run, workload=dataclasses.replace(workload, steps=None))
                seen, basis = self.same(run), "probe"
            return Known(basis, own=self._scatter(run, workload.steps), seen=seen)
        rates, fitted = self.rates(site, run, facts.sample_bytes)
        if seen:
            return Known(basis, rates, self._scatter(run, run_steps(run, facts)), seen=seen)
        beside = 1.0 if rates is None else self._beside(run, site, facts)
        if fitted is None:
            return Known(basis, rates, shared=formula_error(site.device, run.layout.world_size), beside=beside)
        off = fitted.misfit * (OWN if basis == "probe" else OTHERS)
        return Known(basis, rates, off, fitted=fitted, beside=beside)

    def _beside(self, run: Run, site: Site, facts: DataFacts) -> float:
        """Median ratio of measured to predicted seconds outside the steps, over finished runs of the same workload; 1 without such runs."""
        wanted = "beside", run.workload.name
        if wanted not in self._found:
            finished = itertools.chain(*self._finished.values())
            seen = [each for each in finished if each.resolved.workload.name == run.workload.name]
            ratios = [each.extra_seconds / said for each in seen if (said := self._beside_of(each, site, facts))]
            self._found[wanted] = statistics.median(ratios) if ratios else 1.0
        return self._found[wanted]

    def _beside_of(self, seen: Observation, site: Site, facts: DataFacts) -> float | None:
        """Seconds outside the steps that formulas predict for an observed run; None if they do not cover it."""
        run, facts = seen.resolved, dataclasses.replace(facts, vocabulary=seen.vocabulary)
        sizes = model_sizes(run.workload.model, seen.vocabulary, *run.workload.sizes)
        (rates, _), steps = self.rates(site, run, facts.sample_bytes), run_steps(run, facts)
        if sizes is None or rates is None or steps is None:
            return None
        evaluation = forward_seconds(step_work(run, sizes, site), rates, site)
        return sum(beside_seconds(run, site, facts, steps, steps * seen.step_seconds, evaluation).values())


def _speed_of(run: Run, code: Any) -> tuple[Any, ...]:
    """The settings that decide a run's speed; for a script also its `code`, as no formula describes it."""
    return identity.speed_of(run), code if run.workload.is_script else None


def _equally_fast(observations: Any) -> dict[Any, list[Observation]]:
    """Group observations by the settings that decide a run's speed."""
    groups = defaultdict(list)
    for each in observations:
        groups[_speed_of(each.resolved, each.code)].append(each)
    return dict(groups)


def computes(run: Run) -> tuple[Any, ...]:
    """The settings that decide how fast a run does its work."""
    return run.precision, run.deterministic, run.layout.compile


def _kinds(layout: Layout) -> set[tuple[str, str]]:
    """{(axis, link)} of a layout: each kind of parallelism, and the link it communicates over."""
    return {(axis, link_of(layout, axis)) for axis in layout.dimensions}


def _seen_step(observation: Observation, site: Site, deviation: float) -> Any | None:
    """The ObservedStep of a run: by phase if one CPU process did everything, else the whole step. None without a formula."""
    run, phases = observation.resolved, observation.phases
    sizes = model_sizes(run.workload.model, observation.vocabulary, *run.workload.sizes)
    if sizes is None or not observation.step_seconds:
        return None
    seconds = {"step": observation.step_seconds}
    if run.layout.world_size == 1 and site.device == "cpu":
        computing = phases.get("forward", 0.0) + phases.get("backward", 0.0)
        found = {"compute": computing, "optimizer": phases.get("optimizer", 0.0), "data": phases.get("data", 0.0)}
        rest = observation.step_seconds - sum(found.values())
        seconds = {name: value for name, value in {**found, "other": rest}.items() if value > 0}
    from parascale.plan.fit import ObservedStep

    return ObservedStep(step_work(run, sizes, site), seconds, deviation)


def observe_probe(folder: Path) -> Observation | None:
    """The Observation of a probe, from medians of its single steps after WARM_UP. None if a script recorded no steps."""
    lines, whole = RunFolder(folder).read_steps(), observe_run(folder)
    if len(lines) < 2:
        return None
    saves = [line["checkpoint_seconds"] for line in lines if "checkpoint_seconds" in line]
    beside = sum(line.get("evaluation_seconds", 0.0) for line in lines) + sum(saves)
    every = (lines[-1]["step"] - lines[0]["step"]) / (len(lines) - 1)  # a script may record every tenth step
    lines, workload = lines[WARM_UP:] or lines[1:], whole.settings["workload"]
    step = statistics.median(line["seconds"]["total"] for line in lines) / every
    if whole.vocabulary is None:
        workload = workload | {"steps": None}
    names = sorted({name for line in lines for name in line["seconds"] if name != "total"})
    extra = whole.extra_seconds + whole.resolved.workload.training.steps * (whole.step_seconds - step)
    return dataclasses.replace(
        whole,
        source="probe",
        settings=whole.settings | {"workload": workload},
        startup_seconds=max(0.0, whole.extra_seconds - beside),
        save_seconds=statistics.median(saves) if saves else None,
        step_seconds=step,
        extra_seconds=max(0.0, extra),
        phases={name: statistics.median(line["seconds"].get(name, 0.0) for line in lines) for name in names},
    )


def observe_run(folder: Path) -> Observation:
    """The Observation of a finished run, from its totals only, because a plan may read thousands of runs."""
    described, summary = RunFolder(folder).read_results()
    # A script may record every tenth step, or none.
    steps = summary["steps"] if described["vocabulary"] else described["steps"] or 1
    return Observation(
        source="run",
        run=described["run"],
        settings=described["settings"],
        vocabulary=described["vocabulary"],
        step_seconds=summary["seconds"] / steps,
        phases={name: seconds / steps for name, seconds in summary["phases"].items() if seconds is not None},
        extra_seconds=summary["wall_seconds"] - summary["seconds"],
        peak_memory_bytes=summary.get("peak_memory_bytes"),
        code=described.get("code_digest"),
    )


def site_name(folder: Path) -> str:
    return read_json(RunFolder(folder).record)["site"]["name"]


def save(calibration: Calibration, path: Path) -> None:
    observations = [dataclasses.asdict(observation) for observation in calibration.observations]
    write_json(path, {"schema_version": SCHEMA_VERSION, "site": calibration.site, "observations": observations})


def load(path: Path, site_name: str) -> Calibration:
    """The Calibration in a file; an empty one if there is no file."""
    if not path.is_file():
        return Calibration(site_name)
    values = read_json(path)
    return Calibration(values["site"], tuple(Observation(**entry) for entry in values["observations"]))


def known(paths: Paths, site: str) -> Calibration:
    """The Calibration of a site (a name), from its probes and its finished runs."""
    probed, machine = load(paths.calibration(site), site), paths.machine(site)
    here = [_observed(path.parent, site) for path in sorted(paths.run("").glob("*/summary.json"))]
    return dataclasses.replace(
        probed,
        observations=(*probed.observations, *filter(None, here)),
        machine=read_json(machine) if machine.is_file() else None,
        reading=_read(paths.results / "loaders", site),
    )


def _read(folder: Path, site: str) -> dict[Any, float]:
    """{(dataset, decoder, side in pixels): core-seconds per image} from the readers' tables in a folder, except damaged ones."""
    found = {}
    for path in folder.glob("*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            facts = read_json(path)
            if facts["site"] == site:
                found[facts["dataset"], *facts["read"]] = facts["core_seconds"]
    return found


def _observed(folder: Path, site: str) -> Observation | None:
    """The Observation of a finished run; None if it ran at another site.

    Also None if its record is damaged: that must not stop other runs, and the report names it.
    """
    try:
        return observe_run(folder) if site_name(folder) == site else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
