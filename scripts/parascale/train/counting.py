"""Operations and kept tensors of a model, counted once on tensors without data; plans read it (`parascale.families.counted`).

A forward pass without gradients, one with them, and its backward pass run as on CPUs, with two numbers of samples, in each width of
numbers. Tensor parallelism is not run: each tensor is followed from the weights that the `tensor_plan` splits, whether a rank would have
a part of it or the whole. Pairs are [what is split, what is whole].
"""

import weakref
from collections import Counter

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from parascale.errors import RequirementError
from parascale.evaluation.evaluate import summed_loss
from parascale.evaluation.task import empty_batch
from parascale.families.build import build_model
from parascale.families.counted import SAMPLES, counts_of, offer_place
from parascale.families.dropout import DropoutKeys
from parascale.families.kind import matches, offer_of
from parascale.files import read_json, write_json
from parascale.parallel import tying

TYPES = {8: torch.float64, 4: torch.float32, 2: torch.bfloat16}
MATRICES = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
# Roles of a `tensor_plan` that split weights → whether a rank has input and result whole.
WHOLE = ("columns_gathered", "rows_of_whole", "logits", "vocabulary")
SPLIT = {"columns": False, "rows": False} | dict.fromkeys(WHOLE, True)


def count(workload, outputs):
    """The mapping of a workload's model with `outputs` that CountedSizes reads.

    A type of numbers in which its passes fail is left out. Raises RequirementError where that is fp32, as where they depend on values.
    """
    passes = {}
    for width, kind in TYPES.items():
        try:
            passes[width] = [Pass(workload, outputs, kind, each) for each in SAMPLES]
        except Exception as error:  # of the model's own
            if width == 4:
                raise RequirementError(f"not counted for plans: its passes without data fail: {error}") from error
    found = passes[4][0].described()
    return found | {"bytes": {str(width): [each.bytes for each in both] for width, both in passes.items()}}


def keep_count(workload, outputs):
    """Write what a workload's model offers, and its count, where plans look for them; returns the file. Raises RequirementError as `count`."""
    place, digest = counts_of(workload.model, outputs, *workload.sizes)
    with torch.device("meta"):
        offer = offer_of(build_model(workload.model, outputs, *workload.sizes))
    found = (read_json(place) if place.is_file() else {}) | {offer_place(workload.model)[1]: offer}
    write_json(place, found)
    write_json(place, found | {digest: count(workload, outputs)})
    return place


class LiveBytes(TorchDispatchMode):
    """Bytes of the storages that are alive, without the `known` ones, and their peak; beside it what is computed.

    known: storage that was there before → whether it is split.
    """

    def __init__(self, known):
        super().__init__()
        self.known, self.held, self.live, self.peak, self.work = known, {}, np.zeros(2), np.zeros(2), None

    def __torch_dispatch__(self, function, kinds, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        inputs, results = _tensors((arguments, keywords)), _tensors(result)
        split = [self.held.get(key, (0, self.known.get(key, False)))[1] for key in map(_key, inputs)]
        if self.work is not None:
            causal = any(each is True for each in (*arguments, *(keywords or {}).values()))
            self._count(function, inputs, results, split, causal)
        summed = function in MATRICES and all(split[-2:])  # over a dimension that is split
        for each in results:
            self._take(each.untyped_storage(), any(split) and not summed)
        return result

    def whole(self, *tensors):
        """Note that a rank has the whole of tensors."""
        for key in map(_key, tensors):
            size, split = self.held.get(key, (0, False))
            if split:
                self.held[key] = size, False
                self.live += -size, size

    def above(self, base):
        """The peak since this was asked last, above a pair."""
        peak, self.peak = self.peak, self.live.copy()
        return peak - base

    def _take(self, storage, split):
        key, size = storage._cdata, storage.nbytes()
        if key not in self.held and key not in self.known:
            self.held[key] = size, split
            weakref.finalize(storage, self._drop, key)
            self.live[int(not split)] += size
            if self.live.sum() > self.peak.sum():
                self.peak = self.live.copy()

    def _drop(self, key):
        size, split = self.held.pop(key)
        self.live[int(not split)] -= size

    def _count(self, function, inputs, results, split, causal):
        if not function._schema.is_mutable and {*map(_key, results)} <= {*map(_key, inputs)}:
            return  # a view
        work, packet, whole = self.work, function._overloadpacket, not any(split)
        accessed = sum(each.numel() * each.itemsize for each in (*inputs, *results))
        # Hashes, and the masks that they become: compiled, these alone are written and read.
        if not any(each.is_floating_point() for each in results):
            work["draws"] += 1
            work["drawn"][whole] += accessed
            work["masks"][whole] += sum(2 * each.numel() for each in results if each.dtype == torch.bool)
            return
        work["kernels"] += 1
        if packet in flop_registry and "attention" not in str(packet):
            weight, ways = inputs[1 if "conv" in str(packet) else -1], tuple(split[-2:])
            inner, outputs = (weight[0].numel(), len(weight)) if "conv" in str(packet) else weight.shape[-2:]
            way = "rows" if any(ways) else None
            if function in MATRICES:
                way = {(True, True): "inner", (False, True): "outputs"}.get(ways, way)
            work["products"][results[0].numel() / outputs, inner, outputs, way] += 1
            work["full"] += 2 * results[0].numel() * inner
            return
        if "attention" in str(packet):
            flops = sdpa_flop_count(*(each.shape for each in inputs[:3]))
            work["full"] += flops
            work["attention"][whole] += flops * (0.5 if causal else 1.0)
        work["moved"][whole] += accessed


class Pass:
    """The passes of a model over some samples, in a type of numbers. bytes: name → pair."""

    def __init__(self, workload, outputs, kind, samples):
        with torch.device("meta"):
            self.model = model = build_model(workload.model, outputs, *workload.sizes)
        if kind.itemsize == 8:
            model.double()
        for each in model.parameters() if kind.itemsize < 4 else ():  # buffers stay as they are
            each.data = each.data.to(kind)
        tied, patterns = tying.tied_names(model), getattr(model, "shard_units", ())
        blocks = [each for name, each in model.named_modules() if any(matches(name, pattern) for pattern in patterns)]
        self.blocks, self.samples = blocks or [model], samples
        self.of_blocks, self.of_ends = _nothing(), _nothing()
        self.entered, self.kept, self.forward, self.peaks = [], [], np.zeros(2), []
        with FakeTensorMode(allow_non_fake_inputs=True):
            model.to_empty(device="cpu")
            tying.tie(model, tied)
            *inputs, labels = map(torch.tensor, empty_batch(workload, samples))
            self.targets = labels.numel() / samples
            self._watch()
            known = (*inputs, labels, *model.parameters(), *model.buffers())
            self.live = LiveBytes({_key(each): each in self.split for each in known})
            with self.live:
                self.bytes = {name: [*map(float, pair)] for name, pair in self._run(inputs, labels).items()}

    def _run(self, inputs, labels):
        self.base = base = self.live.live.copy()
        with torch.no_grad():
            self.model.eval()(*inputs)
        self.called, self.first, self.last = len(self.kept), set(), set()
        self.model.train()
        DropoutKeys([self.model], 0, [range(self.samples)], 1, "cpu").begin_part(1, 0)
        self.entered, self.kept, self.live.work = [], [], self.of_ends
        logits = self.model(*inputs)
        if not self.kept:
            raise RequirementError(f"none of its repeated layers {', '.join(self.model.shard_units)} is called")
        self.live.work, after = None, self.live.live - base
        made = np.array([0, logits.numel() * logits.itemsize])
        start, kept = self.entered[0] - base, sum(self.kept)
        if self.blocks == [self.model]:
            kept = kept - made
        self.live.above(base)
        loss = summed_loss(logits, labels)
        del logits
        loss.backward()
        self.peaks.append(self.live.above(base))
        return {
            "start": start,
            "block": kept / len(self.blocks),
            "ends": after - made - start - kept,
            "working": self.peaks[min(1, len(self.peaks) - 1)] - (start + kept),
            "last": self.peaks[-1],
            "forward": self.forward,
            "boundary": [0, self.boundary],
            "logits": made,
        }

    def _watch(self):
        """Look at what blocks begin and end with, which parameters stand before and after them, and which are split."""
        plan = getattr(self.model, "tensor_plan", {})
        self.held = {p for block in self.blocks for p in block.parameters()}
        self.first, self.last, self.split = set(), set(), set()  # of parameters
        self.called = None  # how often blocks are, once a pass has shown it
        for name, module in self.model.named_modules():
            own = dict(module.named_parameters(recurse=False))
            for role in (role for pattern, role in plan.items() if role in SPLIT and matches(name, pattern)):
                self.split |= {each for key, each in own.items() if key != "bias" or not role.startswith("rows")}
                if SPLIT[role]:
                    module.register_forward_hook(self._gathered)
            if self.held.isdisjoint(own.values()):
                module.register_forward_pre_hook(lambda _, __, own=own: self._ends().update(own.values()))
        for block in self.blocks:
            block.register_forward_pre_hook(self._enter)
            block.register_forward_hook(self._leave)
        for each in self.model.parameters():
            each.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", None))

    def _ends(self):
        """Of parameters outside of the blocks: whether those called now stand behind the last of them, or before."""
        return self.last if len(self.kept) == self.called else self.first

    def _gathered(self, module, inputs, result):
        self.live.whole(*_tensors(result))
        for each in _tensors(inputs):
            if each.requires_grad:
                each.register_hook(self.live.whole)

    def _enter(self, module, inputs):
        self.live.above(0)
        self.entered.append(self.live.live.copy())
        self.live.work = self.live.work and self.of_blocks

    def _leave(self, module, inputs, result):
        result = next(each for each in _tensors(result) if each.is_floating_point())
        self.boundary = result.numel() * result.itemsize
        self.kept.append(self.live.live - self.entered[-1])
        if self.live.work is None:
            self.forward = max(self.forward, self.live.above(self.base), key=sum)
        self.live.work = self.live.work and self.of_ends
        if result.requires_grad:
            result.register_hook(lambda _: self.peaks.append(self.live.above(self.base)))

    def described(self):
        """Elements of the parameters, and what is computed of one sample."""
        layers, each = len(self.blocks), [sum(p.numel() for p in block.parameters()) for block in self.blocks]
        head = {p for p in self.last if p.ndim > 1}
        before = {*self.model.parameters()} - self.held - (self.last - self.first)
        norms = [each for each in self.model.modules() if isinstance(each, torch.nn.BatchNorm2d)]
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
            "blocks": self._work(self.of_blocks, layers),
            "ends": self._work(self.of_ends, 1),
        }

    def _elements(self, parameters):
        return [sum(each.numel() for each in part) for part in (parameters & self.split, parameters - self.split)]

    def _work(self, work, blocks):
        """Of one of so many blocks. products: [rows, inner, outputs, what is split, how often]."""
        each, samples = blocks * self.samples, self.samples
        return {
            "products": [[rows / samples, *rest, times / blocks] for (rows, *rest), times in work["products"].items()],
            **{name: [part / each for part in work[name]] for name in ("attention", "moved", "drawn", "masks")},
            "full": work["full"] / each,
            **{name: work[name] / blocks for name in ("kernels", "draws")},
        }


def _nothing():
    pairs = {name: [0, 0] for name in ("attention", "moved", "drawn", "masks")}
    return {"products": Counter(), "full": 0, "kernels": 0, "draws": 0, **pairs}


def _tensors(tree):
    return [each for each in tree_leaves(tree) if isinstance(each, torch.Tensor)]


def _key(tensor):
    return tensor.untyped_storage()._cdata
