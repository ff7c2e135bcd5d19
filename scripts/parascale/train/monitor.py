"""The sampler beside a training: one on each node, a thread of the node's first process.

A thread dies with what it watches, sees the node from inside the job, and costs a millisecond of one core a sample, for parts of
which it holds Python's lock. A process of its own would cost a start of Python for each attempt.
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

END_SECONDS = 10.0  # a driver that hangs must not keep a finished training


def monitored(job, processes):
    """A context in which this node's devices are sampled into the job's work folder, every `monitor.interval_seconds`.

    processes: process id of each rank of the run. Only the first process of a node samples.
    """
    rank, local_rank, local_size = place()
    if local_rank:
        return nullcontext()
    return sampled(job, rank // local_size, {each: processes[each] for each in range(rank, rank + local_size)})


def sampled(job, node, processes):
    """The same for a node by its number. processes: rank → process id of each of its ranks, or a function that gives it."""
    if job.monitor is None:
        return nullcontext()
    ranks, gauges = list(processes), [NodeGauges(processes)]
    if job.site.device == "cuda":
        gauges += _gpus(job.run.layout.gpus_per_node, ranks)
    return DeviceMonitor(job.work / f"device-{node:05d}.csv", node, gauges, job.monitor.interval_seconds)


def _gpus(held, ranks):
    """The gauge of this node's GPUs; none, and a line that says so, if NVML is not there."""
    import pynvml  # only where there are GPUs: it costs time to load

    try:
        pynvml.nvmlInit()
        return [Gpus(pynvml, os.environ.get("CUDA_VISIBLE_DEVICES"), held, ranks)]
    except pynvml.NVMLError as error:
        _say(f"GPUs are not sampled: {error}")
        return []


class DeviceMonitor:
    """While entered, appends a line for each device to a file, at a fixed interval; at the end the last one."""

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
            with open(self.path, "a", buffering=1, newline="", encoding="utf-8") as handle:  # each line is seen at once
                writer = csv.DictWriter(handle, COLUMNS, restval="", lineterminator="\n")
                if handle.tell() == 0:
                    writer.writeheader()
                due = time.monotonic() + self.seconds
                self._sample(writer)
                while not self.stopped.wait(due - time.monotonic()):
                    due = max(due + self.seconds, time.monotonic())
                    self._sample(writer)
                self._sample(writer)
        except OSError as error:  # a full disk is the training's affair, not ours
            _say(f"no more samples of the devices: {error}")

    def _sample(self, writer):
        now = {"time": f"{time.time():.3f}", **self.place}
        for gauge in self.gauges:
            for values in gauge.read():
                if values["kind"] == "host":
                    values["monitor_seconds"] = time.thread_time()
                for name, value in values.items():  # six significant digits: samples are no more exact
                    values[name] = f"{value:.6g}" if isinstance(value, float) else value
                writer.writerow(now | values)


def publish(folder, target):
    """Join the samples of each node of a run under way; returns what its summary keeps of them."""
    with atomic_path(target) as partial, open(partial, "w", encoding="utf-8") as merged:
        merged.write(",".join(COLUMNS) + "\n")
        for path in sample_files(folder):
            with open(path, encoding="utf-8") as handle:
                merged.writelines(line for number, line in enumerate(handle) if number and line.endswith("\n"))
    return figures(read_samples([target]))


def _say(text):
    print(f"{socket.gethostname()}: {text}", file=sys.stderr, flush=True)
