"""How a run is distributed over processes, and the name of its strategy."""

import math
from dataclasses import replace
from typing import Literal, NamedTuple, get_args

from parascale.errors import ConfigError
from parascale.settings.options import LAYOUT, option, settings

Schedule = Literal["GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble"]
# Schedules with two stages per rank; in the V-shaped one, rank r has stages r and n-1-r.
LOOPED_SCHEDULES = ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble")
# In order of memory saved and time lost.
Recomputation = Literal[False, "selective", True]
RECOMPUTATION = get_args(Recomputation)


class Axis(NamedTuple):
    """One kind of parallelism. Its name is a degree of `Layout`, a column of tables and a dimension of the mesh."""

    name: str
    module: str  # its implementation in `parallel`
    order: int  # in the numbering of ranks: 0 varies fastest
    splits_samples: bool = False  # its ranks train on different samples of a step
    splits_positions: bool = False  # its ranks have different positions of the same samples
    within_node: bool = False  # advice keeps its ranks on a node, because they communicate in every block


# In the order of columns. Ranks of a tensor-parallel group communicate most, so they are neighbours on one node.
AXES = (
    Axis("dp", "ddp", order=3, splits_samples=True),
    Axis("fsdp", "fsdp", order=2, splits_samples=True),
    Axis("tp", "tensor", order=0, within_node=True),
    Axis("pp", "pipeline", order=4),
    Axis("cp", "context", order=1, splits_positions=True),
)
DEGREES = tuple(axis.name for axis in AXES)
# In the order of the mesh, the slowest varying first; and those of them that split samples.
MESH_AXES = tuple(axis.name for axis in sorted(AXES, key=lambda axis: -axis.order))
DATA_AXES = tuple(name for name in MESH_AXES if AXES[DEGREES.index(name)].splits_samples)
# The axes whose ranks have different targets of a step: gradients are summed over them.
TARGET_AXES = tuple(axis.name for axis in AXES if axis.splits_samples or axis.splits_positions)


@settings(LAYOUT)
class Layout:
    """Degrees of parallelism. Their product is the world size."""

    nodes: int = option("machines", default=1, low=1)
    gpus_per_node: int = option("GPUs to request on each node (processes, on a site without GPUs)", default=1, low=1)
    idle_gpus: int = option("requested GPUs per node to leave unused, to show the cost of waste", default=0, low=0)
    dp: int = option("data-parallel replicas (DDP)", default=1, low=1)
    fsdp: int = option("ranks that shard parameters, gradients and optimizer state (FSDP2)", default=1, low=1)
    tp: int = option("ranks that split each matrix (tensor parallelism)", default=1, low=1)
    pp: int = option("ranks of the pipeline", default=1, low=1)
    cp: int = option(
        "ranks that split each sample's positions (context parallelism, Ulysses), for long windows; with `fsdp`, parameters are "
        "sharded over both",
        default=1,
        low=1,
        before=1,
    )
    micro_batches: int = option("micro-batches per rank and step in the pipeline", default=1, low=1)
    schedule: Schedule = option("pipeline schedule", default="1F1B")
    sequence_parallel: bool = option("tensor parallelism also splits the sequence, between the matrices", default=True)
    loss_parallel: bool = option("tensor parallelism computes the loss on split logits", default=True)
    reshard_after_forward: bool = option(
        "FSDP frees gathered parameters after the forward pass and gathers them again (ZeRO-3): less memory, more communication; otherwise "
        "it gathers once a step",
        default=True,
    )
    reduce: Literal["part", "step"] = option(
        "FSDP reduces gradients after each accumulated `part`, or keeps full ones and reduces them once a `step`: more memory, less "
        "communication; `step` with `reshard_after_forward: false` is ZeRO-1, as is FSDP with `pp` always; replicas sum once a step anyway",
        default="part",
        before="part",
    )
    activation_checkpointing: Recomputation = option(
        "recompute activations in the backward pass; `selective` keeps attention, sums of `tp` and every second matrix product",
        default=False,
    )
    sync_batch_norm: bool = option(
        "batch norm uses the samples of all ranks; otherwise each rank uses only its own, and results depend on the layout",
        default=True,
    )
    compile: bool | None = option(
        "compile blocks and loss with `torch.compile`; default: on GPUs, if the model's family is faster with it",
        default=None,
    )

    @property
    def world_size(self) -> int:
        """Processes of the run."""
        return self.nodes * self.processes_per_node

    @property
    def processes_per_node(self) -> int:
        """Processes on each node: one per GPU in use."""
        return self.gpus_per_node - self.idle_gpus

    @property
    def dimensions(self) -> dict[str, int]:
        """{axis: degree} of all degrees above 1; empty for one process."""
        return {axis: degree for axis in DEGREES if (degree := getattr(self, axis)) > 1}

    def neighbour_distance(self, axis: str) -> int:
        """Difference of the numbers of two neighbouring ranks along an axis."""
        faster = MESH_AXES[MESH_AXES.index(axis) + 1 :]
        return math.prod(getattr(self, each) for each in faster)

    @property
    def data_parallel(self) -> int:
        """Number of ranks with different samples of a step: `dp × fsdp`."""
        return math.prod(getattr(self, axis) for axis in DATA_AXES)

    @property
    def of_parameters(self) -> "Layout":
        """The layout of parameters: ranks of `cp`, which need the same ones, join the shards of `fsdp`, or else the replicas of `dp`."""
        axis = "fsdp" if self.fsdp > 1 else "dp"
        return replace(self, cp=1, **{axis: getattr(self, axis) * self.cp})

    @property
    def uses_fsdp(self) -> bool:
        """True if FSDP manages the parameters: with `fsdp`, and for plain replication over `cp` and in hybrids."""
        return self.fsdp > 1 or (self.of_parameters.dp > 1 and self.dimensions.keys() != {"dp"})

    @property
    def zero_1(self) -> bool:
        """True if full parameters and gradients stay in memory for a step, so that `fsdp` shards only the optimizer's state."""
        return self.fsdp > 1 and (self.pp > 1 or (self.reduce == "step" and not self.reshard_after_forward))

    @property
    def one_stage_at_a_time(self) -> bool:
        """True if only one stage of the pipeline can work at a time: naive model parallelism, replicated or not."""
        return self.pp > 1 and self.micro_batches == 1

    @property
    def pipeline_schedule(self) -> Schedule:
        """The schedule that runs: GPipe with one micro-batch, as there is nothing to interleave."""
        return "GPipe" if self.micro_batches == 1 else self.schedule

    @property
    def stages(self) -> int:
        """Pipeline stages: one per pipeline rank, two in looped schedules."""
        return self.pp * (2 if self.pipeline_schedule in LOOPED_SCHEDULES else 1)

    @property
    def splits_backward(self) -> bool:
        """True if a stage has two backward passes: one for the gradient of its input, one for those of its weights."""
        return self.pipeline_schedule in ("InterleavedZeroBubble", "ZBVZeroBubble")

    @property
    def bubble(self) -> float:
        """Waiting time of a pipeline rank relative to its computing time: (p − 1) / (m × v), with v stages per rank.

        Narayanan et al. 2021, arXiv:2104.04473, sections 2.2.1 and 2.2.2; in theory a third of it for zero-bubble schedules and
        none for the V-shaped one: Qi et al. 2023, arXiv:2401.10241, table 2.
        """
        bubble = (self.pp - 1) / (self.micro_batches * (self.stages // self.pp))
        return bubble * {"InterleavedZeroBubble": 1 / 3, "ZBVZeroBubble": 0.0}.get(self.pipeline_schedule, 1.0)

    def check(self) -> None:
        """Raise ConfigError if degrees, nodes and GPUs do not match."""
        if self.idle_gpus >= self.gpus_per_node:
            raise ConfigError(f"idle_gpus = {self.idle_gpus} leaves no GPU of gpus_per_node = {self.gpus_per_node}")
        product = math.prod(getattr(self, axis) for axis in DEGREES)
        if product != self.world_size:
            idle = f" (less {self.idle_gpus} idle a node)" if self.idle_gpus else ""
            raise ConfigError(f"{' × '.join(DEGREES)} = {product}, but nodes × gpus_per_node{idle} = {self.world_size}")
        if self.pp == 1 and self.micro_batches > 1:
            raise ConfigError(f"micro_batches = {self.micro_batches} needs pp > 1; otherwise use `training.accumulate`")
        if self.pp > 1 and self.pipeline_schedule != "GPipe" and self.micro_batches < self.stages:
            raise ConfigError(
                f"schedule {self.schedule} needs at least as many micro_batches as stages "
                f"({self.stages}), not {self.micro_batches}"
            )
        for name, value in (("activation_checkpointing", "selective"), ("compile", True)):
            if self.splits_backward and getattr(self, name) == value:
                raise ConfigError(
                    f"schedule {self.schedule} has two backward passes, but with {name} = {str(value).lower()} a block keeps its "
                    "activations for only one; choose another value or schedule"
                )

    def strategy(self, average_every: int | None = None) -> str:
        """The strategy's name in reports and rules."""
        split = [axis for axis in self.dimensions if axis not in DATA_AXES]
        ways = len(split) + (self.data_parallel > 1)
        if average_every:
            return "local_sgd"
        if ways > 1:
            return "hybrid" if ways == 2 else "three_d"
        if split:
            return "naive" if self.one_stage_at_a_time else split[0]
        if self.fsdp > 1:
            return "hsdp" if self.dp > 1 else "fsdp"
        if self.dp > 1:
            return "multi_node" if self.nodes > 1 else "ddp"
        return "single"
