"""Does a parallel script compute what a single process does, by two recordings of `parascale.prove`; and if not, where does it part?

Compared in the order of the computation: weights at the start; then in each step samples, outputs of modules, loss, gradients (the last module's
first), changes of weights. A process's part is compared with its place in the single process's tensor.

Tolerances. u is the largest relative error of one rounding of what is stored, v of what is added (fp32 for halves), n the number of terms of
a sum, m that of operations one after the other. A rounding is off by u/√6 in the mean. The error of a sum grows with √n, not n (Higham and
Mary, SIAM J. Sci. Comput. 41, A2815, 2019). 2m such errors, of two processes, that do not depend on each other make √(2m/6) √(u² + v² n), as
root mean square over that of the tensor. What weights differ by when a step begins, d, of all or of the module, moves all samples alike:

    tolerance = MARGIN √(2m/6) (√(u² + v² n) + 2 d)

m: modules called so far; for gradients twice all. n: most columns of a weight; for gradients also samples × places. MARGIN: networks amplify
errors. A gradient that is nothing but rounding (a bias of keys, which softmax cancels) is measured by NOISE roundings of a mean element's.
Adam divides a gradient with error e by its size g, so changes are judged where g is JUDGED of its tensor's mean size, or 0: the mean of
(e/g)² over normally distributed g beyond that is 0.8/JUDGED times that of e².
"""

import json
import math
import sys
from collections import defaultdict
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from parascale.errors import DataError, shorten_list
from parascale.files import write_json, write_text
from parascale.likeness import WHOLE, as_text, home, looks_like, match, nearest, of_samples, rms, row, spans, table

MARGIN, NOISE, JUDGED = 4, 64, 0.1
ROUNDOFF = {"F64": 2**-53, "F32": 2**-24, "F16": 2**-11, "BF16": 2**-8}
TF32 = 2**-11
INPUT = "input|0|0"


class Part:
    """What one process recorded in one step."""

    def __init__(self, path):
        try:
            self.file = safe_open(path, "pt")
            self.about = json.loads(self.file.metadata()["prove"])
        except (SafetensorError, TypeError, KeyError, ValueError) as error:
            raise DataError(f"{path}: damaged, or no recording ({error}); record again") from None
        self.keys, self.rows, self.columns = self.about["keys"], self.about["rows"], self.about["positions"]
        self.uneven = {"|".join(key.split("|")[:4]) for key in self.about.get("uneven", ())}
        self.micros = defaultdict(list)  # key of an output or input → its keys with micro-batch
        for key in self.keys:
            self.micros[key.rpartition("|")[0] if key.startswith(("output|", "input|")) else key].append(key)
        self.order = list(dict.fromkeys(key.split("|")[1] for key in self.keys if key.startswith("output|")))

    def names(self, kind):
        return [key.partition("|")[2] for key in self.keys if key.startswith(f"{kind}|")]

    def get(self, key, each=None):
        """(tensor, facts), or None. Micro-batches are joined where `each` of a sample's elements come first in them (default: if they do)."""
        keys = self.micros.get(key, [])
        held = [self.file.get_tensor(name) for name in keys]
        facts = dict(self.about["facts"].get(keys[0], {})) if keys else {}
        if len(keys) > 1:
            wholes = [self.about["facts"].get(name, {}).get("whole") for name in keys]
            sizes = [(whole or each.shape)[0] for whole, each in zip(wholes, held, strict=True)]
            each = each or sizes[0] // self.about["samples"][0]
            if sizes == [each * count for count in self.about["samples"]]:
                return torch.cat(held).double(), facts and facts | {"whole": [sum(sizes), *facts["whole"][1:]]}
        return (held[0].double(), facts) if keys else None

    def value(self, key):
        return self.get(key)[0]


def recording(folder):
    """The parts of each step in a folder, by rank."""
    found = defaultdict(list)
    for path in sorted(Path(folder).glob("step-*-rank-*.safetensors")):
        found[path.name.split("-")[1]].append(Part(path))
    if not found:
        raise DataError(f"{folder}: no recording; `with prove.recording(model, folder):` around a step makes one")
    for parts in found.values():
        if {part.about["world"] for part in parts} != {len(parts)}:
            raise DataError(f"{folder}: files of more or fewer processes than recorded; empty it and record again")
    return list(found.values())


def compare(single, parallel):
    """The verdict on the recording in folder `parallel` against the single process's in `single`, as plain values: the card."""
    one, many = recording(single), recording(parallel)
    if len(one[0]) != 1:
        raise DataError(f"{single}: recorded by {len(one[0])} processes; name the single process's recording first")
    if len(one) != len(many):
        raise DataError(f"{single} has {len(one)} steps, but {parallel} {len(many)}; record the same steps of both")
    if len(kept := {part.about.get("every", 1) for steps in (one, many) for parts in steps for part in parts}) > 1:
        raise DataError(
            f"{single} and {parallel} keep one column of {shorten_list(sorted(kept))}; record both with one `every`"
        )
    told = ("world", "layout", "torch", "python", "system", "tf32")
    card = {"schema_version": 1, "verdict": "same", "steps": len(one), "first": None, "passes": []}
    card |= {
        name: {key: steps[0][0].about[key] for key in told} for name, steps in (("single", one), ("parallel", many))
    }
    card |= {"every": kept.pop(), "margin": MARGIN, "noise": NOISE, "judged": JUDGED}
    step = None
    for number, ((whole,), parts) in enumerate(zip(one, many, strict=True)):
        step = Step(whole, parts, step)
        for name, rows in step.passes():
            rows = [each for each in rows if each]
            outside = [each for each in rows if not each["difference"] <= each["tolerance"]]
            worst = max(rows, key=lambda each: each["difference"] / each["tolerance"], default=None)
            counted = {"step": number, "pass": name, "compared": len(rows), "outside": len(outside)}
            card["passes"].append(counted | {"worst": worst})
            if outside:
                return card | {"verdict": "different", "first": counted | outside[0]}
    # Outputs of the last step that fit nothing, or that no process has.
    return card | {"not_compared": sorted(step.skipped)}


class Step:
    """One step of the single process and of the others. before: the Step before it, or None."""

    def __init__(self, single, parts, before):
        self.single, self.parts, self.before, self.skipped = single, parts, before, set()
        self.place = {name: number for number, name in enumerate(single.order, 1)}
        kinds = {part.file.get_slice(key).get_dtype() for part in (single, *parts) for key in part.keys}
        self.unit = max([ROUNDOFF.get(kind, 0.0) for kind in kinds] + [TF32 for part in parts if part.about["tf32"]])
        shapes = [single.file.get_slice(f"weight|{name}").get_shape() for name in single.names("weight")]
        self.columns = max([math.prod(shape[1:]) for shape in shapes], default=1) * single.about.get("every", 1)
        self.inputs = table(single.value(INPUT)) if INPUT in single.micros else None
        self.drift = before.drift_after() if before else {}
        self.skipped |= {name for part in parts for name in part.names("weight")} - {*single.names("weight")}

    def place_of(self, weight):
        """The place of the innermost module around a weight that was called."""
        around = (name for name in self.place if weight.startswith(f"{name}."))
        return self.place.get(max(around, key=len, default=None), len(self.place))

    def rounding(self, terms, module=None):
        drift = max(self.drift.get(None, 0.0), self.drift.get(module, 0.0))
        return math.hypot(self.unit, min(self.unit, 2**-24) * math.sqrt(terms)) + 2 * drift

    def tolerance(self, operations, terms, module=None):
        return MARGIN * math.sqrt(operations / 3) * self.rounding(terms, module)

    def passes(self):
        """Yield (pass, rows) in the order of the computation; a row says by how much a tensor differs, and where."""
        single, place, last = self.single, self.place, len(self.place) or 1
        if not self.before:
            yield "start", [self.judge(f"start|{name}", MARGIN * self.unit) for name in single.names("start")]
        yield "samples", self.find_samples()
        outputs = {key: key.split("|")[1] for key in single.micros if key.startswith("output|")}
        outputs = sorted(outputs.items(), key=lambda item: place[item[1]])
        forward = [self.judge(key, self.tolerance(place[name], self.columns, name)) for key, name in outputs]
        yield "forward", [*forward, self.loss()]
        names = sorted(single.names("gradient"), key=lambda name: -self.place_of(name))
        gradients = {name: single.value(f"gradient|{name}") for name in names}
        mean = rms(torch.cat([each.flatten() for each in gradients.values()])) if names else 0.0
        noise = defaultdict(float)  # by module: a bias is the sum of what its weight's gradient is made of
        for name, gradient in gradients.items():
            noise[home(name)] = max(noise[home(name)], NOISE * self.rounding(1) * max(mean, rms(gradient)))
        tolerance = self.tolerance(2 * last, max(self.columns, 1 if self.inputs is None else self.inputs.numel()))
        yield "backward", [self.judge(f"gradient|{name}", tolerance, noise[home(name)] / tolerance) for name in names]
        tolerance *= math.sqrt(0.8 / JUDGED)
        masks = {name: judged(gradient, noise[home(name)]) for name, gradient in gradients.items()}
        keys = {f"weight|{name}": masks.get(name) for name in single.names("weight")}
        stored = 8 * self.unit / tolerance
        changes = [self.judge(key, tolerance, stored * rms(single.value(key)), keys[key], True) for key in keys]
        yield "weights", changes

    def began(self, part, key):
        """A weight of a process as this step found it."""
        if not self.before:
            return part.value(key.replace("weight|", "start|", 1))
        return (self.before.single if part is self.single else self.before.parts[part.about["rank"]]).value(key)

    def drift_after(self):
        """By how much weights differ after this step, of their size: of each module, and under None of all."""
        apart, size = defaultdict(float), defaultdict(float)
        for name in self.single.names("weight"):
            whole = self.single.value(f"weight|{name}")
            for _, found, own in self.placed(f"weight|{name}", whole):
                for place in (None, home(name)):
                    apart[place] += (found - whole.flatten()[own]).square().sum().item()
                    size[place] += whole.flatten()[own].square().sum().item()
        return {place: math.sqrt(apart[place] / size[place]) for place in size if size[place]}

    def loss(self):
        """The row of the loss: each process has the single one's, or their mean or sum is it."""
        losses = [sum(part.about["losses"]) for part in self.parts if part.about["losses"]]
        if not losses or not self.single.about["losses"]:
            return None
        one, tolerance = sum(self.single.about["losses"]), self.tolerance(len(self.place), self.columns)
        ways = max(abs(each - one) for each in losses), abs(sum(losses) / len(losses) - one), abs(sum(losses) - one)
        told = ", ".join(f"{loss:.6g}" for loss in losses)
        text = f"{one:.6g} in the single process, {told} in the others; neither mean nor sum fits"
        apart = min(ways) / (abs(one) or 1.0) if all(map(math.isfinite, [one, *losses])) else sys.float_info.max
        return row("the loss", "loss", apart, tolerance, text)

    def find_samples(self):
        """Find each process's rows of the batch and its places in the sequence, by its inputs; returns a row for what is missing."""
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
                _, kind = self.inputs[:, places].unique(dim=0, return_inverse=True)  # of equal ones, one stands for all
                held[torch.isin(kind, kind[part.rows]).nonzero(), places] = True
        lost = [number for number, seen in enumerate(held.flatten(1).all(1).tolist()) if not seen]
        own = [f"rank {part.about['rank']}: {spans(part.rows)}" for part in self.parts if part.rows is not None]
        text = f"samples {spans(lost)} are missing, in part or whole; {'; '.join(own)}"
        shares = {tuple(part.rows) for part in self.parts if part.rows is not None}
        for part in self.parts:  # a later stage has no inputs: all samples are its, or those of a first stage
            if part.rows is None and part.order:
                part.rows = [*range(len(held))]
                if shares and sum(part.about["samples"]) != len(held):
                    # By its first output that holds samples, as a table of positions does not.
                    keys = (key for name in part.order for key in part.micros if key.startswith(f"output|{name}|"))
                    wholes = ((key, self.single.value(key)) for key in keys if key in self.single.micros)
                    for key, whole in (pair for pair in wholes if pair[1].dim() and len(pair[1]) % len(held) == 0):
                        part.rows = nearest(part.value(key), whole, sorted(shares), len(held))
                        break
        return [row("the samples", "inputs", float(bool(lost)), 0.5, text)]

    def placed(self, key, whole, change=False):
        """Yield (ranks, what they hold, numbers of its elements in `whole`) for each part of a tensor; Partial parts are summed."""
        sums, filled, output = defaultdict(lambda: [[], 0.0]), defaultdict(int), key.startswith("output|")
        for part in self.parts:
            each = len(whole) // len(self.inputs) if output and self.inputs is not None else None
            found, facts = part.get(key, each) or (None, None)
            if found is None or (key.startswith("output||") and not {*self.place} <= {*part.order}):
                continue  # a stage's own output is none of the whole model
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
                if size < own.shape[dim]:  # a plain shard: they follow each other in the order of the ranks
                    if dim == own.dim() - 1 and key in part.uneven:
                        raise DataError(
                            f"{key.split('|')[1] or WHOLE}: `every` does not divide its columns on a process; record with a smaller one"
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

    def judge(self, key, tolerance, floor=0.0, mask=None, change=False):
        """A tensor's row, or None for an output that no process has: the largest difference of a part, of the size of the whole and `floor`."""
        kind, name = key.split("|")[:2]
        module = name if kind == "output" else home(name)
        whole = self.single.value(key) - (self.began(self.single, key) if change else 0.0)
        parts, held = list(self.placed(key, whole, change)), torch.zeros(whole.numel(), dtype=torch.bool)
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
        worst = max(each if math.isfinite(each) else sys.float_info.max for each in away)
        return row(module, name, worst, tolerance, looks, [rank for ranks, _, _ in wrong for rank in ranks])


def judged(gradient, noise):
    """Elements of a weight whose changes are judged."""
    size = rms(gradient)
    return (gradient.abs() >= max(JUDGED * size, noise)) | ((gradient == 0) & (size == 0 or size >= noise))


def write_card(single, parallel, folder=None):
    """Print the card, and write it into a folder (default: that of the parallel recording); returns 1 if the two differ, else 0."""
    card, folder = compare(single, parallel), Path(folder or parallel)
    write_json(folder / "proof.json", card)
    write_text(folder / "proof.txt", text := as_text(card))
    print(text, end="")
    return int(card["verdict"] == "different")
