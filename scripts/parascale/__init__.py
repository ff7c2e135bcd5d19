"""parascale: from raw data to a verdict on how to scale a training.

Nothing here knows Snakemake. CONTRIBUTING.md says who may import whom.
"""

from typing import Any

__all__ = ["record"]
__version__ = "0.9.0"


def __getattr__(name: str) -> Any:
    """`record`, once a script asks for it: `python -m parascale` must set `sys.path` before anything is imported."""
    if name != "record":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from parascale.recording import record

    return record
