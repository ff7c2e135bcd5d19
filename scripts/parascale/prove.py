"""Record steps of a training script, to show that it computes the same in any layout. `parascale.proof` compares two recordings.

    with prove.recording(model, "proof/ddp") as record:  # around a step, in each process; also in the single process's script
        loss = loss_of(model(inputs), labels)
        record.loss(loss)  # optional: the loss that `backward` gets
        loss.backward()
        optimizer.step()

It needs Python 3.9, torch 2.4 and safetensors (or later), and no other file of parascale; you may copy it. Each step, each process writes
a file with its part of each module's output, the gradients at the first optimizer step, that optimizer's settings and the weights after it.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

try:
    import torch
    from safetensors.torch import save_file
except ModuleNotFoundError as error:
    words = f"parascale.prove needs the package `{error.name}`: pip install {error.name}"
    raise ModuleNotFoundError(words, name=error.name) from None
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

WRAPPERS = {"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}  # of compile, checkpointing, FSDP1
REHEARSALS = ("_forward_metadata_inference", "_shape_inference")  # with which a pipeline infers a stage's shapes
FORMAT = 2  # version of the header
COUNTER = "_steps_recorded"  # in a model's __dict__: folder → number of the next step


@contextmanager
def recording(
    model: Any,
    folder: Path | str,
    rows: Iterable[Any] | None = None,
    positions: Iterable[Any] | None = None,
    names: Callable[[str], str] = lambda name: name,
    every: int = 1,
) -> Iterator[Record]:
    """Record one training step of this process into `folder`; yields a Record. Writes nothing if the step raises an exception.

    model: the module that the script calls, wrapped or not; for several pipeline stages, a list of them. Do not compile it.
    rows: the numbers of this process's samples in the single process's batch; by default, the inputs are compared to find them.
    positions: likewise for positions in the sequence (dimension 1), if processes share sequences.
    names: a function from a module's or weight's name here to its name in the single process.
    every: keep only each `every`-th column (last dimension) of weights, gradients and outputs, to make a large model's recording smaller;
        use the same value in both scripts. Vectors, and outputs of one or two dimensions, are kept whole.
    """
    rows, positions = (None if each is None else [int(number) for number in each] for each in (rows, positions))
    models = list(model) if isinstance(model, (list, tuple, torch.nn.ModuleList)) else [model]
    folder, counts = Path(folder).resolve(), vars(models[0]).setdefault(COUNTER, Counter())
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    rank, world = (torch.distributed.get_rank(), torch.distributed.get_world_size()) if ready else (0, 1)
    step = counts[str(folder)]
    record = Record(models, names, every, step == 0)
    if step == 0:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"step-*-rank-{rank:05}.safetensors"):
            old.unlink()
        record.weights("start")
    with ExitStack() as hooks:
        for handle in record.watch():
            hooks.callback(handle.remove)
        hooks.enter_context(record.watch_clips())
        yield record
    record.finish()
    header: dict[str, Any] = {"format": FORMAT, "rank": rank, "world": world, "rows": rows, "positions": positions}
    header |= {"keys": list(record.tensors), "trained": record.trained, "others": list(record.others)}
    header |= {"exact": record.is_exact(), "every": every, "uneven": record.uneven}
    header |= {"facts": record.facts, "samples": record.samples, "losses": record.losses, "layout": record.layout()}
    header |= {"torch": torch.__version__, "python": platform.python_version(), "system": platform.platform()}
    header |= {
        "products": record.products(),
        "autocast": record.autocast,
        "updates": record.updates,
        "clip": record.clip,
    }
    path = folder / f"step-{step:05}-rank-{rank:05}.safetensors"
    save_file(record.tensors, path.with_suffix(".partial"), {"prove": json.dumps(header)})
    os.replace(path.with_suffix(".partial"), path)
    counts[str(folder)] += 1


class Record:
    """Tensors of one process in one step. Keys: `<kind>|<name>`; for outputs and inputs also call, leaf and micro-batch."""

    def __init__(self, models: list[torch.nn.Module], names: Callable[[str], str], every: int, is_first: bool) -> None:
        self.models, self.names, self.every, self.is_first = models, names, every, is_first
        self.tensors, self.facts = dict[str, torch.Tensor](), dict[str, Any]()
        self.others: dict[str, torch.Tensor] = {}  # outside of the model
        self.uneven: list[str] = []  # keys of plain tensors whose number of columns `every` does not divide
        # Module → autocast type; weight → the optimizer that updated it.
        self.autocast, self.updates = dict[str, Any](), dict[str, Any]()
        # Recorded gradients: where the script "asked", with clipping "none" seen, or "before" or "after" clipping.
        self.clip = "none"
        self.samples, self.losses, self.done = list[int](), list[float](), False
        self.calls = [Counter[str]() for _ in models]
        self.micro, self.muted = [-1] * len(models), [False] * len(models)

    def loss(self, loss: torch.Tensor) -> None:
        """Record the loss that `backward` gets in this process. With accumulation, call it once per micro-batch; the losses are added."""
        self.losses.append((loss.full_tensor() if hasattr(loss, "full_tensor") else loss).item())

    def gradients(self) -> None:
        """Record the gradients now instead of at the first optimizer step, for example before clipping."""
        if not self.done:
            self.clip = "asked"
        self._gradients()

    def also(self, name: str, tensor: torch.Tensor) -> None:
        """Also record a tensor outside the model, now and at the end of the step, for example an average of weights, updated in place."""
        if self.is_first and name not in self.others:
            self._keep(f"start|{name}", tensor)
        self.others[name] = tensor

    def finish(self) -> None:
        """Record the end of the step. Keep the gradients before clipping, if each has only been multiplied by a factor since then."""
        self._gradients()
        self.weights("weight")
        for name, tensor in self.others.items():
            self._keep(f"weight|{name}", tensor)
        begun = {
            key.partition("|")[2]: self.tensors.pop(key) for key in [*self.tensors] if key.startswith("unclipped|")
        }
        if begun and self.clip != "asked":
            used: Any = {name: self.tensors.get(f"used|{name}", self.tensors.get(f"gradient|{name}")) for name in begun}
            self.clip = "before" if all(is_multiple(used[name], begun[name]) for name in begun) else "after"
            for name, tensor in begun.items() if self.clip == "before" else ():
                self.tensors[f"gradient|{name}"] = tensor
                if not torch.equal(tensor, used[name]):
                    self.tensors[f"used|{name}"] = used[name]
                    self.facts |= {f"used|{name}": fact for fact in [self.facts.get(f"gradient|{name}")] if fact}

    def weights(self, kind: str) -> None:
        """Record all weights and persistent buffers as they are now."""
        for name, parameter in self._parameters():
            self._keep(f"{kind}|{name}", parameter)
        for place, module in (pair for model in self.models for pair in model.named_modules()):
            for name in module._buffers.keys() - module._non_persistent_buffers_set:
                if module._buffers[name] is not None:
                    self._keep(f"{kind}|{self.names(clean(f'{place}.{name}'.strip('.')))}", module._buffers[name])

    def watch(self) -> Iterator[RemovableHandle]:
        """Hook into every module and every optimizer's step; yields the handles."""
        yield register_optimizer_step_pre_hook(self._before_step)
        for number, model in enumerate(self.models):
            yield model.register_forward_pre_hook(partial(self._enter, number), with_kwargs=True)
            inner = {clean(name): module for name, module in model.named_modules()}  # without wrappers
            yield from (m.register_forward_hook(partial(self._leave, number, self.names(n))) for n, m in inner.items())

    @property
    def trained(self) -> list[str]:
        return [name for name, _ in self._parameters()]

    @contextmanager
    def watch_clips(self) -> Iterator[None]:
        """Keep gradients before torch's functions clip them. Replaces a helper that they all call first, in every version."""
        place, name = torch.nn.utils.clip_grad, "_group_tensors_by_device_and_dtype"
        group: Any = getattr(place, name, None)

        def noted(lists: Any, *arguments: Any, **keywords: Any) -> Any:
            clipped = {id(tensor) for tensors in lists for tensor in tensors}
            for weight, parameter in self._parameters():
                if id(parameter.grad) in clipped:
                    self._keep(f"unclipped|{weight}", parameter.grad)
            return group(lists, *arguments, **keywords)

        if group:
            setattr(place, name, noted)
        try:
            yield
        finally:
            if group:
                setattr(place, name, group)

    def products(self) -> str:
        """The type that operands of fp32 products are rounded to: fp32; tf32, on GPUs also for convolutions; bf16, on CPUs that have it."""
        weights = [parameter for _, parameter in self._parameters() if parameter.dtype == torch.float32]
        on_gpu, convolves = any(each.is_cuda for each in weights), any(each.dim() > 2 for each in weights)
        try:
            chosen = torch.get_float32_matmul_precision()
        except RuntimeError:  # the script uses torch 2.9's settings, one per backend
            backend = torch.backends.cuda if on_gpu else torch.backends.mkldnn
            chosen = {"tf32": "high", "bf16": "medium"}.get(backend.matmul.fp32_precision, "highest")
        if chosen == "highest" or not weights:
            return "tf32" if on_gpu and convolves and torch.backends.cudnn.allow_tf32 else "fp32"
        return "bf16" if chosen == "medium" and not on_gpu else "tf32"

    def is_exact(self) -> bool:
        """True if the same operations give the same bits in two processes."""
        return torch.are_deterministic_algorithms_enabled() or not any(each.is_cuda for _, each in self._parameters())

    def layout(self) -> str:
        """How the weights are sharded, in words."""
        found = Counter[str]()
        for _, weight in self._parameters():
            placed = zip(getattr(weight, "placements", ()), getattr(weight, "device_mesh", weight).shape)
            found[", ".join(f"{how} over {size}" for how, size in placed) or "whole"] += 1
        kinds = "+".join(type(model).__name__ for model in self.models)
        return ", ".join([kinds, *(f"{count} weights {how}" for how, count in found.items())])

    def _parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        pairs = (pair for model in self.models for pair in model.named_parameters(remove_duplicate=False))
        return ((self.names(clean(name)), parameter) for name, parameter in pairs)

    def _before_step(self, optimizer: Any, arguments: Any, keywords: Any) -> Any:
        """Record the optimizer's input. If a closure computes the gradients, returns arguments with a closure that records after it."""
        closure = keywords.get("closure") or next(filter(callable, arguments[1:]), None)
        if closure is None:
            return self._note(optimizer)

        def computed() -> Any:
            loss = closure()
            self._note(optimizer)
            return loss

        return (optimizer, computed), {name: each for name, each in keywords.items() if name != "closure"}

    def _gradients(self, scale: torch.Tensor | None = None) -> None:
        for name, parameter in self._parameters():
            if parameter.grad is not None and not self.done:
                self._keep(f"gradient|{name}", parameter.grad if scale is None else parameter.grad / scale)
        self.done = True

    def _note(self, optimizer: Any) -> None:
        """Record the gradients and this optimizer's settings, its state before the first step, and the gradients that it gets."""
        # Set by a loss scaler: a fused optimizer divides by `grad_scale`, and skips the step if `found_inf`.
        scale = getattr(optimizer, "grad_scale", None)
        self._gradients(scale)
        if (skips := getattr(optimizer, "found_inf", None)) is not None and skips.item():
            return
        held = {id(each): group for group in optimizer.param_groups for each in group["params"]}
        kind = f"{type(optimizer).__module__}.{type(optimizer).__name__}"
        for name, parameter in self._parameters():
            if (group := held.get(id(parameter))) is None:
                continue
            # One of torch's has updated it before. (A class outside torch.optim may be a wrapper that calls this optimizer.)
            again = self.updates.get(name, {}).get("class", "").startswith("torch.optim.")
            settings = {key: plain(value) for key, value in group.items() if key != "params"}
            self.updates[name] = {"class": "several steps" if again else kind, "settings": settings}
            for key, value in optimizer.state.get(parameter, {}).items() if self.is_first else ():
                if isinstance(value, torch.Tensor) and value.shape in (parameter.shape, ()):
                    self._keep(f"state|{name}|{key}", value)
            if parameter.grad is not None:
                self._keep(used := f"used|{name}", parameter.grad if scale is None else parameter.grad / scale)
                if torch.equal(self.tensors[used], self.tensors[f"gradient|{name}"]):
                    del self.tensors[used]

    def _enter(self, number: int, module: torch.nn.Module, arguments: Any, keywords: Any) -> None:
        leaves = tensors_in((arguments, keywords))
        self.muted[number] = in_backward() or not leaves or is_rehearsal()
        if not self.muted[number]:
            self.micro[number] += 1
            self.calls[number].clear()
            self.samples += [leaves[0].shape[0]] if number == 0 else []
            for index, leaf in enumerate(leaves):
                self._keep(f"input|{number}|{index}|{self.micro[number]}", leaf)

    def _leave(self, number: int, name: str, module: torch.nn.Module, arguments: Any, output: Any) -> None:
        leaves = [leaf for leaf in tensors_in(output) if leaf.is_floating_point()]
        if leaves and not self.muted[number] and not in_backward():  # the backward pass may recompute outputs
            if torch.is_autocast_enabled(leaves[0].device.type):  # a user's class may compute in this type inside
                inside = str(torch.get_autocast_dtype(leaves[0].device.type)).removeprefix("torch.")
                self.autocast[name] = [inside, not type(module).__module__.startswith("torch.nn.")]
            for index, leaf in enumerate(leaves):
                self._keep(f"output|{name}|{self.calls[number][name]}|{index}|{max(self.micro[number], 0)}", leaf)
            self.calls[number][name] += 1

    def _keep(self, key: str, tensor: Any) -> None:
        tensor = tensor.detach()
        if hasattr(tensor, "placements"):
            self.facts[key], tensor = facts_of(tensor), tensor.to_local()
        if self.every > 1 and tensor.dim() > (1 + key.startswith("output|")) and not key.startswith("input|"):
            tensor = self._thinned(key, tensor)
        self.tensors[key] = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)

    def _thinned(self, key: str, tensor: torch.Tensor) -> torch.Tensor:
        """Each `every`-th column of the whole tensor, as far as this part has them."""
        every, facts = self.every, self.facts.get(key) or {}
        begin = facts["offset"][-1] if facts else 0
        self.uneven += [key] if not facts and tensor.shape[-1] % every else []
        for name in ("whole", "offset") if facts else ():
            facts[name][-1] = -(-facts[name][-1] // every)
        return tensor[..., -begin % every :: every]


def clean(name: str) -> str:
    """A module's or weight's name without the names of wrappers."""
    parts = name.split(".")
    return ".".join(part for part in parts[parts[0] == "module" :] if part not in WRAPPERS)


def plain(value: Any) -> Any:
    """A setting of an optimizer as a JSON value, or None."""
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    value = value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
    return value if isinstance(value, (bool, int, float, str)) else None


def is_multiple(tensor: torch.Tensor | None, of: torch.Tensor) -> bool:
    """True if `tensor` is `of` times a single factor, up to rounding."""
    if tensor is None or tensor.shape != of.shape:
        return False
    kind, tensor, of = torch.finfo(of.dtype), tensor.double(), of.double()
    factor = (tensor * of).sum() / of.square().sum().clamp(min=1e-300)
    return torch.allclose(tensor, factor * of, rtol=8 * kind.eps, atol=kind.tiny)


def facts_of(tensor: Any) -> dict[str, Any]:
    """Describe a DTensor's local part: shape of the whole, offset of the part, sizes of partial sums (or means), a key common to these."""
    try:
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    except ImportError:  # torch 2.4
        from torch.distributed._tensor._utils import compute_local_shape_and_global_offset  # type: ignore[no-redef]

    mesh, placements = tensor.device_mesh, tensor.placements
    _, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    axes = list(zip(mesh.shape, mesh.get_coordinate(), placements))
    parts = [size for size, _, placed in axes if placed.is_partial()]
    mean = any(placed.is_partial() and placed.reduce_op == "avg" for placed in placements)
    same = [list(offset), *(at for _, at, placed in axes if not placed.is_partial())]
    return {"whole": list(tensor.shape), "offset": list(offset), "partial": parts, "mean": mean, "same": str(same)}


def tensors_in(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor) and leaf.dim()]


def in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def is_rehearsal() -> bool:
    frame: FrameType | None = sys._getframe()
    while frame and frame.f_code.co_name not in REHEARSALS:
        frame = frame.f_back
    return frame is not None
