"""Progress of a training: a bar on a terminal, a plain line now and then in a log. Rank 0 alone shows it."""

import sys
import time

from tqdm import tqdm

LOG_SECONDS = 10.0


class Progress:
    """Shows step, loss and rate."""

    def __init__(self, name, steps, done, shown, unit):
        self.name, self.steps, self.unit = name, steps, unit
        self.shown = shown
        self.bar = tqdm(total=steps, initial=done, desc=name, unit="step") if shown and sys.stderr.isatty() else None
        self.last_line = 0.0
        self.work, self.seconds = 0, 0.0

    def update(self, line):
        """One step more, told by its record line."""
        if not self.shown:
            return
        self.work += line[self.unit]
        self.seconds += line["seconds"]["total"]
        rate = self.work / self.seconds
        if self.bar is not None:
            self.bar.set_postfix_str(f"loss {line['loss']:.3f}, {rate:,.0f} {self.unit}/s", refresh=False)
            self.bar.update()
        elif time.monotonic() - self.last_line > LOG_SECONDS or line["step"] == self.steps:
            self.last_line = time.monotonic()
            validation = f", validation {line['validation_loss']:.4f}" if "validation_loss" in line else ""
            print(
                f"{self.name}: step {line['step']}/{self.steps}, loss {line['loss']:.4f}{validation}, {rate:,.0f} {self.unit}/s",
                file=sys.stderr,
                flush=True,
            )

    def close(self):
        """Leave the terminal tidy."""
        if self.bar is not None:
            self.bar.close()
