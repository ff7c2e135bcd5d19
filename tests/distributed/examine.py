"""What ranks do in tests: train a job, or build a model the way training does and look at it."""

from parascale.train.job import job_from_settings
from parascale.train.loop import train


def train_settings(settings):
    """Train the job that `settings` describe, as scripts/train.py does."""
    train(job_from_settings(settings))


def collectives_and_bytes(settings):
    """One training step under torch's communication counter, and what this rank holds.

    Returns {collectives: name → calls, parameter_bytes, parameters: name → local shape, sharded_units, stages}.
    """
    import torch
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor.debug import CommDebugMode

    from parascale.models import build_model
    from parascale.parallel import make_mesh, parallelize, start_processes, stop_processes
    from parascale.parallel.tying import local
    from parascale.train.clock import Clock
    from parascale.train.loss import GlobalLoss
    from parascale.train.optim import make_optimizers
    from parascale.train.step import Stepper

    job = job_from_settings(settings)
    run, model_settings = job.run, job.run.workload.model
    device = start_processes("cpu", 30)
    mesh = make_mesh(run.layout, device, 30)
    clock, loss = Clock(device), GlobalLoss()
    window = run.workload.training.window
    model = parallelize(lambda: build_model(model_settings, 101, window), run, mesh, loss, clock, 30)
    stepper = Stepper(run, model, make_optimizers(model, run.workload.optim), loss, clock)
    tokens = torch.arange(8 * (window + 1)).remainder(101).reshape(8, window + 1)
    batch = [(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())]
    stepper.step(batch, 1e-3)  # the first step also sets things up
    counter = CommDebugMode()
    with counter:
        stepper.step(batch, 1e-3)
    held = {name: local(parameter) for name, parameter in model.named_parameters()}
    result = {
        "collectives": {str(name): count for name, count in counter.get_comm_counts().items()},
        "parameter_bytes": sum(tensor.numel() * tensor.element_size() for tensor in held.values()),
        "parameters": {name: list(tensor.shape) for name, tensor in held.items()},
        "sharded_units": sum(isinstance(module, FSDPModule) for part in model.parts for module in part.modules()),
        "stages": list(model.pipeline.parts) if model.pipeline else [0],
    }
    stop_processes()
    return result
