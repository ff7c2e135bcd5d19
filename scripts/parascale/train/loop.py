"""The training loop, top to bottom: process setup, data, model, resume, steps, last evaluation, publish."""

import gc
import math
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing.errors import record

from parascale.data.loader import Prefetcher, read_batches
from parascale.data.sampler import Sampler
from parascale.errors import Interrupted
from parascale.evaluation.task import Task, open_task
from parascale.families.build import build_model
from parascale.families.dropout import generators
from parascale.parallel import make_mesh, parallelize, start_processes, stop_processes
from parascale.parallel.context import own_positions
from parascale.parallel.precision import set_arithmetic
from parascale.train.clock import AttentionSeen, Clock, profiler
from parascale.train.loss import GlobalLoss, LossScale, all_reduce, evaluate, refuse_foresight, refuse_non_finite
from parascale.train.monitor import monitored
from parascale.train.optim import learning_rate, make_optimizers, momentum, set_rates
from parascale.train.process import PATIENCE, Watchdog, garbage_kept, listen_for_signals, peak_memory
from parascale.train.ram import data_folder
from parascale.train.record import TrainingProgress
from parascale.train.state import RunState
from parascale.train.step import Stepper, local_samples, torch_seed

# All ranks collect garbage after the same steps: a rank that did so on its own would make the others wait.
GARBAGE_STEPS = 50


@record  # writes an exception to the launcher's error file
def train(job, make_steps=None):
    """Train a run to its end, or until a stop is requested (raises Interrupted after saving the state).

    make_steps: function of a Session that runs the remaining steps (default: the run's engine).
    """
    run, training = job.run, job.run.workload.training
    with ExitStack() as stack:
        # --- process setup
        stop_requested = listen_for_signals()
        set_arithmetic(run)
        device = start_processes(job.site.device, job.timeout_seconds)
        mesh = make_mesh(run.layout, device, PATIENCE)
        watchdog = stack.enter_context(Watchdog(job.timeout_seconds, mesh.devices))
        clock = Clock(device)

        # --- data
        with data_folder(job) as folder:
            task = open_task(run.workload, folder, run.seed)
        task = replace(task, splits={name: own_positions(split, mesh) for name, split in task.splits.items()})
        samples = task.splits["train"]
        sampler = Sampler(len(samples), run.global_batch, run.seed, count_on=task.augmented)
        steps = run.optimizer_steps(len(samples))
        run.check_steps(steps)

        # --- model
        build = partial(build_model, run.workload.model, task.outputs, *run.workload.sizes)
        loss = GlobalLoss(training.label_smoothing)
        model = parallelize(build, run, mesh, loss, clock, PATIENCE)
        stepper = Stepper(run, model, make_optimizers(model, run.workload.optim), loss, clock)

        # --- resume
        state = RunState(job, model, stepper.optimizers, watchdog.feed)
        first_step = state.begin(steps, task.outputs, task.excluded)
        if first_step is None:  # another job has finished it
            return stop_processes()
        if stepper.scale is not None:
            stepper.scale = LossScale(device, state.saved.get("loss_scale"))
        stack.enter_context(_failure_noted(state))
        if first_step == 1:
            refuse_foresight(run, model, task.outputs)
        shown = TrainingProgress(run.run, steps, first_step - 1, mesh.rank == 0, run.workload.unit)
        progress = stack.enter_context(shown)
        parts = read_batches(samples, local_samples(sampler, first_step, steps, run, mesh), task.workers, device)
        feed = Prefetcher(parts, training.accumulate, device)
        model.train()

        # --- steps
        profiled = profiler(job, mesh.rank == 0)
        # The second step, because the first compiles; torch allows one profiler at a time.
        attention = AttentionSeen(0 if profiled else first_step + 1, state.note_attention)
        parties = job, mesh, clock, watchdog, task, feed, stepper, state, progress, profiled, attention
        session = Session(*parties, stop_requested, first_step, steps)
        with monitored(job, state.processes), garbage_kept():
            session.evaluate_due()
            (make_steps or make_steps_of_engine)(session)

            # --- last evaluation
            if training.evaluate and "test" in task.splits:
                watchdog.feed()
                state.load_best()
                said = f"test of step {state.facts['best_step']}'s weights, the best"
                state.note("test", *session.means("test", said))

        # --- publish
        state.publish()
        return stop_processes()


def make_steps_of_engine(session):
    """Run the remaining steps of a Session with its run's engine. The native one runs one optimizer step after the other."""
    if session.run.engine == "lightning":
        from parascale.train import lightning  # slow to import

        return lightning.make_steps(session)
    stepper = session.stepper
    if stepper.averager and session.first_step == 1:
        stepper.averager.begin()
    session.clock.reset()
    for step in range(session.first_step, session.steps + 1):
        session.begin_step(step)
        result = stepper.step(session.batches(step), *session.requests())
        if stepper.averager:
            stepper.average_ranks(step, last=step == session.steps)
        session.end_step(step, result)


@dataclass
class Session:
    """Everything that the steps of a training need, and the hooks that an engine calls before and after each step."""

    job: Any
    mesh: Any
    clock: Clock
    watchdog: Watchdog
    task: Task
    feed: Prefetcher  # this rank's training batches, in order
    stepper: Stepper
    state: RunState
    progress: TrainingProgress
    profiler: Any  # from train.clock, or None
    attention: AttentionSeen
    stop_requested: Any  # function: True if this process was asked to stop
    first_step: int
    steps: int
    random: Any = None  # torch's random state at the start of a step of a user's class
    unread: Any = None  # function that returns the previous step's line, whose figures are not read yet

    @property
    def run(self):
        return self.job.run

    def begin_step(self, step):
        """Set the random state and the optimizers' rates, which follow from the step's number."""
        self.watchdog.feed(stepped=step > self.first_step)
        optim = self.run.workload.optim
        set_rates(self.stepper.optimizers, self.lr(step), momentum(step, self.steps, optim))
        self.stepper.number = step
        model = self.run.workload.model
        if model.dropout > 0 or model.is_own:
            torch.manual_seed(torch_seed(self.run, step, self.mesh))
        if model.is_own:
            self.random = generators(self.mesh.device)
        self.attention.begin_step(step)
        if self.profiler is not None:
            self.profiler.begin_step(step)

    def batches(self, step):
        """This rank's samples for a step, in `accumulate` parts of (*inputs, labels) on its device.

        Steps must be requested in order, so that later ones can be read ahead.
        """
        with self.clock.phase("data"):
            return self.feed.take()

    def requests(self):
        """(stop, save): this process's requests for after the coming step. One process's request applies to all."""
        return self.stop_requested(), self.state.is_time_to_save()

    def lr(self, step):
        return learning_rate(step, self.steps, self.run.peak_lr, self.run.workload.optim)

    def evaluate_due(self):
        """Evaluate the checkpoint that the run continues from, if the previous attempt did not get to it."""
        saved = self.state.saved
        if saved.get("due"):
            step = saved["step"]
            self.state.add_step(saved["line"] | self._validate(step))

    def end_step(self, step, result):
        """Call this once a step is launched: record the previous step, whose figures have arrived, and do what is due after this one.

        If something is due (the end, a stop, an evaluation, a checkpoint), this step's own figures are read at once. Saving comes
        before evaluating, so that an interrupted evaluation costs no step. The time for recording counts to the current step; the time
        for evaluating and saving is recorded separately.
        Raises DivergedError for a loss or norm that is not finite, and Interrupted if the run is to stop.
        """
        self.attention.end_step(step)
        training, last = self.run.workload.training, step == self.steps
        stop = result.stop and not last
        if self.random is not None:
            self.state.draws |= not torch.equal(self.random, generators(self.mesh.device))
        self.feed.read_ahead()
        if self.unread is not None:
            line, self.unread = self.unread(), None
            self._record(line)
        if step % GARBAGE_STEPS == 0:
            gc.collect()
        self.unread = partial(self._line, step, result, self.clock.cut())
        if self.profiler is not None:
            with self.clock.paused():
                self.profiler.end_step(step)
        due = training.evaluate and (last or _is_multiple(step, training.evaluate_every))
        saving = last or stop or result.save or _is_multiple(step, training.checkpoint_every)
        if due or saving:
            with self.clock.paused():
                line, self.unread = self.unread(), None
                self.state.model.share_buffers()
                if saving:
                    line |= self.state.checkpoint(step, line, due, self.stepper.scale)
                if due and not stop:  # after a stop, the next start begins with it
                    try:
                        line |= self._validate(step)
                    except Interrupted:
                        stop = True
                        if not saving:
                            line |= self.state.checkpoint(step, line, due, self.stepper.scale)
            self._record(line)
        if stop:
            raise Interrupted(
                f"run {self.run.run} was asked to stop after step {step} of {self.steps}; a new start continues there"
            )

    def _line(self, step, result, seconds):
        """The record line of a step; waits until it is done. seconds: function that returns seconds by phase."""
        norm, loss, targets, *factor = result.read()
        figures, scaling = {"loss": loss, "gradient norm": norm}, {}
        if factor:
            skipped = not math.isfinite(norm)
            scaling = {"loss_scale": factor[0], "skipped": skipped}
            if skipped and factor[0] > 1:  # at 1 the loss scale was not the cause
                del figures["gradient norm"]
                norm = None
        refuse_non_finite(self.run, f"step {step}", figures)
        return {
            "step": step,
            self.run.workload.unit: targets,
            "loss": loss,
            "lr": self.lr(step),
            "grad_norm": norm,
            "seconds": seconds(),
            "memory_bytes": peak_memory(self.mesh.device),
            **scaling,
        }

    def _record(self, line):
        self.state.add_step(line)
        self.progress.update(line)

    def _validate(self, step):
        """Evaluate after a step and keep the weights if they are the best so far. Returns additions to the step's line."""
        started = time.perf_counter()
        figures, targets = self.means("validation", f"validation after step {step}")
        self.state.note_validation(step, figures, targets)
        self.watchdog.feed()
        named = {f"validation_{name}": value for name, value in figures.items()}
        return named | {"evaluation_seconds": time.perf_counter() - started}

    def _go_on(self):
        """Called between batches of an evaluation, which may outlast the job: raises Interrupted on every rank if one was asked to stop.
        Runs on the host, so that no GPU waits."""
        self.watchdog.feed()
        if all_reduce(torch.tensor([float(self.stop_requested())]), self.mesh).item():
            raise Interrupted(f"run {self.run.run} was asked to stop in an evaluation; a new start continues with it")

    def means(self, split, title):
        """({`loss` and the task's metrics: mean over the targets}, number of targets) of a whole split, the same on every rank.

        title: name of this evaluation in errors. Raises DivergedError if a figure is not finite.
        """
        self.watchdog.feed()
        run, mesh, task = self.run, self.mesh, self.task
        total = evaluate(run, self.state.model, task.splits[split], task.metrics.values(), task.workers, self._go_on)
        if not mesh.leads("pp"):
            total.zero_()  # another rank, such as its tensor-parallel peer, counts the same samples
        all_reduce(total, mesh)
        loss, targets, *others = total.tolist()
        figures = {name: value / targets for name, value in zip(("loss", *task.metrics), (loss, *others), strict=True)}
        refuse_non_finite(run, title, figures)
        return figures, int(targets)


@contextmanager
def _failure_noted(state):
    """Record how the body ended: `stopped` if that was requested, otherwise `failed`. A full disk must not hide the original error."""
    try:
        yield
    except Interrupted:
        state.end("stopped")
        raise
    except KeyboardInterrupt:
        raise
    except BaseException:
        with suppress(OSError):
            state.end("failed")
        raise


def _is_multiple(step, every):
    return every is not None and step % every == 0
