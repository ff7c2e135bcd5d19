"""How a running training is watched."""

from dataclasses import dataclass

from parascale.settings.options import option


@dataclass(frozen=True)
class Monitor:
    """Samples of the devices beside every training: `device.csv`."""

    interval_seconds: float = option(
        2.0,
        "seconds between samples of GPUs, processors, memory, network and disk; a sample costs about a millisecond of one core",
        low=0.1,
    )
