"""Trainings of the check, without data: at full shapes, compiled, beside a bare loop. Rows are what the page shows."""

import functools
import gc
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from parascale.evaluation.task import empty_batch
from parascale.families.build import build_model, initialise
from parascale.parallel import make_mesh, parallelize
from parascale.parallel.precision import set_arithmetic
from parascale.plan.predict import DataFacts, data_facts, predict
from parascale.plan.time import gpu_kind
from parascale.settings import load_project_file
from parascale.settings.project import load_site
from parascale.train.clock import Clock
from parascale.train.loss import GlobalLoss
from parascale.train.optim import make_optimizers
from parascale.train.step import Stepper, own_parts

ROOT = Path(__file__).parents[3]
TIMEOUT_SECONDS = 120.0
VOCABULARY = 4000  # of a workload that does not say what it expects
WARM_UP = 3
BATCHES = {"gpt2": 16, "llama": 4}  # samples of a step beside a bare loop, which fit any GPU


@functools.cache
def project(tiny):
    """The project whose runs are tried: JURECA's, or this machine's."""
    return load_project_file(ROOT / "config" / ("config.yaml" if tiny else "jureca.yaml"), bases=[ROOT / "config"])


def site_of(place):
    """A Site that stands for this machine: the rates of a shipped one with GPUs of its kind, and its own GPUs' memory."""
    shipped = project(place.tiny)
    if place.device.type == "cpu":
        return shipped.site
    found = torch.cuda.get_device_properties(place.device)
    here = {"gpu": found.name, "gpu_memory_gb": found.total_memory / 1e9, "gpus_per_node": torch.cuda.device_count()}
    sites = [load_site(shipped.config, path.stem) for path in sorted((ROOT / "config/sites").glob("*.yaml"))]
    kind = gpu_kind(replace(shipped.site, **here))
    like = next((site for site in sites if site.device == "cuda" and gpu_kind(site) == kind), shipped.site)
    return replace(like, **here)


def training_of(place, run):
    """(Stepper, batches of one step, DataFacts) of a run, with random data, on this process."""
    facts = facts_here(run)
    set_arithmetic(run)
    mesh = make_mesh(run.layout, place.device, TIMEOUT_SECONDS)
    loss, clock = GlobalLoss(run.workload.training.label_smoothing), Clock(place.device)
    build = partial(build_model, run.workload.model, facts.vocabulary, *run.workload.sizes)
    model = parallelize(build, run, mesh, loss, clock, TIMEOUT_SECONDS)
    model.initialise(run.seed, False, lambda: None)
    stepper = Stepper(run, model, make_optimizers(model, run.workload.optim), loss, clock)
    return stepper, batches_of(run, facts.vocabulary, mesh), facts


def facts_here(run):
    """What a plan must know of the data, which is not there: what the workload expects, or something."""
    facts = data_facts(run)
    return DataFacts(facts.vocabulary or VOCABULARY, facts.train_samples or 10_000, facts.validation_samples or 1_000)


def batches_of(run, vocabulary, mesh):
    """This rank's parts of one step of random tokens or pixels: in every layout they are the same samples."""
    generator = np.random.default_rng(run.seed)

    def filled(array):
        highest = {np.dtype(bool): 0, np.dtype(np.uint8): 256}.get(array.dtype, vocabulary)
        return array if not highest else generator.integers(0, highest, array.shape, array.dtype)

    whole = [filled(array) for array in empty_batch(run.workload, run.global_batch)]
    parts = own_parts(np.arange(run.global_batch), run, mesh)
    return [tuple(torch.from_numpy(array[part]).to(mesh.device) for array in whole) for part in parts]


def timed(place, step, steps):
    """(seconds of a step, peak bytes of a GPU or None, what the first step gave, and the last) of `steps` calls, after some to warm up."""
    first, warm = step(1), 1 if place.tiny else WARM_UP
    for number in range(2, warm + 1):
        step(number)
    place.synchronize()
    started = time.perf_counter()
    for number in range(warm + 1, warm + 1 + steps):
        last = step(number)
    place.synchronize()
    return (time.perf_counter() - started) / steps, peak(place), first, last


def peak(place):
    """The most bytes that torch has allocated on this GPU since `forget`; None on a CPU."""
    return torch.cuda.max_memory_allocated(place.device) if place.device.type == "cuda" else None


def forget(place):
    """Give memory back, and reset its peak."""
    gc.collect()
    if place.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(place.device)


def our_step(stepper, batches):
    """Function of a step's number → (norm, loss, targets)."""

    def step(number):
        stepper.begin(number)
        return stepper.step(batches).read()[:3]

    return step


def rates(run, site, predicted, seconds, targets):
    """Targets a second, and model FLOPS utilisation where the site says what its GPUs reach."""
    flops = (predicted.flops_per_token or 0) * targets / seconds / run.layout.world_size
    reached = site.peak_tflops.get(run.precision)
    return {"targets/s": targets / seconds, "MFU": flops / (reached * 1e12) if reached else None}


def planned(predicted):
    """What a Prediction says beside a measured step."""
    return {"predicted s": predicted.step_seconds, "predicted GB": gigabytes(predicted.memory)}


def gigabytes(parts):
    """Of a plan's {part: bytes}: what torch allocates, without what libraries hold beside it; None where there is no plan."""
    if parts is None:
        return None
    return sum(size for name, size in parts.items() if name not in ("libraries", "communicators")) / 1e9


def single(place, kind):
    """A run of one process at full shapes: of `gpt2` or `llama`; a tiny one where that is wanted."""
    runs = project(place.tiny).runs
    run = runs["single"] if place.tiny else runs["gpt2-1" if kind == "gpt2" else "llama-1b-fsdp-4"]
    batch = 4 if place.tiny else BATCHES[kind]
    training = replace(run.workload.training, global_batch=batch, accumulate=1)
    layout = replace(run.layout, gpus_per_node=1, fsdp=1)
    return replace(run, layout=layout, workload=replace(run.workload, training=training))


def compiled_against_eager(place):
    """The same steps with and without `compile`: their first losses agree."""
    run = single(place, "gpt2")
    losses = []
    for compiled in (False, True):
        forget(place)
        variant = replace(run, layout=replace(run.layout, compile=compiled))
        stepper, batches, _ = training_of(place, variant)
        started = time.perf_counter()
        seconds, used, (_, loss, _), _ = timed(place, our_step(stepper, batches), 2 if place.tiny else 20)
        losses.append(loss)
        place.report(
            {"compiled": compiled, "step s": seconds, "all s": time.perf_counter() - started, "peak GB": used and used / 1e9, "loss": loss}
        )  # fmt: skip
    assert abs(losses[1] - losses[0]) < 1e-2 * abs(losses[0]), f"losses {losses}"


def against_a_bare_loop(place):
    """Ours and what anyone would write by hand, of the same weights and batches."""
    site = site_of(place)
    for kind in BATCHES:
        forget(place)
        run = single(place, kind)
        stepper, batches, facts = training_of(place, run)
        predicted = predict(run, site, facts=facts, remedy=False)
        row = partial(_loop_row, place, run, site, predicted)
        ours = row("ours", our_step(stepper, batches)) | planned(predicted)
        del stepper
        forget(place)
        theirs = row("bare", bare(place, run, facts.vocabulary, batches))
        ratios = {key: ours[key] / theirs[key] for key in ("targets/s", "MFU", "peak GB") if ours[key] and theirs[key]}
        for each in (ours, theirs, {"model": run.workload.name, "loop": "ours / bare", **ratios}):
            place.report(each)
        assert abs(ours["loss"] - theirs["loss"]) < 1e-2 * theirs["loss"], f"{run.workload.name}: other losses"


def _loop_row(place, run, site, predicted, loop, step):
    forget(place)
    seconds, used, (norm, loss, targets), _ = timed(place, step, 2 if place.tiny else 30)
    figures = {"loss": loss, "norm": norm, "step s": seconds, **rates(run, site, predicted, seconds, targets)}
    return {"model": run.workload.name, "loop": loop, **figures, "peak GB": used and used / 1e9}


def bare(place, run, vocabulary, batches):
    """Function of a step's number → (norm, loss, targets): a plain PyTorch loop of the run's model and optimizer."""
    build = partial(build_model, run.workload.model, vocabulary, *run.workload.sizes)
    model, optim = build().to(place.device), run.workload.optim
    initialise(model, build, run.seed, {})
    for block in model.blocks.values():
        if run.layout.activation_checkpointing:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        if run.layout.compile:
            block.compile()
    optimizer = torch.optim.AdamW(
        model.parameters(), optim.lr, tuple(optim.betas), optim.eps, optim.weight_decay, fused=True
    )
    [(tokens, labels)] = batches

    def step(number):
        with torch.autocast(place.device.type, torch.bfloat16, enabled=run.precision == "bf16"):
            logits = model(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), optim.clip_norm or float("inf"))
        optimizer.step()
        optimizer.zero_grad()
        return norm.item(), loss.item(), labels.numel()

    return step
