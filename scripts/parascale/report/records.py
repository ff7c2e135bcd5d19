"""Loads and checks the records of runs in `results/runs/*`, `results/parity/*` and, for unfinished runs, `work/runs/*`.

An unreadable record does not stop the report: the run is shown as missing, with a note that names the file.
"""

import functools
import math
import re
import time
from array import array
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from parascale import submissions
from parascale.errors import DamagedError, ParascaleError, shorten_list
from parascale.files import read_json_lines
from parascale.paths import RunFolder
from parascale.report.measured import read_record, typed
from parascale.report.timing import timing_of
from parascale.settings import Run, Site, run_from_dict
from parascale.settings.strict import load

SILENT_SECONDS = 60.0  # a living run renews its lease every few seconds
BESIDE = ("evaluation_seconds", "checkpoint_seconds")


@dataclass(frozen=True)
class Summary:
    """Contents of `summary.json`: seconds, bytes, joules; losses in nats; `work` in tokens or images."""

    work: int | None
    work_unit: str
    steps: int
    seconds: float
    rate: float | None
    attempts: int | None = None
    wall_seconds: float | None = None
    train_loss: float | None = None
    skipped_steps: int | None = None
    validation_loss: float | None = None
    test_loss: float | None = None
    evaluated_tokens: dict = field(default_factory=dict)
    validation_accuracy: float | None = None
    validation_top5: float | None = None
    test_accuracy: float | None = None
    test_top5: float | None = None
    parameters: int | None = None
    peak_memory_bytes: int | None = None
    memory: dict = field(default_factory=dict)
    phases: dict = field(default_factory=dict)
    bubble_measured: float | None = None
    core_hours: float | None = None
    energy_joules: float | None = None
    gpu_utilisation: float | None = None
    cores_busy: float | None = None
    other_cores_busy: float | None = None


@dataclass(frozen=True)
class Curve:
    """Columns of `steps.jsonl`: `seconds` is the training time up to the end of a step, `losses` are in nats.

    evaluations: (index into the columns, validation loss). phases: total seconds of each phase of steps. beside: total seconds of
    evaluation and saving between steps. saves: number of saves.
    """

    steps: array
    losses: array
    seconds: array
    evaluations: tuple
    phases: dict = field(default_factory=dict)
    beside: dict = field(default_factory=dict)
    saves: int = 0


@dataclass(frozen=True)
class ParityVerdict:
    """Contents of a parity run's `verdict.json`."""

    baseline: str
    verdict: str
    reason: str | None = None
    steps: int | None = None
    precision: str | None = None
    loss_difference: float | None = None
    grad_norm_difference: float | None = None
    weight_difference: float | None = None
    worst_tensor: str | None = None
    first_step_outside: int | None = None
    tolerances: dict = field(default_factory=dict)


@dataclass(frozen=True)
class RunRecord:
    """A run as the report knows it. Unknown values are None, never 0.

    status: done, failed, running or missing. notes: remarks to show with the run. prediction: the plan from before the run
    started, as saved in its record. summaries: examples and ROUGE of its summaries.
    """

    name: str
    status: str
    notes: tuple = ()
    run: Run | None = None
    site: Site | None = None
    provenance: dict = field(default_factory=dict)
    prediction: dict = field(default_factory=dict)
    attempts: tuple = ()
    summary: Summary | None = None
    curve: Curve | None = None
    parity: ParityVerdict | None = None
    summaries: dict = field(default_factory=dict)

    @property
    def done(self):
        """True if the run finished and its record is readable."""
        return self.status == "done"

    @functools.cached_property
    def timing(self):
        """The Timing of a finished run."""
        return timing_of(self.summary, self.curve, self.attempts)

    @property
    def gpus(self):
        """Number of GPUs that are paid for, idle ones included."""
        return self.run.layout.nodes * self.run.layout.gpus_per_node

    @property
    def gpu_word(self):
        """`GPU`, or `process` on a site without GPUs."""
        return "GPU" if self.site is not None and self.site.device == "cuda" else "process"

    @property
    def cores(self):
        """Number of charged cores, or None if unknown."""
        cores = self.site.cores_per_node
        return None if cores is None else cores * self.run.layout.nodes


def load_records(results, work, names=None, project=None):
    """Load the records of the runs in `names`, in that order, or of all runs found, sorted by name.

    results, work: the folders `results/` and `work/`. project: fills in settings from its run table for runs without a record.
    """
    results, work = Path(results), Path(work)
    if names is None:
        names = found_runs(results, work)
    records = [_load_record(results, work, name) for name in names]
    if project is None:
        return records
    submitted = submissions.jobs_of_runs(submissions.noted(project.paths.store))
    return [_completed(record, project, submitted) for record in records]


def _completed(record, project, submitted):
    """Fill in what the project knows of a run that has no record. submitted: run → Slurm job ids."""
    if record.run is None and record.name in project.right:
        record = replace(record, run=project.right[record.name], site=project.site)
    if record.status == "missing" and record.name in submitted:
        said = f"no record, but submitted as Slurm job {shorten_list(submitted[record.name])}"
        record = replace(record, notes=(said, *record.notes))
    return record


def found_runs(*roots):
    """Names of the runs with a folder in `runs/` below one of the roots, in natural order (`ddp-2` before `ddp-16`)."""
    names = {entry.name for root in roots for entry in Path(root).glob("runs/*/")}
    # Folders with a leading dot are being written; superseded ones were set aside for a newer run of the same name.
    shown = (name for name in names if name[0] != "." and ".superseded" not in name)
    return sorted(shown, key=lambda name: re.sub(r"\d+", lambda digits: digits[0].zfill(20), name))


def _load_record(results, work, name):
    finished, under_way = (RunFolder(root / "runs" / name) for root in (results, work))
    if finished.summary.is_file() or (finished.folder.is_dir() and not under_way.folder.is_dir()):
        summaries = results / "summaries" / f"{name}.json"
        record = _finished(name, finished, read_record(summaries) if summaries.is_file() else {})
    elif under_way.folder.is_dir():
        record = _unfinished(name, under_way)
    else:
        record = RunRecord(name, "missing", ("no results yet",))
    path, parity = results / "parity" / name / "verdict.json", None
    try:
        if record.done and record.run.workload.is_script:
            reason = "its steps are a script's: `parascale prove` compares those"
            verdict = "baseline" if record.run.baseline == record.name else "not comparable"
            parity = ParityVerdict(record.run.baseline, verdict, reason)
        elif path.is_file():
            parity = typed(ParityVerdict, path)
        return replace(record, parity=parity)
    except DamagedError as error:
        return replace(record, notes=(*record.notes, f"parity is unknown: {error}"))


def _finished(name, folder, summaries):
    try:
        described, summary = _described(folder.record), typed(Summary, folder.summary)
    except ParascaleError as error:
        return RunRecord(name, "missing", (f"the record is incomplete: {error}",))
    notes: tuple = ()
    try:
        curve = load_curve(folder.steps)
        if summary.train_loss is not None and len(curve.steps) != (steps := summary.steps):
            notes = (f"summary.json counts {steps:,} steps, steps.jsonl holds {len(curve.steps):,}",)
    except DamagedError as error:
        curve, notes = None, (f"no curve: {error}",)
    return RunRecord(name, "done", notes, summary=summary, curve=curve, summaries=summaries, **described)


def _unfinished(name, folder):
    described, curve, notes = {}, None, []
    try:
        if folder.record.is_file():
            described = _described(folder.record)
        if folder.attempts.is_file():
            described["attempts"] = tuple(read_record(folder.attempts, read_json_lines))
        if folder.steps.is_file():
            curve = load_curve(folder.steps)
    except ParascaleError as error:
        notes = [str(error)]
    status, said = _progress(folder, described.get("attempts", ()), curve)
    return RunRecord(name, status, (said, *notes), curve=curve, **described)


def _progress(folder, attempts, curve):
    """(status, words) of an unfinished run, from its last attempt and, if that is open, its lease."""
    reached = f"step {curve.steps[-1]:,}" if curve and len(curve.steps) else "no step yet"
    outcome = attempts[-1].get("outcome") if attempts else None
    if outcome == "failed":
        return "failed", f"the last attempt failed at {reached}"
    if outcome == "stopped":
        return "running", f"stopped at {reached}; it continues when it is started again"
    lease = read_record(folder.lease) if folder.lease.is_file() else None
    if lease and time.time() - lease["time"] > SILENT_SECONDS:
        last = datetime.fromtimestamp(lease["time"], UTC).isoformat(timespec="seconds")
        return "failed", f"killed at {reached}: no sign of life since {last}; it continues when it is started again"
    return "running", f"under way: {reached}"


def _described(path):
    """Fields of a RunRecord from `run.json`."""
    values = read_record(path)
    for key in ("settings", "site"):
        if not isinstance(values.get(key), dict):
            raise DamagedError(f"{path}: `{key}` is missing")
    kept = ("global_batch", "code_digest", "git_commit", "versions", "licences", "hosts", "machines", "excluded")
    return {
        "run": run_from_dict(values["settings"]),
        "site": load(Site, values["site"], str(path), "site."),
        "attempts": tuple(values.get("attempts") or ()),
        "provenance": {key: values.get(key) for key in kept},
        "prediction": values.get("prediction") or {},
    }


def load_curve(path):
    """Load the Curve from a `steps.jsonl`. Lines without a finite loss add time but no point."""
    steps, losses, seconds, evaluations = array("q"), array("d"), array("d"), []
    elapsed, phases, beside, saves = 0.0, Counter(), Counter(), 0
    try:
        for line in read_record(path, read_json_lines):
            elapsed += line["seconds"]["total"]
            phases.update(line["seconds"])
            beside.update({name: line[name] for name in BESIDE if name in line})
            saves += "checkpoint_seconds" in line
            loss, validation = line.get("loss"), line.get("validation_loss")
            if loss is None or not math.isfinite(loss):
                continue
            if validation is not None:
                evaluations.append((len(steps), validation))
            steps.append(line["step"])
            losses.append(loss)
            seconds.append(elapsed)
    except (KeyError, TypeError) as error:
        raise DamagedError(f"{path}: a line lacks {error}") from None
    phases.pop("total", None)
    return Curve(steps, losses, seconds, tuple(evaluations), dict(phases), beside, saves)
