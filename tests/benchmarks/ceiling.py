"""The most that a training could reach on a GPU: model FLOPS utilisation from what its step dispatches, without a GPU.

The real step runs on fake tensors, as `parascale.train.fake` has it, and every operation that reaches a kernel is priced by a
roofline: the longer of its operations at the rate that such kernels reach and its bytes at the memory bandwidth. The host never
waits, no kernel takes time to start, and no wave of tiles is half empty, so it is a ceiling and no prediction.

Rules, which stand before any figure:

- Eagerly each dispatched operation is one kernel: it reads each input once and writes each output once. A view costs nothing.
- Compiled regions are traced forward and backward by AOTAutograd with inductor's decompositions and its choice of what to recompute.
  Within them all that lies between two kernels that inductor does not make itself (products, convolutions, attention) is one kernel: it
  reads what was made before it, and writes what is used after it.
- A matrix product costs 2 × rows × inner × outputs. Where a row of any of its matrices is no multiple of 16 bytes, Hopper's tensor
  memory accelerator cannot load it (CUDA programming guide, `cuTensorMapEncodeTiled`), and it runs at `UNALIGNED` of the rate.
- A convolution, and each of its gradients, is one kernel of 2 × outputs × inner operations at the rate of products.
- Attention costs 4 × rows × places × width forward, of causal masks half, and 2.5 times that backward (Dao 2023, arXiv:2307.08691).
- Collectives lie beside computing, which makes that longer by `interference` of their time; the first all-gather and the last
  reduction have nothing beside them.
- RMSNorm is one kernel, as on CUDA. Fused attention draws masks of dropout within, at no cost.

Useful operations are those of `flops_per_target`: recomputation is none, attention counts in full.

Example: python tests/benchmarks/ceiling.py gpt2-124m accumulate=4
         python tests/benchmarks/ceiling.py llama-1b fsdp=4 compile=true activation_checkpointing=selective
         python tests/benchmarks/ceiling.py llama-1b accumulate=8 compile=true
         python tests/benchmarks/ceiling.py gpt2-124m accumulate=4 compile=true dropout=0.1
         python tests/benchmarks/ceiling.py imagewoof compile=true
         python tests/benchmarks/ceiling.py gpt2-124m accumulate=4 compile=true --variant unfilled
"""

import argparse
import dataclasses
import math
import weakref
from collections import defaultdict
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

import torch
import torch.nn.functional as F
import yaml
from functorch.compile import make_boxed_func
from torch import nn
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.nn.utils import stateless
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from parascale.families import head
from parascale.families.dropout import Dropout
from parascale.families.language import modules
from parascale.families.sizes import model_sizes
from parascale.parallel import make_mesh, recompute
from parascale.parallel.mesh import AXES
from parascale.plan.calibrate import saved_bytes
from parascale.plan.memory import peak_memory, total
from parascale.plan.rates import _kinds
from parascale.settings import Layout, Run, load_workload
from parascale.train import fake
from parascale.train.step import Stepper

WORKLOADS = Path(__file__).parents[2] / "config/workloads"
# NVIDIA H200 SXM, data sheet, dense: TFLOP/s in bf16, TB/s of memory, GB/s of NVLink in one direction.
PEAK, BANDWIDTH, LINK = 989e12, 4.8e12, 450e9
# Of these, what single kernels were seen to reach on an H200: 769 to 798 TFLOP/s in a bf16 product of 8192³ on random data, and
# 4.3 TB/s in a copy.
PRODUCT, MEMORY = 0.79, 0.9
UNALIGNED = 0.5  # assumed: kernels without Hopper's own loads
HOPPER = _kinds()["hopper"]  # attention, node, interference
# Beside views, what no kernel does.
FREE = ("_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "set_", "resize_")
FREE += ("wait_tensor", "is_same_size", "record_stream")
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
COLLECTIVES = ("allgather", "all_gather", "reduce_scatter", "allreduce", "all_reduce", "broadcast", "send")


class Counter(TorchDispatchMode):
    """Adds up seconds, operations and bytes by kind of kernel of all that is dispatched."""

    def __init__(self):
        super().__init__()
        self.seconds, self.flops, self.bytes, self.kernels = (defaultdict(float) for _ in range(4))
        self.on, self.compiled = False, False
        self.made, self.read, self.collectives = {}, {}, []  # of collectives (name, bytes of the larger side)

    def __torch_dispatch__(self, function, kinds, arguments=(), keywords=None):
        if any(issubclass(kind, DTensor) for kind in kinds):
            return NotImplemented  # it comes back as operations on this rank's part
        outputs = function(*arguments, **(keywords or {}))
        if self.on:
            given = {key: value for key, value in (keywords or {}).items() if key != "out"}
            self._count(function, _tensors((arguments, given)), _tensors(outputs))
        return outputs

    def _count(self, function, inputs, outputs):
        space, name = function.namespace, function._opname
        if any(word in name for word in COLLECTIVES) and space in ("c10d", "_c10d_functional"):
            self.collectives.append((name, max(map(_bytes, inputs + outputs), default=0)))
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
        self._kernel("attention", flops, sum(map(_bytes, inputs + outputs)), HOPPER["attention"])

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

    def traced(self, function, module=None):
        """A function of tensors, or a module's forward pass, as `torch.compile` would have it: its graphs, run as they are."""

        def compiler(graph, _):
            def run(*arguments):
                with self.region():
                    return graph(*arguments)

            return make_boxed_func(run)

        drops = [part for part in module.modules() if isinstance(part, Dropout)] if module is not None else []

        def whole(parameters, buffers, keys, *inputs):
            held = _place_keys(drops, keys)
            with stateless._reparametrize_module(module, {**parameters, **buffers}):
                outputs = function(*inputs)
            _place_keys(drops, held)
            return outputs

        traced = aot_function(
            whole if module is not None else function,
            fw_compiler=compiler,
            partition_fn=min_cut_rematerialization_partition,
            decompositions=select_decomp_table(),
            keep_inference_input_mutations=True,
        )
        if module is None:
            return traced
        return lambda *inputs: traced(
            dict(module.named_parameters()), dict(module.named_buffers()), [drop.key for drop in drops], *inputs
        )

    def communication(self):
        """(seconds with nothing beside them, what computing becomes longer by)."""
        if not self.collectives:
            return 0.0, 0.0
        parts = ((1.0 if name == "send" else 0.75) * size for name, size in self.collectives)  # of four ranks
        seconds = [part / (LINK * HOPPER["node"]) for part in parts]
        bare = seconds[0] + seconds[-1]
        return bare, HOPPER["interference"] * (sum(seconds) - bare)


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


def _fused(attention):
    """Attention on GPUs, whose kernels draw masks of dropout; on CPUs it would be explicit."""
    return lambda query, key, value, mask=None, probability=0.0, **rest: attention(query, key, value, mask, **rest)


def _one_kernel(norm, values):
    return torch.ops.aten._fused_rms_norm(values, norm.weight.shape, norm.weight.to(values.dtype), norm.eps)[0]


def _numbered(policy):
    """Contexts as `torch.compile` has them, which numbers what is recomputed within a graph: here a graph is one block."""
    contexts = create_selective_checkpoint_contexts(policy)
    contexts[0].ac_graph_id = 0
    return contexts


class OneProduct(nn.Module):
    """Projections of one input as one product: the first call makes all parts, the others take theirs."""

    def __init__(self, widths, source, bias):
        super().__init__()
        self.widths, self.joined, self.parts = widths, nn.Linear(source, sum(widths), bias=bias), []

    def forward(self, hidden):
        self.parts = self.parts or list(self.joined(hidden).split(self.widths, -1))
        return self.parts.pop(0)


def _joined(build):
    def attention(self, settings, *rest, **more):
        build(self, settings, *rest, **more)
        widths = [getattr(self, name).out_features for name in "qkv"]
        self.q = self.k = self.v = OneProduct(widths, settings.dim, settings.bias)

    return attention


def _looked_up(x_BHTE):
    """Rotary positions whose cosines and sines are there already."""
    cos, sin = x_BHTE.new_empty(2, *x_BHTE.shape[-2:])
    first, second = x_BHTE.chunk(2, dim=-1)
    return x_BHTE * cos + torch.cat((-second, first), dim=-1) * sin


def _reduced_once(forward_backward):
    """FSDP's gradients stay whole until the last part of a step."""

    def part(stepper, inputs, labels, last):
        stepper.model.forward_module.set_requires_gradient_sync(last)
        return forward_backward(stepper, inputs, labels, last)

    return part


# What is there, taken away, and what was left out, tried: name → patches. Compiling and recomputation are settings of the layout.
VARIANTS = {
    "whole-loss": lambda: patch.object(head.Head, "deferred", property(lambda self: False, lambda self, value: None)),
    "eager-loss": lambda: patch.object(torch, "compile", lambda function, **_: function),
    "unfilled": lambda: patch.object(head, "padded", lambda entries, element: entries),
    "one-product": lambda: patch.object(modules.Attention, "__init__", _joined(modules.Attention.__init__)),
    "rotary-tables": lambda: patch.object(modules, "_rotate", _looked_up),
    "one-reduction": lambda: patch.object(
        Stepper, "_plain_forward_backward", _reduced_once(Stepper._plain_forward_backward)
    ),
}


def ceiling(run, vocabulary, variant=nullcontext):
    """(Counter of one step of the first rank, its seconds at least, model FLOPS utilisation at most)."""
    counter = Counter()

    def compile_module(module, **_):
        module.forward = counter.traced(module.forward, module)

    with (
        fake._processes(run.layout.world_size, 0),
        fake._stand_ins(fake.LiveStorages()),
        patch.object(nn.Module, "compile", compile_module),
        patch.object(torch, "compile", lambda function, **_: counter.traced(function)),
        patch.object(nn.RMSNorm, "forward", _one_kernel),
        patch.object(F, "scaled_dot_product_attention", _fused(F.scaled_dot_product_attention)),
        patch.object(recompute, "create_selective_checkpoint_contexts", _numbered),
        variant(),
    ):
        mesh = make_mesh(run.layout, torch.device("cpu"), 60.0)
        with FakeTensorMode(allow_non_fake_inputs=True), counter:
            stepper = fake._stepper(run, vocabulary, mesh, shapes_known=True)
            batches = fake._batches(run)
            stepper.step(batches)
            counter.on = True
            stepper.step(batches)
    bare, longer = counter.communication()
    seconds = sum(counter.seconds.values()) + bare + longer
    sizes = model_sizes(run.workload.model, vocabulary, *run.workload.sizes)
    targets = run.global_batch * sizes.targets / run.layout.world_size
    return counter, seconds, sizes.flops_per_target * targets / seconds / PEAK


def run_of(name, changes, layers=None):
    """The Run of a workload on H200s. changes: {key of model, training, layout or run: value}. layers: instead of all of its own."""
    workload, rest = load_workload(WORKLOADS, name), changes | ({"layers": layers} if layers else {})
    for part in ("model", "training"):
        settings = getattr(workload, part)
        own = {field.name: rest.pop(field.name) for field in dataclasses.fields(settings) if field.name in rest}
        workload = dataclasses.replace(workload, **{part: dataclasses.replace(settings, **own)})
    world, precision = math.prod(rest.get(axis, 1) for axis in AXES), rest.pop("precision", "bf16")
    return Run(name, workload, Layout(gpus_per_node=world, **rest), precision)


def main():
    """Print the ceiling of one training, and where its time goes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload")
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="of model, training, layout or run")
    parser.add_argument("--layers", type=int, help="of the model (default: all)")
    parser.add_argument("--variant", choices=VARIANTS, help="one thing done otherwise")
    arguments = parser.parse_args()
    changes = {}
    for key, text in (change.split("=") for change in arguments.changes):
        changes[key] = yaml.safe_load(text)
    run = run_of(arguments.workload, changes, arguments.layers)
    vocabulary = run.workload.data.expected_outputs or run.workload.data.text.max_vocabulary
    counter, seconds, share = ceiling(run, vocabulary, VARIANTS.get(arguments.variant, nullcontext))
    for kind, spent in counter.seconds.items():
        print(
            f"{kind:10} {1e3 * spent:9.2f} ms {counter.flops[kind] / 1e12:9.2f} TFLOP {counter.bytes[kind] / 1e9:9.1f} GB "
            f"{counter.kernels[kind]:6.0f} kernels"
        )
    for name in dict.fromkeys(name for name, _ in counter.collectives):
        sizes = [size for other, size in counter.collectives if other == name]
        print(f"{name:32} {len(sizes):6} times {sum(sizes) / 1e6:9.1f} MB")
    bare, longer = counter.communication()
    print(f"links      {1e3 * bare:9.2f} ms bare, {1e3 * longer:.2f} ms hidden")
    memory = total(peak_memory(run, vocabulary, "cuda", chunked=arguments.variant != "whole-loss"))
    batches = sum(array.nbytes for part in fake._batches(run) for array in part)
    saved = saved_bytes(run, vocabulary) / run.layout.world_size
    print(
        f"memory     {memory / 1e9:9.2f} GB by the plan; batches of a step {batches / 1e6:.3f} MB, a checkpoint {saved / 1e9:.2f} GB"
    )
    print(f"step       {1e3 * seconds:9.2f} ms, ceiling {share:.1%} MFU")


if __name__ == "__main__":
    main()
