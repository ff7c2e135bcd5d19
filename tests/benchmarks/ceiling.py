"""The most that a training could reach on a GPU: model FLOPS utilisation from what its step dispatches, without a GPU.

The real step runs on fake tensors, as `fake_steps.py` has it, and `roofline.py`, which has the rules, counts its kernels.
Useful operations are those of `flops_per_target`: recomputation is none, attention counts in full.

Example: python tests/benchmarks/ceiling.py gpt2-124m accumulate=4
         python tests/benchmarks/ceiling.py llama-1b fsdp=4 compile=true activation_checkpointing=selective
         python tests/benchmarks/ceiling.py llama-1b accumulate=8 compile=true
         python tests/benchmarks/ceiling.py gpt2-124m accumulate=4 compile=true dropout=0.1
         python tests/benchmarks/ceiling.py imagewoof compile=true
"""

import dataclasses
import math
from pathlib import Path
from unittest.mock import patch

import fake_steps
import torch
import torch.nn.functional as F
import yaml
from comparison import parser_of
from roofline import PEAK, Counter
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from parascale.families import model_sizes
from parascale.families.counted import CountedSizes
from parascale.parallel import make_mesh, recompute
from parascale.plan.memory import peak_memory, saved_bytes, total
from parascale.settings import Layout, Run, load_workload
from parascale.settings.layout import DEGREES
from parascale.train.counting import count

WORKLOADS = Path(__file__).parents[2] / "config/workloads"


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


def ceiling(run, vocabulary):
    """(Counter of one step of the rank with the head, seconds of the step at least, model FLOPS utilisation at most)."""
    rank = 0 if run.layout.pipeline_schedule == "ZBVZeroBubble" else run.layout.world_size - 1
    counter = Counter()

    def compile_module(module, **_):
        module.forward = counter.traced(module)

    with (
        fake_steps._processes(run.layout.world_size, rank),
        fake_steps._stand_ins(fake_steps.LiveStorages()),
        patch.object(nn.Module, "compile", compile_module),
        patch.object(torch, "compile", lambda function, **_: counter.whole(function)),
        patch.object(nn.RMSNorm, "forward", _one_kernel),
        patch.object(F, "scaled_dot_product_attention", _fused(F.scaled_dot_product_attention)),
        patch.object(recompute, "create_selective_checkpoint_contexts", _numbered),
    ):
        mesh = make_mesh(run.layout, torch.device("cpu"), 60.0)
        with FakeTensorMode(allow_non_fake_inputs=True), counter:
            stepper = fake_steps._stepper(run, vocabulary, mesh, shapes_known=True)
            batches = fake_steps._batches(run, mesh)
            stepper.step(batches)
            counter.on = True
            stepper.step(batches)
        counter.bare, counter.longer = counter.communication(_split_groups(mesh))
    seconds = sum(counter.seconds.values()) * (1 + run.layout.bubble) + counter.bare + counter.longer
    sizes = model_sizes(run.workload.model, vocabulary, *run.workload.sizes) or CountedSizes(
        count(run.workload, vocabulary)
    )
    targets = run.global_batch * sizes.targets / run.layout.world_size
    return counter, seconds, sizes.flops_per_target * targets / seconds / PEAK


def _split_groups(mesh):
    """Names of groups whose collectives wait for what was just computed."""
    axes = mesh.devices.mesh_dim_names if mesh.devices is not None else ()
    return [mesh.devices.get_group(axis).group_name for axis in axes if axis == "tp"]


def run_of(name, changes, layers=None):
    """The Run of a workload on H200s. changes: {key of model, training, layout or run: value}. layers: instead of all of its own."""
    workload, rest = load_workload(WORKLOADS, name), changes | ({"layers": layers} if layers else {})
    for part in ("model", "training"):
        settings = getattr(workload, part)
        own = {field.name: rest.pop(field.name) for field in dataclasses.fields(settings) if field.name in rest}
        workload = dataclasses.replace(workload, **{part: dataclasses.replace(settings, **own)})
    world, precision = math.prod(rest.get(axis, 1) for axis in DEGREES), rest.pop("precision", "bf16")
    return Run(name, workload, Layout(gpus_per_node=world, **rest), precision)


def main():
    """Print the ceiling of one training, and where its time goes."""
    parser = parser_of(__doc__)
    parser.add_argument("workload")
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="of model, training, layout or run")
    parser.add_argument("--layers", type=int, help="of the model (default: all)")
    arguments = parser.parse_args()
    changes = {}
    for key, text in (change.split("=") for change in arguments.changes):
        changes[key] = yaml.safe_load(text)
    run = run_of(arguments.workload, changes, arguments.layers)
    vocabulary = run.workload.data.expected_outputs or run.workload.data.text.max_vocabulary
    counter, seconds, share = ceiling(run, vocabulary)
    for kind, spent in counter.seconds.items():
        print(
            f"{kind:10} {1e3 * spent:9.2f} ms {counter.flops[kind] / 1e12:9.2f} TFLOP {counter.bytes[kind] / 1e9:9.1f} GB "
            f"{counter.kernels[kind]:6.0f} kernels"
        )
    for name in dict.fromkeys(each.name for each in counter.collectives):
        sizes = [each.size for each in counter.collectives if each.name == name]
        print(f"{name:32} {len(sizes):6} times {sum(sizes) / 1e6:9.1f} MB")
    print(f"links      {1e3 * counter.bare:9.2f} ms bare, {1e3 * counter.longer:.2f} ms beside computing")
    memory = total(peak_memory(run, vocabulary, "cuda") or {})  # of images with other sizes unknown
    saved = (saved_bytes(run, vocabulary) or 0) / run.layout.world_size
    print(f"memory     {memory / 1e9:9.2f} GB by the plan; a checkpoint {saved / 1e9:.2f} GB")
    print(f"step       {1e3 * seconds:9.2f} ms, ceiling {share:.1%} MFU")


if __name__ == "__main__":
    main()
