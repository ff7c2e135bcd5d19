"""How long a step takes on the slowest rank, in terms that a calibration can weigh.

`step_work` counts what a rank does in a step: operations, passes through blocks, optimizer elements, and bytes and
messages over each link. `Rates.seconds` turns that into time. Sources of the formulas:

- collectives in rings, alpha-beta model: Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521; an
  all-gather or reduce-scatter of S bytes over p ranks sends (p-1)/p S in p-1 messages, an all-reduce twice that
- pipeline bubble: `parascale.settings.layout`
- gradients and gathered parameters travel while a GPU computes its backward pass: only what is longer than that counts
- tensor parallelism: four collectives of the residual stream a block and direction with a split sequence, which weigh
  as two all-reduces do without: Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2
"""

from dataclasses import dataclass, fields, replace

from parascale.families.sizes import BACKWARD
from parascale.plan.memory import REDUCE_BYTES, RankMemory, rank_stages

COMPUTING = ("flops", "contended_flops", "passes", "split_passes", "shard_passes")
TRANSFERS = ("node_bytes", "node_messages", "network_bytes", "network_messages")


@dataclass(frozen=True)
class Kinds:
    """What a step is made of: amounts in a `Work`, prices in `Rates`."""

    steps: float = 0.0
    samples: float = 0.0  # that a rank reads
    flops: float = 0.0
    contended_flops: float = (
        0.0  # the same operations: what they take longer where other cores of a CPU compute as well
    )
    passes: float = 0.0  # forward passes through one block; a backward pass counts twice
    split_passes: float = 0.0  # those of them whose matrices tensor parallelism splits
    shard_passes: float = 0.0  # through units that FSDP holds, once forward and once backward
    optimizer_elements: float = 0.0
    node_bytes: float = 0.0
    node_messages: float = 0.0
    network_bytes: float = 0.0
    network_messages: float = 0.0


NAMES = tuple(item.name for item in fields(Kinds))


@dataclass(frozen=True)
class Work(Kinds):
    """What one rank does in one optimizer step.

    bubble: part of the computing time that a pipeline waits on top. balance: computing of the mean rank over that of this one,
    which computes longest. beside: of the transfers, those of gradients and parameters, which GPUs do while they compute.
    """

    steps: float = 1.0
    bubble: float = 0.0
    balance: float = 1.0
    beside: "Work | None" = None

    def plus(self, link, size, messages):
        """This Work and a transfer of `size` bytes in `messages` over a link."""
        names = {f"{link}_bytes": size, f"{link}_messages": messages}
        return replace(self, **{name: getattr(self, name) + amount for name, amount in names.items()})


class Rates(Kinds):
    """Prices in seconds of each kind of Work: of one GPU, or of one core where a run computes on CPUs."""

    def seconds(self, work, site, processes):
        """{phase: seconds} of a step where a node of `site` has `processes` of the run.

        Where processes share cores, one computes while another waits: a step is as long as the longest chain, or as all
        computing takes on the cores, whichever is longer.
        """
        price, crowding = self.shared(site, processes), site.crowding(processes)
        alone = sum(getattr(work, name) * getattr(price, name) for name in COMPUTING) / crowding
        compute = alone * max(1.0, work.balance * crowding)
        communication = price.transfers(work)
        if work.beside is not None and site.device != "cpu":
            communication -= min(price.transfers(work.beside), BACKWARD / (1 + BACKWARD) * compute)
        return {
            "compute": compute,
            "bubble": max(0.0, alone * (1 + work.bubble) - compute),
            "communication": communication,
            "optimizer": work.optimizer_elements * price.optimizer_elements,
            "data": work.samples * price.samples,
            "other": work.steps * price.steps,
        }

    def transfers(self, work):
        """Seconds of all transfers of a Work."""
        return sum(getattr(work, name) * getattr(self, name) for name in TRANSFERS)

    def shared(self, site, processes):
        """These prices for one of several processes of a node: on CPUs each has its threads, and all share the cores."""
        if site.device != "cpu":
            return replace(self, contended_flops=0.0)
        cores, threads, crowding = site.cores_per_node or 1, site.threads(processes), site.crowding(processes)
        others = (min(cores, processes * threads) - 1) / max(1, cores - 1)
        scales = {"flops": 1 / threads, "optimizer_elements": 1 / threads, "contended_flops": others / threads}
        return Rates(**{name: getattr(self, name) * crowding * scales.get(name, 1.0) for name in NAMES})


def step_work(run, sizes, device):
    """The Work of the rank that computes longest in a step of `run`."""
    ranks = [_rank_work(run, sizes, device, stages) for stages in rank_stages(run.layout, sizes.layers)]
    busiest, whole = max(ranks, key=lambda work: work.flops), sum(work.flops for work in ranks)
    if len(ranks) == 1:
        return busiest
    # What the busiest rank waits for is the others' work, which may be less than its own; nor do they compute all the time.
    others, balance = (whole - busiest.flops) / (len(ranks) - 1) / busiest.flops, whole / len(ranks) / busiest.flops
    busy = (run.layout.world_size * balance - 1) / (run.layout.world_size - 1)
    return replace(
        busiest, bubble=run.layout.bubble * others, balance=balance, contended_flops=busiest.contended_flops * busy
    )


def _rank_work(run, sizes, device, stages):
    layout, rank = run.layout, RankMemory(run, sizes, device, stages)
    parts, blocks = run.micro_batches, rank.blocks
    samples = rank.batch.samples * parts
    forward = blocks * sizes.block_flops
    recomputed = forward if layout.activation_checkpointing else 0
    if rank.last:
        forward += sizes.ends_flops
    flops = ((1 + BACKWARD) * forward + recomputed) * samples / layout.tp
    passes = blocks * parts * (1 + BACKWARD + layout.activation_checkpointing)
    work = Work(
        samples=samples,
        flops=flops,
        contended_flops=flops,
        passes=passes,
        split_passes=passes if layout.tp > 1 else 0.0,
        shard_passes=2 * (blocks + 1) * parts if layout.uses_fsdp else 0.0,
        optimizer_elements=rank.sharded,
    )
    beside = _data_transfers(Work(), run, rank)
    work = replace(work, beside=beside, **{name: getattr(beside, name) for name in TRANSFERS})
    work = _tensor_transfers(work, run, rank, parts)
    return _pipeline_transfers(work, run, rank)


def _data_transfers(work, run, rank):
    """DDP: an all-reduce of all gradients. FSDP: all-gathers before use, a reduce-scatter after; HSDP both."""
    layout, blocks = run.layout, rank.blocks
    if not layout.uses_fsdp:
        if layout.dp > 1:
            every, size = run.average_every or 1, 2 * rank.elements * rank.batch.parameter
            work = _ring(work, run, "dp", size / every, 2 * max(1, blocks // 4) / every)
        return work
    units = blocks + 1
    gathers = 2 if layout.reshard_after_forward and layout.pp == 1 else 1
    parts = 1 if layout.pp > 1 else run.workload.training.accumulate
    size = rank.elements * (gathers * rank.batch.compute + REDUCE_BYTES) * parts
    work = _ring(work, run, "fsdp", size, (gathers + 1) * units * parts)
    return _ring(work, run, "dp", 2 * rank.sharded * REDUCE_BYTES * parts, 2 * units * parts)


def _tensor_transfers(work, run, rank, parts):
    """Each block reduces twice and (with a split sequence) gathers twice, forward and again backward."""
    collectives = 4 * (2 + run.layout.activation_checkpointing) * rank.blocks * parts
    return _ring(work, run, "tp", collectives * rank.sizes.split_bytes(rank.batch), collectives)


def _pipeline_transfers(work, run, rank):
    """The residual stream to the next stage and its gradient back, for each micro-batch."""
    layout = run.layout
    if layout.pp == 1:
        return work
    borders = sum((not stage.first) + (not stage.last) for stage in rank.stages)
    count = borders * run.micro_batches
    return work.plus(link_of(layout, "pp"), count * rank.boundary, count)


def _ring(work, run, axis, size, collectives):
    """Collectives that together move `size` bytes of whole tensors around the ring of an axis.

    Between nodes there are as many rings as a node has ranks of the axis, each over a network link of its own with its
    part of the bytes, as NCCL has it where each GPU has such a link.
    """
    ranks, link = getattr(run.layout, axis), link_of(run.layout, axis)
    if ranks == 1:
        return work
    rings = 1 if link == "node" else max(1, run.layout.processes_per_node // _inner(run.layout, axis))
    return work.plus(link, size * (ranks - 1) / ranks / rings, collectives * (ranks - 1))


def link_of(layout, axis):
    """Which link an axis's slowest neighbours share: tp is numbered fastest, then fsdp, dp, pp."""
    return "node" if _inner(layout, axis) * getattr(layout, axis) <= layout.processes_per_node else "network"


def _inner(layout, axis):
    """Distance between neighbours of an axis in the numbering of ranks."""
    return {"tp": 1, "fsdp": layout.tp, "dp": layout.tp * layout.fsdp, "pp": layout.tp * layout.fsdp * layout.dp}[axis]
