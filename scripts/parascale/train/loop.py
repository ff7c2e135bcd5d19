"""The training loop, top to bottom: who am I, data, model, resume, steps, last evaluation, publish."""

import hashlib
import math
import signal
import time
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from torch.distributed.elastic.multiprocessing.errors import record

from parascale.data.loader import read_batches
from parascale.data.sampler import Sampler, share
from parascale.errors import Interrupted, TrainingError
from parascale.evaluation.evaluate import split_sums
from parascale.evaluation.task import Task, open_task
from parascale.families.build import build_model
from parascale.parallel import make_mesh, parallelize, start_processes, stop_processes
from parascale.train.clock import Clock
from parascale.train.loss import GlobalLoss, all_reduce, computation_context
from parascale.train.memory import peak_memory
from parascale.train.monitor import monitored
from parascale.train.optim import learning_rate, make_optimizers, momentum, set_rates
from parascale.train.profile import profiler
from parascale.train.progress import Progress
from parascale.train.stage import staged
from parascale.train.state import RunState
from parascale.train.step import Stepper
from parascale.train.watchdog import Watchdog


@dataclass
class Session:
    """Everything that a training needs on its way, put together before its first step."""

    job: object
    mesh: object
    clock: Clock
    watchdog: Watchdog
    task: Task
    parts: object  # iterator over this rank's batches of training, in the order in which they are computed
    stepper: Stepper
    state: RunState
    progress: Progress
    stop_requested: object  # function: whether this process was asked to stop
    first_step: int
    steps: int
    profiler: object = None  # of train.profile, or None

    @property
    def run(self):
        """The settings."""
        return self.job.run

    def begin_step(self, step):
        """What is random in a step follows from its number, and so do the rates of the optimizers."""
        self.watchdog.feed()
        optim = self.run.workload.optim
        set_rates(self.stepper.optimizers, self.lr(step), momentum(step, self.steps, optim))
        _seed_dropout(self.run, self.mesh, step)
        if self.profiler is not None:
            self.profiler.begin_step(step)

    def batches(self, step):
        """This rank's share of a step's samples, in `accumulate` parts of (*inputs, labels) on its device.

        Steps are asked for one after the other, so that what comes next can be read ahead.
        """
        with self.clock.phase("data"):
            parts = [next(self.parts) for _ in range(self.run.workload.training.accumulate)]
            return [tuple(tensor.to(self.mesh.device) for tensor in part) for part in parts]

    def wishes(self):
        """Whether this process wants to stop, and a checkpoint saved, after the step that begins. One asks for all."""
        return self.stop_requested(), self.state.is_time_to_save()

    def lr(self, step):
        """Learning rate of a step."""
        return learning_rate(step, self.steps, self.run.peak_lr, self.run.workload.optim)

    def end_step(self, step, result):
        """After the new weights: look at the numbers, evaluate, save, record. Raises Interrupted where the run is to stop.

        The clock is read first and runs on: what recording takes counts as `other` of the next step. What evaluating and
        saving take stands beside the steps.
        """
        training, state, last = self.run.workload.training, self.state, step == self.steps
        line = {
            "step": step,
            self.run.workload.unit: result.targets,
            "loss": result.loss,
            "lr": self.lr(step),
            "grad_norm": result.grad_norm,
            "seconds": self.clock.read(),
            "memory_bytes": peak_memory(self.mesh.device),
        }
        _refuse_non_finite(self.run, f"step {step}", {"loss": result.loss, "gradient norm": result.grad_norm})
        with self.clock.paused():
            if self.profiler is not None:
                self.profiler.end_step(step)
            if training.evaluate and (last or _is_multiple(step, training.evaluate_every)):
                line |= _evaluate(state, self.task, self.mesh, step, self.watchdog)
            if last or result.stop or result.save or _is_multiple(step, training.checkpoint_every):
                line |= state.checkpoint(step, line)
        state.add_step(line)
        self.progress.update(line)
        if result.stop and not last:
            state.end("stopped")
            raise Interrupted(
                f"run {self.run.run} was asked to stop after step {step} of {self.steps}; a new start continues there"
            )


@record  # leaves the exception where the launcher finds it
def train(job):
    """Train a run to its end, or until it is asked to stop (then Interrupted, with its state saved)."""
    session = prepare(job)
    state = session.state
    try:
        run_steps = _other_engine(job.run.engine) or _run_steps
        with monitored(job, state.processes):
            run_steps(session)
            if job.run.workload.training.evaluate and "test" in session.task.splits:
                _test(state, session.task, session.mesh, session.watchdog)
        state.publish()
    except (Interrupted, KeyboardInterrupt):
        session.watchdog.stop()
        raise
    except BaseException:
        if session.mesh.devices is None:
            session.watchdog.stop()  # beside peers it stays: where one of them hangs, a process may not get to its end either
        with suppress(OSError):  # a full disk must not hide what went wrong
            state.end("failed")
        raise
    finally:
        session.progress.close()
    session.watchdog.stop()
    stop_processes()


def prepare(job):
    """The Session of a training: joins the other processes, opens the data, builds the model, continues where a run stopped."""
    run = job.run
    stop_requested = listen_for_signals()

    # --- who am I
    _fix_randomness(run)
    device = start_processes(job.site.device, job.timeout_seconds)
    mesh = make_mesh(run.layout, device, job.timeout_seconds)
    watchdog = Watchdog(job.timeout_seconds)
    clock = Clock(device)

    # --- data
    with staged(job) as folder:
        task = open_task(run.workload, folder, run.seed)
    samples = task.splits["train"]
    sampler = Sampler(len(samples), run.global_batch, run.seed, count_on=task.augmented)
    steps = run.optimizer_steps(len(samples))

    # --- model
    def build():
        return build_model(run.workload.model, task.outputs, *run.workload.sizes)

    loss = GlobalLoss(run.workload.training.label_smoothing)
    model = parallelize(build, run, mesh, loss, clock, job.timeout_seconds)
    optimizers = make_optimizers(model, run.workload.optim)
    stepper = Stepper(run, model, optimizers, loss, clock)

    # --- resume
    state = RunState(job, model, optimizers)
    first_step = state.begin(steps, task.outputs, task.excluded)
    progress = Progress(run.run, steps, first_step - 1, mesh.rank == 0, run.workload.unit)
    parts = read_batches(samples, _local_samples(sampler, first_step, steps, run, mesh), task.workers)
    model.train()
    return Session(
        job,
        mesh,
        clock,
        watchdog,
        task,
        parts,
        stepper,
        state,
        progress,
        stop_requested,
        first_step,
        steps,
        profiler(job, mesh.rank == 0),
    )


def _run_steps(session):
    """The native engine: one optimizer step after the other."""
    every = session.run.average_every
    session.clock.reset()
    for step in range(session.first_step, session.steps + 1):
        session.begin_step(step)
        result = session.stepper.step(session.batches(step), *session.wishes())
        if every and (step == session.steps or _is_multiple(step, every)):
            session.stepper.average_parameters()
        session.end_step(step, result)


def _other_engine(name):
    """The function that runs the steps in an engine that is not ours; it is loaded only where a run asks for it."""
    if name == "lightning":
        from parascale.train import lightning

        return lightning.run_steps
    return None


def _test(state, task, mesh, watchdog):
    """Evaluate the best weights on the test split."""
    watchdog.feed()
    state.load_best()
    figures, targets = _split_means(state, task, "test", mesh)
    _refuse_non_finite(state.job.run, f"test of step {state.facts['best_step']}'s weights, the best", figures)
    state.note_test(figures, targets)


def _evaluate(state, task, mesh, step, watchdog):
    """Validation figures after `step`; keeps the weights if they are the best so far. Returns what the step's line gains."""
    watchdog.feed()
    started = time.perf_counter()
    figures, targets = _split_means(state, task, "validation", mesh)
    _refuse_non_finite(state.job.run, f"validation after step {step}", figures)
    state.note_validation(step, figures, targets)
    watchdog.feed()
    named = {f"validation_{name}": value for name, value in figures.items()}
    return named | {"evaluation_seconds": time.perf_counter() - started}


def _split_means(state, task, split, mesh):
    """({`loss` and the task's metrics: mean over the targets}, number of targets) of a whole split, the same on every rank."""
    run, model = state.job.run, state.model
    batch = run.workload.training.evaluation_batch or math.ceil(run.global_batch / run.layout.data_parallel)
    model.train(False)
    with computation_context(run, mesh.device.type):
        ranks, metrics = run.layout.data_parallel, task.metrics.values()
        total = split_sums(
            model.logits, task.splits[split], mesh.data_rank, ranks, batch, mesh.device, metrics, task.workers
        )
    if mesh.coordinate("tp") != 0:
        total.zero_()  # ranks of a tensor-parallel group computed the same samples
    all_reduce(total, mesh)
    model.train()
    loss, targets, *others = total.tolist()
    means = dict(zip(("loss", *task.metrics), (value / targets for value in (loss, *others)), strict=True))
    return means, int(targets)


def _refuse_non_finite(run, where, figures):
    """Raise TrainingError where a figure is no number: nothing after it would mean anything."""
    if not all(map(math.isfinite, figures.values())):
        said = ", ".join(f"{name} {value}" for name, value in figures.items())
        raise TrainingError(
            f"run {run.run}, {where}: {said}. Weights before this step are in the last checkpoint. Try a lower `optim.lr`, a "
            "slower rise to it, or precision fp32"
        )


def _local_samples(sampler, first_step, steps, run, mesh):
    """Yield the numbers of this rank's share of each step's samples, in `accumulate` parts."""
    for step in range(first_step, steps + 1):
        chosen = share(sampler.indices(step - 1), mesh.data_rank, run.layout.data_parallel)
        yield from np.array_split(chosen, run.workload.training.accumulate)


def _is_multiple(step, every):
    return every is not None and step % every == 0


def _fix_randomness(run):
    """Only deterministic kernels, where asked; the same matrix kernels always."""
    torch.use_deterministic_algorithms(run.deterministic)
    torch.backends.cudnn.benchmark = not run.deterministic


def _seed_dropout(run, mesh, step):
    """Random numbers of a step follow from seed, step and share of the samples alone, so that a resumed run draws the same."""
    if run.workload.model.dropout > 0:
        key = f"{run.seed}/{step}/{mesh.data_rank}/{mesh.coordinate('pp')}"
        torch.manual_seed(int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little") >> 1)


def listen_for_signals():
    """SIGTERM and SIGINT ask for a stop after the current step; returns the function that tells whether one came."""
    asked = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, frame: asked.append(received))
    return lambda: bool(asked)
