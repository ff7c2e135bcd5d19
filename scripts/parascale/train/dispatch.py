"""Count a model's operations and live memory, operation by operation, while it runs on meta tensors."""

import weakref
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from parascale.parallel.recompute import DEAR, PRODUCTS

# Components of an amount: split by tensor parallelism, split only with sequence parallelism, never split.
SPLIT, SEQUENCE, WHOLE = range(3)
AMOUNTS = ("attention", "moved", "joined", "drawn", "masks")
MATRICES = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")  # arguments of torch's attention


def nothing() -> Any:
    """A zero amount."""
    return np.zeros(3)


class Computed:
    """Counts of computation. full: operations, including masked positions of attention. joined: bytes moved outside matrix products if
    all operations between two products are fused into one kernel (`joins` kernels); moved: the same without fusion (`kernels` kernels).
    drawn: bytes moved by the `draws` kernels for random numbers and their masks. products: number of calls by product.
    """

    def __init__(self) -> None:
        self.products: Counter[Any] = Counter()
        self.full, self.kernels, self.joins, self.draws = 0.0, 0, 0, 0
        self.amounts = {name: nothing() for name in AMOUNTS}


class AttentionMode(TorchFunctionMode):
    """Record whether torch's attention is called, and with dropout. on_gpus: behave as on GPUs, where kernels apply dropout themselves
    and none supports fp64."""

    def __init__(self, on_gpus: bool) -> None:
        super().__init__()
        self.on_gpus, self.called, self.drops = on_gpus, False, False

    def __torch_function__(self, function: Any, kinds: Any, arguments: Any = (), keywords: Any = None) -> Any:
        if function is not F.scaled_dot_product_attention:
            return function(*arguments, **(keywords or {}))
        given = dict(zip(ARGUMENTS, arguments, strict=False)) | (keywords or {})
        self.called, self.drops = True, self.drops or given.get("dropout_p", 0.0) > 0
        if self.on_gpus:
            given["dropout_p"] = 0.0
        explicit = self.on_gpus and given["query"].itemsize == 8
        with sdpa_kernel(SDPBackend.MATH) if explicit else nullcontext():
            return function(**given)


@dataclass
class Held:
    """A live storage. order: its creation index. stretch: the run of operations between products that created it, or None."""

    size: int
    part: int
    order: int
    stretch: int | None = None
    written: bool = False


class LiveBytes(TorchDispatchMode):
    """Track the bytes of live storages, without the `known` ones, and their peak; `work` counts what is Computed.

    known: existing storage → True if it is split. rest: the component for tensors that are not split.
    """

    def __init__(self, known: dict[int, bool], rest: int) -> None:
        super().__init__()
        self.known, self.rest, self.held = known, rest, {}
        self.live, self.peak = nothing(), nothing()
        self.work: Any = None
        self.order, self.stretch, self.read = 0, 0, set()
        self.begin_block(0)

    def begin_block(self, products: int) -> None:
        """Start a block with `products` matrix products. `dear` then counts the bytes that selective recomputation keeps."""
        self.products, self.number, self.dear = products, 0, nothing()
        self.last: Any = None

    def end_block(self, result: torch.Tensor) -> None:
        """End a block. Its last product is recomputed if its result, or a later one other than the block's own result, is kept."""
        if self.last is not None and self.work is not None:
            product, order = self.last
            again = any(each.order > order for key, each in self.held.items() if key != key_of(result))
            self.work.products[*product, True if again else None] += 1
        self.last = None

    def __torch_dispatch__(self, function: Any, kinds: Any, arguments: Any = (), keywords: Any = None) -> Any:
        result = function(*arguments, **(keywords or {}))
        inputs, results = tensors_of((arguments, keywords)), tensors_of(result)
        split = [self._is_split(key) for key in map(key_of, inputs)]
        summed = function in MATRICES and all(split[-2:])  # it sums over a split dimension
        part = SPLIT if any(split) and not summed else self.rest
        if self.work is not None:
            causal = any(each is True for each in (*arguments, *(keywords or {}).values()))
            self._count(function, inputs, results, split, part, causal)
        for each in results:
            self._take(each.untyped_storage(), part, None if _multiplies(function) else self.stretch)
        return result

    def place(self, part: int, *tensors: torch.Tensor) -> None:
        """Assign tensors to a component."""
        for held in (self.held[key] for key in map(key_of, tensors) if key in self.held):
            self.live[held.part] -= held.size
            self.live[part] += held.size
            held.part = part

    def above(self, base: Any) -> Any:
        """The peak above `base` since the last call."""
        peak, self.peak = self.peak, self.live.copy()
        return peak - base

    def _is_split(self, key: int) -> bool:
        return self.held[key].part == SPLIT if key in self.held else self.known.get(key, False)

    def _take(self, storage: Any, part: int, stretch: int | None) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.known:
            return
        if key in self.held:
            self.held[key].stretch = stretch
            return
        self.order += 1
        self.held[key] = Held(size, part, self.order, stretch)
        weakref.finalize(storage, self._drop, key)
        self.live[part] += size
        if self.live.sum() > self.peak.sum():
            self.peak = self.live.copy()

    def _drop(self, key: int) -> None:
        held = self.held.pop(key)
        self.live[held.part] -= held.size

    def _count(self, function: Any, inputs: Any, results: Any, split: Any, part: int, causal: bool) -> None:
        if not function._schema.is_mutable and {*map(key_of, results)} <= {*map(key_of, inputs)}:
            return  # a view
        work, made = self.work, sum(map(_size, results))
        moved = SPLIT if any(split) else self.rest
        # Of weights, count at most the size of the result: an embedding reads only some rows.
        accessed = made + sum(min(_size(each), made) if key_of(each) in self.known else _size(each) for each in inputs)
        # Hashes and the masks made from them: in compiled code only the masks are written and read.
        if not any(each.is_floating_point() for each in results):
            work.draws += 1
            work.amounts["drawn"][moved] += accessed
            work.amounts["masks"][moved] += sum(2 * each.numel() for each in results if each.dtype == torch.bool)
            return
        work.kernels += 1
        self.dear[part] += made * (function in DEAR)
        if not _multiplies(function):
            self._join(inputs, made)
            work.amounts["moved"][moved] += accessed
            return
        for each in inputs:  # a product's inputs must have been written to memory
            self._write(self.held.get(key_of(each)))
        self.stretch, self.read = self.stretch + 1, set()
        if "attention" not in str(function):
            self._multiply(function, inputs, results, split, part)
            return
        flops = sdpa_flop_count(*(each.shape for each in inputs[:3]))
        work.full += flops
        work.amounts["attention"][moved] += flops * (0.5 if causal else 1.0)
        for name in ("moved", "joined"):
            work.amounts[name][moved] += accessed

    def _multiply(self, function: Any, inputs: Any, results: Any, split: Any, part: int) -> None:
        """Count a product of `rows × inner` by `inner × outputs`, with the split dimension, and whether selective recomputation repeats
        it."""
        of_images = "conv" in str(function._overloadpacket)
        weight, ways = inputs[1 if of_images else -1], tuple(split[-2:])
        inner, outputs = (weight[0].numel(), len(weight)) if of_images else weight.shape[-2:]
        way = "rows" if any(ways) else None
        if function in MATRICES:
            way = {(True, True): "inner", (False, True): "outputs"}.get(ways, way)
        product = results[0].numel() / outputs, inner, outputs, way
        self.work.full += 2 * results[0].numel() * inner
        self.number += function in PRODUCTS
        if function in PRODUCTS and self.number == self.products:
            self.last = product, self.order
            return
        kept = function in PRODUCTS and self.number % 2 == 1 and self.number < self.products
        self.dear[part] += kept * _size(results[0])
        self.work.products[*product, not kept] += 1

    def _join(self, inputs: Any, made: int) -> None:
        """Count what this stretch's fused kernel reads: each input that it did not create itself, once."""
        self.work.joins += not self.read
        self.read.add(None)
        for each in (each for each in inputs if each.is_floating_point()):
            held, key = self.held.get(key_of(each)), key_of(each)
            if key in self.read or (held and held.stretch == self.stretch):
                continue
            self.read.add(key)
            self._write(held)
            size = held.size if held else min(_size(each), made)
            self.work.amounts["joined"][held.part if held else self.rest] += size

    def _write(self, held: Held | None) -> None:
        if held and held.stretch is not None and not held.written:
            held.written = True
            self.work.amounts["joined"][held.part] += held.size


def tensors_of(tree: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(tree) if isinstance(each, torch.Tensor)]


def key_of(tensor: torch.Tensor) -> int:
    """A key that identifies a tensor's storage."""
    return tensor.untyped_storage()._cdata


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.itemsize


def _multiplies(function: Any) -> bool:
    """True for a matrix product, a convolution, or attention."""
    return function._overloadpacket in flop_registry or "attention" in str(function)
