"""`from parascale import record`: what a training script of the user's own says of its steps.

Runs in the user's own environment: Python 3.9 on, with its standard library alone.
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

FOLDER = "PARASCALE_FOLDER"  # a script's folder for its checkpoints; the record of the run lies beside it


def record(*, step: int, loss: Any = None, samples: Any = None, **figures: Any) -> None:
    """Record an optimizer step: the curve, and the rate, of the run that this process is part of. Outside of a run it does nothing.

    The first rank's call counts; others may call it too. step: its number; a script that continues goes on with it. loss: in any
    type that `float` takes. samples: trained since the call before, over all processes. figures: more numbers, such as `lr`,
    `grad_norm` or `validation_loss`. A second call for a step adds to what the first said.
    """
    folder = os.environ.get(FOLDER)
    if folder and os.environ.get("RANK", "0") == "0":
        numbers = {"loss": loss, "samples": samples, **figures}
        known = {name: each for name, each in numbers.items() if each is not None}
        # `float` warns for a tensor with gradients.
        plain = {name: float(each.item() if hasattr(each, "item") else each) for name, each in known.items()}
        _lines(folder).add(int(step), plain)


def by_step(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines of steps, each step once: what a script says of it in several calls is joined. Equal lines are one that was written again."""
    found: dict[int, dict[str, Any]] = {}
    for line in lines:
        if (before := found.get(line["step"], line)) != line:
            line = before | line | {"seconds": {"total": before["seconds"]["total"] + line["seconds"]["total"]}}
        found[line["step"]] = line
    return list(found.values())


class _Lines:
    """The end of `steps.jsonl`, where this process appends a line for each step."""

    def __init__(self, folder: str) -> None:
        self.path = Path(folder).parent / "steps.jsonl"  # as in `paths.RunFolder`
        self.file: Any = None
        ticks = int(Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()[19])  # proc(5)
        # When this process began.
        self.since = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")

    def add(self, step: int, numbers: dict[str, float]) -> None:
        """Append a line for a step: the only one, or one that `by_step` joins to those before."""
        now = time.time()
        seconds, self.since = now - self.since, now
        line = {"step": step} | {name: each if math.isfinite(each) else None for name, each in numbers.items()}
        if (samples := line.pop("samples", None)) is not None:
            line["samples"] = int(samples)
        if not self.file:
            # Steps after the checkpoint that the script continues from are done again.
            kept = "".join(json.dumps(each) + "\n" for each in self._known() if each["step"] < step)
            partial = self.path.with_name(f".{self.path.name}.{os.getpid()}.partial")
            try:
                partial.write_text(kept, encoding="utf-8")
                os.replace(partial, self.path)
            finally:
                with suppress(OSError):  # there is one only if that failed
                    partial.unlink()
            self.file = open(self.path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115 (as long as the script)
            line["first"] = now  # of an attempt: its seconds hold the start, until the launcher has seen others
        self.file.write(json.dumps(line | {"seconds": {"total": seconds}}) + "\n")

    def _known(self) -> Iterable[dict[str, Any]]:
        """The lines that are whole: what ends an attempt may cut one."""
        for line in self.path.read_bytes().split(b"\n") if self.path.exists() else ():
            with suppress(ValueError):
                yield json.loads(line)


_lines = functools.cache(_Lines)  # of a script's folder
