"""The optimizer and its schedule: settings that decide how weights follow from gradients."""

from typing import Literal

from parascale.settings.options import RECIPE, Number, option, settings


@settings(RECIPE)
class Cycle:
    """One rise and fall of the learning rate, each along half a cosine; the defaults are those of fastai's `fit_one_cycle`."""

    length: Number = option(1.0, "length, relative to the other cycles", above=0.0)
    peak: Number = option(1.0, "highest rate, relative to `lr`", above=0.0)
    start: Number = option(0.04, "first rate, relative to the highest", low=0.0, high=1.0)
    rise: Number = option(0.25, "fraction of its steps in which the rate rises", above=0.0, high=1.0)


@settings(RECIPE)
class Optim:
    """The optimizer and its schedule."""

    name: Literal["adamw", "sgd"] = option("adamw", "optimizer")
    lr: Number = option(1e-3, "peak learning rate, for `training.global_batch`", above=0.0)
    lr_scaling: Literal["none", "linear", "sqrt"] = option("none", "growth of `lr` with the batch in weak scaling")
    schedule: Literal["cosine", "constant", "one_cycle"] = option(
        "cosine", "learning rate after the warm-up; `one_cycle` has none: it rises and falls, as `cycles` say"
    )
    cycles: list[Cycle] = option([], "`one_cycle`: the cycles in turn; default: one with default values")
    swing: Number = option(
        0.0,
        "`one_cycle`: momentum (AdamW: the first of `betas`) is higher by this at a cycle's start, lower by it at its highest rate",
        low=0.0,
    )
    warmup_steps: int = option(0, "steps in which the learning rate rises linearly from 0", low=0)
    min_lr_ratio: Number = option(0.1, "the cosine ends at this fraction of `lr`", low=0.0, high=1.0)
    betas: list[Number] = option([0.9, 0.95], "AdamW's decay rates")
    eps: Number = option(1e-8, "AdamW's epsilon", above=0.0)
    momentum: Number = option(0.9, "SGD's momentum", low=0.0)
    weight_decay: Number = option(0.1, "decoupled weight decay, on matrices only", low=0.0)
    clip_norm: Number | None = option(1.0, "largest norm of the whole gradient; `null`: no clipping", above=0.0)

    @property
    def usual_momentum(self):
        """How much of the mean of earlier gradients stays in a step, as it is without a swing."""
        return self.momentum if self.name == "sgd" else self.betas[0]
