"""Sample a node's devices during a training, in a thread of the node's first process.

A thread ends with its process, sees the node from inside the job, and costs one millisecond of one core per sample, during part of
which it holds the GIL. A separate process would have to start Python for each attempt.
"""

import csv
import os
import socket
import sys
import threading
import time
from contextlib import nullcontext

from parascale import slurm
from parascale.files import atomic_path
from parascale.telemetry import COLUMNS, figures, read_samples, sample_files
from parascale.train.gauges import Gpus, NodeGauges, place

END_SECONDS = 10.0  # timeout for the last sample: a hanging driver must not delay a finished training


def monitored(job, processes):
    """A context that samples this node's devices into the job's work folder, every `monitor.interval_seconds`.

    processes: the process id of each rank. Only the first process of a node samples.
    """
    rank, local_rank, local_size = place()
    if local_rank:
        return nullcontext()
    return sampled(job, rank // local_size, {each: processes[each] for each in range(rank, rank + local_size)})


def sampled(job, node, processes):
    """Like `monitored`, for a given node number. processes: rank → process id, or a function that returns this mapping."""
    if job.monitor is None:
        return nullcontext()
    ranks, gauges = list(processes), [NodeGauges(processes)]
    if job.site.device == "cuda":
        gauges += _gpus(job.run.layout.gpus_per_node, ranks)
    return DeviceMonitor(job.work / f"device-{node:05d}.csv", node, gauges, job.monitor.interval_seconds)


def _gpus(held, ranks):
    """A list with the gauge of this node's GPUs; empty, with a warning, if NVML is missing."""
    import pynvml  # only with GPUs: it is slow to import

    try:
        pynvml.nvmlInit()
        return [Gpus(pynvml, os.environ.get("CUDA_VISIBLE_DEVICES"), held, ranks)]
    except pynvml.NVMLError as error:
        _say(f"GPUs are not sampled: {error}")
        return []


class DeviceMonitor:
    """A context that appends a line per device to a file, at a fixed interval and once at the end."""

    def __init__(self, path, node, gauges, seconds):
        self.path, self.gauges, self.seconds = path, gauges, seconds
        self.place = {"node": node, "host": slurm.node_name()}
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, name="monitor", daemon=True)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *error):
        self.stopped.set()
        self.thread.join(END_SECONDS)

    def _run(self):
        try:
            with open(self.path, "a+b") as handle:  # a crash may have cut the last line short
                handle.seek(0)
                handle.truncate(sum(len(line) for line in handle if line.endswith(b"\n")))
            with open(self.path, "a", buffering=1, newline="", encoding="utf-8") as handle:  # line-buffered for readers
                writer = csv.DictWriter(handle, COLUMNS, restval="", lineterminator="\n")
                if handle.tell() == 0:
                    writer.writeheader()
                due = time.monotonic() + self.seconds
                self._sample(writer)
                while not self.stopped.wait(due - time.monotonic()):
                    due = max(due + self.seconds, time.monotonic())
                    self._sample(writer)
                self._sample(writer)
        except OSError as error:  # a full disk is for the training to report
            _say(f"no more samples of the devices: {error}")

    def _sample(self, writer):
        now = {"time": f"{time.time():.3f}", **self.place}
        for gauge in self.gauges:
            for values in gauge.read():
                if values["kind"] == "host":
                    values["monitor_seconds"] = time.thread_time()
                for name, value in values.items():  # samples are accurate to at most six significant digits
                    values[name] = f"{value:.6g}" if isinstance(value, float) else value
                writer.writerow(now | values)


def publish(folder, target):
    """Merge the samples of all nodes of a run in progress into `target`; returns the figures for the run's summary."""
    with atomic_path(target) as partial, open(partial, "w", encoding="utf-8") as merged:
        merged.write(",".join(COLUMNS) + "\n")
        for path in sample_files(folder):
            with open(path, encoding="utf-8") as handle:
                merged.writelines(line for number, line in enumerate(handle) if number and line.endswith("\n"))
    return figures(read_samples([target]))


def _say(text):
    print(f"{socket.gethostname()}: {text}", file=sys.stderr, flush=True)
