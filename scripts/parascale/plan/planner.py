"""Predictions for the runs of a project, cached, and shared by rules, the logger plugin and verbs."""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any

from parascale.errors import ConfigError, DataError, ParascaleError
from parascale.families import model_sizes
from parascale.files import read_json
from parascale.paths import Paths
from parascale.plan import calibrate
from parascale.plan.calibrate import Calibration
from parascale.plan.predict import IMAGE_BYTES, DataFacts, Prediction, expected_facts, predict, run_steps, time_limit
from parascale.plan.probes import probes
from parascale.settings import Run, identity, strict
from parascale.settings.project import Project
from parascale.store.reasons import Reason, Reasons

RECOMPUTED = {False: "recomputation off", "selective": "selective recomputation", True: "recomputation on"}
MANIFEST = "manifest.json"  # of downloaded or prepared data
# Assumed for missing data: an English word with its space, an article with its summary.
TOKEN_BYTES, PAIR_BYTES = 5.0, 2500.0
SEEN = ("train", "validation")  # splits whose size a plan needs
MUCH_SECONDS = 60.0  # measure a machine only if it will train for longer


class Planner:
    """Predict the runs of a project from its calibration and data, which it reads when first needed."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.site = project.site
        self._predictions: dict[Any, Prediction] = {}
        self._workloads: dict[str, DataFacts] = {}
        self._reasons = Reasons(project)

    def unmeasured(self, trainings: Any) -> bool:
        """True if `trainings`, a list of (run, kind), justify 10 to 30 seconds to measure this machine's processors.

        False if the machine was measured or has trained before, and for less than MUCH_SECONDS of training.
        """
        known = self.calibration.machine or self.calibration.observations
        if self.site.device != "cpu" or known:
            return False
        return sum(self.prediction(*training).wall_seconds or 0.0 for training in trainings) > MUCH_SECONDS

    def look_again(self) -> None:
        """Forget predictions and calibration after a measurement."""
        self._predictions.clear()
        self.__dict__.pop("calibration", None)

    @functools.cached_property
    def calibration(self) -> Calibration:
        return calibrate.known(self.project.paths, self.site.name)

    def facts(self, run: Run) -> DataFacts:
        """The DataFacts of a run, cached per workload."""
        if run.workload.name not in self._workloads:
            self._workloads[run.workload.name] = data_facts(run, self.project.paths)
        return self._workloads[run.workload.name]

    def raw_bytes(self, name: str) -> float | None:
        """Bytes of a dataset as downloaded: the size of its files, else an estimate from `data.expected` of its workload, else None."""
        manifest, data = self.project.paths.raw(name) / MANIFEST, self.project.datasets[name]
        if manifest.is_file():
            splits = read_json(manifest).get("splits", {})
            if size := sum(file.get("bytes", 0) for files in splits.values() for file in files):
                return size
        if data.expected_tokens:
            return TOKEN_BYTES * data.expected_tokens
        each = IMAGE_BYTES if name in self.project.image_datasets else PAIR_BYTES
        return each * data.expected.train_samples if data.expected.train_samples else None

    @functools.cached_property
    def _all_probes(self) -> dict[str, Run]:
        """All probes of this run table by name, even those that do not fit into memory."""
        return probes(self.project.right, self.site)

    @functools.cached_property
    def probing(self) -> dict[str, Prediction]:
        """{name: Prediction} of the probes that fit into memory, by formulas alone."""
        found = self._all_probes.items()
        predicted = {name: predict(run, self.site, self.facts(run), remedy=False) for name, run in found}
        return {name: each for name, each in predicted.items() if each.fits not in ("risky", "does not fit")}

    @functools.cached_property
    def probes(self) -> dict[str, Run]:
        """The probes of this run table that fit into memory, by name."""
        return {name: self._all_probes[name] for name in self.probing}

    def run(self, name: str, kind: str = "run") -> Run:
        """The run or study point `name`, its `parity` run, or a `probe`. Raises ConfigError with the nearest name if there is none."""
        where = self.project.config.runs
        known = self._all_probes if kind == "probe" else self.project.runs
        if kind == "run" and name in self.project.points:
            return self.project.points[name]
        if name not in known:
            what = f"a probe of {where}" if kind == "probe" else f"in {where}"
            raise ConfigError(f"run `{name}` is not {what}{strict.nearest(name, known)}")
        if kind == "probe":
            return known[name]
        parity = self.project.config.parity
        return known[name].parity(parity.steps, parity.precision) if kind == "parity" else known[name]

    def refusal(self, name: str) -> str:
        """Why a run of the table cannot train on its data; empty if no reason is known."""
        run = self.run(name)
        try:
            require_fit(run, self.project.paths.data_of(run), self.facts(run))
        except ParascaleError as error:
            return f"run `{name}`: {error}"
        smallest = [each.name for each in self.project.studies.values() if name in each.smallest]
        if smallest and self.predicted(run).fits == "does not fit":
            return f"run `{name}`: does not fit into memory, and it is the smallest point of study {smallest[0]}: start with more GPUs"
        return ""

    def strategy(self, name: str | None) -> str | None:
        """The strategy of a run, study point or probe; None for any other name or None."""
        run = self.project.right.get(name) or self.project.points.get(name)
        run = run or (self.probes.get(name) if name is not None else None)
        return run.strategy if run else None

    def prediction(self, name: str, kind: str = "run") -> Prediction:
        if (name, kind) not in self._predictions:
            self._predictions[name, kind] = self.predicted(self.run(name, kind))
        return self._predictions[name, kind]

    def predicted(self, run: Run) -> Prediction:
        """The Prediction of a run that need not be in the table."""
        same = run.workload.name, identity.speed_of(run)  # repeats of a run are predicted once
        if same not in self._predictions:
            self._predictions[same] = self.calibration.predict(run, self.site, self.facts(run))
        return self._predictions[same]

    def reason(self, name: str, kind: str = "run", ready: bool = True) -> Reason:
        """The Reason why a run has to be trained. ready: its input files exist and will not be rebuilt."""
        return self._reasons.of(self.run(name, kind), kind, ready)

    def runtime_minutes(self, name: str, attempt: int = 1, kind: str = "run", partition: str | None = None) -> int:
        """The time limit in minutes for a run's job at its `attempt` (from 1)."""
        return time_limit(self.prediction(name, kind), self.site, attempt, partition)

    def ceiling(self, name: str) -> Any:
        """{switch: predicted model FLOPS utilisation} of a run's step: `now`, and with one switch changed at a time.

        That is useful operations over those possible at the GPUs' peak rate (Chowdhery et al. 2022, arXiv:2204.02311, appendix B).
        """
        run, facts = self.run(name), self.facts(self.run(name))
        compiled = run.layout.compile
        changed = {"now": run, f"torch.compile {'off' if compiled else 'on'}": _with(run, compile=not compiled)}
        for mode, words in RECOMPUTED.items():
            if mode != run.layout.activation_checkpointing:
                changed[words] = _with(run, activation_checkpointing=mode)
        if run.layout.uses_fsdp and run.layout.reshard_after_forward:
            changed["parameters kept after forward"] = _with(run, reshard_after_forward=False)
        samples = run.global_batch // run.parts
        if samples > 1:
            smaller = run.workload.in_parts(run.workload.training.accumulate * samples)
            changed["micro-batches of one sample"] = dataclasses.replace(run, workload=smaller)
        peak = self.site.peak_tflops[run.precision] * 1e12
        found = {}
        for words, each in changed.items():
            try:
                each.check()
            except ConfigError:  # this layout does not allow the switch
                continue
            predicted = self.calibration.predict(each, self.site, facts, remedy=False)
            targets = model_sizes(each.workload.model, facts.vocabulary, *each.workload.sizes).targets
            useful = predicted.flops_per_token * each.global_batch * targets
            found[words] = useful / predicted.step_seconds / each.layout.world_size / peak
        return found


def data_facts(run: Run, paths: Paths) -> DataFacts:
    """The DataFacts of a run, from its prepared data below `paths`, else from `data.expected` of its workload."""
    return dataclasses.replace(facts_of(paths.data_of(run), run), workloads=paths.workloads)


def facts_of(folder: Path | None, run: Run) -> DataFacts:
    """The DataFacts of a run whose prepared data is in `folder`; without that data, from `data.expected` of its workload."""
    workload, manifest = run.workload, folder / MANIFEST if folder else None
    if workload.is_script or manifest is None or not manifest.is_file():
        return expected_facts(run)
    values = read_json(manifest)
    splits = values["splits"]
    if workload.of_images:
        samples = sum(split["samples"] for split in splits.values())
        size = values.get("sample_bytes", 0) / max(1, samples)
        train, validation = (splits.get(name, {}).get("samples") for name in SEEN)
        return DataFacts(len(values["classes"]), train, validation, size)
    if workload.of_pairs:  # an upper bound: pairs with too long a summary are skipped when the data is opened
        train, validation = (splits[name]["documents"] for name in SEEN)
        return DataFacts(values["vocabulary"], train, validation)
    validation = max(1, math.ceil((splits["validation"]["tokens"] - 1) / workload.training.window))
    return DataFacts(values["vocabulary"], workload.windows_in(splits["train"]["tokens"]), validation)


def require_fit(run: Run, folder: Path | None, facts: DataFacts | None = None) -> None:
    """Raise ConfigError or DataError if a run cannot train on its data. These are the checks of settings that need the data's size.

    folder: of the prepared data; if it is missing, `data.expected` of the workload is used. facts: the data's, if known already.
    """
    if run.workload.is_script:
        return
    require_windows(run.workload, folder)
    if not run.workload.data.expected.approximate or (folder / MANIFEST).is_file():
        run.check_steps(run_steps(run, facts or facts_of(folder, run)))


def require_windows(workload: Any, folder: Path) -> None:
    """Raise DataError if a split of the prepared text in a folder is not longer than a language model's window, or has no document ends
    although documents are to be kept separate. Does nothing if the data is missing."""
    path = Path(folder) / MANIFEST
    if workload.task != "language_model" or not path.is_file():
        return
    window, splits = workload.training.window, read_json(path)["splits"]
    workload.training.require_ends(folder, splits)
    for split, counts in splits.items():
        if counts["tokens"] <= window:
            raise DataError(
                f"workload `{workload.name}`: `training.window` = {window:,} does not fit into the {split} split of {folder}: it has "
                f"{counts['tokens']:,} tokens, and one more than the window is needed. Choose a shorter window, or more text"
            )


def _with(run: Run, **switches: Any) -> Run:
    return dataclasses.replace(run, layout=dataclasses.replace(run.layout, **switches))
