"""The least time that a step's kernels can take on a GPU, from what it dispatches: a roofline, without a GPU.

Every operation that reaches a kernel is priced by the longer of its operations at the rate that such kernels reach and its bytes at
the memory bandwidth. The host never waits, no kernel takes time to start, and no wave of tiles is half empty: the least, no prediction.

Rules, which stand before any figure:

- Eagerly each dispatched operation is one kernel: it reads each input once and writes each output, or what it changes in place, once. A
  view costs nothing. Fused optimizers write a gradient back where they scale it (`fused_adam_utils.cuh`), else not.
- Compiled regions are traced forward and backward by AOTAutograd with inductor's decompositions and its choice of what to recompute.
  Within them all that lies between two kernels that inductor does not make itself (products, convolutions, attention) is one kernel: it
  reads what was made before it, and writes what is used after it.
- A matrix product costs 2 × rows × inner × outputs. Where a row of any of its matrices is no multiple of 16 bytes, Hopper's tensor
  memory accelerator cannot load it (CUDA programming guide, `cuTensorMapEncodeTiled`), and it runs at `UNALIGNED` of the rate.
- A convolution, and each of its gradients, is one kernel of 2 × outputs × inner operations at the rate of products.
- Attention costs 4 × rows × places × width forward, of causal masks half, and 2.5 times that backward (Dao 2023, arXiv:2307.08691), at
  the rates that cuDNN's kernels were seen to reach at its length (`ATTENTION`). Shorter and narrower ones are slower: this is the most.
- Collectives cost what the slowest rank of their group sends, at the group's own size. They lie beside computing, which makes that longer
  by `interference` of their time. Nothing lies beside those of tensor parallelism, what a pipeline sends, FSDP's first all-gather and its
  last reduction. Latencies cost nothing.
- A pipeline's step is that of its slowest stage, and what that waits for the others (`Layout.bubble`).
- RMSNorm is one kernel, as on CUDA. Fused attention draws masks of dropout within, at no cost.
"""

import weakref
from collections import defaultdict
from contextlib import contextmanager
from typing import NamedTuple

import torch
from functorch.compile import make_boxed_func
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.distributed.tensor import DTensor
from torch.nn.utils import stateless
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from parascale.families.dropout import Dropout
from parascale.plan.time import _kinds

# NVIDIA H200 SXM, data sheet, dense: TFLOP/s in bf16, TB/s of memory, GB/s of NVLink in one direction.
PEAK, BANDWIDTH, LINK = 989e12, 4.8e12, 450e9
# Of these, what single kernels were seen to reach on an H200: 769 to 798 TFLOP/s in a bf16 product of 8192³ on random data, and
# 4.3 TB/s in a copy.
PRODUCT, MEMORY = 0.79, 0.9
UNALIGNED = 0.5  # assumed: kernels without Hopper's own loads
# Attention of 64 heads of 128 with 8 of keys and values, causal, in bf16, by cuDNN 9.27 on an H200: TFLOP/s forward and backward at a
# length (NVIDIA/cudnn-frontend, benchmark/attention_training/results/llama3.1/h200, 28 September 2026).
ATTENTION = {2048: (534, 402), 4096: (616, 495), 8192: (655, 526), 16384: (633, 539)}
HOPPER = _kinds()["hopper"]  # node, interference
# Beside views, what no kernel does.
FREE = ("_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "set_", "resize_")
FREE += ("wait_tensor", "is_same_size", "record_stream")
FREE += ("all_gather_copy_in",)  # of FSDP; the copy within is dispatched too
COPIES = ("copy_", "_foreach_copy_")  # which do not read what they write
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
COLLECTIVES = ("allgather", "all_gather", "reduce_scatter", "allreduce", "all_reduce", "broadcast", "send")


class Collective(NamedTuple):
    """One that was dispatched: bytes of its larger side, its group's name and ranks."""

    name: str
    size: int
    group: str
    ranks: int

    @property
    def seconds(self):
        """Of a ring: a rank sends all but its own part, of a sum twice."""
        part = (
            1.0
            if self.name == "send"
            else (self.ranks - 1) / self.ranks * (2 if "reduce" in self.name.replace("reduce_scatter", "") else 1)
        )
        return part * self.size / (LINK * HOPPER["node"])


class Counter(TorchDispatchMode):
    """Adds up seconds, operations and bytes by kind of kernel of all that is dispatched."""

    def __init__(self):
        super().__init__()
        self.seconds, self.flops, self.bytes, self.kernels = (defaultdict(float) for _ in range(4))
        self.on, self.compiled = False, False
        self.made, self.read, self.collectives = {}, {}, []

    def __torch_dispatch__(self, function, kinds, arguments=(), keywords=None):
        if any(issubclass(kind, DTensor) for kind in kinds):
            return NotImplemented  # it comes back as operations on this rank's part
        outputs = function(*arguments, **(keywords or {}))
        if self.on:
            self._count(function, arguments, *_moved(function, arguments, keywords or {}, outputs))
        return outputs

    def _count(self, function, arguments, inputs, outputs):
        space, name = function.namespace, function._opname
        if any(word in name for word in COLLECTIVES) and space in ("c10d", "_c10d_functional"):
            group = _group(arguments)
            size = max(map(_bytes, inputs + outputs), default=0)
            self.collectives.append(Collective(name, size, group.group_name, group.size()))
        elif name in PRODUCTS:
            self._product(name, inputs, outputs[0])
        elif name.startswith("convolution"):
            self._convolution("backward" in name, inputs, outputs)
        elif "attention" in name:
            self._attention(name, inputs, outputs)
        elif not (space == "prim" or name in FREE or function.is_view):
            if name.startswith("nll_loss"):  # reads one number a row
                inputs = [tensor for tensor in inputs if tensor.ndim < 2]
            if self.compiled:
                self._join(inputs, outputs)
            else:
                self._kernel("eager", 0, sum(map(_bytes, inputs)) + sum(map(_bytes, outputs)))

    def _product(self, name, inputs, output):
        self.flush()
        left, right = inputs[-2:]
        rows = left.numel() // left.shape[-1]
        flops = 2 * rows * left.shape[-1] * right.shape[-1]
        aligned = all(_row_bytes(matrix) % 16 == 0 for matrix in (left, right, output))
        self._kernel("products", flops, sum(map(_bytes, (*inputs, output))), PRODUCT * (1 if aligned else UNALIGNED))

    def _convolution(self, backward, inputs, outputs):
        self.flush()
        made, weight = (inputs[0], inputs[2]) if backward else (outputs[0], inputs[1])
        for output in outputs:
            # A gradient needs that of the outputs, and for the images the weights, for the weights the images.
            read = [inputs[0], *(tensor for tensor in inputs[1:] if not backward or tensor.shape != output.shape)]
            self._kernel(
                "convolutions", 2 * made.numel() * weight[0].numel(), sum(map(_bytes, (*read, output))), PRODUCT
            )

    def _attention(self, name, inputs, outputs):
        self.flush()
        backward = "backward" in name
        query, key = inputs[1:3] if backward else inputs[:2]
        flops = 4 * query.numel() * key.shape[-2] * (2.5 if backward else 1) / 2
        longest = max([length for length in ATTENTION if length <= key.shape[-2]], default=min(ATTENTION))
        self._kernel("attention", flops, sum(map(_bytes, inputs + outputs)), ATTENTION[longest][backward] * 1e12 / PEAK)

    def _kernel(self, kind, flops, size, rate=1.0):
        self.seconds[kind] += max(flops / (PEAK * rate), size / (BANDWIDTH * MEMORY))
        self.flops[kind] += flops
        self.bytes[kind] += size
        self.kernels[kind] += 1

    def _join(self, inputs, outputs):
        """An operation becomes part of the kernel that inductor makes."""
        for tensor in inputs:
            key = tensor.untyped_storage()._cdata
            if key not in self.made:
                self.read[key] = max(self.read.get(key, 0), _bytes(tensor))
        for tensor in outputs:
            storage = tensor.untyped_storage()
            self.made[storage._cdata] = (weakref.ref(storage), _bytes(tensor))

    def flush(self):
        """The kernel under way ends: what is still alive is written."""
        if self.made or self.read:
            written = sum(size for storage, size in self.made.values() if storage() is not None)
            self._kernel("fused", 0, sum(self.read.values()) + written)
            self.made, self.read = {}, {}

    @contextmanager
    def region(self):
        """What the body dispatches is compiled."""
        self.flush()
        self.compiled = True
        yield
        self.flush()
        self.compiled = False

    def whole(self, function):
        """A function without a backward pass, as `torch.compile` would have it: what it dispatches is one region."""

        def run(*arguments, **keywords):
            with self.region():
                return function(*arguments, **keywords)

        return run

    def traced(self, module):
        """A module's forward pass, as `torch.compile` would have it: its graphs, run as they are."""

        def compiler(graph, _):
            return make_boxed_func(self.whole(graph))

        forward, drops = module.forward, [part for part in module.modules() if isinstance(part, Dropout)]

        def pure(parameters, buffers, keys, *inputs):
            held = _place_keys(drops, keys)
            with stateless._reparametrize_module(module, {**parameters, **buffers}):
                outputs = forward(*inputs)
            _place_keys(drops, held)
            return outputs

        traced = aot_function(
            pure,
            fw_compiler=compiler,
            partition_fn=min_cut_rematerialization_partition,
            decompositions=select_decomp_table(),
            keep_inference_input_mutations=True,
        )
        return lambda *inputs: traced(
            dict(module.named_parameters()), dict(module.named_buffers()), [drop.key for drop in drops], *inputs
        )

    def communication(self, alone=()):
        """(seconds with nothing beside them, what computing becomes longer by). alone: groups that nothing lies beside."""
        bare = [each for each in self.collectives if each.group in alone or each.name == "send"]
        beside = [each for each in self.collectives if each not in bare]
        gathers = [each for each in beside if "gather" in each.name][:1]
        scatters = [each for each in beside if "scatter" in each.name][-1:]
        first_and_last = sum(each.seconds for each in gathers + scatters)
        hidden = sum(each.seconds for each in beside) - first_and_last
        return sum(each.seconds for each in bare) + first_and_last, HOPPER["interference"] * hidden


@run_and_save_rng_state.py_impl(Counter)
def _(counter, function, *arguments, **keywords):
    """Recomputed attention, which may draw numbers, keeps the generator's state; here there is none."""
    with counter:
        return torch.empty(0, dtype=torch.uint8), function(*arguments, **keywords)


@run_with_rng_state.py_impl(Counter)
def _(counter, state, function, *arguments, **keywords):
    with counter:
        return function(*arguments, **keywords)


def _place_keys(drops, keys):
    """Give dropout other random keys; returns those that it had."""
    held = [drop.key for drop in drops]
    for drop, key in zip(drops, keys, strict=True):
        drop.key = key
    return held


def _group(arguments):
    """The process group of a collective: functional ones name it last, others hold it."""
    if isinstance(arguments[-1], str):
        return _resolve_process_group(arguments[-1])
    held = [each for each in arguments if isinstance(each, torch.ScriptObject) and "ProcessGroup" in str(each._type())]
    return ProcessGroup.unbox(held[0])


def _moved(function, arguments, keywords, outputs):
    """(tensors that an operation reads, tensors that it writes)."""
    read, changed = [], []
    for place, argument in enumerate(function._schema.arguments):
        given = _tensors(arguments[place] if place < len(arguments) else keywords.get(argument.name))
        writes = argument.alias_info is not None and argument.alias_info.is_write
        if not (argument.is_out or (writes and function._opname in COPIES)):
            read += given
        if writes and (argument.name != "grads" or keywords.get("grad_scale") is not None):
            changed += given
    return read, _tensors(outputs) or changed


def _tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _bytes(tensor):
    """Of its elements, those of an expanded one once."""
    size = tensor.element_size()
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        size *= length if stride else 1
    return size


def _row_bytes(matrix):
    return max(matrix.stride()[-2:]) * matrix.element_size()
