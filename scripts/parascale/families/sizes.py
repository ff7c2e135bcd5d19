"""Figures of a model for plans: elements of its parameters, operations, and bytes of activations, without building it.

Floating-point operations after Chowdhery et al. 2022 (PaLM), arXiv:2204.02311, appendix B: for Transformers 6 N + 12 L T D a
token (forward and backward), with N the elements of matrices that tokens pass through, L layers, T window, D width. Attention
is counted in full, as if not causal, so that figures can be set beside others'. Recomputation is not counted as useful work; it
takes time though.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

CHUNK_ELEMENTS = 2**28  # logits at once: 0.5 GiB in bf16
ALIGNED = 128  # bytes: tensor cores want rows of logits that are whole cache lines
NUMBER_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "float8": 2}  # of what is computed with
BACKWARD = 2  # a backward pass costs twice a forward pass: gradients of inputs and of weights


def share(count, parts):
    """The largest of `parts` nearly equal shares of `count`."""
    return math.ceil(count / parts)


def padded(entries, element):
    """Entries of a vocabulary, of `element` bytes each, and what fills them up to a multiple of ALIGNED, not 0."""
    line = ALIGNED // element
    return max(1, share(entries, line)) * line


def chunk_tokens(tokens, width):
    """The number of tokens whose logits, each of `width`, the loss makes at once: all, or the largest of equal parts."""
    least = max(1, share(tokens, max(1, CHUNK_ELEMENTS // max(1, width))))
    # Chunks of one size, where the tokens allow it: `torch.compile` makes a graph for each size.
    parts = next((parts for parts in range(least, 2 * least) if tokens % parts == 0), least)
    return max(1, share(tokens, parts))


def repeats(ranks, keys):
    """How often each of `keys` heads of keys and values is there, so that `ranks` have equal parts of them."""
    return ranks // math.gcd(ranks, keys)


@dataclass(frozen=True)
class MicroBatch:
    """The samples that a rank computes at once, how tensor and context parallelism split them, and bytes of an element by its use."""

    samples: int
    tp: int
    sequence_parallel: bool
    parameter: int
    compute: int  # what the forward and backward pass work with
    copies: bool  # weights have copies in half precision, where FSDP does not gather them so
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
    """A matrix product: `rows × inner` by `inner × outputs`; a convolution as one, over the places of its output.

    again: selective recomputation performs it again. None: none does, as nothing behind it asks for its result. weighs: `inner × outputs`
    are weights, not keys or values of explicit attention.
    """

    rows: float
    inner: float
    outputs: float
    again: bool | None = True
    weighs: bool = True

    @property
    def flops(self):
        """Operations, of multiplication and addition as two."""
        return 2 * self.rows * self.inner * self.outputs

    @property
    def elements(self):
        return self.rows * self.inner + self.inner * self.outputs + self.rows * self.outputs


@dataclass(frozen=True)
class Operations:
    """Operations of a rank in a forward pass of a micro-batch.

    attention: operations that flash attention performs (masked places not). moved: bytes that all else moves to and from memory.
    kernels: how many are started. element: bytes of an element in a product. drawn: bytes that dropout's masks move: the backward pass
    draws none.
    """

    products: tuple = ()
    attention: float = 0.0
    moved: float = 0.0
    kernels: int = 0
    element: int = 2
    drawn: float = 0.0

    def plus(self, other):
        """These and others of the same element."""
        names = ("products", "attention", "moved", "kernels", "drawn")
        return replace(self, **{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True)
class LossBytes:
    """Bytes of a loss that makes its logits in chunks. making, evaluating: while it is made, with gradients and without. kept: the
    gradient of
    the output layer's matrix, which waits for the backward pass; scaled: what that makes of it. hidden: likewise the gradient of its input.
    """

    making: float
    evaluating: float
    kept: float
    scaled: float
    hidden: float


def loss_bytes(batch: MicroBatch, tokens: int, vocabulary: int, width: int) -> LossBytes:
    """`parascale.families.head`: the logits of a chunk and their copy in fp32, or their gradient and that of the matrix."""
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
    """A model that is a sequence of blocks between an embedding (or a stem) and an output layer.

    Its constructor sets what has no default here. Elements are those of parameters; what tensor
    parallelism splits stands apart from what every rank of a `tp` group holds whole. Blocks that differ count by their mean.
    """

    layers: int  # blocks
    block_whole: float
    block_split: float = 0
    embedding_whole: int = 0
    embedding_split: int = 0
    norm: int = 0  # of the end
    head: int = 0  # the output layer, also where it is tied to the embedding
    tied: bool = False
    cut: bool = False  # a `pipeline_plan` says what stands before the blocks and after them: FSDP's units, if not tied
    unit: float = 1.0  # the most that FSDP gathers at once, as part of a block
    block_flops: float  # operations of a block's forward pass on one sample
    ends_flops: float  # of what stands outside of the blocks
    norms: int = 0  # those of batches: what ranks tell each other of each, in `statistics` elements of all together
    statistics: int = 0
    targets: int = 1  # labels of a sample that enter the loss
    splits_logits: bool = True  # tensor parallelism makes them in parts
    chunked: bool = True  # the loss makes its logits in chunks, where `loss_bytes` says so; False: all at once, as other programs do

    # Of a block, and of what stands outside of the blocks with the loss; whether `torch.compile` joins what moves memory.
    block_operations: Callable[[MicroBatch, bool], Operations]
    ends_operations: Callable[[MicroBatch, bool], Operations]
    block_bytes: Bytes  # kept by one block for the backward pass
    selective_bytes: Bytes  # kept of that with selective recomputation, beside what goes from block to block
    boundary_bytes: Bytes  # what goes from a block to the next: checkpointing keeps it, and a pipeline sends it
    forward_bytes: Bytes  # the most that a block holds in a forward pass without a backward pass
    working_bytes: Bytes  # gradients of activations that the backward pass of the last block holds at once
    ends_bytes: Bytes  # kept outside of the blocks, logits apart
    split_bytes: Bytes  # what tensor parallelism gathers or reduces at once
    # In the precision of the loss, fp32 at least; whether each rank has its part.
    logits_bytes: Callable[[MicroBatch, bool], float]
    loss_bytes: Callable[[MicroBatch], LossBytes | None]  # None of a model that makes its logits itself

    @property
    def block(self):
        return self.block_split + self.block_whole

    @property
    def count(self):
        """All parameters, a tied matrix once."""
        ends = self.embedding_split + self.embedding_whole + self.norm + (0 if self.tied else self.head)
        return ends + round(self.layers * self.block)

    @property
    def flops_per_target(self):
        """Useful operations to train on one target token, or one image; padding counts as if it were tokens."""
        return (1 + BACKWARD) * (self.layers * self.block_flops + self.ends_flops) / self.targets

    def recomputed_operations(self, batch, fused, selective):
        """Operations of a block that recomputation performs again: torch stops once it has all that the backward pass asks for."""
        operations = self.block_operations(batch, fused)
        products = tuple(p for p in operations.products if (p.again if selective else p.again is not None))
        return replace(operations, products=products, attention=0.0 if selective else operations.attention)

    def exchanged_bytes(self, batch):
        """What a rank holds of queries, keys, values and result of a block's attention, which context parallelism exchanges."""
        return 0

    def start_bytes(self, batch):
        """Kept of what stands before the blocks, where `block_bytes` leaves it out."""
        return 0

    def shared_bytes(self, batch):
        """Kept once for all blocks of a stage."""
        return 0

    def freed_bytes(self, batch):
        """Of `ends_bytes` what is free again when `working_bytes` are held, where these leave it out."""
        return 0

    def last_bytes(self, batch):
        """Kept, and held as gradients of activations, while the backward pass ends."""
        return self.block_bytes(batch) + self.working_bytes(batch)
