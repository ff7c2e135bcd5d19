"""Is it the same training? Compare a layout's parity run with its baseline's: losses, gradient norms, weights.

Sums over ranks have a different order than in one process, so numbers differ in their last digits, and Adam's division
by small moments amplifies the differences. The tolerances below are several times what correct layouts show after
20 steps (largest seen over all strategies: fp32 loss 9.5e-7, gradient norm 1.7e-6, weights 3e-5; fp64 loss 2e-15,
weights 1e-13), and far below what faults show (a mean of per-rank means 1e-2, a learning rate off by 1 % 2e-3).

Initial weights, optimizer settings and copies on several ranks (`train/exact.py`) involve no rounding and must match bit for bit.
`tests/distributed/test_faults.py` has a table of faults that the tolerances miss.

An element whose gradients are only rounding error is not judged: a key bias, which softmax cancels, moves differently in every layout,
without effect. In fp32 (BART with 14,842 weights) such elements have gradients of 0.4 to 6 rounding errors of a mean element; all
others are zero or at least 95,000.
"""

import math
import statistics
from dataclasses import asdict, dataclass
from functools import partial

import torch

from parascale.checkpoint import metadata
from parascale.errors import ParascaleError, shorten_list
from parascale.files import read_json
from parascale.paths import RunFolder
from parascale.settings import identity, run_from_dict
from parascale.train.graph import OWN_DRAWS, narrowest_type

GROUP_BYTES = 256 << 20  # size of weights compared at once
NOISE = 64  # in rounding errors of a mean element's gradient: smaller gradients are only rounding
MOST_UNJUDGED = 0.05  # maximum share of all elements; above it, all are judged
AMPLIFIED = 3
BF16 = 2**-8  # the largest relative error of one rounding to its 8 digits


@dataclass(frozen=True)
class Tolerance:
    """Largest differences that still count as the same training.

    loss: absolute, in nats, at every step. grad_norm: relative, at every step. weights: relative, per tensor, at the end (2-norm of the
    difference over that of the baseline's tensor, or over the distance it can have moved, if smaller). None: not judged.
    """

    loss: float
    grad_norm: float | None
    weights: float | None


TOLERANCES = {
    "fp32": Tolerance(loss=5e-6, grad_norm=1e-5, weights=1e-4),
    "fp64": Tolerance(loss=1e-12, grad_norm=1e-11, weights=1e-11),
}


def sums_tolerance(ranks, steps):
    """The Tolerance if one of the runs sums the gradients of `ranks` ranks in bf16, in any order. steps: from the baseline's record.

    Rounding has an error of u/√6 on average (uniform over half a step). Each rank rounds its gradient and, once more, what replicas sum; a
    ring rounds each of its p − 1 sums (Thakur et al. 2005, doi:10.1177/1094342005051521). A sum of k of p independent gradients is √(k/p)
    of the whole, so two differ by d = u √((2 + Σ k/p) / 3) < u √((p/2 + 3) / 3), k = 2…p, in a random direction. In a step of rate r:

    - weights: AdamW moves an element by its gradient over a mean size, g/s. Below d/2 the sign is random, off by 2; above, the error is
      d s/g: 3.2 d in the mean square, plus three deviations √(6.4 d/32) of 32 elements. Steps' errors are independent: √Σr² of the way Σr.
    - grad_norm: d, and a fifth of the weights' drift, whose direction is random too.
    - loss: three deviations of a gradient times that drift: Σ g² d r/s, √3 d r of its norm.

    Steps amplify earlier ones' errors: AMPLIFIED times as much is allowed (found: 0.7 times, with 13 samples per step).
    """
    apart, rates = BF16 * math.sqrt((ranks / 2 + 3) / 3), [line["lr"] for line in steps]
    drift, way = math.hypot(*rates), sum(rates) or 1.0
    small = 3 * drift / way * math.sqrt(6.4 * apart / 32)
    loss = 3 * math.sqrt(3) * apart * drift * max(_norms(steps), default=0.0)
    norm = apart + 0.2 * drift / way * math.sqrt(3.2 * apart)
    weights = drift / way * math.sqrt(3.2 * apart + small)
    return Tolerance(max(TOLERANCES["fp32"].loss, AMPLIFIED * loss), AMPLIFIED * norm, AMPLIFIED * weights)


class ParityError(ParascaleError):
    """Two parity runs cannot be compared."""


def compare(run, baseline, folder, baseline_folder, tolerance=None):
    """The verdict on `run` (a parity Run) against `baseline`, from the results of both parity runs, as plain values.

    tolerance: a Tolerance. Default: that of the precision (fp32 or fp64), or of the narrowest dtype that a foreign model converts to, or
    that of gradients summed in bf16 if one run does so.
    """
    rounded = _rounded_to(run, baseline_folder)
    steps, expected = (RunFolder(place).read_steps() for place in (folder, baseline_folder))
    sums = [each.layout for each in (run, baseline) if each.reduce_precision != "fp32"]
    if sums and tolerance is None:
        tolerance = sums_tolerance(max(layout.data_parallel * layout.cp for layout in sums), expected)
    tolerance = tolerance or TOLERANCES[rounded]
    verdict = {
        "steps": run.workload.training.steps,
        "precision": run.precision + ", gradients summed in bf16" * bool(sums),
    }
    verdict |= {"narrowest_type": rounded, "tolerances": asdict(tolerance)}
    if len(steps) != len(expected):
        raise ParityError(f"{run.run} and {baseline.run} made {len(steps)} and {len(expected)} steps; run both again")
    losses = [abs(line["loss"] - other["loss"]) for line, other in zip(steps, expected, strict=True)]
    if reason := identity.no_comparison(run, baseline) or _draws(run, folder, baseline_folder):
        return verdict | {"verdict": "not comparable", "reason": reason, "loss_difference": max(losses)}
    norms = [_relative(line["grad_norm"], other["grad_norm"]) for line, other in zip(steps, expected, strict=True)]
    own, other = (RunFolder(place).checkpoint for place in (folder, baseline_folder))
    smallest = smallest_gradient(run, expected, other, rounded)
    way = partial(_way, run.workload.optim, expected, torch.finfo(_kind(rounded)).eps / (tolerance.weights or 1.0))
    worst, weights, unjudged = _largest_weight_difference(own, other, smallest, way)
    if unjudged > MOST_UNJUDGED:
        worst, weights, unjudged = _largest_weight_difference(own, other, 0.0, way)
    unit = run.workload.unit
    outside = [
        number
        for number, (line, other, loss, norm) in enumerate(zip(steps, expected, losses, norms, strict=True), 1)
        if any(line.get(key) != other.get(key) for key in (unit, "lr"))
        or _beyond(loss, tolerance.loss)
        or _beyond(norm, tolerance.grad_norm)
    ]
    faults = list(_exact_faults(folder, baseline_folder))
    if outside:
        faults.append(f"leaves the tolerance at step {outside[0]}")
    if _beyond(weights, tolerance.weights):
        faults.append(f"weights of {worst} differ by {weights:.1e}")
    reason = "; ".join(faults) or "within tolerance at every step"
    if rounded != run.precision:
        reason += f"; the tolerance is that of {rounded}, to which the model itself converts"
    reason += "; the tolerance is that of gradients summed in bf16" * bool(sums)
    if unjudged:
        part = f"{100 * unjudged:.2g} % of the weights"
        reason += f"; {part}, whose gradients are of the size of rounding, are not judged"
    return verdict | {
        "verdict": "different" if faults else "same",
        "reason": reason,
        "loss_difference": _finite(max(losses)),
        "grad_norm_difference": _finite(max(norms)),
        "weight_difference": _finite(weights),
        "worst_tensor": worst,
        "first_step_outside": outside[0] if outside else None,
    }


def _exact_faults(folder, baseline_folder):
    """Yield differences in values that involve no rounding, if both records have them; those of earlier versions do not."""
    ours, theirs = (read_json(RunFolder(place).summary) for place in (folder, baseline_folder))
    for when, of_what in (("begun", "bits"), ("ended", "optimizer")):
        found, wanted = (summary.get(when) or {} for summary in (ours, theirs))
        if apart := found.get("apart"):
            yield f"ranks hold different copies of {apart}, {'from the start' if when == 'begun' else 'at the end'}"
        if of_what in found and of_what in wanted and found[of_what] != wanted[of_what]:
            changed = identity.changes(wanted[of_what], found[of_what])
            yield f"{'begins with' if when == 'begun' else 'sets the optimizer to'} other numbers ({shorten_list([*changed], 3)})"


def _draws(run, *folders):
    """Why a user's class cannot be compared (it draws random numbers that differ between layouts), or None."""
    if not run.workload.model.is_own:
        return None
    draws = [read_json(RunFolder(folder).summary).get("draws") for folder in folders]
    if None in draws:
        raise ParityError(f"{run.run}: an earlier version made this parity run or its baseline's; run both again")
    return OWN_DRAWS if any(draws) else None


def _rounded_to(run, folder):
    """The narrowest dtype that a run computes with: its precision, unless a foreign class converts to another."""
    if run.precision != "fp64" or not run.workload.model.is_own:
        return run.precision
    try:
        return narrowest_type(run.workload, read_json(RunFolder(folder).record)["vocabulary"])
    # A user's class may read values and fail in any way on meta tensors: then use the stricter tolerance.
    except Exception:
        return run.precision


def smallest_gradient(run, steps, checkpoint, precision=None):
    """The size below which an element's gradients, as seen in its moments, are only rounding error.

    steps: from the record, with gradient norms. checkpoint: folder whose weights are counted. precision: default: the run's.
    """
    norms = _norms(steps)
    applied = min(statistics.median(norms), run.workload.optim.clip_norm or math.inf) if norms else 0.0
    kind = _kind(precision or run.precision)
    elements = sum(shape.numel() for shape, _ in _weights(checkpoint).values())
    optim = run.workload.optim
    begun = math.sqrt(1 - optim.betas[1] ** len(steps)) if optim.name == "adamw" else 1.0  # the mean started at 0
    return NOISE * torch.finfo(kind).eps / 2 * applied * begun / math.sqrt(elements)


def _norms(steps):
    return [line["grad_norm"] for line in steps if line["grad_norm"] is not None and math.isfinite(line["grad_norm"])]


def _kind(precision):
    return torch.float64 if precision == "fp64" else torch.float32


def _way(optim, steps, least, size, elements):
    """How far a tensor of this norm can have moved: the sum of learning rates times the gradients given (AdamW: elements of 1).

    Between 4 × `least` × norm and norm: a smaller difference is rounding of the weights themselves.
    """
    given = math.sqrt(elements)
    if optim.name == "sgd":
        norms = [line["grad_norm"] for line in steps if line["grad_norm"] is not None]
        given = min(max(norms, default=0.0), optim.clip_norm or math.inf) / (1 - optim.momentum)
    return min(size, max(4 * least * size, given * sum(line["lr"] for line in steps)))


def _largest_weight_difference(folder, baseline_folder, smallest, way):
    """(name, relative difference) of the tensor that differs most, and the share of elements that are not judged because their gradients
    are below `smallest`. way: function of a tensor's norm and elements. Raises ParityError if names or shapes differ."""
    names, expected = _weights(folder), _weights(baseline_folder)
    if names != expected:
        odd = [name for name in names.keys() | expected.keys() if names.get(name) != expected.get(name)]
        raise ParityError(
            f"{folder} and {baseline_folder} do not hold the same tensors: {', '.join(sorted(odd)[:3])}; run both again"
        )
    worst, largest, unjudged = "", -1.0, 0
    held = metadata.tensors(baseline_folder).keys()
    for group in _groups(names):
        ours = metadata.read(folder, group)
        theirs = metadata.read(baseline_folder, [*group, *(other for name in group for other in _moments(name) & held)])
        for name in group:
            judged = _judged(name, theirs, smallest)
            unjudged += (~judged).sum().item()
            apart = ours[name].double() - theirs[name].double()
            size = way(theirs[name].double().norm().item(), apart.numel())
            difference = apart[judged].norm().item() / (size or 1.0) if apart.isfinite().all() else math.inf
            if difference > largest:
                worst, largest = name, difference
    return worst.removeprefix("model."), largest, unjudged / sum(shape.numel() for shape, _ in names.values())


def _moments(weight):
    """Names of a weight's gradient moments in a checkpoint: AdamW's mean square or, with momentum, SGD's buffer."""
    state = f"optimizer.state.{weight.removeprefix('model.')}"
    return {f"{state}.exp_avg_sq", f"{state}.momentum_buffer"}


def _judged(weight, tensors, smallest):
    """Mask of a weight's elements whose gradients were more than rounding, from the moments in `tensors`; without moments, all."""
    held = _moments(weight) & tensors.keys()
    if not held:
        return torch.ones_like(tensors[weight], dtype=torch.bool)
    (name,) = held
    gradients = tensors[name].sqrt() if name.endswith("exp_avg_sq") else tensors[name].abs()
    return (gradients >= smallest) | (gradients == 0)  # zero gradients have no rounding: the weight is unchanged


def _weights(folder):
    """Name → (shape, torch dtype) of a checkpoint's weights."""
    return {name: facts for name, facts in metadata.tensors(folder).items() if name.startswith("model.")}


def _groups(weights):
    """Yield lists of names of about GROUP_BYTES: each read scans the whole index, and all weights at once may not fit in memory."""
    group, held = [], 0
    for name, (shape, dtype) in weights.items():
        group.append(name)
        held += shape.numel() * dtype.itemsize
        if held >= GROUP_BYTES:
            yield group
            group, held = [], 0
    if group:
        yield group


def _relative(value, expected):
    if value is None or expected is None:  # the norm of a step that fp16 skipped
        return 0.0 if value is expected else math.inf
    if not (math.isfinite(value) and math.isfinite(expected)):
        return math.inf
    return abs(value - expected) / max(abs(expected), 1e-30)


def _finite(difference):
    """A difference for JSON: None if it is not finite."""
    return difference if math.isfinite(difference) else None


def _beyond(difference, tolerance):
    """True if a difference is judged and too large."""
    return tolerance is not None and not difference <= tolerance


def compare_folders(folder, baseline_folder, tolerance=None):
    """The verdict on the parity run in `folder` against the one in `baseline_folder`; tolerance: see `compare`."""
    records = (read_json(RunFolder(place).record) for place in (folder, baseline_folder))
    run, baseline = (run_from_dict(record["settings"]) for record in records)
    return compare(run, baseline, folder, baseline_folder, tolerance)
