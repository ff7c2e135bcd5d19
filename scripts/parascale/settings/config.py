"""`config/config.yaml`: what to run, and where results go."""

from typing import Annotated, Literal, get_args

from annotated_types import MinLen

from parascale.settings.formats import Formats, Loaders
from parascale.settings.options import CONDUCT, RECIPE, SITE, Number, option, section, settings
from parascale.settings.study import Study

CheckpointForm = Literal["safetensors", "pt", "transformers"]
CHECKPOINT_FORMS = get_args(CheckpointForm)


@settings(CONDUCT)
class Checkpoints:
    """Conversion of checkpoints: which ones, into which formats, within which memory."""

    report: Literal["none", "one", "all"] = option(
        "checkpoints to convert and verify for the report: of `all` runs, or of `one`: the first with sharded weights, else the first",
        default="one",
    )
    which: Literal["best", "last"] = option(
        "weights with the `best` validation loss (without evaluation: the last), or the `last` ones with the optimizer's state",
        default="best",
    )
    forms: Annotated[list[CheckpointForm], MinLen(1)] = option(
        "formats to write; `transformers` only for models that this library has", default=["safetensors", "pt"]
    )
    dtype: Literal["float64", "float32", "float16", "bfloat16"] | None = option(
        "convert weights to this dtype; default: as trained. The optimizer's state keeps its dtype",
        default=None,
        expert=True,
    )
    optimizer: bool = option("include the optimizer's state, if the checkpoint holds it", default=True, expert=True)
    memory_mb: int = option("limit for the tensors in memory at once, in MiB", default=256, low=1, expert=True)
    threads: int = option("parts of tensors read at once", default=2, low=1, high=64, expert=True)
    file_mb: int = option(
        "largest `.safetensors` file in MB; a larger model is split", default=5000, low=1, expert=True
    )


@settings(CONDUCT)
class Summaries:
    """How summaries are written and scored after a run has finished."""

    documents: int | None = option("documents of the test split to summarise; default: all", default=None, low=1)
    beams: int = option("beams of the beam search; the report also shows greedy search", default=4, low=2)
    length_penalty: Number = option(
        "a summary's log probability is divided by length to this power", default=1.0, low=0.0, expert=True
    )
    examples: int = option("summaries in the report, of models that beat the documents' first words", default=5, low=0)


@settings(CONDUCT)
class Monitor:
    """Monitoring of every training: samples of its devices in `device.csv`, Weights & Biases, and silent scripts."""

    interval_seconds: Number = option(
        "seconds between samples of GPUs, cores, memory, network and disk", default=2.0, low=0.1, expert=True
    )
    wandb: Literal["none", "offline", "live"] = option(
        "write curves for Weights & Biases (`pip install wandb`): `offline` into the run's folder, for `wandb sync`, or `live` "
        "if nodes reach the internet. Its failures do not end a training",
        default="none",
    )
    silent: Literal["stuck", "end"] = option(
        "when to end a script that records no step for `timeout_seconds` and ten times its slowest step: if it is `stuck`, as two checks "
        "of its ranks show, or always (`end`)",
        default="stuck",
    )
    wandb_project: str = option("the project at Weights & Biases", default="parascale")


@settings(RECIPE)
class Parity:
    """The short runs that prove that each layout is correct."""

    steps: int = option("optimizer steps to compare", default=20, low=2)
    precision: Literal["fp32", "fp64"] = option("precision of the comparison; fp64 is stricter", default="fp32")


@settings(CONDUCT)
class Keeping:
    """The store of finished trainings."""

    gigabytes: Number | None = option(
        "GB of finished trainings to keep that neither the results nor the table use; the least recently used go first. `null`: keep all",
        default=100.0,
        low=0.0,
    )


@settings(SITE)
class Budget:
    """What the project may spend, in charged core-hours."""

    core_hours: Number | None = option(
        "limit for this root; a workflow that is expected to exceed it does not start",
        default=None,
        above=0.0,
    )
    repeated_core_hours: Number | None = option(
        "limit for finished trainings that a workflow repeats because settings, code or data changed; `null`: no limit",
        default=1000.0,
        low=0.0,
    )
    quota: Number | None = option(
        "the project's core-hours: plans show their share and warn above it", default=None, above=0.0
    )


@settings(SITE)
class Config:
    """`config/config.yaml`: what to run, and where results go."""

    root: str = option(
        "folder of `results/`, `work/` and `store/`, with `$VARIABLES` and `${NAME:-other}`; default: the working directory",
        default=".",
        path=True,
    )
    site: str = option("the machine: a file in `sites`", default="local")
    runs: str = option("the run table", default="runs.tsv", path=True)
    workloads: str = option("folder of workloads", default="workloads", path=True)
    sites: str = option("folder of sites", default="sites", path=True)
    title: str = option("heading of the report", default="Scaling report")
    account: str | None = option("account that Slurm charges; also `--config account=NAME`", default=None)
    partition: str | None = option("partition of the site; default: its first", default=None)
    data_partition: str | None = option(
        "partition for jobs without GPU; default: the site's; `none`: the runs'", default=None
    )
    parity: Parity = section("the short runs that prove that each layout is correct", default_factory=Parity)
    checkpoints: Checkpoints = section("conversion of checkpoints", default_factory=Checkpoints)
    formats: Formats = section("how data is converted", default_factory=Formats)
    loaders: Loaders = section("the benchmark of readers", default_factory=Loaders)
    summaries: Summaries = section("how summaries are written and scored", default_factory=Summaries)
    store: Keeping = section("the store of finished trainings", default_factory=Keeping)
    budget: Budget = section("what the project may spend", default_factory=Budget)
    monitor: Monitor = section("how a running training is watched", default_factory=Monitor)
    studies: dict[str, Study] = option("scaling studies, name → study, for the target `scaling`", default={})
    continue_with_other_code: bool = option(
        "continue an unfinished run even if its code (your class, or the declared numerics) changed, and record it; otherwise start again",
        CONDUCT,
        default=False,
    )
    timeout_seconds: Number = option(
        "a run ends if a collective operation takes longer than this, or a step 1.5 times as long (not counting suspended time); the log's "
        "last line names the rank that hangs",
        CONDUCT,
        default=300.0,
        above=0.0,
    )
