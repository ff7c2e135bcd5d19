"""A live table of running trainings, from the files that they write. Only reads; never contacts a job."""

import json
import time
from contextlib import suppress

from parascale.errors import ParascaleError
from parascale.files import read_json, read_json_lines
from parascale.paths import RunFolder
from parascale.recording import by_step
from parascale.report import numbers
from parascale.report.records import SILENT_SECONDS, found_runs
from parascale.settings.workload import work_unit

RECENT = 20  # steps from which the rate is computed
TAIL = 1 << 16  # bytes to read from the end of the file for them
COLUMNS = ("run", "step", "loss", "rate", "left", "core-hours", "state")


class Live:
    """A running training as last read. recent: the last RECENT step lines and one before them; steps: of the whole run, or None."""

    def __init__(self, name, folder):
        self.name, self.files, self.described, self.attempts, self.lease = name, RunFolder(folder), {}, [], None
        self.recent, self.last, self.step, self.steps = [], {}, 0, None

    def update(self):
        """Read the files. Missing ones, and ones that are being replaced, are read the next time."""
        self.described = _known(self.files.record) or self.described
        self.attempts = _known(self.files.attempts, read_json_lines) or self.attempts
        self.lease = _known(self.files.lease)
        self.recent = _known(self.files.steps, _last_lines) or []
        self.last = self.recent[-1] if self.recent else {}
        self.step, self.steps = self.last.get("step", 0), self.described.get("steps")

    def state(self, now):
        """`starting`, `running`, `silent` (no sign of life for a minute), or the last attempt's outcome (`stopped`, `failed`)."""
        if not self.attempts or self.attempts[-1].get("outcome"):
            return self.attempts[-1]["outcome"] if self.attempts else "starting"
        return "silent" if self.lease is None or now - self.lease["time"] > SILENT_SECONDS else "running"

    def times_planned(self):
        """Expected wall time over the planned one, at the pace of the last steps; None while unknown."""
        planned = self.described.get("prediction") or {}
        if not planned.get("wall_seconds") or not self.steps or self.step < 2 * RECENT:  # the first steps are slow
            return None
        seconds, steps, _ = self._paced()
        whole = steps and sum(planned["beside"].values()) + seconds / steps * self.steps
        return whole / planned["wall_seconds"] if steps else None

    def _paced(self):
        """(seconds, steps, lines) of the recent lines. Starts after an attempt's first line, since that includes a script's start-up; steps may
        exceed the number of lines, since a script may record every tenth step."""
        since = max((number for number, line in enumerate(self.recent) if "first" in line), default=0)
        lines = self.recent[since + 1 :]
        steps = self.step - self.recent[since]["step"] if lines else 0
        return sum(line["seconds"]["total"] for line in lines), steps, lines

    def cells(self, now):
        """Cells for COLUMNS; unknown ones are empty."""
        (seconds, steps, lines), unit = self._paced(), self.last and work_unit(self.last)
        state, cores = self.state(now), (self.described.get("site") or {}).get("cores_per_node")
        # An open attempt counts until now or, if it is silent, until its last sign of life.
        sign = now if state == "running" else self.lease["time"] if self.lease else 0.0
        wall = sum(each.get("seconds") or max(0.0, sign - each["started"]) for each in self.attempts)
        hours = cores and cores * self.described["settings"]["layout"]["nodes"] * wall / 3600
        planned = numbers.significant((self.described.get("prediction") or {}).get("core_hours"))
        yield self.name
        yield f"{self.step:,} of {self.steps:,}" if self.steps else numbers.whole(self.step)
        yield numbers.loss(self.last.get("loss"))
        work = sum(line.get(unit, 0) for line in lines)
        yield f"{numbers.short(work / seconds)} {unit}/s" if seconds and work else ""
        yield numbers.duration(seconds / steps * (self.steps - self.step)) if seconds and self.steps else ""
        yield f"{numbers.significant(hours)}{planned and f' of {planned}'}" if hours else ""
        yield state


def _known(path, read=read_json):
    with suppress(OSError, ParascaleError):
        return read(path)


def _last_lines(path):
    """The last steps in a growing file. Skips the unfinished last line and the first one if it is cut."""
    lines = []
    with open(path, "rb") as handle:
        handle.seek(max(0, path.stat().st_size - TAIL))
        for line in handle.read().split(b"\n")[:-1]:
            with suppress(ValueError):
                lines.append(json.loads(line))
    return by_step(line for line in lines if "step" in line)[-RECENT - 1 :]


def table(folder):
    """A rich table of all running trainings below a folder."""
    from rich.table import Table

    now, names = time.time(), found_runs(folder.parent)
    none = "" if names else "No run is under way; finished ones are in results/runs and in the report."
    made = Table(title=f"{time.strftime('%H:%M:%S', time.localtime(now))}  {folder}", caption=none, box=None)
    for column in COLUMNS:
        made.add_column(column, justify="left" if column in ("run", "state") else "right")
    for name in names:
        run = Live(name, folder / name)
        run.update()
        made.add_row(*run.cells(now))
    return made
