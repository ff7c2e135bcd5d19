"""What is trained, on which data, and how: the settings that do not depend on a machine or a layout."""

from dataclasses import dataclass, replace

from parascale.settings.data import Data
from parascale.settings.formats import IMAGE_FORMATS
from parascale.settings.options import option, required, section

# Task → what its work is counted in: each label that enters the loss is one.
WORK_UNITS = {"language_model": "tokens", "summarisation": "tokens", "classification": "images"}
TASKS = tuple(WORK_UNITS)
# Model kind → the task it is for, and the degrees beside `dp` that it can be spread over.
MODEL_KINDS = {
    "transformer_lm": ("language_model", ("fsdp", "tp", "pp")),
    "encoder_decoder": ("summarisation", ("fsdp", "tp")),
    "pretrained": ("summarisation", ("fsdp",)),
    "xresnet": ("classification", ("fsdp",)),
}
# Task → formats of prepared data that its trainings read, the usual one first.
TASK_FORMATS = {"language_model": ("flat",), "summarisation": ("pairs",), "classification": IMAGE_FORMATS}


def work_unit(step):
    """What a recorded step counts its work in: a line of `steps.jsonl` holds `tokens` or `images`."""
    return next(unit for unit in WORK_UNITS.values() if unit in step)


@dataclass(frozen=True)
class Model:
    """Sizes and switches of the model."""

    kind: str = option(
        "transformer_lm",
        f"{', '.join(f'`{kind}`' for kind in MODEL_KINDS)}, or your own class by its path (`my_models/small.py:SmallModel`, "
        "relative to the folder of the Snakefile)",
    )
    dim: int = option(
        128, "width of the hidden states; of xresnet, channels of the stem's end (64 in xresnet50)", low=1
    )
    heads: int = option(4, "attention heads; must divide `dim`", low=1)
    kv_heads: int | None = option(
        None, "key and value heads (grouped-query attention); default: as many as `heads`", low=1
    )
    layers: int = option(2, "Transformer blocks; of an encoder-decoder in each half", low=1)
    depths: list[int] = option([3, 4, 6, 3], "xresnet: blocks of each stage; these are xresnet50's")
    hidden: int | None = option(None, "width inside the feed-forward layer; default: 4 × `dim`", low=1)
    dropout: float = option(
        0.0, "dropout probability; above 0, parity between layouts is not claimed", low=0.0, high=0.99
    )
    tied: bool = option(False, "input embedding and output layer share one matrix")
    norm: str = option(
        "layer",
        "`layer`: LayerNorm; `rms`: RMSNorm; of xresnet `batch` (BatchNorm) or `group` (GroupNorm)",
        choices=("layer", "rms", "batch", "group"),
    )
    norm_eps: float = option(1e-5, "epsilon of the norms", above=0.0)
    pre_norm: bool = option(True, "normalise before each sublayer (else after it, as in the original Transformer)")
    position: str = option("learned", "how positions enter", choices=("learned", "sinusoidal", "rotary"))
    activation: str = option(
        "gelu",
        "of the feed-forward layer; `swiglu` has a gate matrix more; `gelu_tanh` is GPT-2's",
        choices=("gelu", "gelu_tanh", "relu", "swiglu"),
    )
    bias: bool = option(True, "linear layers and norms have a bias")
    pretrained: str | None = option(
        None,
        "kind `pretrained`: the folder of the model, T5 or BART, which decides all sizes; `dropout` is taken from here. "
        "Default, and nothing else fits the data: `data.text.pretrained`",
    )
    options: dict = option({}, "settings that only a class of your own knows")

    @property
    def hidden_width(self):
        """Width inside the feed-forward layer."""
        return self.hidden or 4 * self.dim


@dataclass(frozen=True)
class Cycle:
    """One rise and fall of the learning rate, each along half a cosine; the defaults are those of fastai's `fit_one_cycle`."""

    length: float = option(1.0, "its length, relative to those of the other cycles", above=0.0)
    peak: float = option(1.0, "its highest rate, relative to `lr`", above=0.0)
    start: float = option(0.04, "the rate it begins with, relative to its highest", low=0.0, high=1.0)
    rise: float = option(0.25, "part of its steps over which the rate rises", above=0.0, high=1.0)


@dataclass(frozen=True)
class Optim:
    """The optimizer and its schedule."""

    name: str = option("adamw", "optimizer", choices=("adamw", "sgd"))
    lr: float = option(1e-3, "peak learning rate, for the workload's own global batch", above=0.0)
    lr_scaling: str = option(
        "none", "how `lr` grows when weak scaling makes the global batch larger", choices=("none", "linear", "sqrt")
    )
    schedule: str = option(
        "cosine",
        "learning rate after the warm-up; `one_cycle` has none: it rises and falls, once or as `cycles` say",
        choices=("cosine", "constant", "one_cycle"),
    )
    cycles: list[Cycle] = option(
        [], "`one_cycle`: one cycle after the other; default: one with the defaults of `optim.cycles[]`"
    )
    swing: float = option(
        0.0,
        "`one_cycle`: AdamW's first decay rate, or SGD's momentum, is so far above its value where a cycle begins, and so far below "
        "it where the learning rate is highest",
        low=0.0,
    )
    warmup_steps: int = option(0, "steps over which the learning rate rises linearly from 0", low=0)
    min_lr_ratio: float = option(0.1, "the cosine ends at this part of `lr`", low=0.0, high=1.0)
    betas: list[float] = option([0.9, 0.95], "AdamW's decay rates")
    eps: float = option(1e-8, "AdamW's epsilon", above=0.0)
    momentum: float = option(0.9, "SGD's momentum", low=0.0)
    weight_decay: float = option(0.1, "decoupled weight decay, on matrices only", low=0.0)
    clip_norm: float | None = option(1.0, "largest norm of the whole gradient; `null`: no clipping", above=0.0)

    @property
    def usual_momentum(self):
        """How much of the mean of earlier gradients stays in a step, as it is without a swing."""
        return self.momentum if self.name == "sgd" else self.betas[0]


@dataclass(frozen=True)
class Training:
    """How much is trained, and what happens on the way."""

    window: int = option(64, "tokens a sample; where summaries are learned, of a document", low=2)
    summary_window: int = option(
        32, "most tokens of a summary, its end included; a pair with a longer one is left out", low=2
    )
    over_long: str = option(
        "cut",
        "a document of more than `window` tokens: `cut` keeps its beginning, `leave_out` leaves its pair out; both are counted",
        choices=("cut", "leave_out"),
    )
    stride: int | None = option(
        None,
        "tokens from one training window to the next; default: `window` (no overlap); 1 is the "
        "published protocol, which sees each token `window` times an epoch",
        low=1,
    )
    image_size: int = option(160, "pixels of a side that images are cropped and resized to", low=16)
    smallest_crop: float = option(0.35, "least part of an image's area that a random crop holds", above=0.0, high=1.0)
    workers: int = option(
        0, "images: processes of each rank that read and decode ahead; 0: the rank does it itself", low=0
    )
    label_smoothing: float = option(
        0.0,
        "classification: part of a target that is spread evenly over all classes, in training alone (Szegedy et al. 2016, "
        "arXiv:1512.00567)",
        low=0.0,
        high=0.99,
    )
    global_batch: int = option(64, "samples an optimizer step, over all ranks", low=1)
    accumulate: int = option(
        1, "parts in which a rank works through its share of a step (gradient accumulation)", low=1
    )
    steps: int | None = option(None, "optimizer steps; give this or `epochs`", low=1)
    epochs: float | None = option(None, "passes over the train split; give this or `steps`", above=0.0)
    evaluate: bool = option(
        True, "evaluate on the validation and test splits, and keep the weights of the best validation loss"
    )
    evaluate_every: int | None = option(
        None, "steps between evaluations on the validation split; default: at the end only", low=1
    )
    evaluation_batch: int | None = option(
        None, "samples an evaluation step takes on each rank; default: a rank's share of `global_batch`", low=1
    )
    checkpoint_every: int | None = option(None, "steps between resumable checkpoints; default: at the end only", low=1)
    checkpoint_minutes: float | None = option(
        30.0, "minutes between resumable checkpoints, whichever comes first; `null`: never by time", above=0.0
    )
    checkpoint_async: bool = option(
        False, "write checkpoints behind the training's back; costs a copy of the state in host memory"
    )
    keep: int = option(2, "resumable checkpoints that are kept", low=1)

    def short(self, steps):
        """The same training for a few steps, with neither evaluation nor checkpoints on the way."""
        never = dict.fromkeys(("epochs", "evaluate_every", "checkpoint_every", "checkpoint_minutes"))
        return replace(self, steps=steps, evaluate=False, **never)


@dataclass(frozen=True)
class Workload:
    """One training problem: `config/workloads/<name>.yaml`."""

    name: str = required("the file's name without `.yaml`; set by the loader")
    title: str = option("", "a line for reports")
    task: str = option("language_model", "what is learned", choices=TASKS)
    data: Data = section(Data, "the dataset")
    model: Model = section(Model, "the model")
    optim: Optim = section(Optim, "the optimizer")
    training: Training = section(Training, "how much is trained")
    parity_precision: str | None = option(
        None,
        "precision of its parity runs; default: the configuration's. fp64 where rounding in fp32 outgrows the tolerance within "
        "the steps compared, as it does through batch norm",
        choices=("fp32", "fp64"),
    )

    @property
    def unit(self):
        """What the work is counted in: `tokens` or `images`."""
        return WORK_UNITS[self.task]

    @property
    def sizes(self):
        """What a model is built for beside its settings and the number of its outputs: the tokens of a sample, those of
        a document and of a summary, or the pixels of an image's side."""
        training = self.training
        if self.of_images:
            return (training.image_size,)
        return (training.window, training.summary_window) if self.of_pairs else (training.window,)

    @property
    def of_pairs(self):
        """Whether the dataset holds pairs of document and summary."""
        return self.task == "summarisation"

    @property
    def of_images(self):
        """Whether the dataset holds images; else it holds text."""
        return self.task == "classification"
