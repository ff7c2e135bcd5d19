"""The record of a run in progress: its settings, its steps, and its attempts.

Rank 0 appends to it in the work folder during the run and publishes it at the end. The same lines show progress.
"""

import dataclasses
import json
import os
import shutil
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import psutil
from tqdm import tqdm

from parascale import numerics, provenance, slurm
from parascale.files import read_json_lines, write_json, write_text
from parascale.paths import RunFolder
from parascale.recording import by_step
from parascale.settings import identity
from parascale.settings.layout import DEGREES
from parascale.store.keys import modules_of_run
from parascale.store.trainings import Store
from parascale.train import monitor
from parascale.train.events import Events

SCHEMA_VERSION = 1
LOG_SECONDS = 10.0
WRITE_SECONDS = 0.5  # lines of faster steps are written together


class Recorder:
    """`steps.jsonl`, `attempts.jsonl` and TensorBoard's events of a work folder."""

    def __init__(self, folder):
        files = RunFolder(folder)
        self.steps_path, self.attempts_path = files.steps, files.attempts
        self.events = Events(folder)
        self.handle: Any = None
        self.attempts = []  # the current one last
        self.known_steps = 0  # number of steps that the record should have lines for
        self.unwritten, self.written = [], 0.0
        # Process start, not now: loading libraries and data is part of the job, and charged.
        self.started = psutil.Process().create_time()
        self.first_step = self.last_step = None

    def begin(self, first_step, hosts, died_at, saved=None, allocation=None, steps=1, wandb=None):
        """Start an attempt that continues with optimizer step `first_step`; None if unknown, in which case no line is dropped.

        Lines of steps after the last checkpoint are dropped, because those steps are repeated.
        saved: from the checkpoint: the `line` of its step, which is missing from the file if the previous attempt died just
        after saving; `due`, True if the step is still to be evaluated, which writes its line; and `recorded`, the result of `kept`.
        died_at: last sign of life of a previous attempt without an end (seconds since the epoch).
        allocation: Slurm's data about the job, from `slurm.allocation`. steps: number of steps of the whole run.
        wandb: the WandbRun that also gets the events, if any.
        """
        saved = saved or {}
        due, last_line, recorded = saved.get("due", False), saved.get("line"), saved.get("recorded", {})
        lines = [line for line in self.steps() if first_step is None or line["step"] < first_step - due]
        if last_line and not due and (not lines or lines[-1]["step"] < last_line["step"]):
            lines.append(last_line)
        self.known_steps = recorded["steps"] - due if recorded else len(lines)
        if lost := self.known_steps - len(lines):
            print(f"{self.steps_path} is damaged: the lines of {lost} steps are lost; the attempt's record says so")
        _write_lines(self.steps_path, lines)
        self.handle = open(self.steps_path, "a", encoding="utf-8")  # noqa: SIM115 (open as long as the run)
        self.first_step, self.last_step = first_step, first_step and first_step - 1
        self.attempts = _closed(self._known_attempts(recorded.get("attempts", [])), died_at)
        begun = {"start": _iso(self.started), "started": self.started, "first_step": first_step}
        self.attempts.append(begun | {"job_id": slurm.job_id(), "hosts": hosts, **(allocation or {})})
        _write_lines(self.attempts_path, self.attempts)
        self.events.begin(self.attempts[0]["started"], steps, lines, wandb)

    def add_step(self, line):
        """Append one step's line. Lines are written to the file at most every WRITE_SECONDS."""
        self.unwritten.append(line)
        self.last_step = line["step"]
        self.known_steps += 1
        if time.monotonic() - self.written > WRITE_SECONDS:
            self._write()

    def kept(self):
        """The part of the record that a checkpoint keeps, counting its own step: enough to detect lost lines later."""
        return {"steps": self.known_steps + 1, "attempts": self.attempts}

    def _write(self):
        self.handle.writelines(json.dumps(line) + "\n" for line in self.unwritten)
        self.handle.flush()
        self.events.add(self.unwritten)
        self.unwritten, self.written = [], time.monotonic()

    def sync(self):
        """Flush all lines to disk, before a checkpoint declares their steps done."""
        self._write()
        os.fsync(self.handle.fileno())

    def end(self, outcome, facts=MappingProxyType({})):
        """Close the attempt. outcome: finished, stopped or failed. facts: results of the run."""
        if self.handle is None:
            return
        self.sync()
        self.handle.close()
        self.handle = None
        self.attempts[-1] |= _ended(self.started, time.time(), outcome, self.last_step)
        if lost := self.known_steps - len(self.steps()):
            self.attempts[-1]["lost_lines"] = lost
        _write_lines(self.attempts_path, self.attempts)
        self.events.close(outcome, facts)

    def steps(self):
        """All complete step lines, each step once: after a full disk a line may have been written twice."""
        return by_step(_whole_lines(self.steps_path, "step"))

    def take(self, lines):
        """Replace all step lines by `lines`, recorded elsewhere."""
        _write_lines(self.steps_path, lines)
        self.known_steps, self.last_step = len(lines), lines[-1]["step"] if lines else None
        self.events.begin(self.attempts[0]["started"], max(1, len(lines)), lines)

    def _known_attempts(self, kept):
        """The attempts in the file, and those that only the checkpoint still has."""
        found = _whole_lines(self.attempts_path, "started")
        every = {attempt["started"]: attempt for attempt in (*kept, *found)}
        if lost := len(every) - len(found):
            print(f"{self.attempts_path} is damaged: {lost} attempts come from the last checkpoint")
        return [every[started] for started in sorted(every)]


class TrainingProgress:
    """Show step, loss and rate, on rank 0 only: a progress bar on a terminal, occasional plain lines in a log."""

    def __init__(self, name, steps, done, shown, unit):
        self.name, self.steps, self.unit = name, steps, unit
        self.shown, hidden = shown, not (shown and sys.stderr.isatty())
        self.bar = tqdm(total=steps, initial=done, desc=name, unit="step", disable=hidden)
        self.last_line = 0.0
        self.work, self.seconds = 0, 0.0

    def update(self, line):
        """Show one more step, given its record line."""
        if not self.shown:
            return
        self.work += line[self.unit]
        self.seconds += line["seconds"]["total"]
        rate = self.work / self.seconds
        self.bar.set_postfix_str(f"loss {line['loss']:.3f}, {rate:,.0f} {self.unit}/s", refresh=False)
        self.bar.update()
        if self.bar.disable and (time.monotonic() - self.last_line > LOG_SECONDS or line["step"] == self.steps):
            self.last_line = time.monotonic()
            validation = f", validation {line['validation_loss']:.4f}" if "validation_loss" in line else ""
            said = f"step {line['step']}/{self.steps}, loss {line['loss']:.4f}{validation}, {rate:,.0f} {self.unit}/s"
            print(f"{self.name}: {said}", file=sys.stderr, flush=True)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.bar.close()


def summarise(run, site, steps, attempts, facts):
    """The figures of a finished run for reports.

    facts: validation_loss, best_validation_loss, best_step, test_loss, evaluated_tokens (or images), parameters,
    peak_memory_bytes, memory ({part: bytes} of that rank), bubble_measured, attention (`AttentionSeen`), `telemetry.figures`, and
    validation_ and test_ figures for each metric of the task.
    """
    layout, unit = run.layout, run.workload.unit
    phases = Counter()
    for line in steps:
        phases.update(line["seconds"])
    wall_seconds = sum(attempt["seconds"] for attempt in attempts)
    seconds = phases.pop("total", wall_seconds)  # a script may record no steps
    work = sum(line[unit] for line in steps) if steps and all(unit in line for line in steps) else None
    last = [line["loss"] for line in steps if "loss" in line][-10:]
    scaled = run.precision == "fp16" and not run.workload.is_script
    return {
        "schema_version": SCHEMA_VERSION,
        "run": run.run,
        "workload": run.workload.name,
        "strategy": run.strategy,
        "engine": run.engine,
        **{name: getattr(layout, name) for name in ("nodes", "world_size", *DEGREES)},
        "status": "done",
        "attempts": len(attempts),
        "seed": run.seed,
        "work": work,
        "work_unit": unit,
        "steps": len(steps),
        "seconds": seconds,
        "wall_seconds": wall_seconds,
        "rate": None if work is None else work / seconds,
        "train_loss": None if not last or None in last else sum(last) / len(last),
        "skipped_steps": sum(line["skipped"] for line in steps) if scaled else None,
        **facts,
        "phases": dict(phases),
        # As a share of the total, like the measured bubble.
        "bubble_expected": layout.bubble / (1 + layout.bubble) if layout.pp > 1 else None,
        "core_hours": site.core_hours(layout.nodes, wall_seconds),
    }


def description(job, steps):
    """The part of run.json that is known from the start. steps: number of steps of the whole run."""
    run, code = job.run, modules_of_run(job.run)
    return {
        "schema_version": SCHEMA_VERSION,
        "run": run.run,
        "strategy": run.strategy,
        "settings": dataclasses.asdict(run),
        "site": dataclasses.asdict(job.site),
        "global_batch": None if run.workload.is_script else run.global_batch,
        "steps": steps,
        "code_digest": job.code_digest,
        "code": code,
        "unproven": [name for name in numerics.unproven() if name in code],
        "data": identity.digest_of(job.known_data),
        "key": job.key,
        "git_commit": provenance.git_commit(),
        "versions": job.known_data[0] if run.workload.in_own_environment else provenance.versions(),
        "licences": None if run.workload.is_script else provenance.licences(),  # a script runs in another process
        "prediction": job.prediction,
    }


def publish(job, record, lease, described, facts, fill):
    """Store a finished run under its key, delete its work folder, then show it as a result.

    described: the contents of run.json except the attempts. facts: as for `summarise`. fill: function that copies what the run saved into
    a folder. Raises ChangedDataError, and shows nothing, if the data has been rebuilt since the training.
    """
    kept, attempts = Store(job.store), record.attempts
    with kept.keeping(job.key, f"{job.output.parent.name}/{job.output.name}") as folder:
        fill(folder)
        for path in (record.steps_path, record.events.path):
            shutil.copyfile(path, folder / path.name)
        job_ids = sorted({attempt["job_id"] for attempt in attempts if attempt["job_id"]})
        files = RunFolder(folder)
        write_json(files.record, described | {"job_ids": job_ids, "attempts": attempts})
        facts = facts | monitor.publish(job.work, files.devices)
        write_json(files.summary, summarise(job.run, job.site, record.steps(), attempts, facts))
    lease.give_up()
    job.check_data()
    kept.show(job.key, job.output, job.run)


def _whole_lines(path, key):
    """The complete lines of a file: mappings with a `key`."""
    lines = read_json_lines(path, readable=True) if path.exists() else []
    return [line for line in lines if isinstance(line, dict) and key in line]


def _closed(attempts, died_at):
    """The attempts, each with an end. A killed attempt ended when its lease was last renewed or the next one began."""
    latest = [*(attempt["started"] for attempt in attempts[1:]), died_at or 0.0]
    for attempt, end in zip(attempts, latest, strict=False):
        if "end" not in attempt:
            attempt |= _ended(attempt["started"], max(end, attempt["started"]), "killed", None)
    return attempts


def _write_lines(path, lines):
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines))


def _ended(started, end, outcome, last_step):
    return {"end": _iso(end), "seconds": end - started, "outcome": outcome, "last_step": last_step}


def _iso(seconds):
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
