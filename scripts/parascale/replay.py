"""Repeat torch's optimizer steps on recorded weights, gradients and state, so that weight changes are judged in their own precision."""

import inspect
import math
from typing import Any

import torch
from torch import Tensor

from parascale.diagnosis import Row, finite, home, rms, row
from parascale.parts import StepRecording

# Optimizers that update each element independently, so that a part of a weight is updated as the whole is.
ELEMENTWISE = ["Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"]
Update = dict[str, Any]  # class and settings of a weight's optimizer
WAYS = {"params", "foreach", "fused", "capturable", "differentiable"}  # settings that change only rounding


class Replays:
    """Follows each process's weights from step to step."""

    def __init__(self) -> None:
        self.states, self.unknown = dict[Any, Any](), set[str]()

    def row(self, step: Any, name: str, margin: float) -> Row | None:
        """The row of a weight, or of its average, after a step; None if the single process's update cannot be repeated."""
        update, gradients = step.single.updates.get(name), step.gradients_of(name)
        rows, share = [], None
        for number, part in enumerate(step.every):
            found = part.stored(f"weight|{name}")
            if found is None or name in self.unknown or is_updated_elsewhere(part, step.parts, name):
                continue
            began = step.began(part, f"weight|{name}").to(found.dtype)
            if outside := name in step.single.about["others"]:
                expected, share = average(part, name, began, found, share)
            else:
                expected = self.again(number, part, update, name, began, gradients.get(number))
            off = math.inf if expected is None else away(found, expected, began, outside)
            tolerance = margin * part.rounding(f"weight|{name}") * math.sqrt(step.number + 1)
            if expected is None or (number == 0 and not off <= tolerance):
                self.unknown.add(name)
            elif number:
                text = "" if off <= tolerance else unlike(update, part.updates.get(name), began, found, expected)
                rows.append(row(home(name), name, finite(off), tolerance, text, [part.rank] if text else []))
        if name in self.unknown or not rows:
            return None
        wrong = [rank for each in rows for rank in each["ranks"]]
        return max(rows, key=lambda each: each["difference"] / each["tolerance"]) | {"ranks": wrong}

    def again(
        self,
        number: int,
        part: StepRecording,
        update: Update | None,
        name: str,
        weight: Tensor,
        gradient: Tensor | None,
    ) -> Tensor | None:
        """A process's weight after its optimizer step; None if the optimizer or its state is unknown. number: 0 is the single process."""
        state = self.states.setdefault((number, name), {key: part.stored(at) for key, at in part.states[name].items()})
        if update is None or gradient is None:
            return weight
        module, _, kind = update["class"].rpartition(".")
        if not (module.startswith("torch.optim") and kind in ELEMENTWISE) or gradient.shape != weight.shape:
            return None
        kind = getattr(torch.optim, kind)
        known = inspect.signature(kind).parameters.keys() - WAYS
        parameter = torch.nn.Parameter(weight.clone())
        parameter.grad = gradient.to(weight.dtype)
        optimizer = kind([parameter], foreach=False, **{k: v for k, v in update["settings"].items() if k in known})
        if state:
            optimizer.state[parameter] = {key: value.clone() for key, value in state.items()}
        optimizer.step()
        self.states[number, name] = optimizer.state[parameter]
        return parameter.detach()


def is_updated_elsewhere(part: StepRecording, parts: list[StepRecording], name: str) -> bool:
    """True if another process's optimizer updates this part of a weight and sends the result to this process."""
    key = f"weight|{name}"
    others = (other for other in parts if name in other.updates and part.piece(key) == other.piece(key))
    return part in parts and name not in part.updates and next(others, None) is not None


def average(part: StepRecording, name: str, began: Tensor, found: Tensor, share: float | None) -> tuple[Any, Any]:
    """(expected average of a weight, share by which it moves towards the weight). share: None for the single process, which measures it."""
    own = max((each for each in part.about["trained"] if name.endswith(each)), key=len, default=None)
    if own is None or (weight := part.stored(f"weight|{own}")).shape != began.shape:
        return None, share
    began, way = began.double(), weight.double() - began.double()
    if share is None:
        share = ((found.double() - began) * way).sum() / way.square().sum().clamp(min=1e-300)
    return (began + share * way).to(found.dtype), share


def away(found: Tensor, expected: Tensor, began: Tensor, is_average: bool = False) -> float:
    """The error of a weight relative to its size and change: RMS over all elements, or a quarter of the worst if that is more."""
    least = torch.finfo(found.dtype if found.is_floating_point() else torch.float64).tiny
    found, expected, began = found.double(), expected.double(), began.double()
    change = (expected - began).abs()
    off = (found - expected).abs() / (expected.abs() + 2 * change + rms(expected if is_average else change) + least)
    return max(off.square().mean().sqrt().item(), off.max().item() / 4) if off.numel() else 0.0


def unlike(update: Update | None, other: Update | None, began: Tensor, found: Tensor, expected: Tensor) -> str:
    """Describe how a process's update of a weight differs from the single process's."""
    if update and not other:
        return "no optimizer changes it"
    if other and not update:
        return "an optimizer changes it only here"
    if update and other and update["class"] != other["class"]:
        return f"changed by {other['class']}, not {update['class']}"
    ours, theirs = (each["settings"] if each else {} for each in (other, update))
    if names := [name for name in theirs if name not in WAYS and ours.get(name) != theirs[name]]:
        return "; ".join(f"{name} is {ours.get(name)}, not {theirs[name]}" for name in names)
    change, right = found.double() - began.double(), expected.double() - began.double()
    factor = ((change * right).sum() / (right.square().sum() or 1.0)).item()
    return f"its change is {factor:.4g} times what follows from its gradient"
