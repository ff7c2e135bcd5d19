"""TensorBoard event files, so that `tensorboard --logdir` shows runs, including those in progress.

Messages and records come from the package tensorboard. Its EventFileWriter is not used: it chooses the file name, starts the file with
the current time, and writes from a thread. Only rank 0 writes and imports the package (0.1 s and 17 MB; torch's writer takes 2.7 s and
210 MB). Weights & Biases gets the same values if the configuration asks for it (`wandb_run.py`).
"""

import math
from typing import Any

from parascale.files import atomic_path
from parascale.settings.workload import work_unit

NAME = "events.out.tfevents.parascale"  # TensorBoard looks for names with `tfevents`
POINTS = 1000  # per run: TensorBoard shows no more per curve, and steps.jsonl has all steps


class Events:
    """The event file of a run. Wall times are the run's start plus training time, so that `relative` shows training time."""

    def __init__(self, folder):
        self.path = folder / NAME
        self.handle: Any = None
        self.wandb = None

    def begin(self, started, steps, lines, wandb=None):
        """Rewrite the file with the steps so far, and keep it open for more.

        started: seconds since 1970. steps: number of steps of the whole run; at most POINTS are written, plus every evaluation.
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
        """Append steps, given as lines of `steps.jsonl`."""
        self._add(self.handle, lines)
        self.handle.flush()

    def close(self, outcome, facts):
        """End the attempt. outcome: finished, stopped or failed. facts: results of the run."""
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
    """Yield (tag, value) for a step's line, with rates and seconds by phase."""
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
