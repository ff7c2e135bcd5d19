"""How long a step takes on the slowest rank: the model behind plans, advice, time limits, ceilings and calibration.

`plan.work` counts what each rank does; Rates are its prices: on GPUs from the kind and the site's data sheet, on CPUs from the site's
assumptions or a measurement of the machine. CPU measurements never price a GPU. What overlaps:

- a GPU computes while its host starts the next kernels, so only the longer of the two counts; on a CPU both count
- FSDP gathers a block's parameters while the block before it computes, and reduces its gradients during the next block's backward
  pass; its first gather and last reduction do not overlap (Zhao et al. 2023, arXiv:2304.11277, section 3.3)
- DDP exchanges gradients during the backward pass, except its last bucket (Li et al. 2020, arXiv:2006.15704, section 3.2.3)
- collectives of tensor parallelism and sends of a pipeline do not overlap
- overlapped communication still slows computing down by `interference`; `stragglers` lengthens a step, as nodes wait for the slowest
- threads decode the next samples while a step computes; without threads, a GPU's process reads them after it started the step's kernels
- a pipeline takes the longest rank's work, plus its wait for the others' first and last micro-batch (`Layout.bubble`)
"""

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import yaml

from parascale.settings import Site

KINDS = Path(__file__).with_name("gpus.yaml")
# As in `gpus.yaml`. Attention's rate and start are from 13 shapes of 24 to 2,048 tokens on a core of an AMD EPYC, torch 2.13.
CPU = {"wave": 0, "attention": 0.9, "attention_start": 60, "interference": 0.0, "stragglers": 0.0}
# Speeds of the machine on which the CPU constants were found (2 cores of an AMD EPYC), and the constants that scale with each.
REFERENCE = {"gigaflops": 100.0, "gigabytes_per_second": 22.0, "kernel_microseconds": 1.4, "message_microseconds": 33.0}
MEASURED = {
    "gigaflops": ("assumed", ["core_gigaflops"]),
    "gigabytes_per_second": ("assumed", ["core_gigabytes_per_second"]),
    "kernel_microseconds": (
        "assumed",
        [f"{name}_microseconds" for name in ("kernel", "split_pass", "shard_pass", "sample")] + ["step_milliseconds"],
    ),
    "message_microseconds": ("node_link", ["microseconds"]),
}
# Faster cores have faster memory. A memory speed that differs by more than this factor from the products' is due to caches or neighbours.
PLAUSIBLE = 2.0


# A power-limited clock grows more slowly than the power. For torchtitan's Llamas on H100 of 500 W (tests/published) products and attention
# took 1.20 and 1.22 times as long as at the rates of 700 W, which gives exponents of 0.54 and 0.59.
POWER = 0.57


@dataclass(frozen=True)
class Rates:
    """Prices: seconds per unit of each kind of work.

    flops, attention: an operation in matrix products, in flash attention. moved: a byte to or from memory. kernels: starting a kernel.
    splits, shards: host time of a block with tensor parallelism, of an FSDP unit. node_*, network_*: a byte or message over a link
    within a node, between nodes. steps, samples: fixed overhead of a step, reading a sample. contended: extra time of an operation
    when all other cores of a CPU are busy.
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

    def scaled(self, factors: Any) -> Self:
        """These Rates multiplied by {name: factor}."""
        return replace(self, **{name: getattr(self, name) * factor for name, factor in factors.items()})


@functools.cache
def _kinds() -> Any:
    return yaml.safe_load(KINDS.read_text(encoding="utf-8"))


def gpu_kind(site: Site) -> Any:
    """The constants of a site's kind of GPU; for CPUs, those that they share with GPUs."""
    if site.device != "cuda":
        return CPU
    words = site.gpu.upper()
    found = (kind for kind in _kinds().values() if any(name in words for name in kind["names"]))
    return next(found, None) or _kinds()["other"]


def formula_rates(site: Site, precision: str, sample_bytes: float = 0) -> Rates | None:
    """Rates from a site's data sheet and kind of GPU, or from its assumptions on CPUs; None without a peak rate.

    sample_bytes: of a compressed image to decode.
    """
    assumed, kind, beside = site.assumed, gpu_kind(site), {}
    for name, link in (("node", site.node_link), ("network", site.network_link)):
        beside[f"{name}_bytes"] = 1 / (link.gigabytes_per_second * 1e9 * kind.get(name, 1.0))
        beside[f"{name}_messages"] = link.microseconds / 1e6
    beside["steps"] = kind.get("step_milliseconds", assumed.step_milliseconds) / 1e3
    beside["samples"] = assumed.sample_microseconds / 1e6 + sample_bytes / (assumed.decode_megabytes_per_second * 1e6)
    if site.device != "cuda":
        flops = (2 if precision == "fp64" else 1) / (assumed.core_gigaflops * 1e9)
        return Rates(
            flops=flops,
            attention=flops / kind["attention"],
            moved=1 / (assumed.core_gigabytes_per_second * 1e9),
            kernels=assumed.kernel_microseconds / 1e6,
            splits=assumed.split_pass_microseconds / 1e6,
            shards=assumed.shard_pass_microseconds / 1e6,
            contended=assumed.contention * flops,
            **beside,
        )
    # 8-bit products count as fewer bf16 operations (`plan.work`).
    usual = "bf16" if precision == "float8" else precision
    if usual not in site.peak_tflops or site.memory_gigabytes_per_second is None:
        return None
    peak = site.peak_tflops[usual] * 1e12 * powered(site, kind)
    return Rates(
        flops=1 / (peak * kind["product"]),
        attention=1 / (peak * kind["attention"]),
        moved=1 / (site.memory_gigabytes_per_second * 1e9 * kind["memory"]),
        kernels=kind["kernel_microseconds"] / 1e6,
        splits=kind["split_microseconds"] / 1e6,
        shards=kind["shard_microseconds"] / 1e6,
        **beside,
    )


def powered(site: Site, kind: Any) -> float:
    """Factor on the rates of a GPU's kind due to its power limit: 1 if it has as much power per operation as the boards on which the
    rates were found, or if that is unknown."""
    if site.gpu_watts is None or "watts" not in kind:
        return 1.0
    watts = (site.gpu_watts - site.cpu_watts) / site.peak_tflops.get("bf16", kind["bf16_tflops"])
    return min(1.0, watts * kind["bf16_tflops"] / kind["watts"]) ** POWER


def as_measured(site: Site, machine: Any) -> Site:
    """`site` with its CPU constants scaled by the measured speed of `machine` relative to REFERENCE.

    Only the ratio is used, because a step does not reach the speed of a single product or message. Assumptions of the site file that
    differ from the defaults were found on the site itself and stay. The latency of its link is always scaled: the one in
    `sites/local.yaml` is the reference's.
    """
    default = type(site.assumed)()
    speeds = {figure: machine[figure] / usual for figure, usual in REFERENCE.items() if figure in machine}
    if "gigaflops" in speeds:
        products = speeds["gigaflops"]
        memory = speeds.get("gigabytes_per_second", products)  # earlier versions did not measure it
        speeds["gigabytes_per_second"] = min(max(memory, products / PLAUSIBLE), products * PLAUSIBLE)
    for figure, (section, names) in MEASURED.items():
        if figure in speeds:
            part, speed = getattr(site, section), speeds[figure]
            ours = [name for name in names if section != "assumed" or getattr(part, name) == getattr(default, name)]
            site = replace(site, **{section: replace(part, **{name: speed * getattr(part, name) for name in ours})})
    return site


@dataclass(frozen=True)
class Prices:
    """Rates for one of several processes on a machine. On CPUs each has its threads, and they share the cores."""

    rates: Rates
    threads: float = 1.0
    crowding: float = 1.0
    others: float = 0.0  # fraction of the other cores that are busy

    @classmethod
    def at(cls, rates: Rates, site: Site, processes: int) -> Self:
        if site.device != "cpu":
            return cls(rates)
        cores, threads = site.cores_per_node or 1, site.threads(processes)
        others = (min(cores, processes * threads) - 1) / max(1, cores - 1)
        return cls(rates, threads, site.crowding(processes), others)

    def load(self, load: Any, overlaps: bool) -> float:
        """Seconds of a Load on the process's own cores."""
        price = self.rates
        flop = price.flops + self.others * price.contended
        device = load.flops * flop + load.attention * (price.attention + self.others * price.contended)
        device = (device + load.moved * price.moved) / self.threads
        return max(device, self.host(load)) if overlaps else device + self.host(load)

    def host(self, load: Any) -> float:
        """Seconds of host time to start the work of a Load."""
        price = self.rates
        return load.kernels * price.kernels + load.splits * price.splits + load.shards * price.shards

    def transfer(self, transfer: Any) -> float:
        price = self.rates
        return self.crowding * (
            transfer.node_bytes * price.node_bytes
            + transfer.node_messages * price.node_messages
            + transfer.network_bytes * price.network_bytes
            + transfer.network_messages * price.network_messages
        )


class RankTime(NamedTuple):
    """Seconds of one rank: computing and communicating per micro-batch, and `once` per step."""

    compute: float
    communication: float
    once: float


def step_seconds(work: Any, rates: Rates, site: Site) -> dict[str, float]:
    """{phase: seconds} of a step at a site.

    If processes share cores, one computes while another waits: a step takes as long as the longest chain or as all computing on the
    cores, whichever is longer.
    """
    prices = Prices.at(rates, site, work.processes)
    times, longest, chain = _chain(work, prices)
    if len(times) > 1 and prices.others and prices.crowding == 1:
        # If each process has its own cores, a stage and its replicas compute at full speed while the others wait for them.
        computing = [work.micro_batches * each.compute for each in times]
        together = (sum(computing) - chain) / (len(times) - 1) / max(computing)
        core = 1 / max(1, (site.cores_per_node or 1) - 1)  # as a fraction of the other cores
        own = max(0.0, (prices.others + core) / len(times) - core)
        prices = replace(prices, others=own + (prices.others - own) * min(1.0, max(0.0, together)))
        times, longest, chain = _chain(work, prices)
    rank, alone = work.ranks[longest], work.micro_batches * times[longest].compute
    mean = work.micro_batches * sum(each.compute for each in times) / len(times)
    compute = max(alone, mean * prices.crowding)
    phases = {
        "compute": compute,
        "bubble": max(0.0, chain - compute),
        "communication": work.micro_batches * times[longest].communication + times[longest].once,
        "optimizer": prices.crowding * prices.load(rank.update, work.overlaps),
        "other": prices.crowding * rates.steps,
    }
    phases["communication"] += work.stragglers * sum(phases.values())
    starts = rank.blocks * (prices.host(rank.forward) + prices.host(rank.backward))
    starts += prices.host(rank.ends_forward) + prices.host(rank.ends_backward)
    busy = work.micro_batches * starts + phases["other"]
    return phases | {"data": _reading(work, prices, sum(phases.values()), busy)}


def _chain(work: Any, prices: Any) -> Any:
    """(RankTimes, index of the longest, seconds that it computes and waits for the others)."""
    times = [rank_time(rank, work, prices) for rank in work.ranks]
    each = [time.compute + time.communication for time in times]
    longest = each.index(max(each))
    others = sum(each) - each[longest]
    return times, longest, work.micro_batches * times[longest].compute + work.fill * others


def _reading(work: Any, prices: Any, meanwhile: float, busy: float) -> float:
    """Seconds that reading samples adds to a step of `meanwhile` seconds. busy: seconds of it in which the process itself has work."""
    reading = prices.crowding * work.ranks[0].samples * prices.rates.samples / max(1, work.workers)
    hidden = meanwhile if work.workers else (meanwhile - busy) * work.overlaps
    return max(0.0, reading - hidden)


def forward_seconds(work: Any, rates: Rates, site: Site) -> float:
    """Seconds of only the forward passes of a step, as in an evaluation.

    The stages of a pipeline work on different micro-batches in parallel, or take turns if a rank holds several.
    """
    prices = Prices.at(rates, site, work.processes)
    passes = [
        rank.blocks * (prices.load(rank.forward, work.overlaps) + prices.transfer(rank.split))
        + prices.load(rank.ends_forward, work.overlaps)
        for rank in work.ranks
    ]
    longest = sum(passes) if work.turns else max(passes)
    seconds = work.micro_batches * max(longest, prices.crowding * sum(passes) / len(passes))
    return seconds + _reading(work, prices, seconds, 0.0)


def rank_time(rank: Any, work: Any, prices: Prices) -> RankTime:
    overlaps = work.overlaps
    forward, backward, ends_forward, ends_backward = (
        prices.load(load, overlaps) for load in (rank.forward, rank.backward, rank.ends_forward, rank.ends_backward)
    )
    bare = (prices.transfer(rank.split), prices.transfer(rank.split_backward))
    gather, reduce, gradients = (prices.transfer(each) for each in (rank.gather, rank.reduce, rank.gradients))
    root = prices.transfer(rank.root_gather), prices.transfer(rank.root_reduce)
    end_gather, end_reduce = (prices.transfer(each) for each in (rank.end_gather, rank.end_reduce))
    compute = rank.blocks * (forward + backward) + ends_forward + ends_backward
    communication = rank.blocks * sum(bare) + prices.transfer(rank.sends) + prices.transfer(rank.normalise)
    communication += sum(root)
    again = gather if rank.gathers_again else 0.0

    def beside(seconds: float, transfer: Any) -> float:
        """The cost of a transfer that overlaps with these seconds of computing."""
        if not overlaps:
            return transfer
        return max(0.0, transfer - seconds) + work.interference * min(transfer, seconds)

    if gather or reduce:
        # The first block's gather and the last one's reduction overlap with nothing; those of the end overlap with one block.
        ends = beside(forward + bare[0], end_gather), beside(backward + bare[1], end_reduce)
        communication += gather + reduce + ends[0] + ends[1]
        communication += (rank.blocks - 1) * beside(forward + bare[0], gather)
        communication += (rank.blocks - 1) * beside(backward + bare[1], again + reduce) + again
    last = gradients / rank.buckets
    once = last + beside(rank.blocks * backward, gradients - last)
    return RankTime(compute, communication, once)
