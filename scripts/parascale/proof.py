"""Does a parallel script compute what a single process does, by two recordings of `parascale.prove`; and if not, where does it part?

Compared in the order of the computation: weights at the start; then in each step samples, outputs of modules, loss, gradients (the last
module's first), changes of weights. Each process's part is compared with its place in the single process's tensor. Needs torch and
safetensors alone, and this file may be copied: `python proof.py SINGLE PARALLEL`.

Tolerances. u is the largest relative error of one rounding of what is stored, v of what is added (fp32 for halves), n the number of terms of
a sum, m that of operations one after the other. A rounding is off by u/√6 in the mean. The error of a sum in some order grows with √n, not n
(Higham and Mary, SIAM J. Sci. Comput. 41, A2815, 2019). 2m such errors, of two processes, that do not depend on each other make
√(2m/6) √(u² + v² n), as root mean square over that of the tensor. What the weights differ by when a step begins, d, acts like another rounding:

    tolerance = MARGIN √(2m/6) (√(u² + v² n) + d)

m: modules called so far; for gradients and changes twice all. n: most columns of a weight; for gradients also samples × places. MARGIN: networks
amplify errors. A gradient that is nothing but rounding (a bias of keys, which softmax cancels) is measured by NOISE roundings of a mean
element's. Changes are judged where the gradient is JUDGED of its tensor's mean size or 0: Adam divides by it, so that rounding decides
about a small one.
"""

import json
import math
import re
import sys
from collections import defaultdict
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

MARGIN, NOISE, JUDGED = 4, 64, 0.1
ROUNDOFF = {"F64": 2**-53, "F32": 2**-24, "F16": 2**-11, "BF16": 2**-8}
TF32 = 2**-11
FILE = re.compile(r"step-(\d+)-rank-(\d+)\.safetensors")
INPUT = "input|0|0"


class ProofError(Exception):
    """Two recordings cannot be compared."""


class Part:
    """What one process recorded in one step."""

    def __init__(self, path):
        try:
            self.file = safe_open(path, "pt")
            self.about = json.loads(self.file.metadata()["prove"])
        except (SafetensorError, TypeError, KeyError, ValueError) as error:
            raise ProofError(f"{path}: damaged, or no recording ({error}); record again") from None
        self.rank, self.keys = self.about["rank"], self.about["keys"]
        self.rows, self.columns = self.about["rows"], self.about["positions"]
        self.micros = defaultdict(list)  # key of an output or input → its keys with micro-batch, in their order
        for key in self.keys:
            if key.startswith(("output|", "input|")):
                self.micros[key.rpartition("|")[0]].append(key)
        self.order = list(dict.fromkeys(key.split("|")[1] for key in self.micros if key.startswith("output|")))
        self.samples = [size for key, size in sorted(self.about["samples"].items()) if key.startswith("0|")]

    def names(self, kind):
        return [key.partition("|")[2] for key in self.keys if key.startswith(f"{kind}|")]

    def shape(self, key):
        return self.file.get_slice(key).get_shape()

    def get(self, key, each=None):
        """(tensor, its facts), or None if it is not there. Micro-batches are joined along samples where these come first in it.

        each: how much of its first dimension belongs to a sample.
        """
        keys = self.micros.get(key) or [key] * (key in self.keys)
        tensors, facts = [self.file.get_tensor(each) for each in keys], [self.about["facts"].get(each) for each in keys]
        if not keys:
            return None
        shapes = [fact["whole"] if fact else tensor.shape for tensor, fact in zip(tensors, facts, strict=True)]
        if len(keys) == 1:
            return tensors[0], facts[0]
        each = each or shapes[0][0] // self.samples[0]
        if any(shape[0] != each * size for shape, size in zip(shapes, self.samples, strict=False)):
            return tensors[0], facts[0]
        whole = [sum(shape[0] for shape in shapes), *shapes[0][1:]]
        return torch.cat(tensors), facts[0] and facts[0] | {"whole": whole}


def recording(folder):
    """The parts of each step in a folder, by rank."""
    found = defaultdict(list)
    for path in sorted(Path(folder).glob("step-*.safetensors")):
        found[FILE.fullmatch(path.name)[1]].append(Part(path))
    for parts in found.values():
        if {part.about["world"] for part in parts} != {len(parts)}:
            raise ProofError(
                f"{folder}: files of {len(parts)} processes, which were others when they recorded; record again, into an empty folder"
            )
    if not found:
        raise ProofError(f"{folder}: no recording; `with prove.recording(model, folder):` around a step makes one")
    return list(found.values())


def compare(single, parallel):
    """The verdict on the recording in folder `parallel` against the single process's in `single`, as plain values: the card."""
    one, many = recording(single), recording(parallel)
    if len(one[0]) != 1:
        raise ProofError(f"{single}: recorded by {len(one[0])} processes; name the single process's recording first")
    card = {"schema_version": 1, "verdict": "same", "steps": min(len(one), len(many)), "first": None, "passes": []}
    card |= {"single": about(one), "parallel": about(many), "margin": MARGIN, "noise": NOISE, "judged": JUDGED}
    before = None
    for number, ((whole,), parts) in enumerate(zip(one, many, strict=False)):
        before = step = Step(whole, parts, before)
        for name, rows in step.passes():
            outside = [row for row in rows if not row["difference"] <= row["tolerance"]]
            counted = {"step": number, "pass": name, "compared": len(rows), "outside": len(outside)}
            card["passes"].append(
                counted | {"worst": max(rows, key=lambda row: row["difference"] / row["tolerance"], default=None)}
            )
            if outside:
                return card | {"verdict": "different", "first": counted | outside[0]}
    return card | {"not_compared": sorted(step.skipped)}


def about(steps):
    """Who recorded: versions, devices, and how weights are spread."""
    told = ("world", "versions", "devices", "system", "tf32", "layout")
    return {key: steps[0][0].about[key] for key in told}


class Step:
    """One step of the single process and of the others. before: the Step before it, or None."""

    def __init__(self, single, parts, before):
        self.single, self.parts, self.before, self.skipped = single, parts, before, set()
        self.order = single.order
        kinds = {part.file.get_slice(key).get_dtype() for part in (single, *parts) for key in part.keys}
        self.unit = max([ROUNDOFF.get(kind, 0.0) for kind in kinds] + [TF32 for part in parts if part.about["tf32"]])
        shapes = [single.shape(f"weight|{name}") for name in single.names("weight")]
        self.columns = max([math.prod(shape[1:]) for shape in shapes], default=1)
        self.inputs = single.get(INPUT)
        self.drift = before.drift_after() if before else {}

    def tolerance(self, operations, terms, module=None):
        return MARGIN * math.sqrt(operations / 3) * self.rounding(terms, module)

    def rounding(self, terms, module=None):
        drift = max(self.drift.get(None, 0.0), self.drift.get(module, 0.0))
        return math.hypot(self.unit, min(self.unit, 2**-24) * math.sqrt(terms)) + 2 * drift

    def passes(self):
        """Yield (pass, rows) in the order of the computation; a row is a tensor's difference, its tolerance and where it is."""
        if not self.before:
            yield "start", [self.judge(f"start|{name}", MARGIN * self.unit) for name in self.single.names("start")]
        samples = list(self.find_samples())
        yield "samples", samples
        place = {name: number for number, name in enumerate(self.order, 1)}
        outputs = sorted(
            (key for key in self.single.micros if key.startswith("output|")), key=lambda key: place[key.split("|")[1]]
        )
        names = {key: key.split("|")[1] for key in outputs}
        rows = [self.judge(key, self.tolerance(place[name], self.columns, name)) for key, name in names.items()]
        yield "forward", [row for row in [*rows, self.loss()] if row]
        names = sorted(self.single.names("gradient"), key=lambda name: -called(name, place))
        sizes = {name: rms(self.single.get(f"gradient|{name}")[0]) for name in names}
        counts = {name: math.prod(self.single.shape(f"gradient|{name}")) for name in names}
        mean = math.sqrt(sum(sizes[name] ** 2 * counts[name] for name in names) / max(1, sum(counts.values())))
        terms = max(self.columns, math.prod(self.inputs[0].shape) if self.inputs else 1)
        tolerance = self.tolerance(2 * len(place), terms)
        noise = {}
        for name in names:
            beside = [sizes[other] for other in names if other.rpartition(".")[0] == name.rpartition(".")[0]]
            noise[name] = NOISE * self.rounding(1) * max(mean, *beside)
        yield "backward", [self.judge(f"gradient|{name}", tolerance, noise[name] / tolerance) for name in names]
        names = self.single.names("weight")
        yield "weights", [self.changed(name, tolerance, noise.get(name, 0.0)) for name in names]

    def changed(self, name, tolerance, noise):
        """The row of a weight's change in this step."""
        weight, gradient = self.single.get(f"weight|{name}")[0], self.single.get(f"gradient|{name}")
        mask = None
        if gradient:
            size = rms(gradient[0])
            mask = gradient[0].abs() >= max(JUDGED * size, noise)
            mask |= (gradient[0] == 0) & (size == 0 or size >= noise)
        tolerance *= math.sqrt(0.8 / JUDGED)
        return self.judge(f"weight|{name}", tolerance, 8 * self.unit * rms(weight) / tolerance, mask, change=True)

    def began(self, part, key):
        """A weight of a process as this step found it."""
        if not self.before:
            return part.get(key.replace("weight|", "start|", 1))[0]
        earlier = self.before.single if part is self.single else self.before.parts[part.rank]
        return earlier.get(key)[0]

    def drift_after(self):
        """By how much weights differ after this step, of their size: of each module, and under None of all."""
        apart, size = defaultdict(float), defaultdict(float)
        for name in self.single.names("weight"):
            whole = self.single.get(f"weight|{name}")[0].double()
            for _, found, own in self.placed(f"weight|{name}", whole):
                for place in (None, name.rpartition(".")[0]):
                    apart[place] += (found - whole.flatten()[own]).square().sum().item()
                    size[place] += whole.flatten()[own].square().sum().item()
        return {place: math.sqrt(apart[place] / size[place]) for place in size if size[place]}

    def loss(self):
        """The row of the loss: each process has the single one's, or their mean or sum is it."""
        one, losses = sum(self.single.about["losses"]), [part.about["losses"] for part in self.parts]
        told = [sum(each) for each in losses if each]
        if not told or not self.single.about["losses"]:
            return None
        ways = max(abs(each - one) for each in told), abs(sum(told) / len(told) - one), abs(sum(told) - one)
        tolerance = self.tolerance(len(self.order), self.columns)
        row = {
            "tensor": "loss",
            "module": "the loss",
            "difference": min(ways) / (abs(one) or 1.0),
            "tolerance": tolerance,
        }
        each = ", ".join(f"{loss:.6g}" for loss in told)
        return row | {
            "ranks": [],
            "looks_like": f"{one:.6g} in the single process, {each} in the others; neither mean nor sum fits",
        }

    def find_samples(self):
        """Find each process's rows of the batch, and its places in the sequence, by its inputs; yields a row for what is missing."""
        if not self.inputs:
            return
        whole, had = self.inputs[0], set()
        row = {"tensor": "inputs", "module": "the samples", "tolerance": 0.5}
        for part in self.parts:
            given = part.get(INPUT)
            if given and self.order[0] in part.order and part.rows is None:
                part.rows, part.columns = match(given[0], whole, part.columns)
                if lost := sum(each is None for each in part.rows):
                    yield row | {
                        "difference": 1.0,
                        "ranks": [part.rank],
                        "looks_like": f"{lost} samples are not in the single process's batch",
                    }
                    return
                had |= {(at, place) for at in part.rows for place in part.columns or [None]}
            elif part.rows is not None:
                had |= {(at, place) for at in part.rows for place in part.columns or [None]}
        self.later_stages(len(whole))
        places = range(whole.shape[1]) if any(place is not None for _, place in had) else [None]
        lost = sorted(
            {at for at in range(len(whole)) for place in places if (at, place) not in had and (at, None) not in had}
        )
        looks = (
            f"samples {spans(lost)} of the single process's batch are missing in part or whole; ranks hold "
            + "; ".join(f"{part.rank}: {spans(part.rows)}" for part in self.parts if part.rows is not None)
        )
        yield row | {"difference": float(bool(lost)), "ranks": [], "looks_like": looks}

    def later_stages(self, count):
        """A later stage of a pipeline sees no inputs: its samples are all, or those whose first output is nearest."""
        for part in self.parts:
            if part.rows is None and part.order:
                key = next(key for key in part.micros if key.startswith(f"output|{part.order[0]}|"))
                found, reference = part.get(key)[0], self.single.get(key)
                alone = sum(part.samples) == count or reference is None
                part.rows = list(range(count)) if alone else rows_of(found, reference[0], nearest=True)

    def placed(self, key, whole, change=False):
        """Yield (ranks, what they hold, numbers of its elements in `whole`) for each part of a tensor; Partial parts are summed."""
        sums, filled = {}, defaultdict(int)
        for part in self.parts:
            each = len(whole) / len(self.inputs[0]) if self.inputs and key.startswith("output|") else None
            found, facts = part.get(key, each) or (None, None)
            if found is None or (key.startswith("output||") and not {*self.order} <= {*part.order}):
                continue  # a stage's own output is none of the whole model
            found, ranks = found.double() - (self.began(part, key) if change else 0.0), [part.rank]
            if facts and facts["partial"]:
                ranks, found = (
                    sums.get(own := str((facts["at"], facts["offset"])), ([], 0.0))[0] + ranks,
                    found + sums.get(own, (0, 0.0))[1],
                )
                sums[own], of = (ranks, found), math.prod(facts["partial"])
                if len(ranks) % of:
                    continue
                found, _ = found / (of if facts["mean"] else 1), sums.pop(own)
            own, shape = torch.arange(whole.numel()).view(whole.shape), facts["whole"] if facts else list(found.shape)
            own = (
                of_samples(own, shape, part, *self.inputs[0].shape[:2])
                if key.startswith("output|") and part.rows
                else own
            )
            for dim, size in enumerate(shape if own.dim() == len(shape) else ()):
                if size < own.shape[dim]:  # a plain shard: they follow each other in the order of the ranks
                    begin = filled[str((part.rows, part.columns, dim))]
                    filled[str((part.rows, part.columns, dim))] = (begin + size) % own.shape[dim]
                    own = own.narrow(dim, begin, min(size, own.shape[dim] - begin))
            if list(own.shape) != list(shape):
                self.skipped.add(key)
                continue
            for dim, begin in enumerate(facts["offset"] if facts else ()):
                own = own.narrow(dim, begin, found.shape[dim])
            yield ranks, found, own

    def judge(self, key, tolerance, floor=0.0, mask=None, change=False):
        """A tensor's row, or None if no process holds it: the largest difference of a part, of the size of the whole and of `floor`."""
        kind, name = key.split("|")[:2]
        whole = self.single.get(key)[0].double() - (self.began(self.single, key) if change else 0.0)
        parts = list(self.placed(key, whole, change))
        output = kind == "output"
        if not parts and output:
            self.skipped.add(key)
            return None
        size = rms(whole if mask is None else whole[mask]) + floor or 1.0
        row = {
            "tensor": name,
            "module": (name if output else name.rpartition(".")[0]) or "the model",
            "tolerance": tolerance,
        }
        flat, judged = whole.flatten(), None if mask is None else mask.flatten()
        away = [
            rms(found - flat[own] if judged is None else (found - flat[own])[judged[own]]) / size
            for _, found, own in parts
        ]
        held = torch.zeros(whole.numel(), dtype=torch.bool)
        for _, _, own in parts:
            held[own] = True
        if not output and not held.all():
            lost = f"{(~held).sum().item()} of {held.numel()} elements are on no process: a part is missing"
            return row | {"difference": 1.0, "ranks": [], "looks_like": lost}
        worst = next((each for each in away if math.isnan(each)), max(away, default=0.0))
        wrong = [part for part, each in zip(parts, away, strict=True) if not each <= tolerance]
        ranks = sorted(rank for ranks, _, _ in wrong for rank in ranks)
        return row | {
            "difference": worst,
            "ranks": ranks,
            "looks_like": looks_like(flat, whole.shape, parts, wrong, tolerance) if wrong else "",
        }


def looks_like(flat, shape, parts, wrong, tolerance):
    """What a wrong tensor looks like, in words. flat, shape: the single process's. parts, wrong: (ranks, found, its elements) of all, and of those beyond."""

    def near(found, expected):
        return rms(found - expected) <= max(10 * tolerance, 1e-3) * rms(expected)

    found = torch.cat([found.flatten() for _, found, _ in wrong])
    own = torch.cat([own.flatten() for _, _, own in wrong])
    expected = flat[own]
    if not found.isfinite().all():
        return "not a number"
    if not found.any():
        return "all zero: never reached, or masked"
    together = [values for _, values, places in parts if torch.equal(places, parts[0][2])]
    if len(together) == len(parts) > 1 and not near(together[0], together[-1]):
        for word, value in (("mean", sum(together) / len(parts)), ("sum", sum(together))):
            if near(value.flatten(), flat[parts[0][2]].flatten()):
                return f"each process has its own part, and their {word} is right: never reduced"
        return "processes hold different numbers where they should hold the same"
    for ranks, values, places in wrong:
        for others, _, elsewhere in parts:
            if places.shape == elsewhere.shape and not torch.equal(places, elsewhere) and near(values, flat[elsewhere]):
                return f"rank {ranks[0]} holds the part of rank {others[0]}: permuted, or another rank's"
    factors = [(each.flatten() @ flat[at].flatten() / (flat[at].square().sum() or 1.0)).item() for _, each, at in wrong]
    if all(near(each, factor * flat[at]) for factor, (_, each, at) in zip(factors, wrong, strict=True)):
        text = " and ".join(dict.fromkeys(f"{factor:.4g}" for factor in factors)) + " times what it should be"
        degree = max(abs(factors[0]), 1 / abs(factors[0]))
        if max(factors) - min(factors) > 0.01 * max(factors):
            return f"{text}: each process by a factor of its own, as clipped by its own norm"
        if degree < 1.01:
            return "nearly what it should be: as rounded to fewer digits"
        word = "multiplied" if abs(factors[0]) > 1 else "divided"
        return text + (
            f": {word} once too often by {degree:.0f}" if abs(degree - round(degree)) < 0.01 * degree else ""
        )
    if (masked := ((found == 0) != (expected == 0)).double().mean().item()) > 0.01:
        return f"{100 * masked:.0f} % of its elements are 0 in one of the two alone: masked otherwise"
    off = own[(found - expected).abs() > 4 * tolerance * rms(flat)]
    where = [(dim, sorted(set(each.tolist()))) for dim, each in enumerate(torch.unravel_index(off, shape))]
    only = [f"{spans(at)} of {shape[dim]} in dimension {dim}" for dim, at in where if len(at) < shape[dim]]
    alike = (found @ expected / (found.norm() * expected.norm())).item()
    text = f"{found.norm().item() / expected.norm().item():.3f} times as large, cosine {alike:.4f}"
    text += ": weighted otherwise, as by a mean of means or another mask" if alike > 0.9 and not only else ""
    return f"{text}; only at {' and '.join(only)}" if only else text


def of_samples(own, shape, part, count, places):
    """Of the numbers of an output's elements, those of a process's samples and places."""
    each = own.shape[0] // count
    if shape[0] == each * len(part.rows) and own.shape[0] == each * count and each:
        own = own.unflatten(0, (count, each))[part.rows].flatten(0, 1)
    for dim in range(
        min(2, own.dim(), len(shape)) if part.columns else 0
    ):  # places stand second, or first of what has no samples
        if shape[dim] == len(part.columns) < own.shape[dim] == places:
            own = own.index_select(dim, torch.tensor(part.columns))
    return own


def match(found, whole, columns):
    """(rows, columns) of `whole` that a process's inputs are: by their values; None for a row that is not there, and for all columns."""
    if found.dim() > 1 and found.shape[1] < whole.shape[1] and columns is None:
        every = [*range(0, whole.shape[1] - found.shape[1] + 1)]
        if len(found) == len(whole) and None not in (columns := rows_of(found.transpose(0, 1), whole.transpose(0, 1))):
            return [*range(len(found))], columns
        begin = min(every, key=lambda at: rows_of(found, whole[:, at : at + found.shape[1]]).count(None))
        columns = [*range(begin, begin + found.shape[1])]
    return rows_of(found, whole if columns is None else whole[:, columns]), columns


def rows_of(found, whole, nearest=False):
    """For each row, the number of the row of `whole` that it is; None where none is near. Of equal ones, the one after the last."""
    found, whole = (
        found.flatten(1).double() if found.dim() > 1 else found[:, None].double(),
        whole.flatten(1).double() if whole.dim() > 1 else whole[:, None].double(),
    )
    rows = []
    for away in torch.cdist(found, whole):
        least = away.min().item()
        near = (away <= least * (1 + 1e-9)).nonzero().flatten().tolist()
        after = (
            [at for at in near if rows and rows[-1] is not None and at == rows[-1] + 1]
            or [at for at in near if at not in rows]
            or near
        )
        rows.append(after[0] if nearest or least <= 0.1 * rms(whole) * math.sqrt(whole.shape[1]) else None)
    return rows


def called(weight, place):
    """When the module of a weight was called, or else that of a module around it."""
    parts = weight.split(".")
    around = (".".join(parts[:length]) for length in range(len(parts) - 1, -1, -1))
    return next((place[name] for name in around if name in place), len(place))


def rms(tensor):
    """The root mean square of a tensor's elements, 0 without any."""
    return tensor.double().square().mean().sqrt().item() if tensor.numel() else 0.0


def spans(numbers):
    """Numbers in words: 0–3, 6."""
    text, numbers = [], sorted(numbers)
    for at, number in enumerate(numbers):
        if at and number == numbers[at - 1] + 1:
            text[-1] = f"{text[-1].partition('–')[0]}–{number}"
        else:
            text.append(str(number))
    return ", ".join(text) or "none"


def as_text(card):
    """The card for people."""
    lines = []
    for name in ("single", "parallel"):
        part, layout = card[name], card[name]["layout"]
        weights = ", ".join(f"{count} weights {how}" for how, count in layout["weights"].items())
        processes = f"{part['world']} process{'es' * (part['world'] > 1)}"
        lines.append(
            f"{name}: {processes}, {', '.join(layout['wrapped'])}, {weights}, torch {part['versions']['torch']}"
        )
    for each in card["passes"]:
        line, worst = (
            f"step {each['step']}, {each['pass']}: {each['compared']} compared, {each['outside']} beyond",
            each["worst"],
        )
        lines.append(
            f"{line}; largest difference {worst['difference']:.1e} of {worst['tolerance']:.1e} allowed, {worst['tensor'] or 'the model'}"
            if worst
            else line
        )
    if first := card["first"]:
        ranks = f", ranks {spans(first['ranks'])}" if first["ranks"] else ""
        lines.append(f"different: step {first['step']}, {first['pass']}: {first['module']} ({first['tensor']}{ranks})")
        lines.append(
            f"  off by {first['difference']:.2g}, {first['tolerance']:.1e} allowed; {first['outside']} of {first['compared']} beyond"
        )
        lines.append(f"  looks like: {first['looks_like']}")
    else:
        lines.append(f"same: {card['steps']} steps")
    return "\n".join(lines)


def main(single, parallel):
    """Write the card, proof.json and proof.txt, beside the parallel recording; returns the exit code: 1 for `different`."""
    card = compare(single, parallel)
    text = as_text(card)
    Path(parallel, "proof.json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    Path(parallel, "proof.txt").write_text(text + "\n", encoding="utf-8")
    print(text)
    return int(card["verdict"] == "different")


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except ProofError as error:
        sys.exit(f"error: {error}")
