"""The first steps of a parity run, recorded: `parascale.proof` then says where a layout parts from its baseline."""

from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial

import torch

from parascale import prove
from parascale.errors import Interrupted
from parascale.train import loop


class Enough(Interrupted):
    """All steps asked for are recorded."""


def record(job, folder, steps, every=1):
    """Train the first steps of the Job of a parity run as ever, and record each in `folder`, which also gets what a training leaves: of its
    tensors every so-many-th column.

    It is not compiled: in a graph modules have no outputs of their own. Ranks sum in fp32: else their rounding would be the first difference.
    """
    run = replace(job.run, layout=replace(job.run.layout, compile=False), reduce_precision="fp32")
    job = replace(job, run=run, work=folder / "work", output=folder / "output", store=folder / "store")
    with suppress(Enough):
        loop.train(job, partial(_make_steps, folder, steps, every))


def _make_steps(folder, steps, every, session):
    """The steps of the run's engine, each recorded from its beginning to its end."""
    begin, end, stepper = session.begin_step, session.end_step, session.stepper
    report = stepper.report

    def begin_step(step):
        begin(step)
        session.record = stack.enter_context(prove.recording(stepper.model.parts, folder, every=every))

    def report_whole(*arguments):  # of gradients that are whole, and not clipped yet
        figures = report(*arguments)
        session.record.gradients()
        return figures

    def end_step(step, result):
        _, loss, *_ = result.read()
        session.record.loss(torch.tensor(loss, dtype=torch.float64))
        stack.close()
        if step == min(steps, session.steps):
            raise Enough
        end(step, result)

    session.begin_step, session.end_step, stepper.report = begin_step, end_step, report_whole
    with ExitStack() as stack:
        loop.make_steps_of_engine(session)
