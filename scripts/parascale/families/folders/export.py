"""Export of a model from a folder: its names in `transformers` are its own."""

from parascale.families.folders.modules import NETWORK
from parascale.pretrained import Pretrained


def config(model, weights, window):
    """The folder's `config.json` without the `dtype` of the weights."""
    described = dict(_folder(model).config)
    described.pop("torch_dtype", None)  # its name before version 5
    return described


def tensors(model, weights):
    """Name in `transformers` → (our names, transposed), as in `families/language/export.py`."""
    return {name.removeprefix(NETWORK): ((name,), False) for name in weights}


def architecture(model):
    """`model_type` in the folder's config.json."""
    return _folder(model).config.get("model_type")


def _folder(model):
    return Pretrained(model.folder, "model.folder")
