"""Where the time of a step goes: seconds by phase, on the CPU's clock or, on a GPU, by events on its stream."""

import time
from contextlib import contextmanager

import torch


class Clock:
    """Adds up seconds by phase until `read()`, which empties it. What no phase covers becomes `other`."""

    def __init__(self, device):
        self.cuda = device.type == "cuda"
        self.reset()

    def reset(self):
        """Start a new step now."""
        self.seconds = {}
        self.events = []
        self.started = time.perf_counter()

    @contextmanager
    def phase(self, name):
        """Count the body's time to `name`. Phases do not nest, except those of stages within `pipeline`."""
        if self.cuda:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            yield
            end.record()
            self.events.append((name, start, end))
        else:
            start = time.perf_counter()
            yield
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    @contextmanager
    def paused(self):
        """The body's time belongs to no step: it is recorded beside them, or not at all."""
        started = time.perf_counter()
        yield
        self.started += time.perf_counter() - started

    def read(self):
        """Seconds by phase with `total` and `other`, and a new step begins.

        In a pipeline, what a rank's stages did not compute while the schedule ran is `bubble`: waiting and sending.
        """
        if self.cuda:
            torch.cuda.synchronize()
            for name, start, end in self.events:
                self.seconds[name] = self.seconds.get(name, 0.0) + start.elapsed_time(end) / 1000
        seconds = {
            name: self.seconds.get(name, 0.0) for name in ("data", "forward", "backward", "communication", "optimizer")
        }
        if "pipeline" in self.seconds:
            seconds["bubble"] = max(0.0, self.seconds["pipeline"] - seconds["forward"] - seconds["backward"])
        total = time.perf_counter() - self.started
        seconds["other"] = max(0.0, total - sum(seconds.values()))
        self.reset()
        return {"total": total, **seconds}
