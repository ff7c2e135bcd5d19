"""Step timing: seconds by phase for every step, and profiles of selected steps."""

import re
import time
from contextlib import contextmanager
from functools import partial

import torch
from torch.autograd import profiler_legacy
from torch.profiler import profile

from parascale.errors import RequirementError
from parascale.files import atomic_path, write_json

OPERATORS = 20  # rows in a profile's table
ATTENTION = re.compile(
    r"aten::_scaled_dot_product_(?:(flash|cudnn|efficient)_attention(?:_for_cpu)?|attention_(math))$|triton_.*(flex)_attention"
)


class Clock:
    """Adds up seconds by phase until `cut()`. Time outside all phases is `other`.

    Times come from the CPU's clock or, on a GPU, from events on its stream, read after the stream has passed them: nothing here
    waits for the GPU.
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
        """A context whose time is added to `name`. Phases do not nest, except those of stages inside `pipeline`."""
        return _Phase(self, name)

    @contextmanager
    def paused(self):
        """A context whose time belongs to no step: it is recorded separately or not at all."""
        self.runs.append((self.started, self.now()))
        yield
        self.started = self.now()

    def cut(self):
        """End a step and begin the next. Returns a function for the `seconds_of` the step that ended."""
        now = self.now()
        seconds = partial(seconds_of, self.phases, [*self.runs, (self.started, now)], self.between)
        self.phases, self.runs, self.started = [], [], now
        return seconds


class _Phase:
    """Context of one Clock phase. A class makes half as many calls as a generator, and every step enters several."""

    __slots__ = ("clock", "name", "start")

    def __init__(self, clock, name):
        self.clock, self.name = clock, name

    def __enter__(self):
        self.start = self.clock.now()

    def __exit__(self, *error):
        self.clock.phases.append((self.name, self.start, self.clock.now()))


def seconds_of(phases, runs, between):
    """Seconds by phase with `total` and `other`.

    phases: (name, start, end). runs: (start, end) of the intervals that make up the step. between: (start, end) → seconds.
    In a pipeline, `bubble` is the time in the schedule when the rank's stages did not compute: waiting and sending.
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
    """Call `start` before step `first` and `stop` after step `last`."""

    def __init__(self, first, last, start, stop):
        self.first, self.last, self.start, self.stop = first, last, start, stop
        self.started = False

    def begin_step(self, step):
        """Start at `first`, or at the step in between where a stopped run resumes."""
        if not self.started and self.first <= step <= self.last:
            self.started = True
            self.start()

    def end_step(self, step):
        if self.started and step == self.last:
            self.started = False
            self.stop()


class StepProfiler(ChosenSteps):
    """PyTorch's profile of the steps: writes trace.json.gz and operators.json (the slowest operators) to `folder`."""

    def __init__(self, folder, first, last):
        self.folder, self.profile = folder, profile()  # CPU, and GPU if present
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
    """Call `note` with the torch attention kernels used in one step, compiled or not: `flash`, `cudnn`, `efficient`, `math`, and `flex`
    for separate documents.

    Empty if attention is made of separate operations, as with layout-independent dropout masks, or is `math` in a compiled block. torch's
    legacy profiler writes nothing to the log; its own parser fails on collectives that end later.
    """

    def __init__(self, step, note):
        self.note = note
        super().__init__(step, step, self._begin, self._read)

    def _begin(self):
        torch.autograd.profiler._run_on_profiler_start()  # makes compiled code report its kernels' names
        profiler_legacy.profile().__enter__()

    def _read(self):
        torch.autograd.profiler._run_on_profiler_stop()
        names = {event.name() for thread in torch.autograd._disable_profiler_legacy() for event in thread}
        self.note(", ".join(sorted(match[match.lastindex or 0] for match in map(ATTENTION.match, names) if match)))


def profiler(job, lead):
    """The profiler that a job asks for, or None: PyTorch's on the first rank, Nsight Systems on every rank."""
    if job.run.profile_steps is None:
        return None
    first, last = job.run.profile_steps
    if job.run.profiler == "nsight":
        if job.site.device != "cuda":
            raise RequirementError("`profiler: nsight` needs GPUs; use `profiler: torch`")
        # The launcher runs this process under Nsight Systems, which collects only between these calls.
        return ChosenSteps(first, last, torch.cuda.profiler.start, torch.cuda.profiler.stop)
    return StepProfiler(job.work / "profile", first, last) if lead else None
