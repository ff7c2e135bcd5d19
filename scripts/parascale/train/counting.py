"""Count a model's operations and kept tensors once, on meta tensors, for plans (`parascale.families.counted`).

A forward pass without gradients, one with them, and its backward pass run as on CPUs, with two numbers of samples, in each number width;
as on GPUs if torch's attention differs there; and with the copies that context parallelism exchanges. Tensor parallelism is not run:
starting from the weights that the `tensor_plan` splits, we track for each tensor if a rank would have a part of it or all. Amounts have
the components of `parascale.train.dispatch`.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from parascale.errors import RequirementError
from parascale.evaluation.evaluate import summed_loss
from parascale.evaluation.task import empty_batch
from parascale.families.build import build_model
from parascale.families.counted import SAMPLES, counts_of, offer_place
from parascale.families.dropout import DropoutKeys
from parascale.families.head import Head
from parascale.families.kind import matches, offer_of
from parascale.files import read_json, write_json, write_text
from parascale.parallel import tying
from parascale.parallel.context import split_positions
from parascale.parallel.recompute import MATRICES
from parascale.settings.workload import Learning
from parascale.train.dispatch import (
    AMOUNTS,
    SEQUENCE,
    WHOLE,
    AttentionMode,
    Computed,
    LiveBytes,
    key_of,
    nothing,
    tensors_of,
)

TYPES = {8: torch.float64, 4: torch.float32, 2: torch.bfloat16}
# Roles of a `tensor_plan` that split weights → True if a rank has whole inputs and results.
GATHERED = ("columns_gathered", "rows_of_whole", "logits", "vocabulary")
ROLES = {"columns": False, "rows": False} | dict.fromkeys(GATHERED, True)
OF_SEQUENCE = ("columns", "columns_gathered", "logits")  # with a split sequence, their input is gathered


def count(workload: Learning, outputs: int) -> dict[str, Any]:
    """Count a workload's model with `outputs` classes or tokens; returns the mapping that CountedSizes reads.

    A dtype in which the passes fail is left out. Raises RequirementError if that is fp32, for example because they depend on values.
    """
    described, forms = {}, {}
    for width in TYPES:
        try:
            first, forms[str(width)] = _form(workload, outputs, width, False)
            if first.attention.drops or (first.attention.called and width == 8):
                on_gpus, form = _form(workload, outputs, width, True)
                forms[f"{width} cuda"] = form | on_gpus.operations()
            if width == 4:
                described, forms["4"] = first.described(), forms["4"] | first.operations()
        except Exception as error:  # of the model's own
            if width == 4:
                raise RequirementError(f"not counted for plans: its passes without data fail: {error}") from error
    return described | {"forms": forms}


def _form(workload: Learning, outputs: int, width: int, on_gpus: bool) -> tuple["Pass", dict[str, Any]]:
    """Count in one width. Returns a Pass without exchanges, and the bytes: also with exchanges if the model offers `cp`."""
    few, many = (Pass(workload, outputs, width, samples, on_gpus) for samples in SAMPLES)
    form = {"bytes": [few.bytes, many.bytes]}
    if "exchanges" in getattr(few.model, "context_plan", {}).values():
        exchanging = [Pass(workload, outputs, width, samples, on_gpus, exchanges=True) for samples in SAMPLES]
        form["exchanged"], few.exchanged = [each.bytes for each in exchanging], exchanging[0].exchanged
    return few, form


def keep_count(workload: Learning, outputs: int) -> Path:
    """Write a workload's count, and the layouts that a user's model offers, where plans look for them. Returns the file. Raises
    RequirementError like `count`."""
    place, digest = counts_of(workload.model, outputs, *workload.sizes)
    found = read_json(place) if place.is_file() else {}
    if workload.model.is_own:
        with torch.device("meta"):
            offer = offer_of(build_model(workload.model, outputs, *workload.sizes))
        found[offer_place(workload.model)[1]] = offer
        write_json(place, found)
    place.parent.mkdir(exist_ok=True)
    write_text(place, json.dumps(found | {digest: count(workload, outputs)}) + "\n")
    return place


class Pass:
    """Passes of a model over some samples, with numbers of `width` bytes. bytes: name → amount.

    exchanges: copy the inputs and the result of each attention, as `parascale.parallel.context` does. exchanged: (elements of queries and
    result, elements of keys and values, key heads) of each attention.
    """

    def __init__(
        self, workload: Learning, outputs: int, width: int, samples: int, on_gpus: bool, exchanges: bool = False
    ) -> None:
        with torch.device("meta"):
            self.model = model = build_model(workload.model, outputs, *workload.sizes)
        if width == 8:
            model.double()
        for each in model.parameters() if width < 4 else ():  # buffers stay as they are
            each.data = each.data.to(TYPES[width])
        tied, patterns = tying.tied_names(model), getattr(model, "shard_units", ())
        blocks = [each for name, each in model.named_modules() if any(matches(name, pattern) for pattern in patterns)]
        self.blocks, self.samples, self.width = blocks or [model], samples, width
        self.of_blocks, self.of_ends, self.attention = Computed(), Computed(), AttentionMode(on_gpus)
        self.entered, self.kept, self.forward, self.peaks = [], [], nothing(), []
        self.boundary, self.dear = nothing(), nothing()  # sums over all blocks
        self.exchanged: list[tuple[int, int, int]] = []
        rest = SEQUENCE if "split_sequence_after" in getattr(model, "tensor_plan", {}).values() else WHOLE
        with FakeTensorMode(allow_non_fake_inputs=True):
            model.to_empty(device="cpu")
            tying.tie(model, tied)
            *inputs, labels = map(torch.tensor, empty_batch(workload, samples))
            self.targets = labels.numel() / samples
            self._watch()
            if exchanges:
                split_positions(model, 0, 1, lambda mixed: partial(self._exchange, mixed))  # one part: all positions
            known = (*inputs, labels, *model.parameters(), *model.buffers())
            self.live = LiveBytes({key_of(each): each in self.split for each in known}, rest)
            with self.live, self.attention:
                self.bytes = {name: [*map(float, amount)] for name, amount in self._run(inputs, labels).items()}

    def _run(self, inputs: Any, labels: Any) -> dict[str, Any]:
        self.base = base = self.live.live.copy()
        with torch.no_grad():
            self.model.eval()(*inputs)
        self.called, self.first, self.last = len(self.kept), set(), set()
        self.model.train()
        DropoutKeys([self.model], 0, [range(self.samples)], 1, "cpu").begin_part(1, 0)
        self.entered, self.kept, self.exchanged, self.live.work = [], [], [], self.of_ends
        logits = self.model(*inputs)
        if not self.kept:
            raise RequirementError(f"none of its repeated layers {', '.join(self.model.shard_units)} is called")
        after, made = self.live.live - base, nothing()
        made[WHOLE] = logits.numel() * logits.itemsize
        start, kept, blocks = self.entered[0] - base, sum(self.kept), len(self.blocks)
        if self.blocks == [self.model]:
            kept = kept - made
        self.live.above(base)
        loss, self.live.work = summed_loss(logits, labels), None
        del logits
        loss.backward()
        self.peaks.append(self.live.above(base))
        return {
            "start": start,
            "block": kept / blocks,
            "selective": self.dear / blocks,
            "ends": after - made - start - kept,
            "working": self.peaks[min(1, len(self.peaks) - 1)] - (start + kept),
            "last": self.peaks[-1],
            "forward": self.forward,
            "boundary": self.boundary / blocks,
            "logits": made,
        }

    def _watch(self) -> None:
        """Install hooks that observe the blocks' inputs and outputs, the parameters before and after them, and the split ones."""
        plan = getattr(self.model, "tensor_plan", {})
        self.held = {p for block in self.blocks for p in block.parameters()}
        self.first, self.last = set(), set()  # parameters before and after the blocks
        self.split: set = set()
        self.called = -1  # number of block calls, known after the first pass
        for name, module in self.model.named_modules():
            own = dict(module.named_parameters(recurse=False))
            for role in (role for pattern, role in plan.items() if role in ROLES and matches(name, pattern)):
                self.split |= {each for key, each in own.items() if key != "bias" or not role.startswith("rows")}
                if ROLES[role]:
                    module.register_forward_hook(partial(self._gathered, role))
                if role in OF_SEQUENCE:
                    module.register_forward_pre_hook(lambda _, inputs: self.live.place(WHOLE, *tensors_of(inputs)))
            if self.held.isdisjoint(own.values()):
                module.register_forward_pre_hook(lambda _, __, own=own: self._ends().update(own.values()))
        for block in self.blocks:
            block.register_forward_pre_hook(self._enter)
            block.register_forward_hook(self._leave)
        for each in self.model.parameters():
            each.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", None))

    def _exchange(self, mixed: Any, query: Any, key: Any, value: Any, *whole: Any, **more: Any) -> Any:
        made = _copy(mixed(*map(_copy, (query, key, value)), *whole, **more))
        self.exchanged.append((query.numel() + made.numel(), key.numel() + value.numel(), key.shape[1]))
        return made

    def _ends(self) -> set[Any]:
        """The set for parameters outside the blocks that are used now: after the last block, or before."""
        return self.last if len(self.kept) == self.called else self.first

    def _gathered(self, role: str, module: Any, inputs: Any, result: Any) -> None:
        self.live.place(WHOLE if role == "logits" else self.live.rest, *tensors_of(result))
        for each in tensors_of(inputs):
            if each.requires_grad:
                each.register_hook(lambda gradient: self.live.place(self.live.rest, gradient))

    def _enter(self, module: Any, inputs: Any) -> None:
        self.live.above(0)
        self.entered.append(self.live.live.copy())
        self.live.work = self.live.work and self.of_blocks
        self.live.begin_block(sum(isinstance(each, MATRICES) for each in module.modules()))

    def _leave(self, module: Any, inputs: Any, result: Any) -> None:
        result = next(each for each in tensors_of(result) if each.is_floating_point())
        self.kept.append(self.live.live - self.entered[-1])
        if self.live.work is None:
            self.forward = max(self.forward, self.live.above(self.base), key=sum)
        else:
            self.live.end_block(result)
            self.boundary[self.live.rest] += result.numel() * result.itemsize
            self.dear += self.live.dear
            self.live.work = self.of_ends
        if result.requires_grad:
            result.register_hook(lambda _: self.peaks.append(self.live.above(self.base)))

    def described(self) -> dict[str, Any]:
        """Elements of the parameters, and other facts for plans."""
        layers, each = len(self.blocks), [sum(p.numel() for p in block.parameters()) for block in self.blocks]
        head = {p for p in self.last if p.ndim > 1}
        before = {*self.model.parameters()} - self.held - (self.last - self.first)
        modules = [*self.model.modules()]
        norms = [each for each in modules if isinstance(each, torch.nn.BatchNorm2d)]
        return {
            "layers": layers,
            "unit": max(each) * layers / max(1, sum(each)),
            "block": [elements / layers for elements in self._elements(self.held)],
            "embedding": self._elements(before),
            "head": sum(self._elements(head)),
            "norm": sum(self._elements(self.last - head)),
            "splits_logits": not head.isdisjoint(self.split),
            "tied": not head.isdisjoint(before),
            "targets": self.targets,
            "norms": len(norms),
            "statistics": sum(2 * each.num_features for each in norms),
            **self._exchanges(),
            "chunks": next(([each.out_features, each.in_features] for each in modules if isinstance(each, Head)), None),
        }

    def _exchanges(self) -> dict[str, Any]:
        """What the mean block exchanges of a token."""
        if not self.exchanged:
            return {}
        queries, keys, heads = zip(*self.exchanged, strict=True)
        each = len(self.blocks) * self.samples * self.targets
        return {"exchanged": [sum(queries) / each, sum(keys) / each, min(heads)]}

    def _elements(self, parameters: set[Any]) -> list[int]:
        return [sum(each.numel() for each in part) for part in (parameters & self.split, parameters - self.split)]

    def operations(self) -> dict[str, Any]:
        """Computation for one sample, in an average block and at the ends."""
        return {"blocks": self._work(self.of_blocks, len(self.blocks)), "ends": self._work(self.of_ends, 1)}

    def _work(self, work: Computed, blocks: int) -> dict[str, Any]:
        """Average over `blocks`, as in fp32. products: [rows, inner, outputs, split dimension, recomputed, calls]."""
        each, exact = blocks * self.samples, {"moved": self.width / 4, "joined": self.width / 4}
        return {
            "products": [[rows / self.samples, *rest, n / blocks] for (rows, *rest), n in work.products.items()],
            **{name: [part / each / exact.get(name, 1) for part in work.amounts[name]] for name in AMOUNTS},
            "full": work.full / each,
            **{name: getattr(work, name) / blocks for name in ("kernels", "joins", "draws")},
        }


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)
