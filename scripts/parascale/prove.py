"""Record steps of a training script, to show that it computes the same in any layout. `parascale.proof` compares two recordings.

    with prove.recording(model, "proof/ddp") as record:  # around one step, in each process; also in the single process's script
        loss = loss_of(model(inputs), labels)
        record.loss(loss)  # if you like: as `backward` gets it
        loss.backward()
        optimizer.step()

It needs torch and safetensors alone, and this file may be copied. Each process writes a file for each step: what every module put out, the
gradients as the first optimizer step finds them, and the weights after it, all of them as far as this process holds them.
"""

import json
import os
import platform
import sys
from collections import Counter
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

SCHEMA_VERSION = 1
WRAPPERS = {"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}  # of compile, checkpointing, FSDP1
COUNTER = "_steps_recorded"  # in a model's __dict__: folder → number of its next step


@contextmanager
def recording(model, folder, rows=None, positions=None, names=None):
    """Record one training step of this process into `folder`; yields a Record.

    model: the module that the script calls, wrapped or not; a list of them for several pipeline stages. Nothing is compiled in a recorded step.
    rows: numbers of this process's samples within the single process's batch; default: found by comparing the inputs.
    positions: the same for places in the sequence (dimension 1), where processes share one.
    names: a function from a module's or weight's name here to its name in the single process; default: the same name.
    A step that ends with an exception is not recorded.
    """
    models = list(model) if isinstance(model, list | tuple | torch.nn.ModuleList) else [model]
    counts = vars(models[0]).setdefault(COUNTER, {})
    rank, world = _place()
    folder = Path(folder)
    step = counts.get(str(folder.resolve()), 0)
    if step == 0:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"step-*-rank-{rank:05}.safetensors"):
            old.unlink()
    record = Record(models, names or (lambda name: name))
    if step == 0:
        record.weights("start")
    handles = record.watch()
    try:
        yield record
    finally:
        for handle in handles:
            handle.remove()
    record.gradients()
    record.weights("weight")
    about = {"step": step, "rank": rank, "world": world, "rows": rows, "positions": positions}
    _write(folder / f"step-{step:05}-rank-{rank:05}.safetensors", record, about)
    counts[str(folder.resolve())] = step + 1


class Record:
    """What one process held in one step. Keys are `<kind>|<name>`, of outputs and inputs also call, leaf and micro-batch."""

    def __init__(self, models, names):
        self.models, self.names = models, names
        self.tensors, self.facts, self.samples = {}, {}, {}
        self.micro, self.calls = [-1] * len(models), [Counter() for _ in models]
        self.losses, self.done, self.rehearsed = [], False, [False] * len(models)

    def loss(self, loss):
        """Note this process's loss, as `backward` gets it; the losses of accumulated micro-batches, one by one, are added."""
        loss = loss.full_tensor() if hasattr(loss, "full_tensor") else loss
        self.losses.append(float(loss.detach()))

    def gradients(self):
        """Record the gradients here instead of at the first optimizer step: before they are clipped, for example."""
        if not self.done:
            for name, parameter in self._parameters():
                if parameter.grad is not None:
                    self._keep(f"gradient|{name}", parameter.grad)
        self.done = True

    def weights(self, kind):
        """Record all weights and kept buffers as they are now."""
        for name, parameter in self._parameters():
            self._keep(f"{kind}|{name}", parameter)
        for place, module in self._modules():
            for name in module._buffers.keys() - module._non_persistent_buffers_set:
                if module._buffers[name] is not None:
                    self._keep(f"{kind}|{self.names('.'.join(filter(None, (place, name))))}", module._buffers[name])

    def watch(self):
        """Hook into every module, and into every optimizer's step; returns the hooks."""
        handles = [register_optimizer_step_pre_hook(lambda *_: self.gradients())]
        for number, model in enumerate(self.models):
            handles.append(model.register_forward_pre_hook(partial(self._enter, number), with_kwargs=True))
            inner = {clean(name): module for name, module in model.named_modules()}  # of wrappers, the innermost
            handles += [m.register_forward_hook(partial(self._leave, number, name)) for name, m in inner.items()]
        return handles

    def layout(self):
        """How the weights are spread: text → number of weights."""
        found = Counter()
        for _, parameter in self._parameters():
            if hasattr(parameter, "placements"):
                mesh = parameter.device_mesh
                sizes = zip(mesh.mesh_dim_names or ["mesh"] * mesh.ndim, mesh.shape, parameter.placements, strict=True)
                found[", ".join(f"{placed} over {name} of {size}" for name, size, placed in sizes)] += 1
            else:
                found["whole"] += 1
        return {"wrapped": [type(model).__name__ for model in self.models], "weights": dict(found)}

    def _parameters(self):
        for model in self.models:
            for name, parameter in model.named_parameters(remove_duplicate=False):
                yield self.names(clean(name)), parameter

    def _modules(self):
        for model in self.models:
            for name, module in model.named_modules():
                yield clean(name), module

    def _enter(self, number, module, arguments, keywords):
        leaves = [leaf for leaf in tree_leaves((arguments, keywords)) if isinstance(leaf, torch.Tensor) and leaf.dim()]
        self.rehearsed[number] = _in_backward() or not leaves or _is_rehearsal()
        if self.rehearsed[number]:
            return
        self.micro[number] += 1
        self.calls[number].clear()
        self.samples[f"{number}|{self.micro[number]:05}"] = leaves[0].shape[0]
        for index, leaf in enumerate(leaves):
            self._keep(f"input|{number}|{index}|{self.micro[number]:05}", leaf)

    def _leave(self, number, name, module, arguments, output):
        leaves = [
            leaf
            for leaf in tree_leaves(output)
            if isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.is_floating_point()
        ]
        if self.rehearsed[number] or _in_backward() or not leaves:  # recomputed activations are the same once more
            return
        name = self.names(name)
        call = self.calls[number][name]
        self.calls[number][name] += 1
        for index, leaf in enumerate(leaves):
            self._keep(f"output|{name}|{call}|{index}|{max(self.micro[number], 0):05}", leaf)

    def _keep(self, key, tensor):
        tensor = tensor.detach()
        if hasattr(tensor, "placements"):
            self.facts[key] = _facts(tensor)
            tensor = tensor.to_local()
        self.tensors[key] = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)


def clean(name):
    """A module's or weight's name without those of wrappers."""
    parts = name.split(".")
    return ".".join(part for part in parts[parts[0] == "module" :] if part not in WRAPPERS)


def _facts(tensor):
    """Where a DTensor's local part lies: the whole's shape, the part's offset, and whose sum it is."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements = tensor.device_mesh, tensor.placements
    _, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    parts = [size for size, placed in zip(mesh.shape, placements, strict=True) if placed.is_partial()]
    own = [at for at, placed in zip(mesh.get_coordinate(), placements, strict=True) if not placed.is_partial()]
    means = any(placed.is_partial() and placed.reduce_op == "avg" for placed in placements)
    return {"whole": list(tensor.shape), "offset": list(offset), "partial": parts, "at": own, "mean": means}


def _is_rehearsal():
    """Whether a pipeline runs its stage only to learn the shapes of what it puts out, as before its first step."""
    frame = sys._getframe()
    while frame and frame.f_code.co_name not in ("_forward_metadata_inference", "_shape_inference"):
        frame = frame.f_back
    return frame is not None


def _in_backward():
    return torch._C._current_graph_task_id() != -1


def _place():
    """(rank, number of processes)."""
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    return (torch.distributed.get_rank(), torch.distributed.get_world_size()) if ready else (0, 1)


def _write(path, record, about):
    """Write a step's file, which appears whole or not at all."""
    about |= {name: getattr(record, name) for name in ("facts", "samples", "losses")}
    about["keys"] = list(record.tensors)  # a file has another order
    devices = {parameter.device.type for _, parameter in record._parameters()}
    tf32 = "cuda" in devices and torch.get_float32_matmul_precision() != "highest"
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    about |= {"schema_version": SCHEMA_VERSION, "layout": record.layout(), "versions": versions, "tf32": tf32}
    about |= {"devices": sorted(devices), "system": platform.platform()}
    partial_path = path.with_suffix(".partial")
    save_file(record.tensors, partial_path, {"prove": json.dumps(about)})
    os.replace(partial_path, path)
