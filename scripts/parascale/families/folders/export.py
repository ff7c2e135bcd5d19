"""A model from a folder in the words of `transformers`: its own."""

from parascale.families.folders.modules import NETWORK
from parascale.pretrained import Pretrained


def config(model, weights, window):
    """The folder's `config.json`, but for the `dtype` of the weights."""
    described = dict(_folder(model).config)
    described.pop("torch_dtype", None)  # as versions before 5 call it
    return described


def tensors(model, weights):
    """Name in `transformers` → (our names, turned), as `families/language/export.py` has them."""
    return {name.removeprefix(NETWORK): ((name,), False) for name in weights}


def architecture(model):
    """As its folder calls it."""
    return _folder(model).config.get("model_type")


def _folder(model):
    return Pretrained(model.folder, "model.folder")
