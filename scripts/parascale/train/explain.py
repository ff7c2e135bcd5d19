"""Record the first steps of a parity run, for `parascale.proof` to find where a layout starts to differ from its baseline."""

from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial

import torch

from parascale import prove
from parascale.errors import Interrupted
from parascale.train import loop


class Enough(Interrupted):
    """All requested steps are recorded."""


def record(job, folder, steps, every=1):
    """Train the first steps of a parity run's Job as usual, and record each in `folder`, which also gets the usual results. Of tensors only
    one in `every` columns is recorded.

    It is not compiled, since a graph has no module outputs. Ranks sum in fp32, or bf16 rounding would be the first difference.
    """
    run = replace(job.run, layout=replace(job.run.layout, compile=False), reduce_precision="fp32")
    job = replace(job, run=run, work=folder / "work", output=folder / "output", store=folder / "store")
    with suppress(Enough):
        loop.train(job, partial(_make_steps, folder, steps, every))


def _make_steps(folder, steps, every, session):
    """Run the engine's steps and record each from start to end."""
    begin, end, stepper = session.begin_step, session.end_step, session.stepper
    report = stepper.report

    def begin_step(step):
        begin(step)
        session.record = stack.enter_context(prove.recording(stepper.model.parts, folder, every=every))

    def report_whole(*arguments):  # here gradients are complete and not yet clipped
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
