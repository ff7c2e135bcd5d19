"""Where the time of a step goes: seconds by phase of every step, and a profile of chosen ones."""

import re
import time
from contextlib import contextmanager
from functools import partial

import torch
from torch.autograd import profiler_legacy
from torch.profiler import profile

from parascale.errors import RequirementError
from parascale.files import atomic_path, write_json

OPERATORS = 20  # of a profile's table
ATTENTION = re.compile(
    r"aten::_scaled_dot_product_(?:(flash|cudnn|efficient)_attention(?:_for_cpu)?|attention_(math))$|triton_.*(flex)_attention"
)


class Clock:
    """Adds up seconds by phase until `cut()`. What no phase covers becomes `other`.

    Times are of the CPU's clock or, on a GPU, of events on its stream, which are read when the stream has passed them: nothing
    here waits for the GPU.
    """

    def __init__(self, device):
        self.now, self.between = time.perf_counter, lambda start, end: end - start
        if device.type == "cuda":
            self.now = lambda: torch.cuda.current_stream().record_event(torch.cuda.Event(enable_timing=True))
            self.between = _seconds_between_events
        self.reset()

    def reset(self):
        self.phases, self.runs, self.started = [], [], self.now()

    def phase(self, name):
        """A context whose body's time counts to `name`. Phases do not nest, except those of stages within `pipeline`."""
        return _Phase(self, name)

    @contextmanager
    def paused(self):
        """The body's time belongs to no step: it is recorded beside them, or not at all."""
        self.runs.append((self.started, self.now()))
        yield
        self.started = self.now()

    def cut(self):
        """End a step and begin the next; returns a function that gives the `seconds_of` the one that ended."""
        now = self.now()
        seconds = partial(seconds_of, self.phases, [*self.runs, (self.started, now)], self.between)
        self.phases, self.runs, self.started = [], [], now
        return seconds


class _Phase:
    """Of a Clock. A class, because every step enters several: half as many calls as those of a generator."""

    __slots__ = ("clock", "name", "start")

    def __init__(self, clock, name):
        self.clock, self.name = clock, name

    def __enter__(self):
        self.start = self.clock.now()

    def __exit__(self, *error):
        self.clock.phases.append((self.name, self.start, self.clock.now()))


def seconds_of(phases, runs, between):
    """Seconds by phase with `total` and `other`.

    phases: (name, start, end). runs: (start, end) of the stretches that the step consists of. between: (start, end) → seconds.
    In a pipeline, what a rank's stages did not compute while the schedule ran is `bubble`: waiting and sending.
    """
    seconds = dict.fromkeys(("data", "forward", "backward", "communication", "optimizer"), 0.0)
    for name, start, end in phases:
        seconds[name] = seconds.get(name, 0.0) + between(start, end)
    if (scheduled := seconds.pop("pipeline", None)) is not None:
        seconds["bubble"] = max(0.0, scheduled - seconds["forward"] - seconds["backward"])
    total = sum(between(*run) for run in runs)
    seconds["other"] = max(0.0, total - sum(seconds.values()))
    return {"total": total, **seconds}


def _seconds_between_events(start, end):
    end.synchronize()
    return start.elapsed_time(end) / 1000


class ChosenSteps:
    """Calls `start` before the first and `stop` after the last of the steps from `first` to `last`, both included."""

    def __init__(self, first, last, start, stop):
        self.first, self.last, self.start, self.stop = first, last, start, stop
        self.started = False

    def begin_step(self, step):
        """Start at the first of the steps, or at the step between them with which a stopped run goes on."""
        if not self.started and self.first <= step <= self.last:
            self.started = True
            self.start()

    def end_step(self, step):
        if self.started and step == self.last:
            self.started = False
            self.stop()


class StepProfiler(ChosenSteps):
    """PyTorch's profile of the steps: trace.json.gz and operators.json, those that took longest, in `folder`."""

    def __init__(self, folder, first, last):
        self.folder, self.profile = folder, profile()  # of the CPU, and of the GPU where there is one
        super().__init__(first, last, self.profile.start, self._write)

    def _write(self):
        self.profile.stop()
        with atomic_path(self.folder / "trace.json.gz") as partial:
            self.profile.export_chrome_trace(str(partial))
        averages = self.profile.key_averages()
        found = [(each.key, each.count, each.self_cpu_time_total, each.self_device_time_total) for each in averages]
        names = ("name", "calls", "cpu_seconds", "device_seconds")
        longest = sorted(found, key=lambda each: (-each[3], -each[2]))[:OPERATORS]
        rows = [(name, calls, cpu / 1e6, device / 1e6) for name, calls, cpu, device in longest]
        write_json(self.folder / "operators.json", [dict(zip(names, row, strict=True)) for row in rows])


class AttentionSeen(ChosenSteps):
    """Calls `note` with the kernels of torch's attention that one step calls, compiled or not: `flash`, `cudnn`, `efficient`, `math`,
    and `flex` of separate documents.

    Empty: attention in operations of its own, as with dropout of equal masks, or `math` in a compiled block. torch's older profiler writes
    nothing into the log; its own reader fails at collectives that end later.
    """

    def __init__(self, step, note):
        self.note = note
        super().__init__(step, step, self._begin, self._read)

    def _begin(self):
        torch.autograd.profiler._run_on_profiler_start()  # compiled code then tells the names of its kernels
        profiler_legacy.profile().__enter__()

    def _read(self):
        torch.autograd.profiler._run_on_profiler_stop()
        names = {event.name() for thread in torch.autograd._disable_profiler_legacy() for event in thread}
        self.note(", ".join(sorted(match[match.lastindex or 0] for match in map(ATTENTION.match, names) if match)))


def profiler(job, lead):
    """Profiler of the steps that a job asks for, or None: PyTorch's profiler on the first rank, Nsight Systems on each."""
    if job.run.profile_steps is None:
        return None
    first, last = job.run.profile_steps
    if job.run.profiler == "nsight":
        if job.site.device != "cuda":
            raise RequirementError("`profiler: nsight` needs GPUs; use `profiler: torch`")
        # Nsight Systems, which the launcher has put around this process, collects nothing else.
        return ChosenSteps(first, last, torch.cuda.profiler.start, torch.cuda.profiler.stop)
    return StepProfiler(job.work / "profile", first, last) if lead else None
