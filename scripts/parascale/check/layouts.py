"""Which layouts a machine's GPUs allow, some steps of each, and two questions: is it the same training, and is it the planned memory?"""

import math
import time
from dataclasses import replace

import torch
import torch.distributed as dist

from parascale.check.trainings import (
    facts_here,
    forget,
    gigabytes,
    our_step,
    peak,
    planned,
    project,
    rates,
    site_of,
    timed,
    training_of,
)
from parascale.evaluation.task import EmptySamples
from parascale.plan.memory import FITS_BELOW, evaluation_memory
from parascale.plan.predict import predict
from parascale.train.loss import evaluate
from parascale.train.parity import not_comparable

# Strategies that are tried, alone and together. All GPUs take part: DDP replicates each product over those that are left.
PRODUCTS = ({}, {"tp": 2}, {"fsdp": 2}, {"pp": 2}, {"fsdp": 2, "tp": 2}, {"tp": 2, "pp": 2})
# Precision → largest relative difference of losses and norms to the baseline's. Layouts add in another order: in fp32 correct ones
# differ by less than 1e-5 (train/parity.py), in half precision by a hundredth. A gradient that is not reduced, or reduced twice, is
# off by a third and more. Half precision and batch norm let differences grow, so there the first step alone is judged.
ALIKE = {"fp64": 1e-9, "fp32": 1e-4, "tf32": 1e-2, "bf16": 3e-2, "fp16": 3e-2}
GROWS = ("tf32", "bf16", "fp16")
# A plan says `fits` where it needs less than this part of a GPU, so a peak above the plan by what is left out would make that word
# wrong. A plan of twice the peak would refuse a layout that fits; an evaluation, which needs less than a step, refuses none.
# Workspaces of cuBLAS, which torch counts, stand in no plan.
HIGHEST, LOWEST, WORKSPACES = 1 / FITS_BELOW, 0.5, 0.1e9


def products(tiny, ranks):
    """Name → Run of the first training in PRODUCTS, and sharded, on `ranks` GPUs, or on as many of them as are 8, 4 or 2."""
    size, runs = min(8, 1 << ranks.bit_length() - 1), {}
    base = project(tiny).runs["single"]
    for product in (*PRODUCTS, {"fsdp": size}):
        replicas, left = divmod(size, math.prod(product.values()))
        degrees = {"dp": replicas} | product
        if left or size == 1:
            continue
        name = " × ".join(f"{axis} {degree}" for axis, degree in degrees.items() if degree > 1)
        layout = replace(base.layout, gpus_per_node=size, micro_batches=2 if "pp" in product else 1, **degrees)
        runs[name] = replace(base, run=name, layout=layout, baseline=base.run)
        runs[name].check()
    return runs


def tried(tiny, ranks):
    """Name → Run of all that may be tried on `ranks` GPUs: on one node, without idle GPUs."""
    runs = {}
    for name, run in project(tiny).runs.items():
        layout = replace(run.layout, nodes=1, gpus_per_node=run.layout.world_size, idle_gpus=0)
        runs[name] = replace(run, layout=layout)
    return runs | products(tiny, ranks)


def layouts(tiny, ranks):
    """Processes → names of the runs that train in a layout of that many: each workload and layout once."""
    groups, seen = {}, []
    for name, run in tried(tiny, ranks).items():
        shape, size = (run.workload.name, run.layout, run.precision), run.layout.world_size
        if run.engine == "native" and size <= ranks and shape not in seen:
            seen.append(shape)
            groups.setdefault(size, []).append(name)
    return dict(sorted(groups.items()))


def try_layouts(place):
    """Some steps and an evaluation of each run, with the plan's figures beside."""
    runs, site = tried(place.tiny, place.ranks), site_of(place)
    for name in place.names:
        forget(place)
        place.report(_row(place, runs[name], site))


def _row(place, run, site):
    facts = facts_here(run)
    predicted = predict(run, site, facts=facts, remedy=False)
    if predicted.fits == "does not fit":
        return {"run": run.run, "strategy": run.strategy, "fits": predicted.fits}
    stepper, batches, _ = training_of(place, run)
    seconds, used, (norm, loss, targets), last = timed(place, our_step(stepper, batches), 1 if place.tiny else 5)
    used = _most(place, used)
    forget(place)
    started = time.perf_counter()
    evaluate(run, stepper.model, EmptySamples(run))
    place.synchronize()
    return {
        "run": run.run,
        "strategy": run.strategy,
        "loss": loss,
        "norm": norm,
        "last loss": last[1],
        "last norm": last[0],
        **rates(run, site, predicted, seconds, targets),
        "step s": seconds,
        **planned(predicted),
        "evaluation s": time.perf_counter() - started,
        "peak GB": used and used / 1e9,
        "evaluation GB": used and _most(place, peak(place)) / 1e9,
        "predicted evaluation GB": gigabytes(evaluation_memory(run, facts.vocabulary, site.device)),
    }


def _most(place, used):
    """Of all ranks: a plan is that of the one that needs most."""
    if used is None or place.ranks == 1:
        return used
    highest = torch.tensor(used, device=place.device)
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    return highest.item()


def verdicts(rows, tiny, ranks):
    """What is wrong, in words. Each row gains how it compares with its baseline, and its memory with the plan."""
    runs, found, wrong = tried(tiny, ranks), {row["run"]: row for row in rows}, []
    for row in rows:
        if "loss" in row:
            run = runs[row["run"]]
            base = runs[run.baseline or run.run]
            row["training"] = _training(run, row, base, found.get(base.run, {}))
            row["memory"] = _memory(row["peak GB"], row["predicted GB"], LOWEST)
            row["evaluation memory"] = _memory(row["evaluation GB"], row["predicted evaluation GB"], 0.0)
            judged = "training", "memory", "evaluation memory"
            wrong += [f"{run.run}: {key} {row[key]}" for key in judged if row[key].startswith("different")]
    return wrong


def _training(run, row, base, expected):
    """`same`, `different` or `not comparable`, with the reason."""
    names = ("loss", "norm", "last loss", "last norm")
    if not all(math.isfinite(row[name]) for name in names):
        return "different: not finite"
    if run.run == base.run:
        return "baseline"
    reason = not_comparable(run)
    if run.global_batch != base.global_batch:
        reason = f"another batch than that of {base.run}"
    if "loss" not in expected:
        reason = f"{base.run} did not run"
    if reason:
        return f"not comparable: {reason}"
    judged = names[:2] if run.precision in GROWS or run.workload.model.counts_batches else names
    worst = max(abs(row[name] / expected[name] - 1) for name in judged)
    return f"{'same' if worst < ALIKE[run.precision] else 'different'}: {worst:.1e} from {base.run}"


def _memory(used, planned, lowest):
    """Whether a peak in GB is about the plan's, and no less than `lowest` of it."""
    if used is None or planned is None:
        return "not measured: a CPU" if used is None else "not planned"
    alike = lowest * planned < used < HIGHEST * planned + WORKSPACES / 1e9
    return f"{'as planned' if alike else 'different'}: {used / planned:.2f} of the plan"
