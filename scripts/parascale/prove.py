"""Record steps of a training script, to show that it computes the same in any layout. `parascale.proof` compares two recordings.

    with prove.recording(model, "proof/ddp") as record:  # around a step, in each process; also in the single process's script
        loss = loss_of(model(inputs), labels)
        record.loss(loss)  # if you like: as `backward` gets it
        loss.backward()
        optimizer.step()

It needs torch and safetensors alone, and this file may be copied. For each step, each process writes a file with what it holds of each module's
output, of the gradients as the first optimizer step finds them, and of the weights after it.
"""

import json
import os
import platform
import sys
from collections import Counter
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

WRAPPERS = {"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}  # of compile, checkpointing, FSDP1
REHEARSALS = ("_forward_metadata_inference", "_shape_inference")  # by which a pipeline asks a stage for shapes
COUNTER = "_steps_recorded"  # in a model's __dict__: folder → number of its next step


@contextmanager
def recording(model, folder, rows=None, positions=None, names=lambda name: name, every=1):
    """Record one training step of this process into `folder`; yields a Record. A step that ends with an exception is not recorded.

    model: the module that the script calls, wrapped or not; a list of them for several stages of a pipeline. Do not compile it.
    rows: numbers of this process's samples within the single process's batch; default: found by comparing the inputs.
    positions: the same for places in the sequence (dimension 1), where processes share one.
    names: a function from a module's or weight's name here to its name in the single process.
    every: keep every so-many-th column (of the last dimension) of weights, gradients and outputs alone, the same in both scripts: a large
        model's recording is that much smaller. Vectors, and outputs of one or two dimensions, are kept whole.
    """
    rows, positions = (None if each is None else [int(number) for number in each] for each in (rows, positions))
    models = list(model) if isinstance(model, list | tuple | torch.nn.ModuleList) else [model]
    folder, counts = Path(folder).resolve(), vars(models[0]).setdefault(COUNTER, Counter())
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    rank, world = (torch.distributed.get_rank(), torch.distributed.get_world_size()) if ready else (0, 1)
    record, step = Record(models, names, every), counts[str(folder)]
    if step == 0:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"step-*-rank-{rank:05}.safetensors"):
            old.unlink()
        record.weights("start")
    with ExitStack() as hooks:
        for handle in record.watch():
            hooks.callback(handle.remove)
        yield record
    record.gradients()
    record.weights("weight")
    told = {"rank": rank, "world": world, "rows": rows, "positions": positions, "keys": list(record.tensors)}
    told |= {"facts": record.facts, "samples": record.samples, "losses": record.losses, "layout": record.layout()}
    told |= {"torch": torch.__version__, "python": platform.python_version(), "system": platform.platform()}
    told |= {"tf32": torch.cuda.is_available() and record.in_tf32(), "every": every, "uneven": record.uneven}
    path = folder / f"step-{step:05}-rank-{rank:05}.safetensors"
    save_file(record.tensors, path.with_suffix(".partial"), {"prove": json.dumps(told)})
    os.replace(path.with_suffix(".partial"), path)
    counts[str(folder)] += 1


class Record:
    """What one process held in one step. Keys are `<kind>|<name>`, of outputs and inputs also call, leaf and micro-batch."""

    def __init__(self, models, names, every):
        self.models, self.names, self.every, self.tensors, self.facts = models, names, every, {}, {}
        self.uneven = []  # keys of plain tensors of a number of columns that `every` does not divide
        self.samples, self.losses, self.done = [], [], False
        self.micro, self.calls, self.muted = [-1] * len(models), [Counter() for _ in models], [False] * len(models)

    def loss(self, loss):
        """Note this process's loss, as `backward` gets it; those of accumulated micro-batches, one by one, are added."""
        self.losses.append((loss.full_tensor() if hasattr(loss, "full_tensor") else loss).item())

    def gradients(self):
        """Record the gradients here instead of at the first optimizer step: before they are clipped, for example."""
        for name, parameter in self._parameters():
            if parameter.grad is not None and not self.done:
                self._keep(f"gradient|{name}", parameter.grad)
        self.done = True

    def weights(self, kind):
        """Record all weights and kept buffers as they are now."""
        for name, parameter in self._parameters():
            self._keep(f"{kind}|{name}", parameter)
        for place, module in (pair for model in self.models for pair in model.named_modules()):
            for name in module._buffers.keys() - module._non_persistent_buffers_set:
                if module._buffers[name] is not None:
                    self._keep(f"{kind}|{self.names(clean(f'{place}.{name}'.strip('.')))}", module._buffers[name])

    def watch(self):
        """Hook into every module, and into every optimizer's step; yields the hooks."""
        yield register_optimizer_step_pre_hook(self._before_step)
        for number, model in enumerate(self.models):
            yield model.register_forward_pre_hook(partial(self._enter, number), with_kwargs=True)
            inner = {clean(name): module for name, module in model.named_modules()}  # of wrappers, the innermost
            yield from (m.register_forward_hook(partial(self._leave, number, self.names(n))) for n, m in inner.items())

    def in_tf32(self):
        """Whether products on a GPU, or convolutions where there are any, may round what they take to TF32."""
        convolves = any(parameter.dim() > 2 for _, parameter in self._parameters())
        return torch.get_float32_matmul_precision() != "highest" or (convolves and torch.backends.cudnn.allow_tf32)

    def layout(self):
        """How the weights are spread, in words."""
        found = Counter()
        for _, weight in self._parameters():
            placed = zip(getattr(weight, "placements", ()), getattr(weight, "device_mesh", weight).shape, strict=False)
            found[", ".join(f"{how} over {size}" for how, size in placed) or "whole"] += 1
        kinds = "+".join(type(model).__name__ for model in self.models)
        return ", ".join([kinds, *(f"{count} weights {how}" for how, count in found.items())])

    def _parameters(self):
        pairs = (pair for model in self.models for pair in model.named_parameters(remove_duplicate=False))
        return ((self.names(clean(name)), parameter) for name, parameter in pairs)

    def _before_step(self, optimizer, arguments, keywords):
        """An optimizer that computes the gradients itself, by a closure, has them after that; what it is called with then."""
        closure = keywords.get("closure") or next(filter(callable, arguments[1:]), None)
        if closure is None:
            return self.gradients()

        def computed():
            loss = closure()
            self.gradients()
            return loss

        return (optimizer, computed), {name: each for name, each in keywords.items() if name != "closure"}

    def _enter(self, number, module, arguments, keywords):
        leaves = tensors_in((arguments, keywords))
        self.muted[number] = in_backward() or not leaves or is_rehearsal()
        if not self.muted[number]:
            self.micro[number] += 1
            self.calls[number].clear()
            self.samples += [leaves[0].shape[0]] if number == 0 else []
            for index, leaf in enumerate(leaves):
                self._keep(f"input|{number}|{index}|{self.micro[number]}", leaf)

    def _leave(self, number, name, module, arguments, output):
        leaves = [leaf for leaf in tensors_in(output) if leaf.is_floating_point()]
        if leaves and not self.muted[number] and not in_backward():  # which recomputes outputs
            for index, leaf in enumerate(leaves):
                self._keep(f"output|{name}|{self.calls[number][name]}|{index}|{max(self.micro[number], 0)}", leaf)
            self.calls[number][name] += 1

    def _keep(self, key, tensor):
        tensor = tensor.detach()
        if hasattr(tensor, "placements"):
            self.facts[key], tensor = facts_of(tensor), tensor.to_local()
        if self.every > 1 and tensor.dim() > (1 + key.startswith("output|")) and not key.startswith("input|"):
            tensor = self._thinned(key, tensor)
        self.tensors[key] = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)

    def _thinned(self, key, tensor):
        """Every so-many-th column of the whole that this tensor is a part of."""
        every, facts = self.every, self.facts.get(key)
        begin = facts["offset"][-1] if facts else 0
        self.uneven += [key] if not facts and tensor.shape[-1] % every else []
        for name in ("whole", "offset") if facts else ():
            facts[name][-1] = -(-facts[name][-1] // every)
        return tensor[..., -begin % every :: every]


def clean(name):
    """A module's or weight's name without those of wrappers."""
    parts = name.split(".")
    return ".".join(part for part in parts[parts[0] == "module" :] if part not in WRAPPERS)


def facts_of(tensor):
    """Where a DTensor's local part lies: the whole's shape, the part's offset, of how many parts it is the sum (or mean), and its others."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements = tensor.device_mesh, tensor.placements
    _, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    axes = list(zip(mesh.shape, mesh.get_coordinate(), placements, strict=True))
    parts = [size for size, _, placed in axes if placed.is_partial()]
    mean = any(placed.is_partial() and placed.reduce_op == "avg" for placed in placements)
    same = [list(offset), *(at for _, at, placed in axes if not placed.is_partial())]
    return {"whole": list(tensor.shape), "offset": list(offset), "partial": parts, "mean": mean, "same": str(same)}


def tensors_in(values):
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor) and leaf.dim()]


def in_backward():
    return torch._C._current_graph_task_id() != -1


def is_rehearsal():
    frame = sys._getframe()
    while frame and frame.f_code.co_name not in REHEARSALS:
        frame = frame.f_back
    return frame is not None
