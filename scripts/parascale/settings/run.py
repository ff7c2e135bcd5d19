"""A run: a workload in a layout, with all settings that decide its numbers."""

import math
import re
from dataclasses import replace
from typing import Annotated, Any, Literal, Self, get_args

from parascale import script
from parascale.errors import ConfigError
from parascale.settings.layout import Layout
from parascale.settings.options import CONDUCT, LAYOUT, RECIPE, SITE, chosen, option, required, section, settings
from parascale.settings.workload import LANGUAGE_MODEL, Workload

Precision = Literal["fp32", "tf32", "fp64", "bf16", "fp16", "float8"]
PRECISIONS = get_args(Precision)
FLOAT8_MULTIPLE = 16  # torch's kernel requires sizes that are multiples of this many elements
# Names of the methods that average ranks after independent steps.
WAYS = {"all": "local SGD", "neighbour": "gossip", "server": "parameter server"}
SENT = {"fp16": "gradients in fp16", "powersgd": "gradients by PowerSGD"}


@settings(RECIPE)
class Run:
    """A row of the run table, with its workload."""

    run: str = required("name of the run: letters, digits, `-`, `_` and `.`", SITE)
    workload: Annotated[Workload, chosen(Workload)] = required("name of a workload")
    layout: Layout = section("how the run is distributed", default_factory=Layout)
    precision: Precision = option(
        "in tf32, GPUs round the factors of products to 10 bits; in bf16 and fp16, weights, summed gradients and optimizer state stay "
        "fp32; fp16, for GPUs without bf16, scales the loss; float8 is bf16 with the blocks' products in 8 bits (compute capability ≥ 8.9)",
        default="fp32",
    )
    accumulate: int | None = option(
        "gradient accumulation: parts of a rank's share of a step; default: the workload's",
        LAYOUT,
        default=None,
        low=1,
        before=None,
    )
    engine: Literal["native", "lightning"] = option(
        "training loop: ours or PyTorch Lightning's", LAYOUT, default="native"
    )
    scaling: Literal["strong", "weak"] = option(
        "what stays fixed: the global batch (`strong`) or the batch of each rank (`weak`)", default="strong"
    )
    seed: int = option("seed of initial weights, sample order and dropout", default=1, low=0, high=2**63)
    baseline: str | None = option(
        "run of the same workload to compare with; default: the first one on one process, else none",
        CONDUCT,
        default=None,
    )
    repeat: int = option("number of the repeat among otherwise equal rows; default: counted", SITE, default=1, low=1)
    deterministic: bool = option("use only deterministic kernels: a repeated run gives the same bits", default=False)
    average_every: int | None = option(
        "local SGD: ranks train independently and average once in this many steps", default=None, low=1
    )
    averaging: Literal["all", "neighbour", "server"] = option(
        "with `average_every`: average over `all` ranks, with a `neighbour` on a ring (gossip), or in turn with a parameter `server`",
        default="all",
        before="all",
    )
    compression: Literal["none", "fp16", "powersgd"] = option(
        "how DDP sends gradients: in full, in fp16, or as low-rank matrices (`powersgd`, arXiv:1905.13727), whose error is added to the "
        "next gradient and lost at a restart",
        default="none",
        before="none",
    )
    reduce_precision: Literal["fp32", "bf16"] = option(
        "type in which ranks of `dp`, `fsdp` and `cp` sum gradients: `bf16` sends half as much, but rounds each rank's gradient and each "
        "sum, which changes losses and weights slightly; gradients are still accumulated and kept in fp32",
        default="fp32",
        before="fp32",
    )
    init_from: str | None = option("start from the last checkpoint of this run, in any layout", default=None)
    profile: str | None = option(
        "first and last step to profile (`5-7`); such a run is not compared with others", CONDUCT, default=None
    )
    profiler: Literal["torch", "nsight"] = option(
        "`torch` on the first rank, for the report of the job; `nsight` (needs GPUs and `nsys`) on every rank",
        CONDUCT,
        default="torch",
    )

    @property
    def profile_steps(self) -> tuple[int, int] | None:
        """(first, last) step to profile, or None."""
        if self.profile is None:
            return None
        first, _, last = self.profile.partition("-")
        return int(first), int(last or first)

    @property
    def strategy(self) -> str:
        """Name of the strategy, from the layout."""
        return self.layout.strategy(self.average_every)

    @property
    def way(self) -> str | None:
        """Name of the averaging method; None without `average_every`."""
        return WAYS[self.averaging] if self.average_every else None

    @property
    def method(self) -> str | None:
        """Name of the method if ranks do not use the exact gradient over all ranks, else None."""
        return self.way or (f"DDP with {SENT[self.compression]}" if self.compression != "none" else None)

    @property
    def global_batch(self) -> int:
        """Samples per optimizer step, over all ranks."""
        batch = self.workload.training.global_batch
        return batch * self.layout.data_parallel if self.scaling == "weak" else batch

    @property
    def micro_batches(self) -> int:
        """Forward passes of a rank per step: a pipeline's micro-batches times accumulation."""
        return self.layout.micro_batches * self.workload.training.accumulate

    @property
    def parts(self) -> int:
        """Number of pieces of the global batch, over all data-parallel ranks and their micro-batches."""
        return self.layout.data_parallel * self.micro_batches

    @property
    def micro_batch(self) -> int:
        """The most samples in one forward pass of a rank."""
        return math.ceil(self.global_batch / self.parts)

    @property
    def evaluation_batch(self) -> int:
        """Samples that a rank evaluates at once; by default as many as it trains on, which need more memory."""
        return self.workload.training.evaluation_batch or self.micro_batch

    def optimizer_steps(self, samples: int) -> int:
        """Optimizer steps of the whole training. samples: of the train split."""
        training = self.workload.training
        return training.steps or max(1, math.ceil(training.epochs * samples / self.global_batch))

    @property
    def peak_lr(self) -> float:
        """Peak rate after `lr_scaling`: linear, Goyal et al. 2017, arXiv:1706.02677; square root, Krizhevsky 2014, arXiv:1404.5997."""
        growth = self.global_batch / self.workload.training.global_batch
        factor = {"none": 1.0, "linear": growth, "sqrt": math.sqrt(growth)}[self.workload.optim.lr_scaling]
        return self.workload.optim.lr * factor

    def checkpoint_folder(self, which: str) -> str:
        """Name of the folder of a finished run's `best` or `last` checkpoint; without evaluation, `best` is the last."""
        return "best" if which == "best" and self.workload.training.evaluate else "checkpoint"

    def check(self) -> None:
        """Raise ConfigError for combinations of settings that cannot be trained."""
        self.layout.check()
        if self.workload.is_script:
            return script.check(self)
        training, layout = self.workload.training, self.layout
        if (training.steps is None) == (training.epochs is None):
            raise ConfigError(f"workload {self.workload.name}: give either training.steps or training.epochs")
        self._check_optim()
        if self.profile is not None and not re.fullmatch(r"[1-9]\d*(-[1-9]\d*)?", self.profile):
            raise ConfigError(f"profile = `{self.profile}` must be a step, or the first and the last one: `5-7`")
        if self.profile_steps and self.profile_steps[0] > self.profile_steps[1]:
            raise ConfigError(f"profile = `{self.profile}` ends before it begins")
        self.check_steps(training.steps)
        parts, cut = self.parts, "dp × fsdp × micro_batches × accumulate"
        if self.global_batch < parts:
            raise ConfigError(f"global_batch = {self.global_batch} is less than {cut} = {parts}")
        if layout.pp > 1 and self.global_batch % parts:
            raise ConfigError(
                f"with a pipeline, global_batch = {self.global_batch} must be a multiple of {cut} = {parts}"
            )
        self.workload.model.check(self)
        if layout.cp > 1 and self.workload.task != LANGUAGE_MODEL:
            raise ConfigError(f"cp = {layout.cp}: only language models can split their windows")
        if layout.cp > 1 and training.window % layout.cp:
            raise ConfigError(f"cp = {layout.cp} does not divide training.window = {training.window}")
        self._check_engine()

    def check_steps(self, steps: int | None) -> None:
        """Raise ConfigError for settings that need more optimizer steps than the training has. steps: None if unknown without the data."""
        training, warmup = self.workload.training, self.workload.optim.warmup_steps
        if steps is None or self.workload.is_script:
            return
        made = f"training.steps = {steps}" if training.steps else f"{steps} (training.epochs = {training.epochs:g})"
        if warmup >= steps:
            raise ConfigError(f"optim.warmup_steps = {warmup} leaves no step of {made}")
        if self.profile_steps and self.profile_steps[1] > steps:
            raise ConfigError(f"profile = `{self.profile}` is outside of {made}")

    def _check_optim(self) -> None:
        optim = self.workload.optim
        if optim.schedule == "one_cycle" and optim.warmup_steps:
            raise ConfigError("optim.schedule: one_cycle needs no warm-up: leave out optim.warmup_steps")
        if optim.schedule != "one_cycle" and (optim.cycles or optim.swing):
            raise ConfigError(f"optim.cycles and optim.swing need optim.schedule: one_cycle, not {optim.schedule}")
        if len(optim.betas) != 2 or not all(0 <= beta < 1 for beta in optim.betas):
            raise ConfigError(f"optim.betas = {optim.betas} must be two numbers from 0 to below 1")
        if not 0 <= optim.usual_momentum < 1:
            raise ConfigError(f"optim.momentum = {optim.usual_momentum} must be from 0 to below 1")
        if optim.swing and not optim.swing < optim.usual_momentum < 1 - optim.swing:
            raise ConfigError(f"optim.swing = {optim.swing} takes the momentum {optim.usual_momentum} to 0 or 1")

    def _check_engine(self) -> None:
        layout = self.layout
        only_ddp = layout.dimensions.keys() <= {"dp"}
        if self.engine == "lightning" and (not only_ddp or self.average_every):
            raise ConfigError("engine lightning offers single and ddp; other degrees and local SGD need engine native")
        if self.precision == "float8" and not self.workload.model.has_linear_blocks:
            raise ConfigError(
                f"precision float8 is for our decoder and folders of transformers, not model.kind = `{self.workload.model.kind}`: take bf16"
            )
        if self.precision == "fp16" and (self.engine == "lightning" or self.average_every):
            raise ConfigError(
                "precision fp16 skips steps that overflow on any rank, which engine lightning and average_every cannot: take bf16"
            )
        if self.average_every and (not only_ddp or layout.dp == 1):
            raise ConfigError("average_every (local SGD) needs dp > 1 and no other degree")
        every = self.workload.training.evaluate_every
        if self.average_every and every and every % self.average_every:
            raise ConfigError(
                f"training.evaluate_every = {every} must be a multiple of average_every = {self.average_every}: "
                "between averages each rank has its own model"
            )
        if self.average_every and self.workload.model.counts_batches:
            raise ConfigError("average_every does not average batch norm's statistics: take model.norm: group")
        if self.averaging != "all" and not self.average_every:
            raise ConfigError(f"averaging = {self.averaging} needs average_every, a number of steps")
        if self.averaging != "all" and every == self.average_every:
            raise ConfigError(
                f"averaging = {self.averaging} never happens if all average at training.evaluate_every = {every}: "
                "take a smaller average_every"
            )
        if self.averaging == "neighbour" and layout.dp % 2:
            raise ConfigError(f"averaging = neighbour pairs ranks: dp = {layout.dp} must be even")
        if self.compression != "none" and (
            not only_ddp or layout.dp == 1 or self.average_every or self.engine != "native"
        ):
            raise ConfigError("compression needs dp > 1, no other degree, engine native and no average_every")
        if self.compression != "none" and self.precision == "fp16":
            raise ConfigError("compression would overflow with the scaled gradients of precision fp16; take bf16")
        beside = self.average_every or self.compression != "none" or self.engine != "native"
        if self.reduce_precision != "fp32" and (layout.data_parallel * layout.cp == 1 or beside):
            raise ConfigError(
                "reduce_precision needs gradients to sum (dp, fsdp or cp > 1), engine native, no compression and no average_every"
            )
        if self.average_every and self.init_from:
            raise ConfigError("average_every (local SGD) cannot start from another run's checkpoint")

    def parity(self, steps: int, precision: Precision) -> Self:
        """The short run that proves that this layout is correct: few steps, deterministic, in fp32 or fp64.

        Its epsilon of AdamW is at least 1e-6. With a smaller one, an element whose gradient is only rounding noise takes steps
        of full size in a random direction, and equal layouts would seem to differ.
        """
        workload: Any = self.workload
        workload.refuse_script("`parascale.prove` records its steps (docs/proof.md)")
        warmup = min(workload.optim.warmup_steps, steps // 4)
        precision = workload.parity_precision or precision
        workload = replace(
            workload,
            training=workload.training.short(steps),
            parity_precision=None,
            optim=replace(workload.optim, warmup_steps=warmup, eps=max(workload.optim.eps, 1e-6)),
        )
        return replace(self, workload=workload, precision=precision, deterministic=True, init_from=None, profile=None)
