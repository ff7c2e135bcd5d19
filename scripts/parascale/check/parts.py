"""Parts of the check: each is a function of a Place that reports rows, raises AssertionError for a wrong figure, and may Skip."""

import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn

from parascale import files
from parascale.check.layouts import try_layouts
from parascale.check.trainings import (
    ROOT,
    against_a_bare_loop,
    compiled_against_eager,
    our_step,
    single,
    training_of,
)
from parascale.launch import environment
from parascale.parallel.batch_norm import prepare
from parascale.parallel.communication import OPERATIONS, measure, operation
from parascale.parallel.precision import number_type, set_arithmetic
from parascale.settings.run import PRECISIONS

# Precision → the largest relative error of a product of two matrices of 1,024, and of a first step's loss, against fp64.
ERRORS = {
    "fp64": (1e-13, 1e-12),
    "fp32": (1e-5, 1e-5),
    "tf32": (2e-3, 2e-3),
    "bf16": (1e-2, 1e-2),
    "fp16": (2e-3, 5e-3),
}
ROUNDED = 1e-5  # a product of fp32 with a larger error was rounded to TF32, and one of TF32 with a smaller was not


class Skip(Exception):
    """There is nothing to check here; says why."""


def _relative(found, expected):
    """Largest difference, relative to the largest value."""
    expected = expected.double().cpu()
    return ((found.double().cpu() - expected).abs().max() / expected.abs().max()).item()


def devices(place):
    """Each GPU by its name, and a product on it beside the CPU's."""
    driver = environment.DRIVER.read_text().splitlines()[0] if environment.DRIVER.exists() else None
    a, b = torch.rand(2, 256, 256, dtype=torch.float64)
    for number in range(torch.cuda.device_count()):
        found, product = torch.cuda.get_device_properties(number), a.to(number) @ b.to(number)
        error = _relative(product, a @ b)
        place.report(
            {"gpu": number, "name": found.name, "capability": f"{found.major}.{found.minor}", "GB": found.total_memory / 1e9}
            | {"multiprocessors": found.multi_processor_count, "error": error}
        )  # fmt: skip
        assert error < 1e-13, f"GPU {number} computes something else: {error}"
    return driver or "no NVIDIA driver"


def collectives(place):
    """Right numbers, and the algorithm bandwidth, of the collectives that trainings use."""
    if place.ranks == 1:
        raise Skip("one device")
    numbers, group = torch.arange(1.0, place.ranks + 1, device=place.device), dist.group.WORLD
    before = numbers.roll(1)[place.rank]
    expected = {"all_reduce": numbers.sum(), "reduce_scatter": numbers.sum(), "broadcast": 1.0, "send_receive": before}
    for size in (2**10, 2**16) if place.tiny else (2**18, 2**26):
        for row in measure({"all": group}, [4 * size], 5, place.device, place.ranks):
            rate = row["algorithm_gigabytes_per_second"]
            place.report({"collective": row["operation"], "MB": row["bytes"] / 1e6, "GB/s": rate})
        elements = size // place.ranks * place.ranks
        expected["all_gather"] = numbers.repeat_interleave(elements // place.ranks)
        for name in OPERATIONS:
            call, result = operation(name, elements, place.device, group, filled=place.rank + 1.0)
            call()
            assert (result == expected[name]).all(), f"{name} gives other numbers than it should"


def precision(place):
    """Errors against fp64, of a product and of a first step's loss."""
    a, b = torch.rand(2, 1024, 1024, dtype=torch.float64, device=place.device, generator=_seeded(place)) - 0.5
    run, losses = replace(single(replace(place, tiny=True), "gpt2"), deterministic=False), {}
    for name in ("fp64", *(each for each in PRECISIONS if each != "fp64")):
        set_arithmetic(replace(run, precision=name))
        kind = number_type(name)
        error = _relative(a.to(kind) @ b.to(kind), a @ b)
        stepper, batches, _ = training_of(place, replace(run, precision=name))
        losses[name] = our_step(stepper, batches)(1)[1]
        of_loss = abs(losses[name] / losses["fp64"] - 1)
        place.report({"precision": name, "error of a product": error, "error of a loss": of_loss})
        largest, largest_of_loss = ERRORS[name]
        assert error < largest and of_loss < largest_of_loss, f"{name}: errors {error:.1e} and {of_loss:.1e}"
        ampere = place.device.type == "cuda" and torch.cuda.get_device_capability(place.device) >= (8, 0)
        assert name != "tf32" or not ampere or error > ROUNDED, "tf32 was not rounded"


def _seeded(place):
    return torch.Generator(place.device).manual_seed(1)


def resume(place):
    """A checkpoint, saved in step and in the background, brings the same next step back."""
    from parascale.checkpoint import manifest, store

    run = single(place, "gpt2")
    if place.ranks > 1:
        run = replace(run, layout=replace(run.layout, gpus_per_node=place.ranks, fsdp=place.ranks))
        batch = replace(run.workload.training, global_batch=4 * place.ranks)
        run = replace(run, workload=replace(run.workload, training=batch))
    # xxhash may not be installed; whether state survives does not depend on it.
    with patch.multiple(manifest, checksum=files.sha256, _seal=lambda values: ""):
        for asynchronous in (False, True):
            stepper, batches, _ = training_of(place, run)
            step = our_step(stepper, batches)
            step(1), step(2)
            saver, folder = store.Saver(stepper.mesh, asynchronous), place.folder / "step-000000002"
            started = time.perf_counter()
            saver.save(folder, stepper.model, stepper.optimizers, {"step": 2})
            waited = time.perf_counter() - started
            expected = step(3)  # while it is written
            saver.wait()
            written = time.perf_counter() - started
            again, _, _ = training_of(place, replace(run, seed=run.seed + 1))
            facts = store.load(folder, again.model, again.optimizers)
            found = our_step(again, batches)(3)
            error = max(abs(f / e - 1) for f, e in zip(found, expected, strict=True))
            place.report({"asynchronous": asynchronous, "waited s": waited, "written s": written, "difference": error})
            assert facts["step"] == 2 and error < 1e-3, f"norm, loss, targets: {found} instead of {expected}"
            if place.rank == 0:
                shutil.rmtree(folder)
            del stepper, again, step, saver


def batch_norm(place):
    """Output, running statistics and gradient of this rank's samples, which are unequally many."""
    generator = torch.Generator().manual_seed(1)
    counts = [2 + rank % 2 for rank in range(place.ranks)]
    images = torch.rand(sum(counts), 8, 6, 6, dtype=torch.float64, generator=generator) * 3 + 1
    weights = torch.rand(images.shape, dtype=torch.float64, generator=generator)
    own = slice(sum(counts[: place.rank]), sum(counts[: place.rank + 1]))
    whole, norm = nn.BatchNorm2d(8).double(), nn.BatchNorm2d(8).to(place.device)
    prepare(norm, dist.group.WORLD if place.ranks > 1 else None)
    inputs = images.clone().requires_grad_(), images[own].float().to(place.device).requires_grad_()
    outputs = whole(inputs[0]), norm(inputs[1])
    (outputs[0] * weights).sum().backward()
    (outputs[1] * weights[own].to(outputs[1])).sum().backward()
    pairs = {
        "output": (outputs[1], outputs[0][own]),
        "gradient": (inputs[1].grad, inputs[0].grad[own]),
        "mean": (norm.running_mean, whole.running_mean),
        "variance": (norm.running_var, whole.running_var),
    }
    for name, (found, expected) in pairs.items():
        error = _relative(found.detach(), expected.detach())
        place.report({"of": name, "error": error})
        assert error < 1e-4, f"{name}: error {error:.1e}"


def sampler(place):
    """What the monitor of a training reads of each GPU, after one of them was busy."""
    if place.device.type != "cuda":
        raise Skip("no GPU")
    try:
        import pynvml

        from parascale.train.gauges import Gpus
    except ImportError as error:
        raise Skip(f"{error}: pip install nvidia-ml-py psutil") from None
    pynvml.nvmlInit()
    count = torch.cuda.device_count()
    gauge = Gpus(pynvml, os.environ.get("CUDA_VISIBLE_DEVICES"), count, range(count))
    matrix, end = torch.rand(4096, 4096, device=place.device), time.monotonic() + 2
    list(gauge.read())  # energy counts from the first sample on
    while time.monotonic() < end:
        (matrix @ matrix).sum().item()
    rows = list(gauge.read())
    for row in rows:
        place.report(row)
    busiest = max(row.get("utilisation", 0) for row in rows)
    assert len(rows) == count and busiest > 0.5, f"{len(rows)} of {count} GPUs, the busiest {busiest:.0%}"
    assert all(row.get("memory_bytes") for row in rows), "no memory was told"


def tests(place):
    """Those that are marked `gpu`, where there is pytest."""
    if place.device.type != "cuda":
        raise Skip("no GPU")
    command = [sys.executable, "-m", "pytest", "-v", "-m", "gpu", ROOT / "tests/unit", ROOT / "tests/distributed"]
    last = ""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as done:
        for line in done.stdout:
            last = line.strip(" =\n") or last
            if found := re.match(r"(\S+::.+) (PASSED|FAILED|ERROR|SKIPPED)", line):
                place.report({"test": found[1], "outcome": found[2].lower()})
    if "No module named pytest" in last:
        raise Skip("pytest is not installed")
    assert done.returncode in (0, 5), last  # 5: none was collected
    return last


FUNCTIONS = {
    "devices": devices,
    "collectives": collectives,
    "precision": precision,
    "compile": compiled_against_eager,
    "resume": resume,
    "batch-norm": batch_norm,
    "sampler": sampler,
    "layouts": try_layouts,
    "bare": against_a_bare_loop,
    "tests": tests,
}
