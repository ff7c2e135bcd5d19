"""What the code of other stacks does otherwise than ours, where memory or time show it; where that is to be read stands beside each.

Paths at Aleph Alpha are those of Aleph-Alpha/scaling, `src/scaling`, which was published in 2024: its runs are of 2023.
"""

import re
from dataclasses import replace

from parascale.families.language.sizes import kv_width, mixed_width
from parascale.plan.memory import RankMemory, Stage, rank_stages
from parascale.plan.time import gpu_kind
from parascale.plan.work import all_reduce, half_ring, parameter_bytes

# Whose code a source ran. A plan is for ours, which is torch's; what others reach with kernels of their own is shown beside it.
STACKS = {
    "aleph-alpha": "megatron",
    "bigscience": "deepspeed-2021",
    "lumi": "deepspeed-2021",
    "megatron": "megatron",
    "megatron-h100": "nvidia",
    "dgxc": "nvidia",
    "jubench": "megatron",
    "caraml": "megatron",
    "maxtext": "maxtext",
}
# What the code of a source does where its table says nothing. Megatron-LM drops 0.1 of the attention weights and of what layers give
# (`--attention-dropout`, `--hidden-dropout`): FlashAttention came a year after its paper of 2021.
# Sequence parallelism came to Megatron-LM after the code of BigScience and LUMI had left it.
# Its JIT joins bias, GELU, dropout and sums (`fused_bias_gelu.py`, `bias_dropout_add_fused_train`), whatever its loss does.
DEEPSPEED = {"sequence_parallel": "false", "compile": "true"}
# KempnerForge makes its loss of all logits, which ranks of `tp` gather (training/loss.py, distributed/tensor_parallel.py), Aleph Alpha too
# (transformer/model/losses/cross_entropy.py, layers/lm_head.py); there one kernel a norm, if any, is all that is joined. torchtitan's loss
# of 2024 took all logits. DeepSpeed shares its states with bf16 at any stage (bf16_optimizer.py), NeMo by its `mcore_distributed_optim`.
# fms-fsdp sums in bf16 (policies/mixed_precision.py), torchtitan in fp32 (`mixed_precision_reduce` in config/job_config.py) where FSDP does.
USUAL = {
    "megatron": {"dropout": "0.1"},
    "bigscience": DEEPSPEED,
    "lumi": DEEPSPEED | {"zero": "1"},
    "aleph-alpha": {"compile": "false", "loss_parallel": "false"},
    "dgxc": {"zero": "1"},
    "kempner": {"chunked": "false", "loss_parallel": "false"},
    "torchtitan": {"chunked": "false"},
    "fms-fsdp": {"reduce_precision": "bf16"},
    "oellm-titan": {"reduce_precision": "fp32"},
}
# What rows say in words, as the cells of a layout. ZeRO-1 is FSDP that keeps parameters gathered and reduces once a step.
SAID = {
    "sequence_parallel=false|no sequence parallelism": {"sequence_parallel": "false"},
    "reshard_after_forward=false": {"reshard_after_forward": "false"},
    "ZeRO-1|[Dd]istributed optimizer": {"zero": "1"},
    "not in chunks": {"chunked": "false"},
    "reduced in bf16": {"reduce_precision": "bf16"},
    "all states in bf16": {"states": "bf16"},
}
# Prices of a source's code over those of ours. FlashAttention 2 is 1.3 to 1.5 times as fast as the Triton kernel of MPT's attention in
# its forward pass, and twice in its backward pass (Dao 2023, arXiv:2307.08691, section 4.1), which has 2.5 times the operations.
TRITON = {"attention": (1.4 + 2.5 * 2) / 3.5}
PRICES = {"llm-foundry": TRITON}  # where a row does not say it
# On Hopper torch's own attention was FlashAttention 2 before it was cuDNN: 286 TFLOP/s (its pull request 1791: 8,192 tokens, causal,
# heads of 128, forward and backward on H100) to 335 (Dao 2023, arXiv:2307.08691, figure 7) of 989.
# Where nobody says which it was, it was that. NVIDIA's code has kernels of its own, and torch of 2026 cuDNN's.
FLASH2, OTHER_ATTENTION = 0.32, ("megatron", "megatron-h100", "dgxc", "maxtext", "oellm-titan")
# These hold parameters and gradients whole on each rank, in half precision, and the optimizer's fp32 states in shares (ZeRO-1).
WHOLE = ("megatron", "nvidia", "deepspeed-2021")
# Bytes of a gradient's element there. Half: where autograd sums it (core/optimizer/parameter_group.py; DeepSpeed's stage_1_and_2.py) or
# buckets are in bf16 (`grad_sync_dtype` in NeMo-Framework-Launcher); with bf16 DeepSpeed holds fp32 beside it (bf16_optimizer.py).
# Megatron-LM's `main_grad` is fp32.
HALF, MAIN, BESIDE_BF16 = 2, 4, 4
# What summing that of a micro-batch moves for each element: by autograd, and in fp32 at the end of the product itself.
SUMMED, SUMMED_IN_PRODUCT = 6, 8
# An RMSNorm of single operations, in fp32 as in Llama's own code, reads and writes 36 bytes an element in its forward pass and twice that
# backward, where one kernel takes 4; it keeps its input in fp32, and its result before the weights.
NORM_MOVED, NORM_KEPT = 32, 4
NORM = 4  # bytes that one kernel moves for each of its elements
# torchtitan's DDP computes under autocast (`maybe_enable_amp` in distributed/utils.py), which makes norms in fp32 (ATen/autocast_mode.h): their
# input is widened, and each product or attention behind them narrows it again, rotated in fp32. `torch.compile` joins that.
AUTOCAST_SOURCES, CAST, WIDE, ROTATED = ("torchtitan", "oellm-titan"), 6, 4, 16


class Whole(RankMemory):
    """A rank of WHOLE. gradient: bytes of an element."""

    gradient = MAIN

    def _parts(self, kept, logits=0, gradients=0, buffers=0):
        whole = {"gradients": self.elements * self.gradient, "buffers": self.elements * HALF + self._received()}
        return super()._parts(kept, logits) | whole


def halved(row):
    """Whether a Row's gradients are summed in half precision."""
    return row.source in ("aleph-alpha", "dgxc", "bigscience", "lumi")


def moments(row):
    """`RankMemory.moments` of all ranks of a Row, as its stack holds them."""
    kind = RankMemory
    if row.stack in WHOLE:
        beside = BESIDE_BF16 if row.stack == "deepspeed-2021" and not row.said("fp16") else 0
        kind = type("Stack", (Whole,), {"gradient": HALF + beside if halved(row) else MAIN})
    return [moment for held in stages(row) for moment in kind(row.run, row.sizes, "cuda", held).moments()]


def stages(row):
    """For each pipeline rank the list of its Stages."""
    layout, layers = row.run.layout, row.sizes.layers
    chunks = re.search(r"VP=(\d+)", row.cells.get("assumed", ""))
    if row.source == "aleph-alpha":
        return [[_with_ends(layout, layers, rank)] for rank in range(layout.pp)]
    return list(_interleaved(layout, layers, int(chunks[1]))) if chunks else rank_stages(layout, layers)


def _with_ends(layout, layers, rank):
    """Embedding, blocks, norm and output layer count alike (core/nn/parallel_module/pipeline_partitioning.py)."""
    size, rest = divmod(layers + 3, layout.pp)
    start = rank * size + min(rank, rest)
    blocks = min(start + size + (rank < rest), layers + 1) - max(start, 1)
    return Stage(blocks, rank == 0, rank == layout.pp - 1, min(layout.micro_batches, layout.pp - rank))


def _interleaved(layout, layers, chunks):
    """Several stages a rank: as many forward passes ahead, in rounds of `pp`, as Megatron-LM's pipeline_parallel/schedules.py makes."""
    pp, blocks = layout.pp, layers // layout.pp // chunks
    for rank in range(pp):
        ahead = min((chunks - 1) * pp + 2 * (pp - rank - 1) + 1, chunks * layout.micro_batches)
        rounds, left = divmod(ahead, chunks * pp)
        flights = (rounds * pp + min(pp, max(0, left - chunk * pp)) for chunk in range(chunks))
        yield [
            Stage(blocks, rank == chunk == 0, rank == pp - 1 and chunk == chunks - 1, flight)
            for chunk, flight in enumerate(flights)
        ]


def changed(row, sizes):
    """`sizes`, changed to what a Row's code keeps, moves and makes again."""
    block_bytes, block, ends = sizes.block_bytes, sizes.block_operations, sizes.ends_operations
    norms = 2 * (row.source == "aleph-alpha" and row.cells.get("tuned") != "true")  # of single operations
    fused, model = row.run.layout.compile, sizes.model
    casts = row.source in AUTOCAST_SOURCES and row.run.layout.fsdp == 1 and not fused
    # Of a residual stream: two norms, and products of queries, keys and values, of up and perhaps gate. Of queries and keys: theirs.
    beside = casts * (2 * (CAST + WIDE) + CAST * (3 + 1 + (model.activation == "swiglu")))
    query_key = (
        row.said("query-key norm") * (NORM + casts * (2 * CAST + WIDE + ROTATED)) * (row.stack != "torch" or not fused)
    )

    def kept(batch):
        size = block_bytes(batch) + norms * NORM_KEPT * sizes.stream(batch) * sizes.model.dim
        if row.stack in WHOLE and row.source != "aleph-alpha":
            # What products take is kept in parts and gathered again (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2).
            size -= 2 * (sizes.split_bytes(batch) - sizes.boundary_bytes(batch))
        return size

    def of_block(batch, fused):
        made = block(batch, fused)
        more = (norms * NORM_MOVED + beside) * sizes.stream(batch) * model.dim
        more += query_key * sizes.tokens(batch) * (mixed_width(model) + kv_width(model)) / batch.tp
        return replace(made, moved=made.moved + more)

    def of_ends(batch, fused):
        made, others = ends(batch, fused), sizes.tokens(batch) * sizes.vocabulary * (1 - 1 / batch.tp)
        return replace(made, moved=made.moved + others * (batch.compute + 8))

    def again(batch, fused, selective):
        return type(sizes).recomputed_operations(sizes, batch, fused, True) if selective else of_block(batch, fused)

    sizes.block_operations = of_block
    # Their own checkpoints make all of a block again, where torch's stop at what the backward pass asks for.
    if row.stack != "torch":
        sizes.recomputed_operations, sizes.block_bytes = again, kept
    if not row.run.layout.loss_parallel:  # each rank makes the loss of all logits, which are gathered
        sizes.ends_operations = of_ends
    return sizes


def adjusted(row, work):
    """The Work of a Row with its code's collectives and sums of gradients."""
    ranks = (RankMemory(row.run, row.sizes, "cuda", held) for held in stages(row))
    return replace(work, ranks=tuple(_rank(row, *pair) for pair in zip(work.ranks, ranks, strict=True)))


def _rank(row, work, rank):
    layout, batch = row.run.layout, rank.batch
    if not layout.loss_parallel and rank.last:
        size = rank.sizes.tokens(batch) * rank.sizes.vocabulary * batch.compute
        logits = half_ring(layout, "tp", size, row.site.node_pairs and row.site.gpus_per_node)
        work = replace(work, root_gather=work.root_gather.plus(logits))
    # The gradients of what products take, scattered or summed one by one: of queries, keys and values, gate and up
    # (kempnerforge/distributed/tensor_parallel.py), and of gate and up (core/nn/linear/column_parallel_linear.py).
    more = {"kempner": 0.75, "aleph-alpha": 0.0 if batch.sequence_parallel else 0.5}.get(row.source, 0.0)
    if row.stack == "megatron" and row.source != "aleph-alpha":  # hidden, but for what computing is longer by
        more = (0.5 if batch.sequence_parallel else 1.0) * (gpu_kind(row.site)["interference"] - 1)
    work = replace(work, split_backward=work.split_backward.plus(work.split.times(more)))
    if row.told.get("states") == "bf16":  # nothing is copied to half precision, and DDP sums it
        copied, _ = parameter_bytes(row.run, batch)
        work = replace(work, update=work.update._replace(moved=work.update.moved / 2))
        if not layout.uses_fsdp:
            work = _moving(work, rank, -copied, -copied)
            work = replace(work, gradients=work.gradients.times(0.5))
    if row.stack not in WHOLE:
        return work
    work = _with_sums(row, work, rank)
    if row.source != "aleph-alpha":
        return work
    # Gradients are summed whole, in fp32, when all is computed, and then parameters gathered (core/optimizer/allreduce.py).
    sums = all_reduce(layout, "fsdp", rank.elements * 4).plus(half_ring(layout, "fsdp", rank.elements * batch.compute))
    return replace(work, gradients=sums, buckets=1)


def _with_sums(row, work, rank):
    """Parameters stay in half precision; gradients of micro-batches are summed as they come."""
    copied, summed = parameter_bytes(row.run, rank.batch)
    theirs = (SUMMED if halved(row) else SUMMED_IN_PRODUCT) * (1 - 1 / row.run.micro_batches)
    return _moving(work, rank, -copied, theirs - summed)


def _moving(work, rank, forward, backward):
    """The work of a rank that moves so many bytes more for each of its parameters in its passes."""

    def moving(load, more, elements):
        return load._replace(moved=load.moved + more * elements)

    return replace(
        work,
        forward=moving(work.forward, forward, rank.block_elements),
        backward=moving(work.backward, backward, rank.block_elements),
        ends_forward=moving(work.ends_forward, forward, rank.root),
        ends_backward=moving(work.ends_backward, backward, rank.root),
    )
