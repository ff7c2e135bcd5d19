"""`from parascale import record`: what a training script of the user's own says of its steps. It imports no torch."""

import functools
import json
import math
import os
import time
from collections.abc import Iterable
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
        import psutil

        from parascale.paths import RunFolder

        self.path = RunFolder(Path(folder).parent).steps
        self.file: Any = None
        self.since = psutil.Process().create_time()

    def add(self, step: int, numbers: dict[str, float]) -> None:
        """Append a line for a step: the only one, or one that `by_step` joins to those before."""
        now = time.time()
        seconds, self.since = now - self.since, now
        line = {"step": step} | {name: each if math.isfinite(each) else None for name, each in numbers.items()}
        if (samples := line.pop("samples", None)) is not None:
            line["samples"] = int(samples)
        if not self.file:
            from parascale.files import read_json_lines, write_text

            # Steps after the checkpoint that the script continues from are done again.
            known = read_json_lines(self.path, readable=True) if self.path.exists() else []
            write_text(self.path, "".join(json.dumps(each) + "\n" for each in known if each["step"] < step))
            self.file = open(self.path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115 (as long as the script)
            line["first"] = now  # of an attempt: its seconds hold the start, until the launcher has seen others
        self.file.write(json.dumps(line | {"seconds": {"total": seconds}}) + "\n")


_lines = functools.cache(_Lines)  # of a script's folder
