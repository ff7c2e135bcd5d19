"""A program for the launcher: a training in which one rank hangs or leaves the others. Arguments: the job and the fault, as JSON.

The fault: kind, a function below; rank and step where it strikes; axes, along which every rank sums in each step's forward pass, as a
hook of a user's might.
"""

import json
import os
import re
import signal
import sys
import threading

import torch
import torch.distributed as dist
from jobs import job_from_settings  # beside this file, whose folder Python looks into

from parascale.data.text import Windows
from parascale.train import loop, step

PATIENCE = 200.0  # seconds for ranks to meet: torch loads slowly where cores are shared
# As the code of a library, as what reads a file is.
READER = """
def reads(windows, indices):
    return threading.Event().wait() if planted.strikes("reader") else batch(windows, indices)
"""


class Planted:
    """The fault in this rank."""

    def __init__(self, kind, rank, step, axes=()):
        self.kind, self.step, self.axes = kind, step, axes
        self.mine = int(os.environ["RANK"]) == rank
        self.number = 0

    def strikes(self, kind):
        return self.mine and self.number == self.step and self.kind == kind

    def plant(self):
        begin, parallelize, all_reduce = loop.Stepper.begin, loop.parallelize, step.all_reduce
        start = loop.start_processes
        loop.start_processes = lambda device, seconds: start(device, PATIENCE)  # groups get the timeout of the job
        names = {"threading": threading, "planted": self, "batch": Windows.batch}
        exec(compile(READER, "<frozen reader>", "exec"), names)

        def begin_step(stepper, number):
            self.number = number
            begin(stepper, number)

        def make(build, run, mesh, *others):
            model = parallelize(build, run, mesh, *others)
            self.mesh = mesh
            (model.forward_module or model.parts[0]).register_forward_hook(self.hook)
            return model

        def sum_up(values, mesh):
            return values if self.strikes("skip_own") else all_reduce(values, mesh)

        loop.Stepper.begin, loop.parallelize, step.all_reduce = begin_step, make, sum_up
        Windows.batch = names["reads"]

    def hook(self, module, inputs, outputs):
        """After the forward pass of this rank's part of the model."""
        groups = [self.mesh.devices.get_group(axis) for axis in self.axes]
        sums = list(enumerate(groups, 1))
        if self.strikes("order"):
            sums.reverse()
        for size, group in sums:
            if not self.strikes("skip") or size > 1:
                dist.all_reduce(torch.zeros(size), group=group)
        if self.mine and self.number == self.step and self.kind in STUCK:
            STUCK[self.kind]()


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def endless():
    while True:
        pass


def lock():
    held = threading.Lock()
    held.acquire()
    held.acquire()


def pipe():
    _, end = os.pipe()
    while True:
        os.write(end, bytes(1 << 16))


def keeps_pythons_lock():
    re.match("(a+)+b", "a" * 64)


STUCK = {each.__name__: each for each in (stop, kill, endless, lock, pipe, keeps_pythons_lock)}

if __name__ == "__main__":
    Planted(**json.loads(sys.argv[2])).plant()
    loop.train(job_from_settings(json.loads(sys.argv[1])))
