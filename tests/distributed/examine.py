"""What ranks do in tests: train a job as `parascale train` does, and look at what the training holds and calls."""

import os
import signal
import sys
import time
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from parascale.checkpoint import store
from parascale.errors import Interrupted, TrainingError
from parascale.families import head
from parascale.families.language import modules as transformer
from parascale.parallel import batch_norm
from parascale.parallel.tying import local
from parascale.train import loop

from .jobs import job_from_settings

LOOKED_AT = 2  # optimizer step; the first one also sets things up
MOVING, FEW_BYTES = ("all_gather", "reduce_scatter", "all_reduce"), 64
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "send", "recv", "alltoall", "all_to_all")


def train_settings(settings):
    """Train the job that `settings` describe."""
    loop.train(job_from_settings(settings))


def train_with_slow_stages(settings, seconds):
    """Train a language model whose forward pass sleeps for so many seconds a sample, in each stage of a pipeline."""
    forward = transformer.TransformerLM.forward

    def slow(model, tokens_or_hidden):
        time.sleep(seconds * len(tokens_or_hidden))
        return forward(model, tokens_or_hidden)

    transformer.TransformerLM.forward = slow
    train_settings(settings)


def train_and_look(settings):
    """Train, and return what this rank held and called in its second step.

    {parameters: name → local shape, parameter_bytes, optimizer_bytes, sharded_units, stages, heads: numbers of attention
    heads seen in forward passes, collectives: name → calls, norm_collectives: those of batch norms, moved: name → [calls, bytes of
    the whole] for parameters and gradients, graphs: compiled in all steps}
    """
    facts, heads = {}, set()
    split_heads = transformer.Attention._heads

    def seen(attention, projected):
        split = split_heads(attention, projected)
        # Taking notes within a checkpointed block would keep it from being compiled.
        if not torch.compiler.is_compiling():
            heads.add(split.shape[1])
        return split

    class Looking(loop.Stepper):
        steps = 0

        def step(self, *arguments):
            self.steps += 1
            if self.steps != LOOKED_AT:
                return super().step(*arguments)
            with Collectives() as counter:
                result = super().step(*arguments)
            facts.update(
                held(self.model, self.optimizers),
                collectives=counter.calls,
                norm_collectives=counter.of_norms,
                moved=counter.moved,
            )
            return result

    loop.Stepper, transformer.Attention._heads = Looking, seen
    train_settings(settings)
    return facts | {"heads": sorted(heads), "graphs": compiled_graphs()}


def train_and_note_buffers(settings):
    """Train; for each evaluation on this rank the values of the model's buffers, by name."""
    seen, evaluate = [], loop.evaluate

    def noted(run, model, *arguments):
        seen.append({name: buffer.tolist() for part in model.parts for name, buffer in part.named_buffers()})
        return evaluate(run, model, *arguments)

    loop.evaluate = noted
    train_settings(settings)
    return seen


def compiled_graphs():
    """How many graphs `torch.compile` has made in this process; its module, slow to load, is not loaded for the answer."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo.counters["stats"]["unique_graphs"] if dynamo else 0


def held(model, optimizers):
    """What this rank holds of a ParallelModel and of its optimizers."""
    parameters = {name: local(parameter) for name, parameter in model.named_parameters()}
    moments = [
        local(value) for optimizer in optimizers for state in optimizer.state.values() for value in state.values()
    ]
    return {
        "parameters": {name: list(tensor.shape) for name, tensor in parameters.items()},
        "parameter_bytes": sum(map(size, parameters.values())),
        "optimizer_bytes": sum(size(moment) for moment in moments if moment.ndim),  # without the step counters
        "sharded_units": len(
            {
                id(group)
                for part in model.parts
                for module in part.modules()
                if isinstance(module, FSDPModule) and (group := module._get_fsdp_state()._fsdp_param_group) is not None
            }
        ),
        "stages": list(model.pipeline.parts) if model.pipeline else [0],
    }


def size(tensor):
    """Bytes of a tensor."""
    return tensor.numel() * tensor.element_size()


class Collectives(TorchDispatchMode):
    """Counts collective operations by name, whichever interface of torch calls them; and of them those that batch norms call."""

    supports_higher_order_operators = True  # compiled code saves the states of random numbers by them

    def __init__(self):
        super().__init__()
        self.calls, self.of_norms, self.moved = Counter(), Counter(), {kind: [0, 0] for kind in MOVING}

    @classmethod
    def ignore_compile_internals(cls):
        """Else torch runs what was compiled as it was written, or refuses to."""
        return True

    def __torch_dispatch__(self, function, kinds, arguments=(), keywords=None):
        if any(issubclass(kind, DTensor) for kind in kinds):
            return NotImplemented  # it comes back as operations on this rank's part
        if "c10d" in function.namespace:
            name = (
                function.name()
                .rpartition("::")[2]
                .replace("allreduce", "all_reduce")
                .replace("allgather", "all_gather")
            )
            for kind in COLLECTIVES:
                called = name.lstrip("_").startswith(kind)
                self.calls[kind] += called
                self.of_norms[kind] += called and called_by(batch_norm)
                size_ = max(
                    (size(each) for each in tree_leaves(arguments) if isinstance(each, torch.Tensor)), default=0
                )
                # Tensor parallelism calls functional ones, and others in the loss; what ranks agree on is a few numbers.
                others = function.namespace != "c10d" or size_ <= FEW_BYTES or called_by(head)
                if called and kind in MOVING and not others:
                    self.moved[kind][0] += 1
                    self.moved[kind][1] += size_
        return function(*arguments, **(keywords or {}))


def called_by(module):
    """Whether a function of a module is being called."""
    return any(frame.f_code.co_filename == module.__file__ for frame, _ in traceback.walk_stack(None))


def train_and_watch_rates(settings):
    """Train; the (learning rate, AdamW's first decay rate) with which the optimizer made each step, whatever loop called it."""
    rates = []

    def look(optimizer, *_):
        group = optimizer.param_groups[0]
        rates.append((group["lr"], group["betas"][0]))

    hook = register_optimizer_step_post_hook(look)
    try:
        train_settings(settings)
    finally:
        hook.remove()
    return rates


def train_and_time(settings, pause=0.0):
    """Train, with a record that takes `pause` seconds more to write a line; the seconds from the start of the first step until all is done that belongs to the last one's line."""
    moments = []
    begin_step, add_step = loop.Session.begin_step, loop.RunState.add_step

    def begin(session, step):
        moments.append(time.perf_counter())
        begin_step(session, step)

    def add(state, line):
        moments.append(time.perf_counter())
        time.sleep(pause)
        add_step(state, line)

    loop.Session.begin_step, loop.RunState.add_step = begin, add
    train_settings(settings)
    return moments[-1] - moments[0]


def refusal(settings):
    """The message of the TrainingError that training ends with."""
    try:
        train_settings(settings)
    except TrainingError as error:
        return str(error)
    raise AssertionError("the training was not refused")


def look_at_session(settings, look):
    """What `look` returns of the Session that training makes: no step follows."""
    seen = []

    def looked(session):
        seen.append(look(session))
        raise Interrupted("seen")

    with suppress(Interrupted):
        loop.train(job_from_settings(settings), looked)
    return seen[0]


def evaluate_checkpoint(settings, folder):
    """(validation loss of the checkpoint in `folder` as the run of `settings` evaluates it, number of targets)."""

    def evaluate(session):
        store.load(Path(folder), session.state.model, [])
        means, targets = session.means("validation", "this checkpoint")
        return means["loss"], targets

    return look_at_session(settings, evaluate)


def first_loss(settings):
    """(training loss of the first step, the same by torch's own cross-entropy with the workload's smoothing)."""

    def compare(session):
        session.begin_step(1)
        batches = session.batches(1)
        (model,), ((*inputs, labels),) = session.stepper.model.parts, batches
        smoothing = session.run.workload.training.label_smoothing
        expected = cross_entropy(model(*inputs), labels, label_smoothing=smoothing).item()
        return session.stepper.step(batches).read()[1], expected

    return look_at_session(settings, compare)


class Planted(Exception):
    """A failure that a test has planted."""


def train_and_fail_in_evaluation(settings, step, told):
    """Train until the evaluation after `step`; there, every rank fails, or is told to stop. Returns how the training ended."""
    means = loop.Session.means

    def fail(session, split, title):
        if title != f"validation after step {step}":
            return means(session, split, title)
        if told:
            os.kill(os.getpid(), signal.SIGTERM)
            return means(session, split, title)
        raise Planted("planted")

    loop.Session.means = fail
    try:
        train_settings(settings)
    except (Interrupted, Planted) as end:
        return str(end)
    raise AssertionError("the training went on to its end")


def train_until_told_to_stop(settings, step, rank):
    """Train; rank `rank` gets SIGTERM in optimizer step `step`. Returns the message of the Interrupted that follows."""
    begin_step = loop.Session.begin_step

    def begin(session, number):
        if number == step and session.mesh.rank == rank:
            os.kill(os.getpid(), signal.SIGTERM)
        begin_step(session, number)

    loop.Session.begin_step = begin
    try:
        train_settings(settings)
    except Interrupted as stop:
        return str(stop)
    raise AssertionError("the training was not interrupted")
