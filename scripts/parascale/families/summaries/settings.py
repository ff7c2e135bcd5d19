"""Settings of summarisers."""

from parascale.errors import ConfigError
from parascale.families.language.settings import Transformer
from parascale.pretrained import refuse_other_forms
from parascale.settings.options import RECIPE, Number, option, settings
from parascale.settings.workload import Model


@settings(RECIPE)
class EncoderDecoder(Transformer):
    """An encoder-decoder Transformer."""

    kind: str = option(
        "`encoder_decoder`, `pretrained`, or your own class by its path (`small.py:SmallModel`)",
        default="encoder_decoder",
        path=True,
    )


@settings(RECIPE)
class Pretrained(Model):
    """T5 or BART from a folder in Hugging Face's form, which decides all sizes."""

    kind: str = option("`pretrained`", default="pretrained")
    dropout: Number = option("dropout probability", default=0.0, low=0.0, high=0.99)
    pretrained: str | None = option(
        "folder of the model, T5 or BART; it must be that of `data.text.pretrained`, the default",
        default=None,
        path=True,
    )

    def check_sizes(self, run):
        """Raise ConfigError unless the data uses the model's own tokenizer."""
        tokens = run.workload.data.pretrained
        if self.pretrained is None or self.pretrained != tokens:
            raise ConfigError(
                "model.kind = `pretrained` uses its own vocabulary: it needs data.text.tokenizer = `pretrained` and "
                f"the same folder, but model.pretrained = `{self.pretrained}` and data.text.pretrained = `{tokens}`"
            )
        refuse_other_forms(self.pretrained)
