"""parascale: from raw data to a verdict on how to scale a training.

Nothing here knows Snakemake. CONTRIBUTING.md says who may import whom.
"""

from parascale.recording import record

__all__ = ["record"]
__version__ = "0.9.0"
