"""What a run's checkpoint is converted into."""

from dataclasses import dataclass

from parascale.errors import ConfigError
from parascale.settings.options import option
from parascale.settings.strict import nearest

CHECKPOINT_FORMS = ("safetensors", "pt", "transformers")


@dataclass(frozen=True)
class Checkpoints:
    """Conversion of checkpoints: which one, into what, and within which memory."""

    report: str = option(
        "one",
        "checkpoints that are converted and verified for the report. `one`: of the first run whose weights are spread over "
        "ranks, or else of the first; the target `checkpoints` does so for every run",
        choices=("none", "one", "all"),
    )
    which: str = option(
        "best",
        "`best`: weights of the best validation loss (of a run that is not evaluated: the last); `last`: the end of the "
        "training, with the optimizer's state",
        choices=("best", "last"),
    )
    forms: list = option(
        ["safetensors", "pt"],
        f"of {', '.join(CHECKPOINT_FORMS)}; `transformers` is a folder that the library of that name loads, "
        "for models that have an equal there",
    )
    dtype: str | None = option(
        None,
        "convert weights to this dtype; default: as they were trained. The optimizer's state keeps its own",
        choices=("float64", "float32", "float16", "bfloat16"),
    )
    optimizer: bool = option(True, "carry the optimizer's state along, where the checkpoint holds it")
    memory_mb: int = option(256, "bound on the tensors in memory at once, in MiB", low=1)
    threads: int = option(2, "parts of tensors that are read at once", low=1, high=64)
    file_mb: int = option(5000, "largest `.safetensors` file in MB; a larger model becomes shards and an index", low=1)

    def check_names(self):
        """Raise ConfigError for a form that there is not."""
        for name in self.forms:
            if name not in CHECKPOINT_FORMS:
                raise ConfigError(f"`checkpoints.forms`: `{name}` is not known{nearest(str(name), CHECKPOINT_FORMS)}")
        if not self.forms:
            raise ConfigError(f"`checkpoints.forms` is empty; allowed: {', '.join(CHECKPOINT_FORMS)}")
