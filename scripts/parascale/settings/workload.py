"""Model, data and training: the settings that do not depend on a machine or a layout.

A task says what a sample is, so each has a class of its own for data and training, which knows no key of another. What a model
has to be told is a matter of its family: see `parascale.families`.
"""

import importlib.util
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, get_args

from parascale.errors import ConfigError, DataError
from parascale.settings.data import Data, ImageData, PairData, TextData
from parascale.settings.optim import Optim
from parascale.settings.options import (
    CONDUCT,
    LAYOUT,
    RECIPE,
    SITE,
    Number,
    Varied,
    chosen,
    option,
    required,
    section,
    settings,
)
from parascale.settings.strict import nearest

Decoder = Literal["scaled", "full", "dali"]
LANGUAGE_MODEL = "language_model"


def usable_decoders() -> list[str]:
    """Decoders whose packages are here: DALI is none of the pinned ones. It is not imported, which takes seconds."""
    dali = importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.dali")
    return [decoder for decoder in get_args(Decoder) if dali or decoder != "dali"]


@settings(RECIPE)
class Model(Varied):
    """What every model is told. `kind` decides which family's class the other settings are of."""

    kind: str = required(
        "a kind of model, or the path of your own class (`small.py:SmallModel`); default: the task's usual kind",
        path=True,
    )
    options: dict[str, object] = option("settings for your own class", default={})
    counts: str = option(
        "folder of what plans know of it, unless that lies beside your own class or the model's folder; set by the loader: `counts` beside "
        "the workload's file",
        SITE,
        default="config/workloads/counts",
    )

    if not TYPE_CHECKING:  # some kinds have settings or properties in their place
        dropout: ClassVar = 0.0
        dropout_masks: ClassVar = "same"
        pretrained: ClassVar = None  # folder of the weights that it begins with
        folder: ClassVar = None  # that its class and sizes come from
        counts_batches: ClassVar = False  # has batch norm, whose statistics are of the samples that a rank sees
        has_linear_blocks: ClassVar = False  # whose products `precision` float8 knows

    @property
    def is_own(self) -> bool:
        """Whether the model is a class of the user's own: `file.py:Class`."""
        return ":" in self.kind

    @staticmethod
    def variant(values: dict[str, Any], beside: dict[str, Any]) -> type:
        """The class of settings of a model kind; of the task's own family where it names a class by path, or no kind."""
        # Families build on these settings: they are found when a model is read, not before.
        from parascale.families import settings_of

        task = beside.get("task")
        known = isinstance(task, str) and task in TASKS
        return settings_of(task if known else LANGUAGE_MODEL, values.get("kind"))

    def check(self, run: Any) -> None:
        """Raise ConfigError where the model cannot be trained as a run wants it."""
        from parascale.families import check_class, kinds
        from parascale.families.counted import check_counted

        path, _, own = self.kind.partition(":")
        if own:
            if not Path(path).is_file():
                raise ConfigError(f"model.kind = `{self.kind}`: no such file `{path}`")
            check_class(Path(path), own, self.kind)
            self._check_documents(run, False)
            check_counted(self, run.layout)
            return  # a class of the user's own checks its own sizes
        known, task = kinds(), run.workload.task
        if self.kind not in known:
            raise ConfigError(
                f"model.kind = `{self.kind}` is not known{nearest(self.kind, known)}, or `path/file.py:Class`"
            )
        kind = known[self.kind]
        if kind.task != task:
            raise ConfigError(f"model.kind = `{self.kind}` is for the task {kind.task}, not {task}")
        for axis, degree in run.layout.dimensions.items():
            if axis not in ("dp", *kind.degrees):
                offered = ", ".join(("single", "dp", *kind.degrees))
                raise ConfigError(f"model.kind = `{self.kind}` offers no {axis} = {degree}. Allowed: {offered}")
        self._check_documents(run, kind.separates)
        self.check_sizes(run)

    def _check_documents(self, run: Any, separates: bool) -> None:
        if run.workload.training.documents == "separate" and not separates:
            raise ConfigError(
                f"model.kind = `{self.kind}`: training.documents = separate is for our own decoder alone; take joined"
            )

    def check_sizes(self, run: Any) -> None:
        """Raise ConfigError where sizes do not go together, or with a run's layout; families know."""


@settings(RECIPE)
class Training(Varied):
    """How much is trained, and what happens on the way."""

    global_batch: int = option("samples per optimizer step, over all ranks", default=64, low=1)
    accumulate: int = option("gradient accumulation: parts of a rank's share of a step", LAYOUT, default=1, low=1)
    steps: int | None = option("optimizer steps; give this or `epochs`", default=None, low=1, high=10**9)
    epochs: Number | None = option("passes over the train split; give this or `steps`", default=None, above=0.0)
    evaluate: bool = option("evaluate on validation and test splits, and keep the best weights", default=True)
    evaluate_every: int | None = option("steps between evaluations; default: only at the end", default=None, low=1)
    evaluation_batch: int | None = option(
        "samples that a rank evaluates at once; default: as many as it trains on",
        CONDUCT,
        default=None,
        low=1,
        expert=True,
    )
    checkpoint_every: int | None = option(
        "steps between checkpoints; default: only at the end", CONDUCT, default=None, low=1
    )
    checkpoint_minutes: Number | None = option(
        "minutes between saves; `null`: never by time", CONDUCT, default=30.0, above=0.0
    )
    checkpoint_async: bool = option(
        "write checkpoints in the background, from a copy in host memory (as large as the state)",
        CONDUCT,
        default=False,
        expert=True,
    )
    keep: int = option("number of resumable checkpoints to keep", CONDUCT, default=2, low=1)

    label_smoothing: ClassVar = 0.0
    documents: ClassVar = "joined"

    def short(self, steps: int) -> Self:
        """The same training for a few steps, with neither evaluation nor checkpoints on the way."""
        never: dict[str, Any] = dict.fromkeys(("epochs", "evaluate_every", "checkpoint_every", "checkpoint_minutes"))
        return replace(self, steps=steps, evaluate=False, **never)

    def saves(self, steps: int, seconds: float) -> int:
        """How often so many steps, which take so many seconds, save a checkpoint: on the way and at the end."""
        found = math.ceil(steps / (self.checkpoint_every or steps))
        return max(found, 1 + math.floor(seconds / 60 / self.checkpoint_minutes)) if self.checkpoint_minutes else found


@settings(RECIPE)
class LanguageTraining(Training):
    """Training on windows of text."""

    window: int = option(
        "tokens per sample; the last window of a split is filled up with 0, which counts in no loss and no metric",
        default=64,
        low=2,
        high=10**7,
    )
    stride: int | None = option(
        "tokens from one window's start to the next; default: `window`. 1, as published for WikiText, uses each token `window` times",
        default=None,
        low=1,
    )
    documents: Literal["joined", "separate"] = option(  # type: ignore[misc]  # elsewhere it is no setting
        "documents in a window, which the tokens that end them part: `joined`, as one text; `separate`: attention sees the token's own document "
        "alone, and positions count from that one's start, or the window's. A document's end predicts the next one's first token in both",
        default="joined",
        before="joined",
    )

    def require_ends(self, folder: Path, splits: Any) -> None:
        """Raise DataError where documents are to be separate, and a split of prepared data, by its manifest's `splits`, has no end of any."""
        without = [split for split, counts in splits.items() if counts.get("documents") == 0]
        if self.documents == "separate" and without:
            raise DataError(
                f"{folder}: `training.documents: separate`, but no token of the split `{without[0]}` ends a document: name the tokenizer "
                "whose end stands behind each (`data.text.pretrained`), or take `joined`"
            )


@settings(RECIPE)
class SummaryTraining(Training):
    """Training on pairs of a document and its summary."""

    window: int = option("tokens of a document", default=64, low=2, high=10**7)
    summary_window: int = option(
        "most tokens of a summary with its end; pairs with more are left out", default=32, low=2
    )
    over_long: Literal["cut", "leave_out"] = option(
        "a document of more than `window` tokens: `cut` keeps its beginning, `leave_out` leaves the pair out",
        default="cut",
    )


@settings(RECIPE)
class ImageTraining(Training):
    """Training on images with a class each."""

    image_size: int = option("side in pixels to which images are cropped and resized", default=160, low=16)
    smallest_crop: Number = option(
        "smallest fraction of an image's area in a random crop", default=0.35, above=0.0, high=1.0
    )
    crops: Literal["square", "fastai"] = option(
        "`square`: images are evaluated at the undistorted square in their middle, and a random crop that does not fit after ten tries is that "
        "of the whole height or width; `fastai`, as its `RandomResizedCrop`: they are squished to a side 14 % longer and evaluated at the "
        "middle of that, and such a crop is the largest one in the middle within the ratios 3:4 and 4:3",
        default="square",
        before="square",
    )
    decoder: Decoder = option(
        "`full`: Pillow, the whole image; `scaled`: libjpeg-turbo, as small as the crop allows (pixels of photographs differ by 1 of "
        "255 on average and by 62 at most, of drawings with hard coloured edges by 2 to 12 and up to 190: take `full` for those); "
        "`dali`: NVIDIA DALI (`pip install -r envs/requirements-dali.txt`), on a GPU where there is one. None "
        "applies a camera's orientation (EXIF), as torchvision does not; the index counts such images",
        default="scaled",
        before="full",
    )
    workers: int = option("threads per rank that decode ahead, DALI's own too; 0: none", CONDUCT, default=0, low=0)
    label_smoothing: Number = option(  # type: ignore[misc]  # elsewhere it is no setting
        "fraction of a target that all classes share in training (Szegedy et al. 2016, arXiv:1512.00567)",
        default=0.0,
        low=0.0,
        high=0.99,
    )


@settings(RECIPE)
class Workload(Varied):
    """One training problem: `config/workloads/<name>.yaml`."""

    name: str = required("the file's name without `.yaml`; set by the loader", SITE)
    title: str = option("title in reports", SITE, default="")
    task: Literal["language_model", "summarisation", "classification", "script"] = option(
        "what the model learns; `script`: a training script of your own runs as it is", default=LANGUAGE_MODEL
    )

    unit: ClassVar = "samples"  # what the work is counted in
    is_script: ClassVar = False  # whether a program of the user's own trains
    of_pairs: ClassVar = False  # the dataset holds pairs of document and summary
    of_images: ClassVar = False  # the dataset holds images; else it holds text

    @property
    def in_own_environment(self) -> bool:
        """Whether a script runs in an environment of its user's, not in the workflow's."""
        return bool(getattr(self, "python", None) or getattr(self, "setup", None))

    def refuse_script(self, instead: str) -> None:
        """Raise ConfigError if a program of the user's own trains. instead: what that means here, or what to do."""
        if self.is_script:
            raise ConfigError(f"workload {self.name} is a script of your own: {instead}")

    @staticmethod
    def variant(values: dict[str, Any], beside: dict[str, Any]) -> type:
        """The class of a task's workloads."""
        task = values.get("task", LANGUAGE_MODEL)
        return TASKS.get(task, Learning) if isinstance(task, str) else Learning


@settings(RECIPE)
class Learning(Workload):
    """A training of ours: data, a model, an optimizer."""

    data: Data = section("the dataset", default_factory=Data)
    model: Annotated[Model, chosen(Model)] = section("the model", default_factory=dict)
    optim: Optim = section("the optimizer", default_factory=Optim)
    training: Training = section("how much is trained", default_factory=Training)
    parity_precision: Literal["fp32", "fp64"] | None = option(
        "precision of its parity runs; default: the configuration's. fp64 where fp32 rounds too much, as in batch norm",
        CONDUCT,
        default=None,
    )

    unit: ClassVar = "tokens"  # each label that enters the loss is one

    def windows_in(self, tokens: int | None) -> int | None:
        """Samples of training in so many tokens; None where that does not follow from them."""
        return None

    def in_parts(self, count: int) -> Self:
        """The same training with a rank's share of a step in so many parts."""
        return replace(self, training=replace(self.training, accumulate=count))


@settings(RECIPE)
class LanguageModelling(Learning):
    """A language model, on windows of text."""

    task: Literal["language_model"] = option("what the model learns", default=LANGUAGE_MODEL)
    data: TextData = section("the dataset", default_factory=TextData)
    training: LanguageTraining = section("how much is trained", default_factory=LanguageTraining)

    @property
    def sizes(self) -> tuple[int, ...]:
        """What a model is built for beside its settings and the number of its outputs: the tokens of a sample."""
        return (self.training.window,)

    def windows_in(self, tokens: int | None) -> int | None:
        """Windows of training in so many tokens; None of an unknown number."""
        stride = self.training.stride or self.training.window
        return None if tokens is None else max(1, math.ceil((tokens - 1) / stride))


@settings(RECIPE)
class Summarisation(Learning):
    """A summariser, on pairs of a document and its summary."""

    task: Literal["summarisation"] = option("what the model learns", default="summarisation")
    data: PairData = section("the dataset", default_factory=PairData)
    training: SummaryTraining = section("how much is trained", default_factory=SummaryTraining)
    of_pairs: ClassVar = True

    @property
    def sizes(self) -> tuple[int, ...]:
        """What a model is built for beside its settings and the number of its outputs: tokens of a document, of a summary."""
        return self.training.window, self.training.summary_window


@settings(RECIPE)
class Classification(Learning):
    """A classifier, on images with a class each."""

    task: Literal["classification"] = option("what the model learns", default="classification")
    data: ImageData = section("the dataset", default_factory=ImageData)
    training: ImageTraining = section("how much is trained", default_factory=ImageTraining)
    unit: ClassVar = "images"
    of_images: ClassVar = True

    @property
    def sizes(self) -> tuple[int, ...]:
        """What a model is built for beside its settings and the number of its outputs: the pixels of an image's side."""
        return (self.training.image_size,)


@settings(RECIPE)
class Script(Workload):
    """A training script of the user's own: `parascale.script` says how it is called."""

    task: Literal["script"] = option("what the model learns", default="script")
    command: str = required("the script, a Python program (`train.py`)", CONDUCT, path=True)
    arguments: dict[str, object] = option(
        'its options, name → value: `{lr: 0.1, data: "{folder}/data", amp: true}` is `--lr 0.1 --data … --amp`. Braces are filled in: '
        "columns of the row (`{dp}`, `{seed}`), `{world_size}`, `{strategy}`, `{steps}`; `{work}`: folder for its checkpoints; `{folder}`: where "
        "the script lies",
        default={},
    )
    inputs: list[str] = option(
        "more files that decide its numbers, such as its settings: an edit trains again", CONDUCT, default=[], path=True
    )
    steps: int | None = option(
        "steps that it makes, for `{steps}` in its arguments: then short probes say what a run costs",
        default=None,
        low=1,
    )

    python: str | list[str] | None = option(
        "word, or words, that start Python in your own environment (`/p/env/bin/python`; `[apptainer, exec, --nv, my.sif, python]`); default: "
        "the site's `script.python`, else the workflow's Python",
        default=None,
        before=None,
    )
    setup: str | None = option(
        "lines of shell before it (`module load PyTorch`); default: the site's `script.setup`",
        default=None,
        before=None,
    )

    is_script: ClassVar = True
    sizes: ClassVar = ()
    # Defaults for everyone who asks a workload for these.
    data: ClassVar = Data()
    optim: ClassVar = Optim()

    def with_defaults(self, site: Any) -> Self:
        """The script as it is started on a Site."""
        python = site.script.python if self.python is None else self.python
        setup = site.script.setup if self.setup is None else self.setup
        return replace(self, python=python or None, setup=setup or None)

    @property
    def model(self) -> Model:
        """Its program stands for the model."""
        return Model(kind=self.command)

    @property
    def training(self) -> Training:
        """Its steps, as far as they are known; a script of an unknown number counts as one."""
        return Training(steps=self.steps or 1, evaluate=False)


TASKS: dict[str, type[Workload]] = {
    LANGUAGE_MODEL: LanguageModelling,
    "summarisation": Summarisation,
    "classification": Classification,
    "script": Script,
}


def work_unit(step: dict[str, Any]) -> str | None:
    """What a recorded step counts its work in: a line of `steps.jsonl` holds `tokens`, `images` or `samples`; None: none of them."""
    return next((task.unit for task in TASKS.values() if task.unit in step), None)
