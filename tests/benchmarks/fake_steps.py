"""The real training step on tensors without data: what one rank of any layout would hold, found on one process.

`FakeTensorMode` gives tensors a shape but no memory, and the `fake` process group answers every collective at once, so
that a rank of 512 with a model of billions of parameters runs on a laptop. It counts live tensor storages, as this machine's
kernels would leave them, without the memory of libraries (CUDA context, NCCL). Tests compare the formulas of `plan.memory` with it.
"""

import functools
import weakref
from contextlib import contextmanager
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining.stage import InferenceMode, _StageMeta, extract_tensor_metas
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from parascale.evaluation.task import EmptySamples
from parascale.families.build import build_model
from parascale.parallel import ddp, make_mesh, parallelize, pipeline
from parascale.parallel.context import own_positions
from parascale.parallel.mesh import Mesh
from parascale.parallel.precision import number_type
from parascale.pretrained import Pretrained
from parascale.train.clock import Clock
from parascale.train.loss import GlobalLoss, evaluate
from parascale.train.optim import make_optimizers
from parascale.train.step import Stepper

STEPS = 2  # the optimizer's state exists once the first step is done, so the second is like all others
TIMEOUT_SECONDS = 60.0  # groups want one; nothing is ever sent


class LiveStorages(TorchDispatchMode):
    """Counts the bytes of all tensor storages that are alive, and their peak."""

    def __init__(self):
        super().__init__()
        self.live = 0
        self.peak = 0
        self.sizes = {}
        self.paused = False

    def __torch_dispatch__(self, function, kinds, arguments=(), keywords=None):
        if any(issubclass(kind, DTensor) for kind in kinds):
            return NotImplemented  # it comes back as operations on this rank's part
        outputs = function(*arguments, **(keywords or {}))
        for leaf in tree_leaves(outputs):
            if isinstance(leaf, torch.Tensor) and leaf.device.type != "meta" and not self.paused:
                self._count(leaf.untyped_storage())
        return outputs

    def _count(self, storage):
        key, size = storage._cdata, storage.nbytes()
        if key not in self.sizes:
            weakref.finalize(storage, self._drop, key)
        self.live += size - self.sizes.get(key, 0)
        self.sizes[key] = size
        self.peak = max(self.peak, self.live)

    def _drop(self, key):
        self.live -= self.sizes.pop(key)

    def following_resizes(self):
        """See storages that change their size in place, which is how FSDP frees and takes gathered parameters."""
        resize = torch.UntypedStorage.resize_

        def counted(storage, size):
            result = resize(storage, size)
            if storage._cdata in self.sizes:
                self._count(storage)
            return result

        return patch.object(torch.UntypedStorage, "resize_", counted)


class Uncounted:
    """While entered, new storages are not counted: DTensor derives shapes from whole tensors that no run ever makes."""

    def __init__(self, storages):
        self.storages = storages

    def __enter__(self):
        self.storages.paused = True

    def __exit__(self, *error):
        self.storages.paused = False


class DatalessStepper(Stepper):
    """A Stepper that never looks at a value, because there is none."""

    def agree(self, batches, stop, save):
        return torch.ones((), dtype=torch.float64, device=self.mesh.device), None


def measure(run, vocabulary, rank=0):
    """Bytes at the peaks of a step and of an evaluation on rank `rank` of a run, without data.

    Joins a process group of its own, and leaves it again. Measure once a process: caches of one measurement hold tensors
    that the next must not meet.
    """
    storages = LiveStorages()
    with _processes(run.layout.world_size, rank), _stand_ins(storages, run.workload.training.accumulate):
        mesh = make_mesh(run.layout, torch.device("cpu"), TIMEOUT_SECONDS)  # reads rank numbers, so not under fake mode
        with FakeTensorMode(allow_non_fake_inputs=True):
            return _measure_steps(run, vocabulary, mesh, storages, shapes_known=True)


def measure_with_data(run, vocabulary):
    """The same of this process in the process group that it has joined, on real tensors: what proves `measure`."""
    storages = LiveStorages()
    with patch.object(ShardingPropagator, "_fake_mode_lock", Uncounted(storages)):
        mesh = make_mesh(run.layout, torch.device("cpu"), TIMEOUT_SECONDS)
        return _measure_steps(run, vocabulary, mesh, storages, shapes_known=False)


def _measure_steps(run, vocabulary, mesh, storages, shapes_known):
    """Bytes at the peaks of the last of STEPS steps, and of an evaluation.

    shapes_known: pipeline stages are told what they will receive, because their neighbours do not exist.
    """
    with storages, storages.following_resizes():
        stepper = _stepper(run, vocabulary, mesh, shapes_known)
        batches = _batches(run, mesh)
        for _ in range(STEPS):
            storages.peak = storages.live
            stepper.step(batches)
        of_a_step, storages.peak = storages.peak, storages.live
        evaluate(run, stepper.model, own_positions(EmptySamples(run), mesh))
        return of_a_step, storages.peak


@contextmanager
def _stand_ins(storages, parts=1):
    """What cannot run without data is replaced: functions that read rank numbers from tensors, gloo's group, DDP's C++ reducer, and
    compiling, which a mode that counts would prevent."""
    with (
        patch.object(ShardingPropagator, "_fake_mode_lock", Uncounted(storages)),
        patch.object(DeviceMesh, "_concatenate", staticmethod(_outside(DeviceMesh._concatenate))),
        patch.object(Mesh, "new_host_group", lambda mesh: dist.group.WORLD),
        patch.object(pipeline, "ends_group", _outside(pipeline.ends_group)),
        patch.object(ddp, "replicate", lambda model, *how: BucketsOfDDP(model, parts)),
        patch.object(nn.Module, "compile", lambda module, **_: None),
        patch.object(torch, "compile", lambda function, **_: function),
    ):
        yield


@contextmanager
def _processes(world_size, rank):
    if world_size > 1:
        dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        if world_size > 1:
            dist.destroy_process_group()


def _outside(function):
    """`function` on real tensors."""

    @functools.wraps(function)
    def with_real_tensors(*arguments, **keywords):
        with unset_fake_temporarily():
            return function(*arguments, **keywords)

    return with_real_tensors


class BucketsOfDDP(nn.Module):
    """Holds what DistributedDataParallel holds, whose C++ reducer wants data: each gradient of the last of a step's parts is copied to a
    bucket that stays."""

    def __init__(self, module, parts):
        super().__init__()
        self.module, self.parts, self.passes = module, parts, 0
        self.views = {}
        for parameter in module.parameters():
            self.views[parameter] = torch.empty_like(parameter, requires_grad=False)
            parameter.register_post_accumulate_grad_hook(self._into_bucket)

    def _into_bucket(self, parameter):
        if self.passes % self.parts == 0:
            parameter.grad = self.views[parameter].copy_(parameter.grad)

    def forward(self, *inputs):
        self.passes += self.training
        return self.module(*inputs)


def _stepper(run, vocabulary, mesh, shapes_known):
    clock, loss = Clock(mesh.device), GlobalLoss(run.workload.training.label_smoothing)

    def build():
        with unset_fake_temporarily():  # meta tensors that are not fake ones can be given memory later
            return build_model(run.workload.model, vocabulary, *run.workload.sizes)

    model = parallelize(build, run, mesh, loss, clock, TIMEOUT_SECONDS)
    if model.pipeline is not None and shapes_known:
        _fix_shapes(model.pipeline, run)
    return DatalessStepper(run, model, make_optimizers(model, run.workload.optim), loss, clock)


def _fix_shapes(pipeline, run):
    """Tell the stages what they will receive: otherwise they would ask their neighbours, which do not exist."""
    layout, schedule = run.layout, pipeline.schedule
    samples, window = run.micro_batch, run.workload.training.window // layout.cp
    sequence = window // layout.tp if layout.tp > 1 and layout.sequence_parallel else window
    kind = number_type(run.precision)
    model = run.workload.model
    shape = sequence, model.dim if model.folder is None else Pretrained(model.folder).config["hidden_size"]
    hidden = (torch.empty(samples, *shape, dtype=kind, device="meta", requires_grad=True),)
    tokens = (torch.empty(samples, window, dtype=torch.int64, device="meta"),)
    for stage in schedule._stages if hasattr(schedule, "_stages") else [schedule._stage]:
        stage._user_meta = _StageMeta(
            inputs=extract_tensor_metas(tokens if stage.is_first else hidden),
            outputs=extract_tensor_metas(hidden),
            input_grads=extract_tensor_metas((None,) if stage.is_first else hidden, allow_none=True),
            output_grads=extract_tensor_metas(hidden, allow_none=True),
        )

    def choose_given_shapes(stages, has_backward, p2p_done):
        for stage in stages:
            stage._inference_mode = InferenceMode.STATIC

    schedule._warmup_p2p = choose_given_shapes
    pipeline._receive = lambda rank: torch.empty(run.evaluation_batch, *shape, dtype=kind)


def _batches(run, mesh):
    """One global batch's share of a rank: `accumulate` parts of (*inputs, labels)."""
    samples = run.micro_batch * run.layout.micro_batches
    arrays = own_positions(EmptySamples(run), mesh).batch(range(samples))
    return [tuple(map(torch.tensor, arrays)) for _ in range(run.workload.training.accumulate)]
