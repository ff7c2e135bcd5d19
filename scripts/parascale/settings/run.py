"""A run: a workload in a layout, with everything that decides its numbers."""

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
FLOAT8_MULTIPLE = 16  # of elements: torch's kernel takes no other sizes
# Names of the ways to average ranks that train apart.
WAYS = {"all": "local SGD", "neighbour": "gossip", "server": "parameter server"}
SENT = {"fp16": "gradients in fp16", "powersgd": "gradients by PowerSGD"}


@settings(RECIPE)
class Run:
    """One row of the run table, with its workload."""

    run: str = required("name of the run: letters, digits, `-`, `_` and `.`", SITE)
    workload: Annotated[Workload, chosen(Workload)] = required("name of a workload")
    layout: Layout = section("how the run is spread", default_factory=Layout)
    precision: Precision = option(
        "with tf32 GPUs round factors of products to 10 bits; with bf16 and fp16 weights, summed gradients and optimizer state stay fp32; fp16, for GPUs without bf16, scales its loss; float8 is bf16 with products of blocks in 8 bits, on GPUs of compute capability 8.9 or later",
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
        "what stays fixed: the global batch (`strong`) or a rank's (`weak`)", default="strong"
    )
    seed: int = option("seed of initial weights, sample order and dropout", default=1, low=0, high=2**63)
    baseline: str | None = option(
        "run of the same workload to compare with; default: the first one on one process, else none",
        CONDUCT,
        default=None,
    )
    repeat: int = option("number of the repeat, for otherwise equal rows; counted by default", SITE, default=1, low=1)
    deterministic: bool = option("use only deterministic kernels: a repeated run gives the same bits", default=False)
    average_every: int | None = option(
        "local SGD: ranks train apart and average every so many steps", default=None, low=1
    )
    averaging: Literal["all", "neighbour", "server"] = option(
        "with whom ranks that train apart average: `all`, a `neighbour` on a ring (gossip), or a parameter `server` that they visit in turn",
        default="all",
        before="all",
    )
    compression: Literal["none", "fp16", "powersgd"] = option(
        "how DDP sends gradients: in full, in fp16, or as thin matrices (`powersgd`, arXiv:1905.13727), whose error joins the next gradient and is lost at a restart",
        default="none",
        before="none",
    )
    reduce_precision: Literal["fp32", "bf16"] = option(
        "in what ranks of `dp`, `fsdp` and `cp` sum gradients: `bf16` sends half as much and rounds what each rank adds, and each sum; gradients of "
        "parts are added, and kept, in fp32. Losses and weights then differ by that rounding",
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
        """The strategy's name, derived from the layout."""
        return self.layout.strategy(self.average_every)

    @property
    def way(self) -> str | None:
        """Name of the way to average ranks that train apart; None where they do not."""
        return WAYS[self.averaging] if self.average_every else None

    @property
    def method(self) -> str | None:
        """Name of a run's method if ranks do not use the exact gradients of all; None if they do."""
        return self.way or (f"DDP with {SENT[self.compression]}" if self.compression != "none" else None)

    @property
    def global_batch(self) -> int:
        """Samples an optimizer step over all ranks."""
        batch = self.workload.training.global_batch
        return batch * self.layout.data_parallel if self.scaling == "weak" else batch

    @property
    def micro_batches(self) -> int:
        """Forward passes that a rank makes in a step: of a pipeline's micro-batches, times accumulation."""
        return self.layout.micro_batches * self.workload.training.accumulate

    @property
    def parts(self) -> int:
        """Pieces that the global batch is cut into, over all data-parallel ranks and their micro-batches."""
        return self.layout.data_parallel * self.micro_batches

    @property
    def micro_batch(self) -> int:
        """The most samples that a rank trains on at once: of its share of a step, one part, or one micro-batch of that."""
        return math.ceil(self.global_batch / self.parts)

    @property
    def evaluation_batch(self) -> int:
        """Samples that a rank evaluates at once. What fits in training fits without a backward pass."""
        return self.workload.training.evaluation_batch or self.micro_batch

    def optimizer_steps(self, samples: int) -> int:
        """Optimizer steps of the whole training, where the train split has so many samples."""
        training = self.workload.training
        return training.steps or max(1, math.ceil(training.epochs * samples / self.global_batch))

    @property
    def peak_lr(self) -> float:
        """Peak rate after `lr_scaling`: linear, Goyal et al. 2017, arXiv:1706.02677; square root, Krizhevsky 2014, arXiv:1404.5997."""
        growth = self.global_batch / self.workload.training.global_batch
        factor = {"none": 1.0, "linear": growth, "sqrt": math.sqrt(growth)}[self.workload.optim.lr_scaling]
        return self.workload.optim.lr * factor

    def checkpoint_folder(self, which: str) -> str:
        """The folder of a finished run with its `best` or `last` checkpoint; without evaluation the last stands for both."""
        return "best" if which == "best" and self.workload.training.evaluate else "checkpoint"

    def check(self) -> None:
        """Raise ConfigError for combinations that cannot be trained, before anything is spent."""
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
            raise ConfigError(f"cp = {layout.cp} splits the windows of language models alone")
        if layout.cp > 1 and training.window % layout.cp:
            raise ConfigError(f"cp = {layout.cp} does not divide training.window = {training.window}")
        self._check_engine()

    def check_steps(self, steps: int | None) -> None:
        """Raise ConfigError for settings that need more optimizer steps than the training has. steps: None: not known before its data."""
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
            raise ConfigError("optim.schedule: one_cycle rises by itself: leave out optim.warmup_steps")
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
                "between averages there is no one model to evaluate"
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
        """The short run that proves this layout right: few steps, in exact arithmetic.

        AdamW's epsilon is at least 1e-6 there: with less, an element whose gradient is nothing but rounding noise takes
        steps of full size, up or down as the noise falls, and layouts seem to differ where they do not.
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
