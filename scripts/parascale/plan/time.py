"""How long a step takes on the slowest rank: the one model behind plans, advice, time limits, ceilings and calibration.

`plan.work` says what each rank does, `plan.rates` what that costs; here they meet. What runs beside what:

- a GPU computes while its host starts the next kernels, so that only the longer of both counts; on a CPU both count
- FSDP gathers a block's parameters while the block before it computes, and reduces its gradients beside the next block's backward
  pass; its first gather and last reduction are bare (Zhao et al. 2023, arXiv:2304.11277, section 3.3)
- DDP exchanges gradients beside the backward pass, its last bucket apart (Li et al. 2020, arXiv:2006.15704, section 3.2.3)
- collectives of tensor parallelism are bare, and so is what a pipeline sends
- what is hidden still makes computing longer by `interference`
- a pipeline: the longest rank's work, and what it waits for the others' first and last micro-batch (`Layout.bubble`)
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Prices:
    """Rates for one of several processes of a machine: on CPUs each has its threads, and all share the cores."""

    rates: object
    threads: float = 1.0
    crowding: float = 1.0
    others: float = 0.0  # part of the other cores that are busy

    @classmethod
    def at(cls, rates, site, processes, busy=1.0):
        """The Prices at a site. busy: part of the time that the other processes compute."""
        if site.device != "cpu":
            return cls(rates)
        cores, threads = site.cores_per_node or 1, site.threads(processes)
        others = (min(cores, processes * threads) - 1) / max(1, cores - 1)
        return cls(rates, threads, site.crowding(processes), busy * others)

    def load(self, load, overlaps):
        """Seconds of a Load on its own cores."""
        price = self.rates
        flop = price.flops + self.others * price.contended
        device = load.flops * flop + load.attention * (price.attention + self.others * price.contended)
        device = (device + load.moved * price.moved) / self.threads
        host = load.kernels * price.kernels + load.splits * price.splits + load.shards * price.shards
        return max(device, host) if overlaps else device + host

    def transfer(self, transfer):
        """Seconds of a Transfer."""
        price = self.rates
        return self.crowding * (
            transfer.node_bytes * price.node_bytes
            + transfer.node_messages * price.node_messages
            + transfer.network_bytes * price.network_bytes
            + transfer.network_messages * price.network_messages
        )


@dataclass(frozen=True)
class RankTime:
    """Seconds of one rank for a micro-batch, and once a step."""

    compute: float
    communication: float
    once: float


def step_seconds(work, rates, site):
    """{phase: seconds} of a step at a site.

    Where processes share cores, one computes while another waits: a step is as long as the longest chain, or as all computing takes
    on the cores, whichever is longer.
    """
    prices = Prices.at(rates, site, work.processes)
    times = [rank_time(rank, work, prices) for rank in work.ranks]
    longest = max(times, key=lambda each: each.compute + each.communication)
    rank = work.ranks[times.index(longest)]
    others = sum(each.compute + each.communication for each in times) - longest.compute - longest.communication
    alone = work.micro_batches * longest.compute
    chain = alone + work.fill * others
    mean = work.micro_batches * sum(each.compute for each in times) / len(times)
    compute = max(alone, mean * prices.crowding)
    phases = {
        "compute": compute,
        "bubble": max(0.0, chain - compute),
        "communication": work.micro_batches * longest.communication + longest.once,
        "optimizer": prices.crowding * prices.load(rank.update, work.overlaps),
        "data": prices.crowding * rank.samples * rates.samples,
        "other": prices.crowding * rates.steps,
    }
    if work.workers:  # they read ahead while a step computes
        reading = phases.pop("data") / work.workers
        phases["data"] = max(0.0, reading - sum(phases.values()))
    return phases


def forward_seconds(work, rates, site, turns=False):
    """Seconds of the forward passes of a step alone, as an evaluation makes them.

    The stages of a pipeline compute one piece after the other side by side; turns: a rank holds two, so that they take turns.
    """
    prices = Prices.at(rates, site, work.processes)
    passes = [
        rank.blocks * (prices.load(rank.forward, work.overlaps) + prices.transfer(rank.split))
        + prices.load(rank.ends_forward, work.overlaps)
        for rank in work.ranks
    ]
    longest = sum(passes) if turns else max(passes)
    return work.micro_batches * max(longest, prices.crowding * sum(passes) / len(passes))


def rank_time(rank, work, prices):
    """The RankTime of a RankWork."""
    overlaps = work.overlaps
    forward, backward, ends_forward, ends_backward = (
        prices.load(load, overlaps) for load in (rank.forward, rank.backward, rank.ends_forward, rank.ends_backward)
    )
    bare = (prices.transfer(rank.split), prices.transfer(rank.split_backward))
    gather, reduce, gradients = (prices.transfer(each) for each in (rank.gather, rank.reduce, rank.gradients))
    root = prices.transfer(rank.root_gather), prices.transfer(rank.root_reduce)
    compute = rank.blocks * (forward + backward) + ends_forward + ends_backward
    communication = rank.blocks * sum(bare) + prices.transfer(rank.sends) + prices.transfer(rank.normalise)
    communication += sum(root)
    again = gather if rank.gathers_again else 0.0

    def beside(seconds, transfer):
        """What a transfer beside so many seconds of computing costs."""
        if not overlaps:
            return transfer
        return max(0.0, transfer - seconds) + work.interference * min(transfer, seconds)

    if gather or reduce:
        # The first block's gather and the last one's reduction have nothing beside them.
        communication += gather + reduce + (rank.blocks - 1) * beside(forward + bare[0], gather)
        communication += (rank.blocks - 1) * beside(backward + bare[1], again + reduce) + again
    last = gradients / rank.buckets
    once = last + beside(rank.blocks * backward, gradients - last)
    return RankTime(compute, communication, once)
