"""The training loop, top to bottom: who am I, data, model, resume, steps, last evaluation, publish."""

import hashlib
import math
import signal
import time
from contextlib import suppress

import numpy as np
import torch

from parascale.data.sampler import Sampler, share
from parascale.data.text import Tokens, Windows
from parascale.errors import Interrupted, TrainingError
from parascale.evaluation.evaluate import split_loss
from parascale.models import build_model
from parascale.parallel import make_mesh, parallelize, start_processes, stop_processes
from parascale.train.clock import Clock
from parascale.train.loss import GlobalLoss, all_reduce, computation_context
from parascale.train.memory import peak_memory
from parascale.train.optim import learning_rate, make_optimizers
from parascale.train.progress import Progress
from parascale.train.stage import staged
from parascale.train.state import RunState
from parascale.train.step import Stepper, is_finite
from parascale.train.watchdog import Watchdog


def train(job):
    """Train a run to its end, or until it is asked to stop (then Interrupted, with its state saved)."""
    run = job.run
    training = run.workload.training
    stop_requested = _listen_for_signals()

    # --- who am I
    _fix_randomness(run)
    device = start_processes(job.site.device, job.timeout_seconds)
    mesh = make_mesh(run.layout, device, job.timeout_seconds)
    watchdog = Watchdog(job.timeout_seconds)
    clock = Clock(device)
    lead = mesh.rank == 0

    # --- data
    with staged(job) as folder:
        tokens = Tokens(folder)
        splits = {
            "train": Windows(tokens.split("train"), training.window, training.stride),
            "validation": Windows(tokens.split("validation"), training.window),
            "test": Windows(tokens.split("test"), training.window),
        }
    sampler = Sampler(len(splits["train"]), run.global_batch, run.seed)
    steps = training.steps or max(1, math.ceil(training.epochs * len(splits["train"]) / run.global_batch))

    # --- model
    def build():
        return build_model(run.workload.model, tokens.vocabulary_size, training.window)

    loss = GlobalLoss()
    model = parallelize(build, run, mesh, loss, clock, job.timeout_seconds)
    optimizers = make_optimizers(model, run.workload.optim)
    stepper = Stepper(run, model, optimizers, loss, clock)

    # --- resume
    state = RunState(job, model, optimizers)
    first_step = state.begin(steps, tokens.vocabulary_size)
    progress = Progress(run.run, steps, first_step - 1, lead)
    model.train()

    # --- steps
    try:
        clock.reset()
        for step in range(first_step, steps + 1):
            watchdog.feed()
            _seed_dropout(run, mesh, step)
            with clock.phase("data"):
                batches = _local_batches(splits["train"], sampler, step, run, mesh)
            lr = learning_rate(step, steps, run.peak_lr, run.workload.optim)
            result = stepper.step(batches, lr, stop_requested())
            if run.average_every and (step == steps or _is_multiple(step, run.average_every)):
                stepper.average_parameters()
            line = {
                "step": step,
                "tokens": result.targets,
                "loss": result.loss,
                "lr": lr,
                "grad_norm": result.grad_norm,
            }
            line |= {"seconds": clock.read(), "memory_bytes": peak_memory(device)}
            if not is_finite(result):
                raise TrainingError(
                    f"run {run.run}, step {step}: loss {result.loss}, gradient norm {result.grad_norm}. Weights before this step are "
                    "in the last checkpoint. Try a lower `optim.lr`, a longer `optim.warmup_steps`, or precision fp32"
                )
            if training.evaluate and (step == steps or _is_multiple(step, training.evaluate_every)):
                line |= _evaluate(state, splits, mesh, step, watchdog)
            if state.is_due(step, last=step == steps or result.stop):
                line |= state.checkpoint(step, line)
            state.add_step(line)
            progress.update(line)
            clock.reset()
            if result.stop and step < steps:
                state.end("stopped")
                raise Interrupted(
                    f"run {run.run} was asked to stop after step {step} of {steps}; a new start continues there"
                )

        # --- last evaluation, publish
        if training.evaluate:
            _test(state, splits, mesh, watchdog)
        state.publish()
    except (Interrupted, KeyboardInterrupt):
        raise
    except BaseException:
        with suppress(OSError):  # a full disk must not hide what went wrong
            state.end("failed")
        raise
    finally:
        progress.close()
        watchdog.stop()
    stop_processes()


def _test(state, splits, mesh, watchdog):
    """Evaluate the best weights on the test split."""
    watchdog.feed()
    state.load_best()
    state.note_test(*_split_mean(state, splits["test"], mesh))


def _evaluate(state, splits, mesh, step, watchdog):
    """Validation loss after `step`; keeps the weights if they are the best so far. Returns what the step's line gains."""
    watchdog.feed()
    started = time.perf_counter()
    loss, tokens = _split_mean(state, splits["validation"], mesh)
    state.note_validation(step, loss, tokens)
    watchdog.feed()
    return {"validation_loss": loss, "evaluation_seconds": time.perf_counter() - started}


def _split_mean(state, windows, mesh):
    """(mean loss, target tokens) over a whole split, the same numbers on every rank."""
    run, model = state.job.run, state.model
    batch = run.workload.training.evaluation_batch or math.ceil(run.global_batch / run.layout.data_parallel)
    model.train(False)
    with computation_context(run, mesh.device.type):
        total = split_loss(model.logits, windows, mesh.data_rank, run.layout.data_parallel, batch, mesh.device)
    if mesh.coordinate("tp") != 0:
        total.zero_()  # ranks of a tensor-parallel group computed the same samples
    all_reduce(total, mesh)
    model.train()
    summed, tokens = total.tolist()
    return summed / tokens, int(tokens)


def _local_batches(windows, sampler, step, run, mesh):
    """This rank's share of a step's samples, in `accumulate` parts, as (inputs, labels) tensors on its device."""
    chosen = share(sampler.indices(step - 1), mesh.data_rank, run.layout.data_parallel)
    parts = np.array_split(chosen, run.workload.training.accumulate)
    return [tuple(torch.from_numpy(array).to(mesh.device) for array in windows.batch(part)) for part in parts]


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


def _listen_for_signals():
    """SIGTERM and SIGINT ask for a stop after the current step; returns the function that tells whether one came."""
    asked = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, frame: asked.append(received))
    return lambda: bool(asked)
