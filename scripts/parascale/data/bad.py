"""Samples that cannot be used: how they are listed, and what a person is told of them."""

from dataclasses import dataclass

from parascale.errors import DataError

SHOWN = 20  # that a message lists


@dataclass(frozen=True)
class Bad:
    """A sample that cannot be used."""

    split: str
    source: int
    name: str
    reason: str


def bad_message(dataset, bad):
    """The list for a person. bad: as a shard's record and the manifest have it, a mapping of the fields of Bad each."""
    lines = [f"  {sample['split']}, {sample['name']}: {sample['reason']}" for sample in bad[:SHOWN]]
    if len(bad) > SHOWN:
        lines.append(f"  … and {len(bad) - SHOWN:,} more")
    return "\n".join([f"dataset `{dataset}`: {len(bad):,} bad samples:", *lines])


def require_none(dataset, bad, output):
    """Raise DataError, with the list and what to do, where there are bad samples. output: the folder of the format."""
    if bad:
        raise DataError(
            f"{bad_message(dataset, bad)}\nSet `formats.bad_samples: skip` to leave them out: nothing is converted again. "
            f"Or repair or remove them, remove the folder of the index and {output}, and run again: both are made anew."
        )
