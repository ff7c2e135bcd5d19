"""TensorBoard's event files, so that `tensorboard --logdir` shows runs, those under way too.

Messages and records are those of the package tensorboard. Its EventFileWriter is not used: it names the file itself, begins it with the
current time, and writes from a thread. Only rank 0 writes, so it alone loads the package (0.1 s and 17 MB; torch's
writer takes 2.7 s and 210 MB). Weights & Biases gets the same values where the configuration asks for it (`wandb_run.py`).
"""

import math
from typing import Any

from parascale.files import atomic_path
from parascale.settings.workload import work_unit

NAME = "events.out.tfevents.parascale"  # TensorBoard looks for names with `tfevents`
POINTS = 1000  # of a run; TensorBoard shows no more of a curve, and all steps are in steps.jsonl


class Events:
    """The event file of a run. Times are training time after the run's start, so that `relative` means training time."""

    def __init__(self, folder):
        self.path = folder / NAME
        self.handle: Any = None
        self.wandb = None

    def begin(self, started, steps, lines, wandb=None):
        """Write the steps done so far once more, and stay open for those to come.

        started: seconds since 1970. steps: of the whole run; a long run has at most POINTS steps written, and every evaluation.
        wandb: the WandbRun that gets the same values, if any.
        """
        self.now = self.started = started
        self.every, self.wandb = math.ceil(steps / POINTS), wandb
        if wandb:
            wandb.begin(started)
        with atomic_path(self.path) as partial, open(partial, "wb") as handle:
            _write(handle, wall_time=started, file_version="brain.Event:2")
            self._add(handle, lines)
        self.handle = open(self.path, "ab")  # noqa: SIM115 (open as long as the run)

    def add(self, lines):
        """Append steps, lines of `steps.jsonl`."""
        self._add(self.handle, lines)
        self.handle.flush()

    def close(self, outcome, facts):
        """No more steps in this attempt. outcome: finished, stopped or failed. facts: what the run came to."""
        self.handle.close()
        if self.wandb:
            self.wandb.end(outcome, facts)

    def _add(self, handle, lines):
        for line in lines:
            self.now += line["seconds"]["total"]
            if line["step"] % self.every == 0 or "validation_loss" in line:
                values = dict(scalars(line))
                tagged = [{"tag": tag, "simple_value": value} for tag, value in values.items()]
                _write(handle, wall_time=self.now, step=line["step"], summary={"value": tagged})
                if self.wandb:
                    self.wandb.add(line["step"], values | {"training_seconds": self.now - self.started})


def scalars(line):
    """(tag, value) of what a step's line says, with rates and seconds by phase."""
    seconds = line["seconds"]
    for name in ("loss", "validation_loss", "lr", "grad_norm", "memory_bytes"):
        if line.get(name) is not None:
            yield name, line[name]
    if (unit := work_unit(line)) and seconds["total"] > 0:
        yield f"{unit}_per_second", line[unit] / seconds["total"]
    for phase, value in seconds.items():
        if value > 0:
            yield f"seconds/{phase}", value


def _write(handle, **fields):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    RecordWriter(handle).write(Event(**fields).SerializeToString())
