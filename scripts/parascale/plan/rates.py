"""Prices of what a step is made of: of a GPU from its kind and the site's data sheet, of a CPU from what the site assumes.

A `Rates` holds the few numbers that a calibration weighs. Nothing measured on CPUs prices a GPU.
"""

import functools
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

KINDS = Path(__file__).with_name("gpus.yaml")
CPU = {"wave": 0, "interference": 0.0}
# The figures of the machine on which the constants of CPUs were found (2 cores of an AMD EPYC), and the constants that go with each.
REFERENCE = {
    "gigaflops": 100.0,
    "gigabytes_per_second": 22.0,
    "kernel_microseconds": 1.4,
    "message_microseconds": 33.0,
}
MEASURED = {
    "gigaflops": ("assumed", ["core_gigaflops"]),
    "gigabytes_per_second": ("assumed", ["core_gigabytes_per_second"]),
    "kernel_microseconds": (
        "assumed",
        [f"{name}_microseconds" for name in ("kernel", "split_pass", "shard_pass", "sample")] + ["step_milliseconds"],
    ),
    "message_microseconds": ("node_link", ["microseconds"]),
}
# A faster core comes with a faster memory: beyond this factor from what its products say a figure shows caches, or a neighbour.
PLAUSIBLE = 2.0


@dataclass(frozen=True)
class Rates:
    """Seconds for one of each kind.

    flops, attention: an operation of matrix products, and of flash attention. moved: a byte to or from memory. kernels: starting
    one; splits, shards: the host's share of a block under tensor parallelism, and of an FSDP unit. bytes and
    messages: of a link within a node and between nodes. steps, samples: what a step, and a sample that is read, cost beside.
    contended: what an operation takes longer where all other cores of a CPU compute as well.
    """

    flops: float
    attention: float
    moved: float
    kernels: float
    splits: float
    shards: float
    node_bytes: float
    node_messages: float
    network_bytes: float
    network_messages: float
    steps: float
    samples: float
    contended: float = 0.0

    def scaled(self, factors):
        """These Rates with those of {name: factor} multiplied."""
        return replace(self, **{name: getattr(self, name) * factor for name, factor in factors.items()})


@functools.cache
def _kinds():
    return yaml.safe_load(KINDS.read_text(encoding="utf-8"))


def gpu_kind(site):
    """The constants of a site's kind of GPU; of CPUs those that they have in common with GPUs."""
    if site.device != "cuda":
        return CPU
    words = site.gpu.upper()
    found = (kind for kind in _kinds().values() if any(name in words for name in kind["names"]))
    return next(found, None) or _kinds()["other"]


def formula_rates(site, precision, sample_bytes=0):
    """Rates from a site's data sheet and kind of GPU, or what it assumes of its CPUs; None where no peak rate is known.

    sample_bytes: of a compressed image, which is decoded.
    """
    assumed = site.assumed
    links = {
        f"{name}_{kind}": price
        for name in ("node", "network")
        for kind, price in zip(("bytes", "messages"), _link(site, name), strict=True)
    }
    kind = gpu_kind(site)
    step = kind.get("step_milliseconds", assumed.step_milliseconds)
    sample = assumed.sample_microseconds / 1e6 + sample_bytes / (assumed.decode_megabytes_per_second * 1e6)
    beside = {"steps": step / 1e3, "samples": sample, **links}
    if site.device != "cuda":
        flops = (2 if precision == "fp64" else 1) / (assumed.core_gigaflops * 1e9)
        return Rates(
            flops=flops,
            attention=flops,
            moved=1 / (assumed.core_gigabytes_per_second * 1e9),
            kernels=assumed.kernel_microseconds / 1e6,
            splits=assumed.split_pass_microseconds / 1e6,
            shards=assumed.shard_pass_microseconds / 1e6,
            contended=assumed.contention * flops,
            **beside,
        )
    if precision not in site.peak_tflops or site.memory_gigabytes_per_second is None:
        return None
    peak = site.peak_tflops[precision] * 1e12
    return Rates(
        flops=1 / (peak * kind["product"]),
        attention=1 / (peak * kind["attention"]),
        moved=1 / (site.memory_gigabytes_per_second * 1e9 * kind["memory"]),
        kernels=kind["kernel_microseconds"] / 1e6,
        splits=kind["split_microseconds"] / 1e6,
        shards=kind["shard_microseconds"] / 1e6,
        **beside,
    )


def as_measured(site, machine):
    """`site` with its constants of CPUs times what `machine` does of what REFERENCE did, on which they were found.

    A single product or message is not what a step makes of it: only how machines compare is taken from the measurement. What the
    site's file assumes otherwise than by default was found on the site itself, and stays. The latency of its link does not: that of
    `sites/local.yaml` is the reference's.
    """
    default, speeds = type(site.assumed)(), _speeds(machine)
    for figure, (section, names) in MEASURED.items():
        if figure in speeds:
            part, speed = getattr(site, section), speeds[figure]
            ours = [name for name in names if section != "assumed" or getattr(part, name) == getattr(default, name)]
            site = replace(site, **{section: replace(part, **{name: speed * getattr(part, name) for name in ours})})
    return site


def _speeds(machine):
    """{figure: what a machine measured of it, as part of the REFERENCE}, its memory's within what is PLAUSIBLE."""
    speeds = {figure: machine[figure] / usual for figure, usual in REFERENCE.items() if figure in machine}
    if "gigaflops" in speeds:
        products = speeds["gigaflops"]
        memory = speeds.get("gigabytes_per_second", products)  # machines measured by earlier versions have none
        speeds["gigabytes_per_second"] = min(max(memory, products / PLAUSIBLE), products * PLAUSIBLE)
    return speeds


def _link(site, name):
    """Seconds of a byte, of a message."""
    link, part = getattr(site, f"{name}_link"), gpu_kind(site).get(name, 1.0)
    return 1 / (link.gigabytes_per_second * 1e9 * part), link.microseconds / 1e6
