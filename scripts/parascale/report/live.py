"""Runs under way, followed through their files as these grow. Nothing is written, and no job is asked anything."""

import json
import os
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from parascale.errors import ParascaleError
from parascale.files import read_json, read_json_lines
from parascale.report.records import SILENT_SECONDS, names_of_runs
from parascale.settings import run_from_dict
from parascale.settings.workload import work_unit
from parascale.telemetry import COLUMNS, sample_files, whole_lines

RECENT = 20  # steps of which the rate is told


class Tail:
    """The whole lines that a file has gained. A file that was replaced, as at the start of an attempt, starts over."""

    def __init__(self, path):
        self.path, self.place, self.offset = path, None, 0

    def read(self):
        """(lines since the last call, whether they begin a new file). A line that is being written waits."""
        try:
            with open(self.path, "rb") as handle:
                state = os.fstat(handle.fileno())
                replaced = state.st_ino != self.place or state.st_size < self.offset
                if replaced:
                    self.place, self.offset = state.st_ino, 0
                handle.seek(self.offset)
                block = handle.read()
        except FileNotFoundError:
            return [], False
        whole = block[: block.rfind(b"\n") + 1]
        self.offset += len(whole)
        return whole.decode("utf-8", "replace").splitlines(), replaced


@dataclass
class Live:
    """A run under way as last seen. devices: the latest line of each GPU, process and node, by column."""

    name: str
    folder: Path
    described: dict = field(default_factory=dict)
    run: object = None
    attempts: list = field(default_factory=list)
    lease: dict | None = None
    step: int = 0
    last: dict = field(default_factory=dict)
    validation: tuple | None = None  # (step, loss)
    recent: deque = field(default_factory=lambda: deque(maxlen=RECENT))
    devices: dict = field(default_factory=dict)

    def __post_init__(self):
        self.steps_tail, self.device_tails = Tail(self.folder / "steps.jsonl"), {}

    def update(self):
        """Read what is new. Files that are not there yet, or are being replaced, are read next time."""
        with suppress(OSError, ParascaleError, KeyError):
            self.described = read_json(self.folder / "run.json")
            self.run = run_from_dict(self.described["settings"])
        with suppress(OSError, ParascaleError):
            self.attempts = read_json_lines(self.folder / "attempts.jsonl")
        self.lease = None
        with suppress(OSError, ParascaleError):
            self.lease = read_json(self.folder / "lease.json")
        self._read_steps()
        for path in sample_files(self.folder):
            lines, _ = self.device_tails.setdefault(path, Tail(path)).read()
            for cells in whole_lines(lines):
                line = dict(zip(COLUMNS, cells, strict=True))
                self.devices[line["kind"], int(line["node"]), int(line["index"])] = line

    def _read_steps(self):
        lines, replaced = self.steps_tail.read()
        if replaced:
            self.recent.clear()
            self.step, self.last, self.validation = 0, {}, None
        for text in lines:
            try:
                line = json.loads(text)
            except ValueError:
                continue  # damaged; the run's next attempt counts what is lost
            self.step, self.last = line["step"], line
            self.recent.append(line)
            if line.get("validation_loss") is not None:
                self.validation = line["step"], line["validation_loss"]

    @property
    def steps(self):
        """Steps of the whole run, or None."""
        return self.described.get("steps")

    @property
    def rate(self):
        """(work a second over the last steps, its unit), or None."""
        seconds = sum(line["seconds"]["total"] for line in self.recent)
        if not seconds:
            return None
        unit = work_unit(self.last)
        return sum(line[unit] for line in self.recent) / seconds, unit

    @property
    def seconds_left(self):
        """Training time that the steps to come will take at the present rate, or None."""
        if not self.recent or not self.steps:
            return None
        each = sum(line["seconds"]["total"] for line in self.recent) / len(self.recent)
        return each * (self.steps - self.step)

    def seconds(self, now):
        """Wall time of all attempts, that of an open one up to `now`."""
        total = 0.0
        for attempt in self.attempts:
            if "seconds" in attempt:
                total += attempt["seconds"]
            else:
                total += max(0.0, (now if self.state(now) == "running" else self._last_sign()) - attempt["started"])
        return total

    def _last_sign(self):
        return self.lease["time"] if self.lease else self.attempts[-1]["started"]

    def state(self, now):
        """running, silent (its writer has given no sign for a minute), stopped, failed or starting."""
        if not self.attempts:
            return "starting"
        if self.attempts[-1].get("outcome"):
            return self.attempts[-1]["outcome"]
        return "silent" if self.lease is None or now - self.lease["time"] > SILENT_SECONDS else "running"

    def core_hours(self, now):
        """Core-hours that the run holds so far, all cores of its nodes; None where they are unknown."""
        cores = (self.described.get("site") or {}).get("cores_per_node")
        if cores is None or self.run is None:
            return None
        return cores * self.run.layout.nodes * self.seconds(now) / 3600

    def limit(self, now):
        """(part of the time limit that is used, the limit in seconds) of the present attempt's job, or None."""
        attempt = self.attempts[-1] if self.attempts else {}
        limit, since = attempt.get("limit_seconds"), attempt.get("allocated")
        return ((now - since) / limit, limit) if limit and since else None


class Watcher:
    """All runs under way below `work/`. One that finishes or is put aside disappears."""

    def __init__(self, work):
        self.folder, self.runs = Path(work) / "runs", {}

    def update(self):
        """The Live of each run, by name."""
        names = names_of_runs(self.folder)
        self.runs = {name: self.runs.get(name) or Live(name, self.folder / name) for name in names}
        for run in self.runs.values():
            run.update()
        return list(self.runs.values())
