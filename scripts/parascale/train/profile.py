"""A profile of chosen steps: PyTorch's with a trace and the operators that took longest, or that of Nsight Systems."""

import torch
from torch.profiler import ProfilerActivity, profile

from parascale.errors import RequirementError
from parascale.files import atomic_path, write_json

OPERATORS = 20  # of the table


class StepProfiler:
    """Profiles the steps from `first` to `last`, both included, into `folder`: trace.json.gz and operators.json."""

    def __init__(self, folder, first, last):
        self.folder, self.first, self.last = folder, first, last
        self.profile = None

    def begin_step(self, step):
        """Start with the first of the steps, or where a run that was stopped goes on between them."""
        if self.profile is None and self.first <= step <= self.last:
            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
            self.profile = profile(activities=activities)
            self.profile.start()

    def end_step(self, step):
        """After the last of the steps: write what was seen."""
        if self.profile is None or step != self.last:
            return
        self.profile.stop()
        with atomic_path(self.folder / "trace.json.gz") as partial:
            self.profile.export_chrome_trace(str(partial))
        write_json(self.folder / "operators.json", _longest(self.profile.key_averages()))
        self.profile = None


class NsightRange:
    """Tells Nsight Systems, which the launcher has put around this process, which steps to collect."""

    def __init__(self, first, last):
        self.first, self.last = first, last
        self.collecting = False

    def begin_step(self, step):
        """Collect from the first of the steps on."""
        if not self.collecting and self.first <= step <= self.last:
            self.collecting = True
            torch.cuda.profiler.start()

    def end_step(self, step):
        """Collect no more after the last of them."""
        if self.collecting and step == self.last:
            self.collecting = False
            torch.cuda.profiler.stop()


def profiler(job, lead):
    """What profiles the steps that a job asks for, or None: PyTorch's profiler on the first rank, Nsight Systems on each."""
    steps = job.run.profile_steps
    if steps is None:
        return None
    if job.run.profiler == "nsight":
        if job.site.device != "cuda":
            raise RequirementError("`profiler: nsight` needs GPUs; use `profiler: torch`")
        return NsightRange(*steps)
    return StepProfiler(job.work_folder / "profile", *steps) if lead else None


def _longest(averages):
    """Name, calls and own seconds of the operators that took longest, on the GPU where there is one."""
    operators = [
        {
            "name": average.key,
            "calls": average.count,
            "cpu_seconds": average.self_cpu_time_total / 1e6,
            "device_seconds": average.self_device_time_total / 1e6,
        }
        for average in averages
    ]
    return sorted(operators, key=lambda operator: (-operator["device_seconds"], -operator["cpu_seconds"]))[:OPERATORS]
