"""parascale: from raw data to a verdict on how to scale a training.

One way through the house: config -> data -> train -> checkpoint -> report. Imports run in that
direction only, and nothing here knows Snakemake; see CONTRIBUTING.md for who may import whom.
"""

__version__ = "0.1.0"
