"""A model's sizes for plans, without building it: parameter elements, operations, and activation bytes.

Floating-point operations follow Chowdhery et al. 2022 (PaLM), arXiv:2204.02311, appendix B: for Transformers 6 N + 12 L T D per
token (forward and backward), with N the elements of matrices that tokens pass through, L layers, T window, D width. Attention
is counted in full, as if not causal, so that figures are comparable with published ones. Recomputation takes time but is not
counted as useful work.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

CHUNK_ELEMENTS = 2**28  # logits in one chunk: 0.5 GiB in bf16
ALIGNED = 128  # bytes: rows of logits should be whole cache lines for tensor cores
NUMBER_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "float8": 2}  # per number in the computation
BACKWARD = 2  # a backward pass costs twice a forward pass: gradients of inputs and of weights


def share(count, parts):
    """The largest of `parts` nearly equal shares of `count`."""
    return math.ceil(count / parts)


def padded(entries, element):
    """Vocabulary entries of `element` bytes each, padded to a non-zero multiple of ALIGNED bytes."""
    line = ALIGNED // element
    return max(1, share(entries, line)) * line


def chunk_tokens(tokens, width):
    """How many tokens' logits, of `width` each, the loss computes at once: all, or the largest of equal parts."""
    least = max(1, share(tokens, max(1, CHUNK_ELEMENTS // max(1, width))))
    # Chunks of equal size if possible: `torch.compile` makes a graph for each size.
    parts = next((parts for parts in range(least, 2 * least) if tokens % parts == 0), least)
    return max(1, share(tokens, parts))


def repeats(ranks, keys):
    """How often to repeat each of `keys` key and value heads so that `ranks` get equal parts."""
    return ranks // math.gcd(ranks, keys)


@dataclass(frozen=True)
class MicroBatch:
    """The samples that a rank computes at once, how tensor and context parallelism split them, and bytes per element by use."""

    samples: int
    tp: int
    sequence_parallel: bool
    parameter: int
    compute: int  # bytes per element in forward and backward passes
    copies: bool  # weights have half-precision copies that FSDP does not make
    device: str = "cuda"
    cp: int = 1
    separate: bool = False  # documents in a window do not see each other

    @classmethod
    def of(cls, run, device="cuda"):
        layout = run.layout
        split = layout.tp > 1 and layout.sequence_parallel
        compute = NUMBER_BYTES[run.precision]
        copies = compute < 4 and not layout.uses_fsdp
        separate = run.workload.training.documents == "separate"
        return cls(run.micro_batch, layout.tp, split, max(4, compute), compute, copies, device, layout.cp, separate)


@dataclass(frozen=True)
class Product:
    """A matrix product of `rows × inner` by `inner × outputs`. A convolution is one too, with its output positions as rows.

    again: selective recomputation repeats it. None: no recomputation does, since no later operation needs its result. weighs: the
    `inner × outputs` matrix is a weight, not keys or values of explicit attention.
    """

    rows: float
    inner: float
    outputs: float
    again: bool | None = True
    weighs: bool = True

    @property
    def flops(self):
        """Operations, counting multiplication and addition as two."""
        return 2 * self.rows * self.inner * self.outputs

    @property
    def elements(self):
        return self.rows * self.inner + self.inner * self.outputs + self.rows * self.outputs


@dataclass(frozen=True)
class Operations:
    """Operations of a rank in a forward pass of a micro-batch.

    attention: operations of flash attention (without masked positions). moved: bytes that all other operations move to and from memory.
    kernels: number of kernel launches. element: bytes per element in a product. drawn: bytes moved to draw dropout masks, in the forward
    pass only.
    """

    products: tuple = ()
    attention: float = 0.0
    moved: float = 0.0
    kernels: int = 0
    element: int = 2
    drawn: float = 0.0

    def plus(self, other):
        """The sum with other operations of the same element size."""
        names = ("products", "attention", "moved", "kernels", "drawn")
        return replace(self, **{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True)
class LossBytes:
    """Bytes of a loss that computes its logits in chunks. making, evaluating: during the loss, with and without gradients. kept: gradient
    of the output matrix, held until the backward pass; scaled: the backward pass's scaled copy. hidden: gradient of the layer's input.
    """

    making: float
    evaluating: float
    kept: float
    scaled: float
    hidden: float


def loss_bytes(batch: MicroBatch, tokens: int, vocabulary: int, width: int) -> LossBytes:
    """For `parascale.families.head`: a chunk's logits and their fp32 copy, or their gradient and that of the matrix."""
    compute, entries = batch.compute, share(vocabulary, batch.tp)
    rows, exact = padded(entries, compute), max(4, compute)
    chunk, matrix = chunk_tokens(tokens, rows), rows * width
    logits, several = chunk * rows * compute, chunk < tokens
    hidden = tokens * width * compute
    filled = hidden + (matrix * compute if rows != entries else 0)
    scored = logits + (chunk * rows * 4 if compute < 4 else 0)
    kept = matrix * (exact if several else compute)
    making = filled + (kept if several else 0) + max(scored, logits + matrix * compute)
    return LossBytes(making, filled + scored, kept, entries * width * kept / matrix, hidden)


Bytes = Callable[[MicroBatch], float]


class Sizes:
    """Sizes of a sequence of blocks between an embedding (or a stem) and an output layer.

    The constructor sets fields without a default. Elements are parameter elements; those that tensor parallelism splits and those
    that every rank of a `tp` group holds are separate fields. If blocks differ, fields are their mean.
    """

    layers: int  # blocks
    block_whole: float
    block_split: float = 0
    embedding_whole: int = 0
    embedding_split: int = 0
    norm: int = 0  # the final norm
    head: int = 0  # the output layer, even if tied to the embedding
    tied: bool = False
    cut: bool = False  # a `pipeline_plan` names the modules before and after the blocks: FSDP units unless tied
    unit: float = 1.0  # the largest FSDP unit, as a fraction of a block
    block_flops: float  # operations of a block's forward pass on one sample
    ends_flops: float  # operations outside the blocks
    norms: int = 0  # number of batch norms, which exchange `statistics` elements in total
    statistics: int = 0
    targets: int = 1  # labels per sample that count in the loss
    splits_logits: bool = True  # tensor parallelism splits the logits
    chunked: bool = True  # the loss computes logits in chunks if `loss_bytes` says so; False: all at once

    # Operations of a block, and of everything else including the loss. The flag: `torch.compile` fuses operations.
    block_operations: Callable[[MicroBatch, bool], Operations]
    ends_operations: Callable[[MicroBatch, bool], Operations]
    block_bytes: Bytes  # kept by one block for the backward pass
    selective_bytes: Bytes  # kept of that with selective recomputation, besides the block's input
    boundary_bytes: Bytes  # the tensor between two blocks: checkpointing keeps it, and a pipeline sends it
    forward_bytes: Bytes  # peak of a block in a forward pass without a backward pass
    working_bytes: Bytes  # activation gradients that the last block's backward pass holds at once
    ends_bytes: Bytes  # kept outside the blocks, without logits
    split_bytes: Bytes  # tensor that tensor parallelism gathers or reduces at once
    # In the precision of the loss, at least fp32. The flag: logits are split over ranks.
    logits_bytes: Callable[[MicroBatch, bool], float]
    loss_bytes: Callable[[MicroBatch], LossBytes | None]  # None if the model computes the logits itself

    @property
    def block(self):
        return self.block_split + self.block_whole

    @property
    def count(self):
        """All parameters, counting a tied matrix once."""
        ends = self.embedding_split + self.embedding_whole + self.norm + (0 if self.tied else self.head)
        return ends + round(self.layers * self.block)

    @property
    def flops_per_target(self):
        """Useful operations to train on one target token or image; padding counts as tokens."""
        return (1 + BACKWARD) * (self.layers * self.block_flops + self.ends_flops) / self.targets

    def recomputed_operations(self, batch, fused, selective):
        """Operations of a block that recomputation repeats: torch stops once it has everything that the backward pass needs."""
        operations = self.block_operations(batch, fused)
        products = tuple(p for p in operations.products if (p.again if selective else p.again is not None))
        return replace(operations, products=products, attention=0.0 if selective else operations.attention)

    def exchanged_bytes(self, batch):
        """A rank's queries, keys, values and result of a block's attention, which context parallelism exchanges."""
        return 0

    def start_bytes(self, batch):
        """Kept before the blocks, unless `block_bytes` includes it."""
        return 0

    def shared_bytes(self, batch):
        """Kept once for all blocks of a stage."""
        return 0

    def freed_bytes(self, batch):
        """The part of `ends_bytes` that is freed before `working_bytes` are held, unless these account for it."""
        return 0

    def last_bytes(self, batch):
        """Kept activations and activation gradients at the end of the backward pass."""
        return self.block_bytes(batch) + self.working_bytes(batch)
