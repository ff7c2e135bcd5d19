"""The report's table of conversions: from which layout, into which form, at what cost. Needs no torch."""

from pathlib import Path

from parascale.errors import CheckpointError
from parascale.files import read_json

# bytes, seconds and peak memory of the conversion; test_loss (nats) of the converted model, read back
MEASURED = ("bytes", "seconds", "peak_memory_bytes", "identical", "optimizer", "test_loss")


def conversions(results):
    """One row (plain values) per converted and verified form below the folder `results`, sorted by run.

    Keys: run, layout (the strategy's name), form, dtype (None: as trained), gb_per_second (10⁹ bytes written), MEASURED, and
    logits_difference (the largest; only if another library computes the form). Unknown figures are None. Raises CheckpointError that
    names a `verify.json` that cannot be read.
    """
    return [row for path in sorted(Path(results, "checkpoints").glob("*/verify.json")) for row in _rows(path)]


def _rows(path):
    try:
        proof = read_json(path)
        origin = {"run": proof["run"], "layout": proof["strategy"]}
        return [
            origin
            | {"form": form, "dtype": proof["dtype"], "gb_per_second": found["bytes"] / found["seconds"] / 1e9}
            | {name: found[name] for name in MEASURED}
            | {"logits_difference": found.get("logits_difference")}
            for form, found in proof["forms"].items()
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} is damaged or outdated ({type(error).__name__}: {error}); remove it and verify again"
        ) from None
