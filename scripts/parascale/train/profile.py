"""A profile of chosen steps with PyTorch's profiler: a trace for those who look closely, and the operators that took longest."""

import torch
from torch.profiler import ProfilerActivity, profile

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


def profiler(job, lead):
    """The StepProfiler of a job, on its first rank; None where no profile is asked for."""
    steps = job.run.profile_steps
    return StepProfiler(job.work_folder / "profile", *steps) if steps and lead else None


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
