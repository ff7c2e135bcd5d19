"""Settings of image classifiers."""

from typing import Literal

from parascale.errors import ConfigError
from parascale.settings.options import RECIPE, Number, option, settings
from parascale.settings.workload import Model


@settings(RECIPE)
class XResNet(Model):
    """A residual network; the defaults are xresnet50's."""

    kind: str = option("`xresnet`, or your own class by its path (`small.py:SmallModel`)", default="xresnet", path=True)
    dim: int = option("channels at the end of the stem (64 in xresnet50)", default=64, low=1, high=10**5)
    depths: list[int] = option("blocks of each stage; the default is xresnet50's", default=[3, 4, 6, 3])
    norm: Literal["batch", "group"] = option("`batch`: BatchNorm; `group`: GroupNorm", default="batch")
    norm_eps: Number = option("epsilon of the norms", default=1e-5, above=0.0)

    @property
    def counts_batches(self):
        """True with batch norm, whose statistics depend on the samples that a rank sees."""
        return self.norm == "batch"

    def check_sizes(self, run):
        """Raise ConfigError for impossible sizes, and for recomputation with batch norm."""
        if not self.depths or min(self.depths) < 1:
            raise ConfigError(f"model.depths = {self.depths} must be a block or more for each stage")
        if self.dim % 2:
            raise ConfigError(f"model.dim = {self.dim} must be even: the stem begins with half of it")
        if self.norm == "batch" and run.layout.activation_checkpointing:
            raise ConfigError(
                "activation_checkpointing would count every batch twice in batch norm; take model.norm: group"
            )
