"""Compare two recordings of `parascale.prove`: a parallel script's and a single process's. Where do they first differ, if at all?

The order is that of the computation: initial weights; then in each step samples, outputs of modules, loss, gradients (last module first),
changes of weights. Each process's part is compared with the same part of the single process's tensor.

Tolerances. u is the largest relative rounding error of the types that a tensor was computed from, v that of the type that sums use (fp32
for fp16 and bf16), n the number of terms of a sum, m the number of successive operations. The mean error of a rounding is u/√6. The error
of a sum grows with √n, not n (Higham and Mary, SIAM J. Sci. Comput. 41, A2815, 2019). 2m independent errors, from two processes, add up to
√(2m/6) √(u² + v² n), an RMS relative to the tensor's. A difference d of weights (all, or the module's) before a step shifts all samples:

    tolerance = MARGIN √(2m/6) (√(u² + v² n) + 2 d)

m: modules called so far; for gradients twice their total. n: most columns of any weight; for gradients at least samples × positions.
MARGIN: networks amplify errors. A gradient that is only rounding noise (the bias of keys, cancelled by softmax) is measured against
NOISE roundings of a mean element.

Initial tensors of the same type must have the same bits, as must weights and gradients that several ranks hold. A weight is judged given
its recorded gradient: we repeat the single process's optimizer step (`replay`) and allow MARGIN roundings of the weight's type per step. If
that optimizer is unknown, changes are compared, or not judged if rounded to fp16 or bf16. Adam divides a gradient with error e by its size
g, so changes are compared where g is 0 or at least JUDGED of its tensor's RMS: there the mean of (e/g)² is 0.8/JUDGED e² for normal g.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor

from parascale.diagnosis import (
    WHOLE,
    Row,
    as_text,
    finite,
    home,
    looks_like,
    match,
    nearest,
    of_samples,
    rms,
    row,
    spans,
    table,
)
from parascale.errors import DataError, shorten_list
from parascale.files import write_json, write_text
from parascale.parts import ROUNDOFF, StepRecording, precision, recording, unequal
from parascale.replay import Replays

MARGIN, NOISE, JUDGED = 4, 64, 0.1
ROUGH, ROUGH_NOISE = 3, 4  # in fp16 and bf16
FP32 = ROUNDOFF["fp32"]
INPUT = "input|0|0"
Folder = Path | str
EXIT_CODES = {"same": 0, "different": 1, "not comparable": 3}  # 2: wrong command line


def compare(single: Folder, parallel: Folder, across_precisions: bool = False) -> dict[str, Any]:
    """Compare the recording in folder `parallel` with the single process's in `single`. Returns the card: the verdict as plain values."""
    one, many = recording(single), recording(parallel)
    if len(one[0]) != 1:
        raise DataError(f"{single}: recorded by {len(one[0])} processes; name the single process's recording first")
    if len(one) != len(many):
        raise DataError(f"{single} has {len(one)} steps, but {parallel} {len(many)}; record the same steps of both")
    if len(kept := {part.about.get("every", 1) for steps in (one, many) for parts in steps for part in parts}) > 1:
        raise DataError(f"{single} and {parallel} keep one column of {shorten_list(sorted(kept))}: use one `every`")
    shared = ("world", "layout", "torch", "python", "system")
    card: dict[str, Any] = {"schema_version": 2, "verdict": "same", "steps": len(one), "first": None, "passes": []}
    apart = [
        (part.apart_from(whole), step)
        for step, ((whole,), parts) in enumerate(zip(one, many, strict=True))
        for part in parts
    ]
    reason, shown = next((each for each in apart if each[0]), (None, 0))
    for name, steps in (("single", one), ("parallel", many)):
        card[name] = {key: steps[0][0].about[key] for key in shared} | {"precision": precision(steps[shown])}
    card |= {"every": kept.pop(), "margin": MARGIN, "noise": NOISE, "judged": JUDGED}
    if reason and not across_precisions:
        return card | {"verdict": "not comparable", "reason": reason}
    step: Any = None
    unjudged: dict[str, None] = {}
    for number, ((whole,), parts) in enumerate(zip(one, many, strict=True)):
        step = StepComparison(whole, parts, step)
        for name, found in step.passes():
            rows: list[Row] = [each for each in found if each]
            outside = [each for each in rows if not each["difference"] <= each["tolerance"]]
            worst = max(rows, key=lambda each: each["difference"] / (each["tolerance"] or 1e-300), default=None)
            counted = {"step": number, "pass": name, "compared": len(rows), "outside": len(outside)}
            card["passes"].append(counted | {"worst": worst})
            if outside:
                return card | {"verdict": "different", "first": counted | outside[0]}
        unjudged |= dict.fromkeys(step.unjudged)
    # `skipped`: outputs of the last step that no process has, or whose shape fits nothing.
    others = one[0][0].about["others"]
    return card | {"not_compared": sorted(step.skipped), "not_judged": list(unjudged), "others": others}


class StepComparison:
    """Compares one step. before: the StepComparison of the step before, or None."""

    def __init__(self, single: StepRecording, parts: list[StepRecording], before: Self | None) -> None:
        self.single, self.parts, self.before = single, parts, before
        self.number: int = before.number + 1 if before else 0
        self.every = (single, *parts)
        self.skipped, self.unjudged = set[str](), list[str]()
        self.place = {name: number for number, name in enumerate(single.order, 1)}
        self.replays: Replays = before.replays if before else Replays()
        clips = {part.about["clip"] for part in self.every}
        self.is_clipped = clips - {"before", "asked", "none"} or {"before", "none"} <= clips
        if not clips <= {"before", "asked"}:  # gradients before clipping are compared only if all processes have them
            for part in self.every:
                part.forget_unclipped()
        found = [
            (self.place.get(name, len(self.place)), unit) for part in self.every for name, unit in part.roundings()
        ]
        units = [max((unit for at, unit in found if at == place), default=0.0) for place in range(len(self.place) + 1)]
        self.units = [*itertools.accumulate(units, max)]  # largest rounding error of outputs up to each place
        self.unit = max([self.units[-1], *(part.rounding(*part.gradients) for part in self.every)])
        shapes = [single.file.get_slice(f"weight|{name}").get_shape() for name in single.names("weight")]
        self.columns = max([math.prod(shape[1:]) for shape in shapes], default=1) * single.about.get("every", 1)
        self.inputs: Any = table(single.value(INPUT)) if INPUT in single.micros else None
        self.drift = before.drift_after() if before else {}
        self.skipped |= {name for part in parts for name in part.names("weight")} - {*single.names("weight")}

    def place_of(self, weight: str) -> int:
        """The place of the innermost called module that contains a weight."""
        around = (name for name in self.place if weight.startswith(f"{name}."))
        return self.place.get(max(around, key=len, default=None), len(self.place))

    def tolerance(self, operations: float, terms: float, unit: float, module: str | None = None) -> float:
        drift = 2 * max(self.drift.get(None, 0.0), self.drift.get(module, 0.0))
        growth = math.sqrt(operations / 3)
        if unit > FP32:
            return ROUGH * math.sqrt(growth) * unit + MARGIN * growth * drift
        return MARGIN * growth * (unit * math.sqrt(1 + terms) + drift)

    def conversion(self, key: str) -> float:
        """The tolerance of a tensor that is only copied: 0, unless its type changes."""
        units = {part.rounding(key) for part in self.every if key in part.micros}
        return MARGIN * max(units) if len(units) > 1 else 0.0

    def passes(self) -> Iterator[tuple[str, list[Row | None]]]:
        """Yield (pass, rows) in the order of the computation; a row says how much a tensor differs, and where."""
        single, place, last = self.single, self.place, len(self.place) or 1
        if not self.before:
            starts = [f"start|{name}" for name in single.names("start")]
            yield "start", [self.judge(key, self.conversion(key)) for key in starts]
        yield "samples", self.find_samples()
        kept = {key: key.split("|")[1] for key in single.micros if key.startswith("output|")}
        outputs = sorted(kept.items(), key=lambda item: place[item[1]])
        forward = [
            self.judge(key, self.tolerance(place[name], self.columns, self.units[place[name]], name))
            for key, name in outputs
        ]
        yield "forward", [*forward, self.loss(forward)]
        stuck = self.stuck()
        names = sorted(single.names("gradient") if stuck is None else [], key=lambda name: -self.place_of(name))
        gradients = {name: single.value(f"gradient|{name}") for name in names}
        mean = rms(torch.cat([each.flatten() for each in gradients.values()])) if names else 0.0
        level = (ROUGH_NOISE if self.unit > FP32 else NOISE) * (
            math.sqrt(2) * self.unit + 2 * self.drift.get(None, 0.0)
        )
        noise = defaultdict[str, float](float)  # by module: a bias's gradient sums the same terms as its weight's
        for name, gradient in gradients.items():
            noise[home(name)] = max(noise[home(name)], level * max(mean, rms(gradient)))
        terms = max(self.columns, 1 if self.inputs is None else self.inputs.numel())
        tolerance = self.tolerance(2 * last, terms, self.unit)
        found: list[Any] = [self.judge(f"gradient|{name}", tolerance, noise[home(name)] / tolerance) for name in names]
        for each in found if self.is_clipped else ():
            each["looks_like"] += "; a clip came before it was recorded" if each["looks_like"] else ""
        yield "backward", [stuck, *found]
        used = [name for name in names if any(part.is_changed(name) for part in self.every)]
        found = [self.judge(f"used|{name}", tolerance, noise[home(name)] / tolerance) for name in used]
        tolerance *= math.sqrt(0.8 / JUDGED)
        masks = {name: judged(gradient, noise[home(name)]) for name, gradient in gradients.items()}
        yield "weights", [*found, *(self.change(name, tolerance, masks.get(name)) for name in single.names("weight"))]

    def change(self, name: str, tolerance: float, mask: Tensor | None) -> Row | None:
        """The row of a weight's change, from its repeated optimizer step, else from comparing changes; None if neither is possible."""
        key, is_buffer = f"weight|{name}", name not in self.single.about["trained"] + self.single.about["others"]
        if not is_buffer and (found := self.replays.row(self, name, MARGIN)):
            return found if found["ranks"] else self.uncommon(key) or found
        if not is_buffer and self.unit > FP32:
            self.unjudged.append(name)
            return self.uncommon(key)
        return self.judge(key, tolerance, 8 * self.unit / tolerance * rms(self.single.value(key)), mask, True)

    def gradients_of(self, name: str) -> dict[int, Tensor]:
        """Number of a process → the gradient that its optimizer got for its part of a weight. The single process has number 0."""
        used, key = f"used|{name}", f"weight|{name}"
        held = {number: part.stored(used) for number, part in enumerate(self.every) if used in part.micros}
        if any(number in held and part.piece(used) != part.piece(key) for number, part in enumerate(self.every)):
            whole = self.single.value(used)  # partial sums, or shards laid out differently
            flat = torch.zeros(whole.numel(), dtype=torch.double)
            for _, found, own in self.with_locations(used, whole):
                flat[own] = found
            held |= {rank + 1: flat[own] for ranks, _, own in self.with_locations(key, whole) for rank in ranks}
        return held

    def stuck(self) -> Row | None:
        """The row of processes whose loss scaler skipped the step because gradients overflowed; None if no process did."""
        if not any(part.is_stuck() for part in self.every):
            return None
        still = [not part.updates for part in self.every]
        wrong = [part.rank for part, each in zip(self.parts, still[1:], strict=True) if each != still[0]]
        text = f"{'skipped' if still[0] else 'made'} in the single process alone: gradients that are not finite"
        return row("the optimizer", "step", float(bool(wrong)), 0.5, text, wrong)

    def uncommon(self, key: str) -> Row | None:
        """The row of a tensor that several processes hold, if their bits differ; else None."""
        if found := unequal(self.single, self.parts, key):
            ranks, difference, text = found
            return row(home(name := key.partition("|")[2]), name, difference, 0.0, text, ranks)
        return None

    def began(self, part: StepRecording, key: str) -> Tensor:
        """A process's weight at the start of this step."""
        if not self.before:
            return part.value(key.replace("weight|", "start|", 1))
        return (self.before.single if part is self.single else self.before.parts[part.about["rank"]]).value(key)

    def drift_after(self) -> dict[str | None, float]:
        """Module → relative difference of its weights after this step; None → that of all weights."""
        apart, size = defaultdict[str | None, float](float), defaultdict[str | None, float](float)
        for name in self.single.names("weight"):
            whole = self.single.value(f"weight|{name}")
            for _, found, own in self.with_locations(f"weight|{name}", whole):
                for place in (None, home(name)):
                    apart[place] += (found - whole.flatten()[own]).square().sum().item()
                    size[place] += whole.flatten()[own].square().sum().item()
        return {place: math.sqrt(apart[place] / size[place]) for place in size if size[place]}

    def loss(self, outputs: list[Row | None]) -> Row | None:
        """The row of the loss: either each process's, their mean or their sum must equal the single process's. outputs: rows of outputs."""
        losses = [sum(part.about["losses"]) for part in self.parts if part.about["losses"]]
        if not losses or not self.single.about["losses"]:
            return None
        one, tolerance = sum(self.single.about["losses"]), self.tolerance(len(self.place), self.columns, self.units[-1])
        if self.units[-1] > FP32 and any(outputs[-2:]):  # an fp32 loss of outputs that differ by `off`
            off = max(each["difference"] for each in outputs if each)
            tolerance = self.tolerance(len(self.place), self.columns, FP32) + off * (MARGIN if self.before else 1)
        ways = max(abs(each - one) for each in losses), abs(sum(losses) / len(losses) - one), abs(sum(losses) - one)
        others = ", ".join(f"{loss:.6g}" for loss in losses)
        text = f"{one:.6g} in the single process, {others} in the others; neither mean nor sum fits"
        apart = finite(min(ways) / (abs(one) or 1.0) if all(map(math.isfinite, [one, *losses])) else math.inf)
        return row("the loss", "loss", apart, tolerance, text)

    def find_samples(self) -> list[Row | None]:
        """Find each process's rows of the batch and positions in the sequence from its inputs. Returns a row for missing samples."""
        if self.inputs is None:
            return []
        held = torch.zeros(self.inputs.shape[:2], dtype=torch.bool)
        for part in self.parts:
            if part.rows is None and INPUT in part.micros and next(iter(self.place)) in part.order:
                part.rows, part.columns = match(table(part.value(INPUT)), self.inputs, part.columns)
                if lost := part.rows.count(None):
                    text = f"{lost} samples are not in the single process's batch"
                    return [row("the samples", "inputs", 1.0, 0.5, text, [part.about["rank"]])]
            if part.rows is not None:
                places = slice(None) if part.columns is None else part.columns
                _, kind = self.inputs[:, places].unique(dim=0, return_inverse=True)  # one of equal samples is enough
                held[torch.isin(kind, kind[part.rows]).nonzero(), places] = True
        lost = [number for number, seen in enumerate(held.flatten(1).all(1).tolist()) if not seen]
        own = [f"rank {part.about['rank']}: {spans(part.rows)}" for part in self.parts if part.rows is not None]
        text = f"samples {spans(lost)} are missing, in part or whole; {'; '.join(own)}"
        shares = {tuple(part.rows) for part in self.parts if part.rows is not None}
        for part in self.parts:  # later stages have no inputs: they have all samples, or those of a first stage
            if part.rows is None and part.order:
                part.rows = [*range(len(held))]
                if shares and sum(part.about["samples"]) != len(held):
                    # From its first output that has samples; a table of positions has none.
                    keys = (key for name in part.order for key in part.micros if key.startswith(f"output|{name}|"))
                    wholes = ((key, self.single.value(key)) for key in keys if key in self.single.micros)
                    for key, whole in (pair for pair in wholes if pair[1].dim() and len(pair[1]) % len(held) == 0):
                        part.rows = nearest(part.value(key), whole, sorted(shares), len(held))
                        break
        return [row("the samples", "inputs", float(bool(lost)), 0.5, text)]

    def with_locations(self, key: str, whole: Tensor, change: bool = False) -> Iterator[tuple[list[int], Any, Tensor]]:
        """Yield (ranks, values, their element numbers in `whole`) for each part of a tensor; Partial parts are summed."""
        sums = defaultdict[str, list[Any]](lambda: [[], 0.0])
        filled, output = defaultdict[str, int](int), key.startswith("output|")
        for part in self.parts:
            each = len(whole) // len(self.inputs) if output and self.inputs is not None else None
            found, facts = cast(tuple[Any, Any], part.get(key, each) or (None, None))
            if found is None or (key.startswith("output||") and not {*self.place} <= {*part.order}):
                continue  # a stage's output is not the whole model's
            ranks, found = [part.about["rank"]], found - self.began(part, key) if change else found
            if facts and facts["partial"]:
                total, parts = sums[facts["same"]], math.prod(facts["partial"])
                total[:] = total[0] + ranks, total[1] + found / (parts if facts["mean"] else 1)
                if len(total[0]) < parts:
                    continue
                ranks, found = sums.pop(facts["same"])
            own, shape = torch.arange(whole.numel()).view(whole.shape), facts["whole"] if facts else [*found.shape]
            if output and part.rows is not None:
                own = of_samples(own, shape, part, *self.inputs.shape[:2])
            for dim, size in enumerate(shape if own.dim() == len(shape) else ()):
                if size < own.shape[dim]:  # a plain shard; shards are in rank order
                    if dim == own.dim() - 1 and key in part.uneven:
                        raise DataError(
                            f"{key.split('|')[1] or WHOLE}: `every` does not divide a process's columns: use less"
                        )
                    turn = str((part.rows, part.columns, dim))
                    own = own.narrow(dim, filled[turn], min(size, own.shape[dim] - filled[turn]))
                    filled[turn] = (filled[turn] + size) % whole.shape[dim]
            if [*own.shape] != shape:
                self.skipped.add(key.split("|")[1] or WHOLE)
                continue
            for dim, begin in enumerate(facts["offset"] if facts else ()):
                own = own.narrow(dim, begin, found.shape[dim])
            yield ranks, found, own

    def judge(
        self, key: str, tolerance: float, floor: float = 0.0, mask: Tensor | None = None, change: bool = False
    ) -> Row | None:
        """A tensor's row: the largest difference of a part, relative to the whole's RMS plus `floor`. None if no process has the output."""
        kind, name = key.split("|")[:2]
        module = name if kind == "output" else home(name)
        whole = self.single.value(key) - (self.began(self.single, key) if change else 0.0)
        parts, held = list(self.with_locations(key, whole, change)), torch.zeros(whole.numel(), dtype=torch.bool)
        for _, _, own in parts:
            held[own] = True
        if kind == "output" and not parts:
            self.skipped.add(name or WHOLE)
            return None
        if kind != "output" and not held.all():
            text = f"{(~held).sum()} of {len(held)} elements are on no process: a part is missing"
            return row(module, name, 1.0, tolerance, text)
        flat, mask = whole.flatten(), torch.ones_like(held) if mask is None else mask.flatten()
        size = rms(flat[mask]) + floor or 1.0
        away = [rms((found - flat[own])[mask[own]]) / size for _, found, own in parts]
        wrong = [part for part, each in zip(parts, away, strict=True) if not each <= tolerance]
        looks = looks_like(flat, whole.shape, parts, wrong, tolerance) if wrong else ""
        if not wrong and name in self.single.about["trained"] and kind != "start" and (found := self.uncommon(key)):
            return found
        return row(
            module, name, max(map(finite, away)), tolerance, looks, [rank for ranks, _, _ in wrong for rank in ranks]
        )


def judged(gradient: Tensor, noise: float) -> Tensor:
    """Mask of a weight's elements whose changes are judged."""
    size = rms(gradient)
    return (gradient.abs() >= max(JUDGED * size, noise)) | ((gradient == 0) & (size == 0 or size >= noise))


def write_card(single: Folder, parallel: Folder, folder: Folder | None = None, across_precisions: bool = False) -> int:
    """Print the card and write it into a folder (default: that of the parallel recording). Returns the exit code of the verdict."""
    card, folder = compare(single, parallel, across_precisions), Path(folder or parallel)
    write_json(folder / "proof.json", card)
    write_text(folder / "proof.txt", text := as_text(card))
    print(text, end="")
    return EXIT_CODES[card["verdict"]]
