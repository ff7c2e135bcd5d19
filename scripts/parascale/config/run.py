"""A run: a workload in a layout, with everything that decides its numbers."""

import math
from dataclasses import dataclass, replace

from parascale.config.layout import Layout
from parascale.config.options import option, required, section
from parascale.config.workload import Workload
from parascale.errors import ConfigError

PRECISIONS = ("fp32", "fp64", "bf16")
ENGINES = ("native", "lightning")


@dataclass(frozen=True)
class Run:
    """One row of the run table, with its workload."""

    run: str = required("name of the run, of letters, digits, `-`, `_` and `.`")
    workload: Workload = required("name of a workload")
    layout: Layout = section(Layout, "how the run is spread")
    precision: str = option(
        "fp32",
        "precision of the computation; bf16 keeps weights, gradients' sum and optimizer in fp32",
        choices=PRECISIONS,
    )
    engine: str = option("native", "whose training loop: ours or PyTorch Lightning's", choices=ENGINES)
    scaling: str = option(
        "strong",
        "`strong`: the global batch is fixed; `weak`: the batch of a data-parallel rank is fixed",
        choices=("strong", "weak"),
    )
    seed: int = option(1, "seed of initial weights, sample order and dropout", low=0)
    baseline: str | None = option(
        None,
        "run of the same workload that speed-up, efficiency and parity refer to; default: its first run on one process",
    )
    deterministic: bool = option(False, "only deterministic kernels: repeating the run gives the same bits")
    average_every: int | None = option(
        None, "local SGD: ranks train apart and average their parameters every so many steps", low=1
    )
    init_from: str | None = option(None, "run whose last checkpoint this run starts from, in whatever layout")

    @property
    def strategy(self):
        """The strategy's name, derived from the layout."""
        return self.layout.strategy(self.average_every)

    @property
    def global_batch(self):
        """Samples an optimizer step over all ranks."""
        batch = self.workload.training.global_batch
        return batch * self.layout.data_parallel if self.scaling == "weak" else batch

    @property
    def peak_lr(self):
        """Peak learning rate after `lr_scaling`.

        linear: Goyal et al. 2017, arXiv:1706.02677; square root: Krizhevsky 2014, arXiv:1404.5997.
        """
        growth = self.global_batch / self.workload.training.global_batch
        factor = {"none": 1.0, "linear": growth, "sqrt": math.sqrt(growth)}[self.workload.optim.lr_scaling]
        return self.workload.optim.lr * factor

    def check(self):
        """Raise ConfigError for combinations that cannot be trained, before anything is spent."""
        self.layout.check()
        training, layout = self.workload.training, self.layout
        if (training.steps is None) == (training.epochs is None):
            raise ConfigError(f"workload {self.workload.name}: give either training.steps or training.epochs")
        parts = layout.data_parallel * layout.micro_batches * training.accumulate
        if self.global_batch < parts:
            raise ConfigError(
                f"global_batch = {self.global_batch} cannot be cut into dp × fsdp × micro_batches × accumulate = {parts} parts"
            )
        if layout.pp > 1 and self.global_batch % parts:
            raise ConfigError(
                f"with a pipeline, global_batch = {self.global_batch} must be a multiple of "
                f"dp × fsdp × micro_batches × accumulate = {parts}"
            )
        self._check_model()
        self._check_engine()

    def _check_model(self):
        model, layout = self.workload.model, self.layout
        kv_heads = model.kv_heads or model.heads
        if ":" in model.kind:
            return  # a class of the user's own checks its own sizes
        if model.dim % model.heads:
            raise ConfigError(f"model.dim = {model.dim} is not a multiple of model.heads = {model.heads}")
        if model.heads % kv_heads:
            raise ConfigError(f"model.heads = {model.heads} is not a multiple of model.kv_heads = {kv_heads}")
        for name, value in (("heads", model.heads), ("kv_heads", kv_heads), ("hidden", model.hidden or 4 * model.dim)):
            if value % layout.tp:
                raise ConfigError(f"tp = {layout.tp} does not divide model.{name} = {value}")
        if layout.tp > 1 and layout.sequence_parallel and self.workload.training.window % layout.tp:
            raise ConfigError(
                f"sequence_parallel needs training.window = {self.workload.training.window} to be a multiple of tp = {layout.tp}"
            )
        if layout.stages > model.layers:
            raise ConfigError(f"{layout.stages} pipeline stages, but model.layers = {model.layers}")

    def _check_engine(self):
        layout = self.layout
        only_ddp = layout.fsdp == layout.tp == layout.pp == 1
        if self.engine == "lightning" and (not only_ddp or self.average_every):
            raise ConfigError(
                "engine lightning offers single and ddp; use engine native for fsdp, tp, pp and local SGD"
            )
        if self.average_every and (not only_ddp or layout.dp == 1):
            raise ConfigError("average_every (local SGD) needs dp > 1 and fsdp = tp = pp = 1")
        if self.average_every and self.init_from:
            raise ConfigError("average_every (local SGD) cannot start from another run's checkpoint")

    def parity(self, steps, precision):
        """The short run that proves this layout right: few steps, exact arithmetic, nothing random."""
        workload = self.workload
        warmup = min(workload.optim.warmup_steps, steps // 4)
        training = replace(
            workload.training,
            steps=steps,
            epochs=None,
            evaluate_every=None,
            checkpoint_every=None,
            checkpoint_minutes=None,
        )
        workload = replace(
            workload,
            training=training,
            model=replace(workload.model, dropout=0.0),
            optim=replace(workload.optim, warmup_steps=warmup),
        )
        return replace(self, workload=workload, precision=precision, deterministic=True, init_from=None)
