"""`config/config.yaml`: what to run, and where results go."""

from typing import Annotated, Literal, get_args

from annotated_types import MinLen

from parascale.settings.formats import Formats, Loaders
from parascale.settings.options import CONDUCT, RECIPE, SITE, Number, option, section, settings

CheckpointForm = Literal["safetensors", "pt", "transformers"]
CHECKPOINT_FORMS = get_args(CheckpointForm)


@settings(CONDUCT)
class Checkpoints:
    """Conversion of checkpoints: which one, into what, and within which memory."""

    report: Literal["none", "one", "all"] = option(
        "one",
        "checkpoints to convert and verify for the report: of `all` runs, or of `one`, the first with spread weights, else the first",
    )
    which: Literal["best", "last"] = option(
        "best",
        "weights of the `best` validation loss (without evaluation: the last), or the `last` ones with the optimizer's state",
    )
    forms: Annotated[list[CheckpointForm], MinLen(1)] = option(
        ["safetensors", "pt"], "formats to write; `transformers` for models that this library has too"
    )
    dtype: Literal["float64", "float32", "float16", "bfloat16"] | None = option(
        None, "convert weights to this dtype; default: as trained. The optimizer's state keeps its dtype", expert=True
    )
    optimizer: bool = option(True, "include the optimizer's state, if the checkpoint holds it", expert=True)
    memory_mb: int = option(256, "limit for the tensors in memory at once, in MiB", low=1, expert=True)
    threads: int = option(2, "parts of tensors read at once", low=1, high=64, expert=True)
    file_mb: int = option(5000, "largest `.safetensors` file in MB; a larger model is split", low=1, expert=True)


@settings(CONDUCT)
class Summaries:
    """How summaries are written and judged, once a run has finished."""

    documents: int | None = option(None, "documents of the test split to summarise; default: all", low=1)
    beams: int = option(4, "beams of the beam search; the report also shows greedy search", low=2)
    length_penalty: Number = option(
        1.0, "a summary's log probability is divided by length to this power", low=0.0, expert=True
    )
    examples: int = option(5, "summaries in the report, of models that beat the documents' first words", low=0)


@settings(CONDUCT)
class Monitor:
    """Samples of the devices beside every training: `device.csv`."""

    interval_seconds: Number = option(
        2.0, "seconds between samples of GPUs, cores, memory, network and disk", low=0.1, expert=True
    )
    wandb: Literal["none", "offline", "live"] = option(
        "none",
        "write curves for Weights & Biases (`pip install wandb`): `offline` into the run's folder, for `wandb sync`, or `live` "
        "where nodes reach the internet. Its failures do not end a training",
    )
    wandb_project: str = option("parascale", "the project at Weights & Biases")


@settings(RECIPE)
class Parity:
    """The short runs that prove each layout right."""

    steps: int = option(20, "optimizer steps to compare", low=2)
    precision: Literal["fp32", "fp64"] = option("fp32", "precision of the comparison; fp64 is stricter")


@settings(CONDUCT)
class Keeping:
    """The store of finished trainings."""

    gigabytes: Number | None = option(
        100.0,
        "GB of finished trainings to keep that neither results show nor the table asks for; those used longest ago go first. `null`: all stay",
        low=0.0,
    )


@settings(SITE)
class Budget:
    """What the project may spend, in core-hours as they are charged."""

    core_hours: Number | None = option(
        None, "most that this root may spend; a workflow that is expected to exceed it does not start", above=0.0
    )
    repeated_core_hours: Number | None = option(
        1000.0,
        "most that a workflow may repeat of finished trainings because settings, code or data changed; `null`: no limit",
        low=0.0,
    )
    quota: Number | None = option(None, "the project's core-hours: plans show their share and warn above it", above=0.0)


@settings(SITE)
class Config:
    """`config/config.yaml`: what to run, and where results go."""

    root: str = option(
        ".",
        "folder of `results/`, `work/` and `store/`, with `$VARIABLES` and `${NAME:-other}`; default: the working directory",
        path=True,
    )
    site: str = option("local", "the machine: a file in `sites`")
    runs: str = option("runs.tsv", "the run table", path=True)
    workloads: str = option("workloads", "folder of workloads", path=True)
    sites: str = option("sites", "folder of sites", path=True)
    title: str = option("Scaling report", "heading of the report")
    account: str | None = option(None, "account that Slurm charges; also `--config account=NAME`")
    partition: str | None = option(None, "partition of the site; default: its first")
    data_partition: str | None = option(None, "partition for jobs without GPU; default: the site's; `none`: the runs'")
    parity: Parity = section(Parity, "the short runs that prove each layout right")
    checkpoints: Checkpoints = section(Checkpoints, "what a run's checkpoint is converted into")
    formats: Formats = section(Formats, "how data is converted")
    loaders: Loaders = section(Loaders, "the benchmark of readers")
    summaries: Summaries = section(Summaries, "how summaries are written and judged")
    store: Keeping = section(Keeping, "the store of finished trainings")
    budget: Budget = section(Budget, "what the project may spend")
    monitor: Monitor = section(Monitor, "how a running training is watched")
    continue_with_other_code: bool = option(
        False,
        "continue an unfinished run although its code (your class, or the declared numerics) changed, and note it; otherwise it starts again",
        CONDUCT,
    )
    timeout_seconds: Number = option(
        300.0,
        "a run ends if a collective operation takes longer, or a step 1.5 times as long (while suspended, no time counts); the log's last "
        "line names the rank that hangs",
        CONDUCT,
        above=0.0,
    )
