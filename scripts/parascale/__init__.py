"""parascale: from raw data to a verdict on how to scale a training.

This package does not depend on Snakemake. CONTRIBUTING.md says which modules may import which.
"""

from typing import Any

__all__ = ["record"]
__version__ = "0.9.0"


def __getattr__(name: str) -> Any:
    """Import `record` lazily: `python -m parascale` must set `sys.path` before anything is imported."""
    if name != "record":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from parascale.recording import record

    return record
