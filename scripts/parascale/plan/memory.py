"""Peak memory of one rank, split into parts.

Memory can peak at a few moments of a step. The memory at each is a sum of parts, and the largest sum is the peak:

- `loss`    all activations, and a chunk of the logits, or several copies of all logits if the model computes them itself
- `output`  the output layer gets its gradient; FSDP's root is still gathered
- `block`   backward pass of the last block: FSDP holds this block and gathers the next
- `reduce`  that block is done: FSDP holds its gradient twice to reduce it
- `end`     end of the backward pass: all gradients, one block's activations, the rest of FSDP's root
- `evaluation`  between steps: of the gradients only DDP's buckets, and the activations of one block, or the logits

Sources: AdamW's states from Rajbhandari et al. 2020 (ZeRO), arXiv:1910.02054, section 3.1 (here fp32 weights, gradients
and two moments: 16 bytes per parameter); activations from the model's family; micro-batches in flight from Narayanan et
al. 2021, arXiv:2104.04473, section 2.2. The copies that libraries make were measured, and are checked, with the real code
on fake tensors (`tests/benchmarks/fake_steps.py`).
"""

from dataclasses import dataclass, replace
from typing import Any

from parascale.families import model_sizes
from parascale.families.sizes import MicroBatch, Sizes, share
from parascale.settings import Layout, Run, Site
from parascale.stages import held_stages, stage_blocks

OPTIMIZER_COPIES = {"adamw": 2, "sgd": 1}
FITS_BELOW = 0.9  # of the memory: formulas are off by up to 8 % from the real code on fake tensors (tests/benchmarks/RESULTS.md, "Plans")
# Temporary tensors fragment memory. torchtitan's allocator reserved 1.16 and 1.20 times the size of its tensors, nearly all activations
# (tests/published); defragmentation saved 15 % on average over eight models (Guo et al. 2024, GMLake, arXiv:2401.08156).
GAPS = 0.2
REDUCE_BYTES = 4  # gradients are accumulated in fp32, whatever they were computed in; ranks sum them in fp32 or bf16


def sent_bytes(run: Run, element: int = REDUCE_BYTES) -> int:
    """Bytes per element of a gradient that ranks exchange. element: bytes per element of a parameter."""
    return {"fp32": element, "bf16": 2}[run.reduce_precision]


@dataclass(frozen=True)
class Stage:
    """A pipeline stage: a number of blocks, with the embedding if `first` and the output layer if `last`."""

    blocks: int
    first: bool
    last: bool
    in_flight: int  # micro-batches whose activations are alive at once


def peak_memory(run: Run, vocabulary: int | None, device: str) -> Any:
    """{part: bytes} at the peak of the rank that needs most; None if the model's kind is unknown.

    Tensors only, without libraries and communicators.
    """
    return peak(_moments(run, vocabulary, device))


def _moments(run: Run, vocabulary: int | None, device: str) -> list[Any]:
    """`RankMemory.moments` of all ranks; empty if the model's kind is unknown."""
    sizes = model_sizes(run.workload.model, vocabulary, *run.workload.sizes)
    held = rank_stages(run.layout, sizes.layers) if sizes else []
    return [moment for each in held for moment in RankMemory(run, sizes, device, each).moments()]


def capacity_bytes(run: Run, site: Site) -> int | None:
    """Memory that one process may use; None if the site file does not state it."""
    on_gpu = site.device == "cuda"
    gigabytes = site.gpu_memory_gb if on_gpu else site.host_memory_gb
    sharing = 1 if on_gpu else site.processes_together(run.layout)
    return None if gigabytes is None else int(gigabytes * 1e9 / sharing)


def verdict(moments: list[Any], capacity: int | None) -> str:
    """`fits` (with the extra room of each moment), `risky` or `does not fit`; `unknown` without a capacity."""
    if capacity is None:
        return "unknown"
    wanted, used = max(total(parts) + room for parts, room in moments), total(peak(moments))
    return "fits" if wanted < FITS_BELOW * capacity else "risky" if used <= capacity else "does not fit"


def memory_moments(run: Run, site: Site, vocabulary: int | None) -> list[Any]:
    """`RankMemory.moments` of all ranks, with libraries and communicators."""
    beside = beside_tensors(run, site)
    return [(parts | beside, room) for parts, room in _moments(run, vocabulary, site.device)]


def beside_tensors(run: Run, site: Site) -> dict[str, int]:
    """{part: bytes} of libraries and communicators."""
    joined = run.layout.cp > 1 and run.layout.data_parallel > 1  # cp joined with fsdp, or else with dp, has one more
    each = site.assumed.communicator_gigabytes if site.device == "cuda" else 0
    return {
        "communicators": int(each * (len(run.layout.dimensions) + joined) * 1e9),
        "libraries": int(site.assumed.library_gigabytes * 1e9),
    }


def total(parts: Any) -> float:
    return sum(parts.values())


def peak(moments: list[Any]) -> Any:
    """{part: bytes} of the moment with the largest total; None without moments."""
    return max((parts for parts, _ in moments), key=total, default=None)


def rank_stages(layout: Layout, layers: int) -> list[list[Stage]]:
    """The Stages of each pipeline rank."""

    def stage(index: int) -> Stage:
        blocks = len(stage_blocks(layers, layout.stages, index))
        return Stage(blocks, index == 0, index == layout.stages - 1, in_flight(layout, index))

    return [[stage(index) for index in held_stages(layout, rank)] for rank in range(layout.pp)]


def in_flight(layout: Layout, stage: int) -> int:
    """Number of micro-batches whose activations a stage holds at once.

    GPipe and looped BFS: all. 1F1B and its variants: the number of stages from this one to the last
    (Narayanan et al. 2021, section 2.2.1; Qi et al. 2023, arXiv:2401.10241, for the zero-bubble schedules).
    """
    if layout.pp == 1:
        return 1
    if layout.pipeline_schedule in ("GPipe", "LoopedBFS"):
        return layout.micro_batches
    return min(layout.micro_batches, layout.stages - stage)


class RankMemory:
    """Memory of one rank by parts, at each moment of a step."""

    def __init__(self, run: Run, sizes: Sizes, device: str, stages: Any) -> None:
        self.run, self.layout, self.sizes, self.stages = run, run.layout, sizes, stages
        self.batch, self.gaps = MicroBatch.of(run, device), GAPS if device == "cuda" else 0
        self.first, self.last = (any(getattr(stage, end) for stage in stages) for end in ("first", "last"))
        self.pipeline = self.layout.pp > 1
        self.fsdp, self.sent = self.layout.uses_fsdp, sent_bytes(run)
        # In a pipeline FSDP keeps parameters gathered and accumulates gradients over micro-batches before it reduces them.
        self.frees = self.fsdp and self.layout.reshard_after_forward and not self.pipeline
        self._count_elements()
        self.kept_block = self.kept = sizes.block_bytes(self.batch)
        # Half-precision copies live until the last micro-batch is done or the evaluation ends.
        self.copies = self.elements * self.batch.compute if self.batch.copies else 0
        self.boundary, self.working = sizes.boundary_bytes(self.batch), sizes.working_bytes(self.batch)
        self.working -= sizes.freed_bytes(self.batch) if self.last else 0
        if run.precision == "float8":  # rounded weights and a rounded factor
            scaled = 1 if self.layout.compile else 3  # without fused kernels also a scaled copy in bf16
            products = sizes.block_operations(self.batch, bool(self.layout.compile)).products
            held = (scaled * p.rows * max(p.inner, p.outputs) + p.inner * p.outputs for p in products if p.weighs)
            self.working += max(held, default=0)
        if self.layout.activation_checkpointing:
            selective = self.layout.activation_checkpointing == "selective"
            self.kept = self.boundary + (sizes.selective_bytes(self.batch) if selective else 0)
        self.logits, self.loss = self._ends_of(self.batch)

    def _ends_of(self, batch: Any) -> tuple[float, Any]:
        """(bytes of all logits, None) for a model that computes them itself, else (0, LossBytes)."""
        split = self.layout.tp > 1 and self.layout.loss_parallel
        loss = self.sizes.loss_bytes(batch) if self.sizes.chunked and (self.layout.tp == 1 or split) else None
        if not self.last:
            return 0, None
        return (self.sizes.logits_bytes(batch, split), None) if loss is None else (0, loss)

    def _count_elements(self) -> None:
        """Count the elements of this rank's parameters, after tensor parallelism and before FSDP."""
        sizes, tp = self.sizes, self.layout.tp
        self.blocks = sum(stage.blocks for stage in self.stages)
        self.block_elements = share(sizes.block_split, tp) + sizes.block_whole
        self.unit_elements = round(self.block_elements * sizes.unit)
        self.head = share(sizes.head, tp) if self.last else 0
        self.embedding = share(sizes.embedding_split, tp) + sizes.embedding_whole if self.first else 0
        own_head = 0 if sizes.tied and self.first else self.head
        # FSDP units outside the blocks: one root, or a root before the blocks and `end` after them.
        self.root = self.embedding + own_head + (sizes.norm if self.last else 0)
        apart = sizes.cut and not sizes.tied and self.layout.fsdp > 1 and not self.pipeline
        self.end = self.root - self.embedding if apart else 0
        self.elements = self.root + round(self.block_elements * self.blocks)
        self.shards = self.layout.of_parameters.fsdp
        self.sharded = share(self.elements, self.shards)

    def moments(self) -> list[Any]:
        """({part: bytes}, bytes of extra room) of each moment."""
        held = [self._loss(), self._output(), self._block(), self._end()]
        if self.fsdp:
            held.append(self._reduce())
        found = [(parts, self._room(parts, self.logits)) for parts in held]
        return found + (self.evaluation() if self.run.workload.training.evaluate else [])

    def _room(self, parts: Any, logits: float) -> float:
        """Extra bytes on GPUs for GAPS, and for one more copy of whole logits.

        PyTorch splits large free blocks for small tensors (`max_split_size_mb` in its "CUDA semantics"), so the largest tensor may find
        none.
        """
        more = logits if parts["logits"] else 0
        return self.gaps and self.gaps * (parts["activations"] + parts["logits"]) + more

    def evaluation(self) -> list[Any]:
        """`moments` of an evaluation: in a block, and where logits and their logarithms exist together."""
        batch = replace(self.batch, samples=self.run.evaluation_batch)
        logits, loss = self._ends_of(batch)
        narrow = batch.compute / 4 if batch.compute < 4 else 0
        held = self._gathered()
        moments = []
        if self.frees:
            # The root is held twice while the first block is gathered; then each block together with the one before.
            arriving = (2 * (self.root - self.end + self.unit_elements) + self.end) * batch.compute
            moments.append(self._parts(self.sizes.boundary_bytes(batch), buffers=arriving))
            held = (self.root + 2 * round(self.block_elements)) * batch.compute
        # Logits from the output layer, their fp32 copy for the loss, and their logarithms.
        held_logits = loss.evaluating if loss else (2 + narrow + self._split_copies()) * logits
        moments.append(self._parts(self.sizes.forward_bytes(batch), buffers=held))
        moments.append(self._parts(0, logits=held_logits, buffers=self._gathered_between()))
        moments = [parts | {"gradients": self._buckets()} for parts in moments]
        return [(parts, self._room(parts, logits)) for parts in moments]

    def _loss(self) -> dict[str, float]:
        logits = self._logit_copies() * self.logits
        if self.loss:
            logits = self.loss.making + self._waiting() * self.loss.kept
        return self._parts(self._activations(), logits=logits, buffers=self._gathered_between())

    def _output(self) -> dict[str, float]:
        # The new gradient exists beside the accumulated one, outside of pipelines still in half precision.
        copy = self.head * self.batch.compute if self.batch.copies else 0
        meets = copy and not self.pipeline and self.run.workload.training.accumulate > 1
        gradient = self._gradients_stay() + (0 if meets else self._head_gradient()) + copy
        buffers = self._gathered_between()
        if self.loss:
            made = 0 if meets or self.loss.scaled == self._head_gradient() else self.loss.scaled
            logits = (1 + self._waiting()) * self.loss.kept + made + self.loss.hidden
            return self._parts(self._activations(), logits=logits, gradients=gradient, buffers=buffers)
        copies = self._logit_copies() - 2 if self.pipeline else 1
        return self._parts(self._activations(), logits=copies * self.logits, gradients=gradient, buffers=buffers)

    def _block(self) -> dict[str, float]:
        recomputed = 0.0
        if self.layout.activation_checkpointing:
            recomputed = self.kept_block - self.kept + self.boundary
        block = self.unit_elements * self.batch.compute
        # The block itself, and two copies of the next while it is gathered: as received and as laid out.
        gathered = self._left() * self.batch.compute + 3 * block if self.frees else self._gathered()
        return self._parts(
            self._activations() + recomputed + self.working,
            gradients=0 if self.end else self._head_gradient(),
            buffers=gathered + self.end * self.sent,  # being sent to the other ranks
        )

    def _reduce(self) -> dict[str, float]:
        if self.pipeline:  # after the last micro-batch, accumulated gradients are reduced unit by unit
            gradients = self.elements * REDUCE_BYTES + self.sharded * self.batch.parameter
            return self._parts(0, gradients=gradients, buffers=self._gathered() + 2 * self.root * self.sent)
        block = self.unit_elements * self.batch.compute
        gathered = self._left() * self.batch.compute + 2 * block if self.frees else self._gathered()
        gathered += block + self.unit_elements * self.sent
        gradients = share(self.end, self.shards) * REDUCE_BYTES if self.end else self._head_gradient()
        return self._parts(self._activations() - self.kept, gradients=gradients, buffers=gathered)

    def _left(self) -> float:
        """Elements outside the blocks that stay gathered during their backward pass: FSDP has reduced the end by then."""
        return self.root - self.end

    def _end(self) -> dict[str, float]:
        if self.pipeline:
            return self._end_of_micro_batch()
        kept, buffers = self.sizes.last_bytes(self.batch), self._gathered()
        gradients = self.sharded * self.batch.parameter
        if self.frees:
            kept, buffers = 0, self._left() * (self.batch.compute + self.sent)
        elif not self.fsdp and not self._gradients_stay():
            gradients -= round(self.block_elements + self.embedding) * self.batch.parameter
        if self.run.reduce_precision != "fp32" and not self.fsdp:  # copies of DDP's buckets
            buffers += self.elements * self.sent
        return self._parts(kept, gradients=gradients, buffers=buffers)

    def _end_of_micro_batch(self) -> dict[str, float]:
        waiting = 0 if self._gradients_stay() else 1
        stages = [replace(stage, in_flight=max(0, stage.in_flight - 1 - waiting)) for stage in self.stages]
        embedding = self.embedding * self.batch.parameter if self.layout.micro_batches > 1 else 0
        gradients = self.elements * (REDUCE_BYTES if self.fsdp else self.batch.parameter)
        return self._parts(self._activations(stages), gradients=gradients + embedding, buffers=self._gathered())

    def _parts(self, kept: float, logits: float = 0, gradients: float = 0, buffers: float = 0) -> dict[str, float]:
        states = self.sharded * self.batch.parameter
        # The first rank of a parameter server also holds the server's weights and its own previous ones.
        served = 2 * states if self.run.averaging == "server" else 0
        return {
            "parameters": states,
            "gradients": max(gradients, self._gradients_stay()),
            "optimizer": states * OPTIMIZER_COPIES[self.run.workload.optim.name],
            "activations": kept,
            "logits": logits,
            "buffers": buffers + self.copies + self._received() + served,
        }

    def _activations(self, stages: Any = None) -> float:
        """Bytes kept for the backward pass by all micro-batches in flight."""
        stages = self.stages if stages is None else stages
        shared = self.sizes.shared_bytes(self.batch)
        kept = sum(stage.in_flight * (stage.blocks * self.kept + shared) for stage in stages)
        kept += sum(stage.in_flight for stage in stages if stage.first) * self.sizes.start_bytes(self.batch)
        return kept + sum(stage.in_flight for stage in stages if stage.last) * self.sizes.ends_bytes(self.batch)

    def _logit_copies(self) -> float:
        """Copies of the logits: two per micro-batch in flight, two more while gradients are computed.

        Without a pipeline the output itself is not kept.
        """
        return self._split_copies() + (4 + 2 * self._waiting() if self.pipeline else 3)

    def _waiting(self) -> int:
        """Other micro-batches of a pipeline that are past the loss and wait for their backward pass."""
        return max(stage.in_flight for stage in self.stages if stage.last or not self.last) - 1

    def _split_copies(self) -> float:
        if self.layout.tp == 1 or not self.sizes.splits_logits:
            return 0
        return 1 if self.layout.loss_parallel else 1 / self.layout.tp

    def _head_gradient(self) -> float:
        return self.head * (self.batch.compute if self.fsdp else self.batch.parameter)

    def _gradients_stay(self) -> float:
        """Bytes of gradients that exist throughout the forward pass.

        DDP never frees its buckets. With accumulation, gradients of earlier parts exist too, outside the buckets until the last part.
        """
        if self.pipeline:
            most = max(stage.in_flight for stage in self.stages)
            if self.layout.micro_batches <= most and self.run.workload.training.accumulate == 1:
                return 0
            return self.elements * (REDUCE_BYTES if self.fsdp else self.batch.parameter)
        kept = self.elements if self.layout.reduce == "step" else self.sharded
        several = self.run.workload.training.accumulate > 1
        return self._buckets() + (kept * self.batch.parameter if several else 0)

    def _buckets(self) -> float:
        held = self.layout.dp > 1 and not self.fsdp and not self.run.average_every
        return self.sharded * self.batch.parameter if held else 0

    def _gathered(self) -> float:
        return self.elements * self.batch.compute if self.fsdp and not self.frees else 0

    def _gathered_between(self) -> float:
        """Bytes of parameters that FSDP keeps gathered between forward and backward pass: the root, or all if it does not reshard."""
        return self.root * self.batch.compute if self.frees else self._gathered()

    def _received(self) -> float:
        """Bytes of a pipeline's receive buffers, one per direction; blocks keep those of micro-batches in flight as their inputs."""
        return sum((not stage.first) + (not stage.last) for stage in self.stages) * self.boundary


def saved_bytes(run: Run, vocabulary: int | None) -> int | None:
    """Bytes of a resumable checkpoint: fp32 weights and optimizer state; None if shapes are unknown."""
    sizes = model_sizes(run.workload.model, vocabulary, *run.workload.sizes)
    return None if sizes is None else 4 * sizes.count * (1 + OPTIMIZER_COPIES[run.workload.optim.name])
