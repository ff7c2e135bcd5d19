"""PyTorch Lightning as the engine: its Trainer and DDP strategy run the steps.

Data, model, loss, optimizer, clipping, evaluation, checkpoints and the record are the native engine's, so a comparison of engines
compares only the loops, and a stopped run resumes in the same way.
"""

from contextlib import ExitStack
from datetime import timedelta

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins.environments import LightningEnvironment, TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch.utils.data import DataLoader, IterableDataset

from parascale.train.optim import clip
from parascale.train.process import listen_for_signals


def make_steps(session):
    """Run the remaining steps of a Session."""
    if session.first_step > session.steps:
        return
    run, device = session.run, session.mesh.device
    several = run.layout.world_size > 1
    trainer = Trainer(
        accelerator="gpu" if device.type == "cuda" else "cpu",
        devices=run.layout.processes_per_node,
        num_nodes=run.layout.nodes,
        # Lightning's DDP uses the process group that we have joined; its options match ours.
        strategy=DDPStrategy(timeout=timedelta(seconds=session.job.timeout_seconds), gradient_as_bucket_view=True)
        if several
        else SingleDeviceStrategy(device),
        # Our launcher sets torchrun's variables; without an explicit environment, Lightning would guess from Slurm's.
        plugins=[TorchElasticEnvironment() if several else LightningEnvironment()],
        # The model itself handles half precision: see parallel.precision.
        precision="64-true" if run.precision == "fp64" else "32-true",
        max_steps=session.steps - session.first_step + 1,
        accumulate_grad_batches=run.workload.training.accumulate,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    session.clock.reset()
    trainer.fit(Steps(session), DataLoader(Parts(session), batch_size=None))
    session.stepper.model.parts[0].to(device)  # Lightning leaves it on the CPU


class Parts(IterableDataset):
    """Lightning's batches: (number of the part, all parts of this rank's samples for a step), step by step."""

    def __init__(self, session):
        self.session = session

    def __iter__(self):
        for step in range(self.session.first_step, self.session.steps + 1):
            parts = self.session.batches(step)
            for number in range(len(parts)):
                yield number, parts


class Steps(LightningModule):
    """The optimizer steps of `train.step`, expressed through Lightning's hooks."""

    def __init__(self, session):
        super().__init__()
        self.session, self.stepper = session, session.stepper
        self.network = session.stepper.model.forward_module
        self.next_step = session.first_step
        self.open_phase = ExitStack()  # phase that one hook begins and another ends

    def configure_optimizers(self):
        """Our optimizer, with the state of a resumed run."""
        return self.stepper.optimizers[0]

    def on_train_start(self):
        """Replace Lightning's SIGTERM handler, which calls a collective and can hang; ours only sets a flag."""
        before, now = self.session.stop_requested, listen_for_signals()
        self.session.stop_requested = lambda: before() or now()

    def training_step(self, batch, index):
        """This rank's part of the mean loss over all targets of a step."""
        number, parts = batch
        if number == 0:
            self.session.begin_step(self.next_step)
            self.requests = self.session.requests()
            self.targets, self.agreed = self.stepper.agree(parts, *self.requests)
            self.stepper.loss.targets = self.targets
            self.loss = torch.zeros((), dtype=torch.float64, device=self.session.mesh.device)
        self.stepper.draws.begin_part(self.next_step, number)
        *inputs, labels = parts[number]
        with self.session.clock.phase("forward"):
            loss = self.stepper.loss(self.network(*inputs), labels)
        self.loss += loss.detach()
        # Lightning divides by the number of parts, and DDP by the number of ranks; the loss is already divided.
        return loss * (len(parts) * self.session.run.layout.data_parallel)

    def on_before_backward(self, loss):
        """Gradients are reduced within the backward pass, as in the native engine."""
        self.open_phase.enter_context(self.session.clock.phase("backward"))

    def on_after_backward(self):
        self.open_phase.close()

    def on_before_optimizer_step(self, optimizer):
        """All parts are done: clip by the norm of the whole gradient."""
        with self.session.clock.phase("communication"):
            self.figures = self.stepper.report(self.loss, self.targets)
        self.open_phase.enter_context(self.session.clock.phase("optimizer"))
        clip(self.stepper.model, self.stepper.optimizers, self.figures[0], self.stepper.clip_norm)

    def optimizer_step(self, *arguments, **keywords):
        """Update; the phase was opened when the gradient was complete."""
        super().optimizer_step(*arguments, **keywords)
        self.open_phase.close()

    def on_train_batch_end(self, outputs, batch, index):
        """After the last part: report, evaluate, save and record as the native engine does."""
        number, parts = batch
        if number + 1 < len(parts):
            return
        self.session.end_step(self.next_step, self.stepper.result(self.figures, self.agreed, *self.requests))
        self.next_step += 1
