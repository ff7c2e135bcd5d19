"""Settings of model, data and training, which do not depend on a machine or a layout.

A task defines what a sample is, so each task has its own classes for data and training, with only its own keys. The settings of
a model are in its family: see `parascale.families`.
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
    """Decoders whose packages are installed: DALI is optional. Does not import DALI, which takes seconds."""
    dali = importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.dali")
    return [decoder for decoder in get_args(Decoder) if dali or decoder != "dali"]


@settings(RECIPE)
class Model(Varied):
    """Settings of all models. `kind` selects the family's subclass with the others."""

    kind: str = required(
        "a kind of model, or the path of your own class (`small.py:SmallModel`); default: the task's usual kind",
        path=True,
    )
    options: dict[str, object] = option("settings for your own class", default={})
    counts: str = option(
        "folder of counted operations and memory for plans, unless beside your own class or the model's folder; set by the loader: "
        "`counts` beside the workload's file",
        SITE,
        default="config/workloads/counts",
    )

    if not TYPE_CHECKING:  # some kinds override these with settings or properties
        dropout: ClassVar = 0.0
        dropout_masks: ClassVar = "same"
        pretrained: ClassVar = None  # folder of the initial weights
        folder: ClassVar = None  # with its class and sizes
        counts_batches: ClassVar = False  # has batch norm, whose statistics depend on the samples of a rank
        has_linear_blocks: ClassVar = False  # supports `precision` float8

    @property
    def is_own(self) -> bool:
        """True if the model is a user's own class: `file.py:Class`."""
        return ":" in self.kind

    @staticmethod
    def variant(values: dict[str, Any], beside: dict[str, Any]) -> type:
        """The class of settings for a kind of model; without a kind, or for a user's own class, that of the task's default family."""
        # Imported late, because families build on these settings.
        from parascale.families import settings_of

        task = beside.get("task")
        known = isinstance(task, str) and task in TASKS
        return settings_of(task if known else LANGUAGE_MODEL, values.get("kind"))

    def check(self, run: Any) -> None:
        """Raise ConfigError if the model cannot be trained with a run's settings."""
        from parascale.families import check_class, kinds
        from parascale.families.counted import check_counted

        path, _, own = self.kind.partition(":")
        if own:
            if not Path(path).is_file():
                raise ConfigError(f"model.kind = `{self.kind}`: no such file `{path}`")
            check_class(Path(path), own, self.kind)
            self._check_documents(run, False)
            check_counted(self, run.layout)
            return  # a user's own class checks its own sizes
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
        """Raise ConfigError if sizes do not match each other or a run's layout; families override this."""


@settings(RECIPE)
class Training(Varied):
    """The length of a training, its batch, evaluations and checkpoints."""

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
        "minutes between checkpoints; `null`: never by time", CONDUCT, default=30.0, above=0.0
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
        """The same training for a few steps, without evaluation and intermediate checkpoints."""
        never: dict[str, Any] = dict.fromkeys(("epochs", "evaluate_every", "checkpoint_every", "checkpoint_minutes"))
        return replace(self, steps=steps, evaluate=False, **never)

    def saves(self, steps: int, seconds: float) -> int:
        """Number of checkpoints saved in `steps` steps that take `seconds`, including the last."""
        found = math.ceil(steps / (self.checkpoint_every or steps))
        return max(found, 1 + math.floor(seconds / 60 / self.checkpoint_minutes)) if self.checkpoint_minutes else found


@settings(RECIPE)
class LanguageTraining(Training):
    """Training on windows of text."""

    window: int = option(
        "tokens per sample; the last window of a split is padded with 0, which no loss and no metric counts",
        default=64,
        low=2,
        high=10**7,
    )
    stride: int | None = option(
        "tokens from one window's start to the next; default: `window`. 1, as published for WikiText, uses each token `window` times",
        default=None,
        low=1,
    )
    documents: Literal["joined", "separate"] = option(  # type: ignore[misc]  # not a setting of other tasks
        "documents in a window, separated by their end tokens: `joined`: as one text; `separate`: attention sees only the token's own "
        "document, and positions count from its start, or the window's. In both, a document's end predicts the next one's first token",
        default="joined",
        before="joined",
    )

    def require_ends(self, folder: Path, splits: Any) -> None:
        """Raise DataError if documents are to be separate, but a split of prepared data has no document ends. splits: of its manifest."""
        without = [split for split, counts in splits.items() if counts.get("documents") == 0]
        if self.documents == "separate" and without:
            raise DataError(
                f"{folder}: `training.documents: separate`, but no token of the split `{without[0]}` ends a document: set the tokenizer "
                "that defines the end token (`data.text.pretrained`), or take `joined`"
            )


@settings(RECIPE)
class SummaryTraining(Training):
    """Training on pairs of a document and its summary."""

    window: int = option("tokens of a document", default=64, low=2, high=10**7)
    summary_window: int = option(
        "most tokens of a summary, including its end; pairs with more are left out", default=32, low=2
    )
    over_long: Literal["cut", "leave_out"] = option(
        "documents of more than `window` tokens: `cut` keeps the beginning, `leave_out` leaves the pair out",
        default="cut",
    )


@settings(RECIPE)
class ImageTraining(Training):
    """Training on images, each with a class."""

    image_size: int = option("side in pixels to which images are cropped and resized", default=160, low=16)
    smallest_crop: Number = option(
        "smallest fraction of an image's area in a random crop", default=0.35, above=0.0, high=1.0
    )
    crops: Literal["square", "fastai"] = option(
        "`square`: evaluation uses the undistorted central square; if no random crop fits in ten tries, training takes the full height "
        "or width; `fastai`, like its `RandomResizedCrop`: evaluation squishes images to a side 14 % longer and uses the centre; the "
        "fallback crop is the largest central one with a ratio between 3:4 and 4:3",
        default="square",
        before="square",
    )
    decoder: Decoder = option(
        "`full`: Pillow, the whole image; `scaled`: libjpeg-turbo, as small as the crop allows (pixels of photographs differ by 1 of "
        "255 on average and by 62 at most; of drawings with hard coloured edges by 2 to 12 and up to 190: take `full` for those); "
        "`dali`: NVIDIA DALI (`pip install -r envs/requirements-dali.txt`), on a GPU if there is one. Like torchvision, "
        "none applies a camera's orientation (EXIF); the index counts such images",
        default="scaled",
        before="full",
    )
    workers: int = option("threads per rank that decode in advance, also DALI's; 0: none", CONDUCT, default=0, low=0)
    label_smoothing: Number = option(  # type: ignore[misc]  # not a setting of other tasks
        "fraction of a target that is spread over all classes in training (Szegedy et al. 2016, arXiv:1512.00567)",
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

    unit: ClassVar = "samples"  # unit of work
    is_script: ClassVar = False  # a user's own program trains
    of_pairs: ClassVar = False  # the dataset has pairs of document and summary
    of_images: ClassVar = False  # the dataset has images; otherwise text

    @property
    def in_own_environment(self) -> bool:
        """True if a script runs in the user's own environment instead of the workflow's."""
        return bool(getattr(self, "python", None) or getattr(self, "setup", None))

    def refuse_script(self, instead: str) -> None:
        """Raise ConfigError if the workload is a user's own script. instead: the consequence, or what to do instead."""
        if self.is_script:
            raise ConfigError(f"workload {self.name} is a script of your own: {instead}")

    @staticmethod
    def variant(values: dict[str, Any], beside: dict[str, Any]) -> type:
        """The class of workloads for a task."""
        task = values.get("task", LANGUAGE_MODEL)
        return TASKS.get(task, Learning) if isinstance(task, str) else Learning


@settings(RECIPE)
class Learning(Workload):
    """A training by our own loop: data, model and optimizer."""

    data: Data = section("the dataset", default_factory=Data)
    model: Annotated[Model, chosen(Model)] = section("the model", default_factory=dict)
    optim: Optim = section("the optimizer", default_factory=Optim)
    training: Training = section("how much is trained", default_factory=Training)
    parity_precision: Literal["fp32", "fp64"] | None = option(
        "precision of its parity runs; default: the configuration's. Use fp64 if fp32 rounds too much, as in batch norm",
        CONDUCT,
        default=None,
    )

    unit: ClassVar = "tokens"  # labels in the loss

    def windows_in(self, tokens: int | None) -> int | None:
        """Training samples in a number of tokens; None if it does not follow from them."""
        return None

    def in_parts(self, count: int) -> Self:
        """The same training with `accumulate` = `count`."""
        return replace(self, training=replace(self.training, accumulate=count))


@settings(RECIPE)
class LanguageModelling(Learning):
    """A language model, on windows of text."""

    task: Literal["language_model"] = option("what the model learns", default=LANGUAGE_MODEL)
    data: TextData = section("the dataset", default_factory=TextData)
    training: LanguageTraining = section("how much is trained", default_factory=LanguageTraining)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes that a model is built for, besides its settings and number of outputs: tokens per sample."""
        return (self.training.window,)

    def windows_in(self, tokens: int | None) -> int | None:
        """Training windows in a number of tokens; None if it is unknown."""
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
        """Sizes that a model is built for, besides its settings and number of outputs: tokens of a document, of a summary."""
        return self.training.window, self.training.summary_window


@settings(RECIPE)
class Classification(Learning):
    """A classifier, on images, each with a class."""

    task: Literal["classification"] = option("what the model learns", default="classification")
    data: ImageData = section("the dataset", default_factory=ImageData)
    training: ImageTraining = section("how much is trained", default_factory=ImageTraining)
    unit: ClassVar = "images"
    of_images: ClassVar = True

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes that a model is built for, besides its settings and number of outputs: an image's side in pixels."""
        return (self.training.image_size,)


@settings(RECIPE)
class Script(Workload):
    """A user's own training script; `parascale.script` calls it."""

    task: Literal["script"] = option("what the model learns", default="script")
    command: str = required("the script, a Python program (`train.py`)", CONDUCT, path=True)
    arguments: dict[str, object] = option(
        'its options, name → value: `{lr: 0.1, data: "{folder}/data", amp: true}` is `--lr 0.1 --data … --amp`. Placeholders in braces: '
        "columns of the row (`{dp}`, `{seed}`), `{world_size}`, `{strategy}`, `{steps}`; `{work}`: folder for its checkpoints; `{folder}`: "
        "the script's folder",
        default={},
    )
    inputs: list[str] = option(
        "more files that decide its numbers, such as its settings: an edit trains again", CONDUCT, default=[], path=True
    )
    steps: int | None = option(
        "number of its steps, for `{steps}` in its arguments: with it, short probes measure what a run costs",
        default=None,
        low=1,
    )

    python: str | list[str] | None = option(
        "word or list of words that starts Python in your own environment (`/p/env/bin/python`, "
        "`[apptainer, exec, --nv, my.sif, python]`); default: the site's `script.python`, else the workflow's Python",
        default=None,
        before=None,
    )
    setup: str | None = option(
        "shell lines to run before it (`module load PyTorch`); default: the site's `script.setup`",
        default=None,
        before=None,
    )

    is_script: ClassVar = True
    sizes: ClassVar = ()
    # For code that asks any workload for these.
    data: ClassVar = Data()
    optim: ClassVar = Optim()

    def with_defaults(self, site: Any) -> Self:
        """The script with a Site's defaults for `python` and `setup`."""
        python = site.script.python if self.python is None else self.python
        setup = site.script.setup if self.setup is None else self.setup
        return replace(self, python=python or None, setup=setup or None)

    @property
    def model(self) -> Model:
        """A Model whose kind is the script."""
        return Model(kind=self.command)

    @property
    def training(self) -> Training:
        """A Training with its number of steps, or 1 if unknown."""
        return Training(steps=self.steps or 1, evaluate=False)


TASKS: dict[str, type[Workload]] = {
    LANGUAGE_MODEL: LanguageModelling,
    "summarisation": Summarisation,
    "classification": Classification,
    "script": Script,
}


def work_unit(step: dict[str, Any]) -> str | None:
    """Unit of work of a recorded step (a line of `steps.jsonl`): `tokens`, `images` or `samples`; None without any of them."""
    return next((task.unit for task in TASKS.values() if task.unit in step), None)
