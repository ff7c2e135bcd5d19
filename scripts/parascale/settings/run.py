"""A run: a workload in a layout, with everything that decides its numbers."""

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

from parascale.errors import ConfigError
from parascale.settings.layout import Layout
from parascale.settings.options import option, required, section
from parascale.settings.strict import nearest
from parascale.settings.workload import MODEL_KINDS, Workload

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
    profile: str | None = option(
        None,
        "steps that are profiled, the first and the last (`5-7`); it takes time, so the run is not compared",
    )
    profiler: str = option(
        "torch",
        "`torch`: PyTorch's, on the first rank, with the longest operators in the job's report; `nsight`: Nsight Systems, on "
        "every rank, on GPUs and where `nsys` is installed, with its reports beside the logs",
        choices=("torch", "nsight"),
    )

    @property
    def profile_steps(self):
        """(first, last) step to profile, or None."""
        if self.profile is None:
            return None
        first, _, last = self.profile.partition("-")
        return int(first), int(last or first)

    @property
    def strategy(self):
        """The strategy's name, derived from the layout."""
        return self.layout.strategy(self.average_every)

    @property
    def global_batch(self):
        """Samples an optimizer step over all ranks."""
        batch = self.workload.training.global_batch
        return batch * self.layout.data_parallel if self.scaling == "weak" else batch

    def optimizer_steps(self, samples):
        """Optimizer steps of the whole training, where the train split has so many samples."""
        training = self.workload.training
        return training.steps or max(1, math.ceil(training.epochs * samples / self.global_batch))

    @property
    def peak_lr(self):
        """Peak learning rate after `lr_scaling`.

        linear: Goyal et al. 2017, arXiv:1706.02677; square root: Krizhevsky 2014, arXiv:1404.5997.
        """
        growth = self.global_batch / self.workload.training.global_batch
        factor = {"none": 1.0, "linear": growth, "sqrt": math.sqrt(growth)}[self.workload.optim.lr_scaling]
        return self.workload.optim.lr * factor

    def checkpoint_folder(self, which):
        """Name of the folder of the finished run that holds its `best` or `last` checkpoint.

        A run that is not evaluated knows no best weights: its last ones stand for them.
        """
        return "best" if which == "best" and self.workload.training.evaluate else "checkpoint"

    def check(self):
        """Raise ConfigError for combinations that cannot be trained, before anything is spent."""
        self.layout.check()
        training, layout = self.workload.training, self.layout
        if (training.steps is None) == (training.epochs is None):
            raise ConfigError(f"workload {self.workload.name}: give either training.steps or training.epochs")
        self._check_optim()
        if self.profile is not None and not re.fullmatch(r"[1-9]\d*(-[1-9]\d*)?", self.profile):
            raise ConfigError(f"profile = `{self.profile}` must be a step, or the first and the last one: `5-7`")
        if self.profile is not None and self.profile_steps[0] > self.profile_steps[1]:
            raise ConfigError(f"profile = `{self.profile}` ends before it begins")
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
        if training.label_smoothing and not self.workload.of_images:
            raise ConfigError(
                f"training.label_smoothing is of classification alone; the task here is {self.workload.task}"
            )
        self._check_model()
        self._check_engine()

    def _check_optim(self):
        optim, steps = self.workload.optim, self.workload.training.steps
        if optim.schedule == "one_cycle" and optim.warmup_steps:
            raise ConfigError("optim.schedule: one_cycle rises by itself: leave out optim.warmup_steps")
        if optim.schedule != "one_cycle" and (optim.cycles or optim.swing):
            raise ConfigError(f"optim.cycles and optim.swing are of the schedule one_cycle, not of {optim.schedule}")
        if steps is not None and optim.warmup_steps >= steps:
            raise ConfigError(
                f"optim.warmup_steps = {optim.warmup_steps} leaves none of training.steps = {steps} to train"
            )
        if len(optim.betas) != 2 or not all(0 <= beta < 1 for beta in optim.betas):
            raise ConfigError(f"optim.betas = {optim.betas} must be two numbers from 0 to below 1")
        if not 0 <= optim.usual_momentum < 1:
            raise ConfigError(f"optim.momentum = {optim.usual_momentum} must be from 0 to below 1")
        if optim.swing and not optim.swing < optim.usual_momentum < 1 - optim.swing:
            raise ConfigError(
                f"optim.swing = {optim.swing} takes a momentum of {optim.usual_momentum} out of the range between 0 and 1"
            )

    def _check_model(self):
        model, layout = self.workload.model, self.layout
        if ":" in model.kind:
            path = Path(model.kind.partition(":")[0])
            if not path.is_file():
                raise ConfigError(f"model.kind = `{model.kind}`: no such file `{path}`")
            return  # a class of the user's own checks its own sizes
        if model.kind not in MODEL_KINDS:
            raise ConfigError(
                f"model.kind = `{model.kind}` is not known{nearest(model.kind, MODEL_KINDS)}, or `path/file.py:Class`"
            )
        task, degrees = MODEL_KINDS[model.kind]
        if task != self.workload.task:
            raise ConfigError(f"model.kind = `{model.kind}` is for the task {task}, not {self.workload.task}")
        for degree in ("fsdp", "tp", "pp"):
            if getattr(layout, degree) > 1 and degree not in degrees:
                offered = ", ".join(("single", "dp", *degrees))
                raise ConfigError(
                    f"model.kind = `{model.kind}` cannot be trained with {degree} = {getattr(layout, degree)}. It offers {offered}"
                )
        if model.kind == "xresnet":
            self._check_xresnet()
        elif model.kind == "pretrained":
            self._check_pretrained()
        else:
            self._check_transformer()

    def _check_xresnet(self):
        model, layout = self.workload.model, self.layout
        if model.norm not in ("batch", "group"):
            raise ConfigError(f"model.norm = `{model.norm}` is none of xresnet's: `batch` or `group`")
        if not model.depths or min(model.depths) < 1:
            raise ConfigError(f"model.depths = {model.depths} must be a block or more for each stage")
        if model.dim % 2:
            raise ConfigError(f"model.dim = {model.dim} must be even: the stem begins with half of it")
        if model.norm == "batch" and layout.activation_checkpointing:
            raise ConfigError(
                "activation_checkpointing would count every batch twice in batch norm; take model.norm: group"
            )

    def _check_pretrained(self):
        folder, tokens = self.workload.model.pretrained, self.workload.data.text.pretrained
        if folder is None or folder != tokens:
            raise ConfigError(
                "model.kind = `pretrained` reads numbers of its own vocabulary: it needs data.text.tokenizer = `pretrained` and "
                f"the same folder, but model.pretrained = `{folder}` and data.text.pretrained = `{tokens}`"
            )

    def _check_transformer(self):
        model, layout = self.workload.model, self.layout
        kv_heads = model.kv_heads or model.heads
        if model.norm not in ("layer", "rms"):
            raise ConfigError(f"model.norm = `{model.norm}` is none of a Transformer's: `layer` or `rms`")
        if model.dim % model.heads:
            raise ConfigError(f"model.dim = {model.dim} is not a multiple of model.heads = {model.heads}")
        if model.position == "rotary" and model.dim // model.heads % 2:
            raise ConfigError(
                f"position rotary turns pairs of numbers, but model.dim / model.heads = {model.dim // model.heads} is odd"
            )
        if model.heads % kv_heads:
            raise ConfigError(f"model.heads = {model.heads} is not a multiple of model.kv_heads = {kv_heads}")
        for name, value in (("heads", model.heads), ("kv_heads", kv_heads), ("hidden", model.hidden_width)):
            if value % layout.tp:
                raise ConfigError(f"tp = {layout.tp} does not divide model.{name} = {value}")
        if layout.tp > 1 and layout.sequence_parallel:
            for name, size in zip(("window", "summary_window"), self.workload.sizes, strict=False):
                if size % layout.tp:
                    raise ConfigError(
                        f"sequence_parallel needs training.{name} = {size} to be a multiple of tp = {layout.tp}"
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
        every = self.workload.training.evaluate_every
        if self.average_every and every and every % self.average_every:
            raise ConfigError(
                f"training.evaluate_every = {every} must be a multiple of average_every = {self.average_every}: "
                "between averages there is no one model to evaluate"
            )
        if self.average_every and self.workload.model.norm == "batch":
            raise ConfigError(
                "average_every (local SGD) averages parameters, and batch norm's statistics are none: take model.norm: group"
            )
        if self.average_every and self.init_from:
            raise ConfigError("average_every (local SGD) cannot start from another run's checkpoint")

    def parity(self, steps, precision):
        """The short run that proves this layout right: few steps, exact arithmetic, nothing random.

        AdamW's epsilon is at least 1e-6 there: with less, an element whose gradient is nothing but rounding noise takes
        steps of full size, up or down as the noise falls, and layouts seem to differ where they do not.
        """
        workload = self.workload
        warmup = min(workload.optim.warmup_steps, steps // 4)
        precision = workload.parity_precision or precision
        workload = replace(
            workload,
            training=workload.training.short(steps),
            parity_precision=None,
            model=replace(workload.model, dropout=0.0),
            optim=replace(workload.optim, warmup_steps=warmup, eps=max(workload.optim.eps, 1e-6)),
        )
        return replace(self, workload=workload, precision=precision, deterministic=True, init_from=None, profile=None)
