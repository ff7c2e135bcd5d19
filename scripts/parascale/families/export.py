"""Which kinds of models have an equal in Hugging Face's `transformers`."""

from parascale.errors import CheckpointError
from parascale.families import kinds, part_of


def words_of(kind):
    """The module `export` of the family of a model kind, as `families/language/export.py` has it.

    Raises CheckpointError for a kind without an equal.
    """
    words = part_of(kind, "export")
    if words is None:
        exported = ", ".join(name for name, kind in kinds().items() if kind.export)
        raise CheckpointError(f"transformers has no equal of model.kind = {kind}; only {exported} is exported")
    return words
