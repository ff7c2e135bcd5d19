"""The work of each rank in a step: amounts without prices.

Sources of the formulas:

- ring collectives of S bytes over p ranks: an all-gather or reduce-scatter sends (p − 1)/p S in p − 1 messages, an all-reduce
  twice that; over several nodes an all-reduce needs only as many messages as a tree: Thakur, Rabenseifner and Gropp 2005,
  doi:10.1177/1094342005051521
- the backward pass of a product is two products, each with its own waves of tiles; flash attention recomputes its scores: 2.5 times
  its forward pass (Dao 2023, arXiv:2307.08691, section 3.1)
- context parallelism exchanges queries, keys, values and attention's result once: Jacobs et al. 2023, arXiv:2309.14509, section 3.2
- tensor parallelism with a split sequence: four collectives of the residual stream per block and direction, which cost as much as
  two all-reduces without: Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from parascale.families.sizes import BACKWARD, MicroBatch, Operations, Sizes
from parascale.plan.memory import OPTIMIZER_COPIES, REDUCE_BYTES, RankMemory, rank_stages, sent_bytes
from parascale.plan.time import gpu_kind
from parascale.settings import Layout, Run, Site

ATTENTION_BACKWARD = 2.5
BUCKET_BYTES = 25 * 2**20  # DDP's default
TILE = 128  # rows of a tile: fewer take as long (NVIDIA, Matrix Multiplication Background User's Guide, "Tile Quantization")
# Bytes per element, and kernels, to round a factor to 8 bits, {compiled: value}. Compiled kernels read it twice, first for its maximum.
FLOAT8_BYTES, FLOAT8_KERNELS = {False: 13, True: 5}, {False: 10, True: 2}
# Efficiency of row-scaled 8-bit products at their peak rate, relative to bf16 products at theirs. Llama 3.1 8B with one sample of 8,192
# tokens per GPU went from 5,760 to 6,424 tokens/s, with all three products in 8 bits (torchtitan, commit 7a04053). Tensor-wise scales need
# no factor: 1 gives +27 %, torchtitan measured +28 % (benchmarks/llama3_h100_202412_torchtitan.md, table 1).
FLOAT8_RATE = 0.78
UPDATE_BYTES = 8  # per element of the fp32 gradient: the norm reads it, and the optimizer writes it back scaled


class Load(NamedTuple):
    """The computing of a device, without waiting. kernels, splits and shards count the host's work to start it."""

    flops: float = 0.0
    attention: float = 0.0
    moved: float = 0.0
    kernels: float = 0.0
    splits: float = 0.0
    shards: float = 0.0

    def plus(self, other: Any, times: float = 1.0) -> Any:
        """This Load plus `times` × another."""
        return Load(*(mine + times * more for mine, more in zip(self, other, strict=True)))


class Transfer(NamedTuple):
    """Bytes and messages that a rank sends one after the other over each kind of link."""

    node_bytes: float = 0.0
    node_messages: float = 0.0
    network_bytes: float = 0.0
    network_messages: float = 0.0

    def times(self, count: float) -> Any:
        return Transfer(*(count * amount for amount in self))

    def plus(self, other: Any) -> Any:
        return Transfer(*map(sum, zip(self, other, strict=True)))


NOTHING = Transfer()


@dataclass(frozen=True)
class RankWork:
    """A step of one rank. forward, backward: one block and micro-batch; ends_*: the layers outside the blocks.

    split, split_backward: transfers of tensor and context parallelism in a block, which do not overlap. gather, reduce: of an FSDP unit;
    root_*: of the parameters outside the blocks; end_*: of those after the blocks, if they are a unit of their own.
    gradients: gathered, scattered and summed once per step, whatever the number of parts. sends: between pipeline stages, per
    micro-batch. normalise: statistics of batch norms.
    """

    blocks: float
    forward: Load
    backward: Load
    ends_forward: Load
    ends_backward: Load
    update: Load
    samples: float
    split: Transfer = NOTHING
    split_backward: Transfer = NOTHING
    gather: Transfer = NOTHING
    reduce: Transfer = NOTHING
    root_gather: Transfer = NOTHING
    root_reduce: Transfer = NOTHING
    end_gather: Transfer = NOTHING
    end_reduce: Transfer = NOTHING
    gathers_again: bool = False
    gradients: Transfer = NOTHING
    buckets: int = 1
    sends: Transfer = NOTHING
    normalise: Transfer = NOTHING


@dataclass(frozen=True)
class Work:
    """A step of a run: the work of each pipeline rank.

    fill: the longest rank's wait in a step, as a multiple of the other ranks' time for one micro-batch. interference: see `gpus.yaml`.
    stragglers: slowdown of a step on this number of nodes. overlaps: the device computes while it communicates. processes: those that
    share a machine's cores. turns: a rank holds several pipeline stages. workers: threads of a rank that decode samples in advance.
    """

    ranks: tuple
    micro_batches: int
    fill: float
    interference: float
    stragglers: float
    overlaps: bool
    processes: int
    turns: bool = False
    workers: int = 0


def step_work(run: Run, sizes: Sizes, site: Site, stages: Any = None) -> Work:
    """The Work of a step of `run` at `site`. stages: those of each pipeline rank, by default from `rank_stages`."""
    layout, kind = site.effective_layout(run.layout), gpu_kind(site)
    if layout is not run.layout:
        run = replace(run, layout=layout)
    fill = layout.bubble * layout.micro_batches / max(1, layout.pp - 1)
    fill *= run.workload.training.accumulate
    made = {}  # cache, as ranks in the middle of a pipeline do the same

    def work_of(stages: Any) -> Any:
        alike = tuple((stage.blocks, stage.first, stage.last) for stage in stages)
        if alike not in made:
            made[alike] = _rank_work(run, sizes, site, RankMemory(run, sizes, site.device, stages))
        return made[alike]

    work = tuple(map(work_of, stages or rank_stages(layout, sizes.layers)))
    workers = getattr(run.workload.training, "workers", 0)
    overlaps, processes, turns = site.device != "cpu", layout.processes_per_node, layout.stages > layout.pp
    slower = kind["stragglers"] * math.log2(run.layout.nodes)
    return Work(work, run.micro_batches, fill, kind["interference"], slower, overlaps, processes, turns, workers)


def _rank_work(run: Run, sizes: Sizes, site: Site, rank: Any) -> RankWork:
    layout, fused, batch, kind = run.layout, run.layout.compile, rank.batch, gpu_kind(site)
    linked = site.node_pairs and site.gpus_per_node
    longer = 1 + kind["attention_start"] / max(run.workload.sizes)
    operations = sizes.block_operations(batch, fused)
    loads = functools.partial(_loads, wave=kind["wave"], longer=longer, rounding=Rounding.of(run, site))
    forward, backward = loads(operations)
    again = 0.0
    if layout.activation_checkpointing:
        selective = layout.activation_checkpointing == "selective"
        made = sizes.recomputed_operations(batch, fused, selective)
        backward = backward.plus(loads(made)[0])
        # The first of a block's two reductions is recomputed unless its result is kept, the second if the last product is needed.
        sums = (not selective) + all(product.again is not None for product in operations.products)
        again = 0.5 + 0.25 * sums if batch.sequence_parallel else 0.5 * sums
    if layout.tp > 1:
        forward, backward = forward._replace(splits=1.0), backward._replace(splits=BACKWARD + again)
    times = 2 if layout.activation_checkpointing else 1
    if layout.cp > 1:  # tensors are split before the exchange and joined after it
        copied = Load(moved=4 * sizes.exchanged_bytes(batch), kernels=8)
        forward, backward = forward.plus(copied), backward.plus(copied, times)
    if layout.uses_fsdp:
        forward, backward = forward._replace(shards=1.0), backward._replace(shards=1.0)
    ends = _loads(sizes.ends_operations(batch, fused), kind["wave"]) if rank.last else (Load(), Load())
    copied, summed = (Load(moved=size) for size in parameter_bytes(run, batch))
    forward, backward = forward.plus(copied, rank.block_elements), backward.plus(summed, rank.block_elements)
    ends = ends[0].plus(copied, rank.root), ends[1].plus(summed, rank.root)
    optimizer = rank.sharded * (UPDATE_BYTES + batch.parameter * (3 + 2 * OPTIMIZER_COPIES[run.workload.optim.name]))
    # Tensor parallelism reduces twice and (with a split sequence) gathers twice.
    collectives = half_ring(layout, "tp", sizes.split_bytes(batch), linked).times(4) if layout.tp > 1 else NOTHING
    exchange = all_to_all(layout, "cp", sizes.exchanged_bytes(batch), linked)
    return RankWork(
        blocks=rank.blocks,
        forward=forward,
        backward=backward,
        ends_forward=ends[0],
        ends_backward=ends[1],
        update=Load(moved=optimizer),
        samples=batch.samples * run.micro_batches,
        split=collectives.plus(exchange),
        split_backward=collectives.times(1 + again).plus(exchange.times(times)),
        sends=_sends(run, rank, linked),
        normalise=_batch_norm(run, sizes, linked),
        **_data_transfers(run, rank, linked),
    )


def parameter_bytes(run: Run, batch: MicroBatch) -> tuple[float, float]:
    """Bytes moved per parameter element in the (forward, backward) pass of a micro-batch.

    Counts the half-precision copy, which all micro-batches share; the gradient's conversion to fp32; and its accumulation over
    micro-batches, outside of pipelines in the same kernel. FSDP copies gathered parameters and gradients to be scattered into place
    (`_fsdp_collectives.py` in torch). It accumulates shards, which is not counted, or full gradients if it reduces once a step.
    """
    layout, first = run.layout, 1 / run.micro_batches
    whole = layout.pp > 1 or layout.reduce == "step" or (layout.fsdp == 1 and not run.workload.model.is_own)
    if layout.uses_fsdp:
        frees, laid = layout.reshard_after_forward and layout.pp == 1, batch.compute + sent_bytes(run)
        gathered = 2 * batch.compute * (1 if frees else first)
        scattered = laid * first + (batch.compute + 2 * REDUCE_BYTES) * (1 - first) if whole else laid
        return gathered, gathered * frees + scattered
    copy = batch.parameter + batch.compute if batch.copies else 0
    # Gradients are copied into DDP's buckets and back, and divided.
    rounded = 2 * (2 * batch.parameter + sent_bytes(run)) * first if run.reduce_precision != "fp32" else 0
    if copy and layout.pp == 1:
        return copy * first, copy * first + (copy + batch.parameter) * (1 - first) + rounded
    return copy * first, rounded + copy + 3 * batch.parameter * (1 - first)


class Rounding(NamedTuple):
    """Effect of precision float8 on a product with weights. operations: factor on its operations, except for the weight gradient. moved,
    kernels: bytes per element of a factor, and kernels, to round the factors."""

    operations: float = 1.0
    moved: float = 0.0
    kernels: float = 0.0

    @classmethod
    def of(cls, run: Run, site: Site) -> Self:
        if run.precision != "float8":
            return cls()
        peak, fused = site.peak_tflops, bool(run.layout.compile)
        faster = FLOAT8_RATE * peak["float8"] / peak["bf16"] if {"float8", "bf16"} <= peak.keys() else 1.0
        return cls(1 / faster, FLOAT8_BYTES[fused], 2 * FLOAT8_KERNELS[fused])


EXACT = Rounding()


def _loads(operations: Operations, wave: float, longer: float = 1.0, rounding: Rounding = EXACT) -> tuple[Load, Load]:
    """(forward, backward) Load of Operations. A product's last wave of tiles is half empty on average, but never larger than the product.

    longer: factor on attention due to short sequences (`attention_start` in `gpus.yaml`).
    """
    flops = back = moved = moved_back = kernels = 0.0
    for product in operations.products:
        rounds = rounding if product.weighs else EXACT
        rows, inner, outputs = product.rows, product.inner, product.outputs
        filled = rows + (-rows % TILE if wave else 0)
        empty = 2 * inner * (min(wave, filled * outputs) + (filled - rows) * outputs)
        flops += rounds.operations * (product.flops + empty)
        empty = 2 * outputs * (min(wave, filled * inner) + (filled - rows) * inner)
        back += rounds.operations * (product.flops + empty) + product.flops + 2 * rows * min(wave, inner * outputs)
        # With waves (GPUs), operands are read while tiles are computed, so only writing the finished tiles counts.
        moved += (rows * outputs if wave else product.elements) * operations.element
        moved_back += (rows * inner + inner * outputs if wave else BACKWARD * product.elements) * operations.element
        moved += rounds.moved * inner * (rows + outputs)
        moved_back += rounds.moved * outputs * (rows + inner)
        kernels += rounds.kernels
    beside, attention = operations.moved, operations.attention * longer
    forward = Load(flops, attention, beside + operations.drawn + moved, operations.kernels + kernels)
    sizes = back, ATTENTION_BACKWARD * attention, BACKWARD * beside + moved_back
    return forward, Load(*sizes, BACKWARD * operations.kernels + kernels)


def _data_transfers(run: Run, rank: Any, linked: int | None) -> dict[str, Any]:
    """Fields of RankWork. DDP: an all-reduce of all gradients. FSDP: gathers before each use, or once per step without resharding;
    reduce-scatters after each part, or once per step, as replicas always do."""
    layout, batch = run.layout, rank.batch
    if not layout.uses_fsdp:
        size = rank.elements * batch.parameter
        # What PowerSGD, gossip or a parameter server send is unknown here: they are priced as an all-reduce.
        sent = rank.elements * (2 if run.compression == "fp16" else sent_bytes(run, batch.parameter))
        gradients = all_reduce(layout, "dp", sent, linked).times(1 / (run.average_every or 1))
        return {"gradients": gradients, "buckets": max(1, math.ceil(size / BUCKET_BYTES))}

    layout = layout.of_parameters

    def gather(elements: float) -> Transfer:
        return half_ring(layout, "fsdp", elements * batch.compute, linked)

    def scatter(elements: float) -> Transfer:
        return half_ring(layout, "fsdp", elements * sent_bytes(run), linked)

    def sums(elements: float) -> Transfer:
        return all_reduce(layout, "dp", elements / layout.fsdp * sent_bytes(run), linked)

    def reduce(elements: float) -> Transfer:
        return scatter(elements).plus(sums(elements))

    def all_of(transfer: Callable[[float], Transfer]) -> Transfer:
        return transfer(block).times(rank.blocks).plus(transfer(root - rank.end)).plus(transfer(rank.end))

    def each(kind: str, by: Callable[[float], Transfer]) -> dict[str, Transfer]:
        return {kind: by(block), f"root_{kind}": by(root - rank.end), f"end_{kind}": by(rank.end)}

    block, root, again = rank.block_elements, rank.root, layout.reshard_after_forward
    if layout.pp > 1:  # with any schedule parameters stay gathered
        return {"gradients": all_of(gather).plus(all_of(reduce)), "buckets": 1}
    gathers = each("gather", gather) | {"gathers_again": again}
    if run.workload.training.accumulate == 1:
        return gathers | each("reduce", reduce)
    scattered = {} if layout.fsdp == 1 or layout.reduce == "step" else each("reduce", scatter)
    once = all_of(sums if scattered else reduce)
    if not again:
        once, gathers = once.plus(all_of(gather)), {}
    return gathers | scattered | {"gradients": once, "buckets": max(1, round(rank.blocks))}


def _batch_norm(run: Run, sizes: Sizes, linked: int | None) -> Transfer:
    """Statistics of synchronised batch norms over all data ranks: two small collectives per norm, forward and backward."""
    layout = run.layout
    if layout.data_parallel == 1 or not (sizes.norms and layout.sync_batch_norm):
        return NOTHING
    together = replace(layout, dp=1, fsdp=layout.data_parallel)
    return all_reduce(together, "fsdp", 4 * sizes.statistics / sizes.norms, linked).times(2 * sizes.norms)


def _sends(run: Run, rank: Any, linked: int | None) -> Transfer:
    """The residual stream to the next stage and its gradient back, per micro-batch."""
    layout = run.layout
    if layout.pp == 1:
        return NOTHING
    borders = sum((not stage.first) + (not stage.last) for stage in rank.stages)
    link = link_of(layout, "pp")
    return _on(link, borders * rank.boundary * (_link_share(2, linked) if link == "node" else 1), borders)


def half_ring(layout: Layout, axis: str, size: float, linked: int | None = None) -> Transfer:
    """An all-gather with `size` output bytes, or a reduce-scatter with `size` input bytes, on each rank of an axis. linked: GPUs of a
    node if each pair has its own link.

    Between nodes there is one ring per rank of the axis in a node, each with its part of the bytes over its own network link, as in NCCL
    if each GPU has such a link. If ranks are placed cell by cell, a ring crosses between two cells of a Dragonfly, or branches of a fat
    tree, only once; the lower bandwidth there is not modelled.
    """
    ranks = getattr(layout, axis)
    if ranks == 1:
        return NOTHING
    sent, within = size * (ranks - 1) / ranks, _within_node(layout, axis)
    nodes = ranks // within
    if nodes == 1:
        return _on("node", sent * _link_share(ranks, linked), ranks - 1)
    return Transfer(0.0, float(ranks - nodes), sent / within, float(nodes - 1))


def all_to_all(layout: Layout, axis: str, size: float, linked: int | None = None) -> Transfer:
    """Four exchanges of `size` bytes in total, in which each rank of an axis sends a part to every other."""
    ranks = getattr(layout, axis)
    if ranks == 1:
        return NOTHING
    within, each = _within_node(layout, axis), size / ranks
    node = (within - 1) * each * (_link_share(within, linked) if within > 1 else 1)
    return Transfer(node, 4.0 * (within - 1), (ranks - within) * each, 4.0 * (ranks - within))


def _link_share(ranks: int, linked: int | None) -> float:
    """Factor on bytes within a group of `ranks` GPUs, which use only their direct links: all links of a GPU over those to the group."""
    return max(1.0, (linked - 1) / (ranks - 1)) if linked else 1.0


def all_reduce(layout: Layout, axis: str, size: float, linked: int | None = None) -> Transfer:
    """An all-reduce of `size` bytes over an axis, in rings, with the number of messages of a tree between nodes."""
    ring, nodes = half_ring(layout, axis, size, linked).times(2), getattr(layout, axis) // _within_node(layout, axis)
    if nodes == 1:
        return ring
    steps = 2 * math.ceil(math.log2(nodes))
    return ring._replace(network_messages=steps, node_messages=2 * (_within_node(layout, axis) - 1))


def _within_node(layout: Layout, axis: str) -> int:
    """Ranks of an axis on one node."""
    return max(1, min(getattr(layout, axis), layout.processes_per_node // layout.neighbour_distance(axis)))


def _on(link: str, size: float, messages: float) -> Transfer:
    return Transfer(size, messages) if link == "node" else Transfer(0.0, 0.0, size, messages)


def link_of(layout: Layout, axis: str) -> str:
    """The slowest link between neighbours on an axis: `node` or `network`."""
    return "node" if layout.neighbour_distance(axis) * getattr(layout, axis) <= layout.processes_per_node else "network"
