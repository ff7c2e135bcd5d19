"""Settings of the optimizer and its schedule."""

from typing import Literal

from parascale.settings.options import RECIPE, Number, option, settings


@settings(RECIPE)
class Cycle:
    """One rise and fall of the learning rate, each along half a cosine. The defaults are those of fastai's `fit_one_cycle`."""

    length: Number = option("length, relative to the other cycles", default=1.0, above=0.0)
    peak: Number = option("highest rate, relative to `lr`", default=1.0, above=0.0)
    start: Number = option("first rate, relative to the highest", default=0.04, low=0.0, high=1.0)
    rise: Number = option("fraction of its steps in which the rate rises", default=0.25, above=0.0, high=1.0)


@settings(RECIPE)
class Optim:
    """The optimizer and its schedule."""

    name: Literal["adamw", "sgd"] = option("optimizer", default="adamw")
    lr: Number = option("peak learning rate, for `training.global_batch`", default=1e-3, above=0.0)
    lr_scaling: Literal["none", "linear", "sqrt"] = option(
        "how `lr` grows with the batch in weak scaling", default="none"
    )
    schedule: Literal["cosine", "constant", "one_cycle"] = option(
        "learning rate after the warm-up; `cosine`: in step t of n, after w of warm-up, `lr` × (r + (1 − r) × (1 + cos(π (t − w) / (n − w))) / 2) "
        "with r = `min_lr_ratio`; `one_cycle`: no warm-up, it rises and falls according to `cycles`",
        default="cosine",
    )
    cycles: list[Cycle] = option("`one_cycle`: the cycles in order; default: one with default values", default=[])
    swing: Number = option(
        "`one_cycle`: momentum (AdamW: the first of `betas`) is higher by this at a cycle's start, and lower by this at its highest rate",
        default=0.0,
        low=0.0,
    )
    warmup_steps: int = option("steps in which the learning rate rises linearly from 0", default=0, low=0)
    min_lr_ratio: Number = option("the cosine ends at this fraction of `lr`", default=0.1, low=0.0, high=1.0)
    betas: list[Number] = option("AdamW's decay rates", default=[0.9, 0.95])
    eps: Number = option("AdamW's epsilon", default=1e-8, above=0.0)
    momentum: Number = option("SGD's momentum", default=0.9, low=0.0)
    weight_decay: Number = option("decoupled weight decay, on matrices only", default=0.1, low=0.0)
    clip_norm: Number | None = option("largest norm of the whole gradient; `null`: no clipping", default=1.0, above=0.0)

    @property
    def usual_momentum(self) -> float:
        """Momentum (AdamW: the first of `betas`) without the swing."""
        return self.momentum if self.name == "sgd" else self.betas[0]
