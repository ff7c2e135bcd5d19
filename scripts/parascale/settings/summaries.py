"""How the summaries of a finished run are written and judged; changing it trains nothing again."""

from dataclasses import dataclass

from parascale.settings.options import option


@dataclass(frozen=True)
class Summaries:
    """How summaries are written and judged, once a run has finished."""

    documents: int | None = option(None, "documents of the test split that are summed up; default: all", low=1)
    beams: int = option(4, "beams of the search; greedy search is reported beside it", low=2)
    length_penalty: float = option(1.0, "power of the length by which a summary's log probability is divided", low=0.0)
    examples: int = option(5, "summaries that the report shows beside their references", low=0)
