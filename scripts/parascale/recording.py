"""`from parascale import record`: how a user's training script reports its steps.

Runs in the user's own environment: Python 3.9 or later, standard library only.
"""

from __future__ import annotations

import functools
import json
import math
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

FOLDER = "PARASCALE_FOLDER"  # variable with the script's folder for checkpoints; the run's record is next to it


def record(*, step: int, loss: Any = None, samples: Any = None, **figures: Any) -> None:
    """Record an optimizer step, for the run's loss curve and throughput. Does nothing outside of a run.

    Only rank 0's calls count; other ranks may call it too. step: its number; a restarted script continues counting. loss: anything that
    `float` takes. samples: number trained since the last call, over all processes. figures: more numbers, such as `lr`, `grad_norm` or
    `validation_loss`. A second call for the same step adds to the first.
    """
    folder = os.environ.get(FOLDER)
    if folder and os.environ.get("RANK", "0") == "0":
        numbers = {"loss": loss, "samples": samples, **figures}
        known = {name: each for name, each in numbers.items() if each is not None}
        # `float` of a tensor with gradients warns; `item` does not.
        plain = {name: float(each.item() if hasattr(each, "item") else each) for name, each in known.items()}
        _lines(folder).add(int(step), plain)


def by_step(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge lines of the same step, from several calls of a script. Equal lines are repeated writes and count once."""
    found: dict[int, dict[str, Any]] = {}
    for line in lines:
        if (before := found.get(line["step"], line)) != line:
            line = before | line | {"seconds": {"total": before["seconds"]["total"] + line["seconds"]["total"]}}
        found[line["step"]] = line
    return list(found.values())


class _Lines:
    """Appends lines to `steps.jsonl`, one for each call."""

    def __init__(self, folder: str) -> None:
        self.path = Path(folder).parent / "steps.jsonl"  # as in `paths.RunFolder`
        self.file: Any = None
        ticks = int(Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()[19])  # proc(5)
        # When this process started.
        self.since = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")

    def add(self, step: int, numbers: dict[str, float]) -> None:
        """Append a line for a step. `by_step` merges several lines of a step."""
        now = time.time()
        seconds, self.since = now - self.since, now
        line = {"step": step} | {name: each if math.isfinite(each) else None for name, each in numbers.items()}
        if (samples := line.pop("samples", None)) is not None:
            line["samples"] = int(samples)
        if not self.file:
            # The script repeats the steps after its last checkpoint, so drop their old lines.
            kept = "".join(json.dumps(each) + "\n" for each in self._known() if each["step"] < step)
            partial = self.path.with_name(f".{self.path.name}.{os.getpid()}.partial")
            try:
                partial.write_text(kept, encoding="utf-8")
                os.replace(partial, self.path)
            finally:
                with suppress(OSError):  # it exists only if the above failed
                    partial.unlink()
            self.file = open(self.path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115 (as long as the script)
            line["first"] = now  # of an attempt: the seconds include the start, until the launcher corrects them
        self.file.write(json.dumps(line | {"seconds": {"total": seconds}}) + "\n")

    def _known(self) -> Iterable[dict[str, Any]]:
        """The valid lines; the end of an attempt may truncate one."""
        for line in self.path.read_bytes().split(b"\n") if self.path.exists() else ():
            with suppress(ValueError):
                yield json.loads(line)


_lines = functools.cache(_Lines)  # one per folder
