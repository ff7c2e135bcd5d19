"""Predict published trainings, each as an uncalibrated run without evaluation, and compare.

An empty cell is the default. Where tuned is true, torch.compile and the loss in chunks are on, else both are off. What the code of a
source is known to do stands in stacks.py, and what a row says in `assumed` too. A row ran out of memory if a cell says OOM, or if it has
neither a rate nor a peak of memory.

    python -m tests.published.score runs.csv --machines machines.csv
"""

import argparse
import csv
import json
import math
import re
import statistics
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path

from parascale.errors import ConfigError
from parascale.families import model_sizes
from parascale.plan.memory import beside_tensors, capacity_bytes, verdict
from parascale.plan.time import formula_rates, gpu_kind, step_seconds
from parascale.plan.work import step_work
from parascale.settings import Layout, Model, Run, Site, Workload, strict
from parascale.settings.layout import DEGREES
from parascale.settings.workload import LanguageTraining
from tests.published import exam, stacks

RUNS, MACHINES = (Path(__file__).with_name(f"{name}.csv") for name in ("runs", "machines"))
MODEL = ("dim", "heads", "kv_heads", "layers", "hidden", "tied", "norm", "position", "activation", "bias", "dropout")
SWITCHES = ("micro_batches", "schedule", "sequence_parallel", "loss_parallel", "reshard_after_forward", "reduce")
LAYOUT = ("gpus_per_node", *DEGREES, *SWITCHES)
TRAINING = ("window", "global_batch", "accumulate")
RECOMPUTED = {None: False, "none": False, "false": False, "selective": "selective"}
RATE, PEAK = "tokens_per_second_per_gpu", "peak_memory_gb"
OUT_OF_MEMORY = re.compile(r"\s*(oom|out[ _-]of[ _-]memory)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Scored:
    """A row: tokens a second and GPU. published: None of a run that ran out of memory, or states no rate. utilisation: of the peak rate.

    groups: what it is scored by, {name: group}.
    predicted: None where the machine's data sheet says nothing of the row's precision. ran: it did not run out of memory.
    """

    source: str
    model: str
    predicted: float | None
    published: float | None
    ratio: float | None
    fits: str
    ran: bool = True
    utilisation: float | None = None
    groups: dict = field(default_factory=dict)
    cells: dict = field(default_factory=dict)

    @property
    def off(self):
        """Logarithm of predicted over published."""
        return math.log(self.ratio)


def score(table=RUNS, machines=MACHINES):
    """A list of Scored for the rows of a CSV file, in its order. machines: CSV file of the machines that it names."""
    sites = sites_of(machines)
    return [score_row(row, sites, f"{table}, line {line}") for line, row in enumerate(read(table), 2)]


def sites_of(machines):
    """{name: Site} of a CSV file of machines."""
    known = {row["machine"]: row for row in read(MACHINES)}  # what other tables do not tell of a machine
    return {row["machine"]: site_of(known.get(row["machine"], {}) | row) for row in read(machines)}


def read(path):
    """Rows of a CSV file as mappings, empty cells left out."""
    with open(path, encoding="utf-8", newline="") as handle:
        return [{key: value for key, value in row.items() if value} for row in csv.DictReader(handle)]


def site_of(row):
    """The Site of a row of machines: rates from data sheets, links per direction and GPU."""

    def link(name):
        return {"gigabytes_per_second": float(row[name]), "microseconds": 5.0}

    values = {
        "name": row["machine"],
        "device": "cuda",
        "gpu": row.get("gpu", row["machine"]),
        "gpus_per_node": int(row["gpus_per_node"]),
        "gpu_memory_gb": float(row["gpu_memory_gb"]),
        "peak_tflops": {"bf16": float(row["bf16_tflops"])},
        "memory_gigabytes_per_second": float(row["memory_gigabytes_per_second"]),
        "gpu_watts": _number(row.get("gpu_watts")),
        "cpu_watts": float(row.get("cpu_watts", 0)),
        "node_pairs": row.get("node_pairs") == "true",
        "node_link": link("node_link_gigabytes_per_second"),
        "network_link": link("network_link_gigabytes_per_second_per_gpu"),
    }
    return strict.load(Site, values, f"machine {row['machine']}")


def cells_of(row):
    """A row with what its source's code is known to do, and what it says in words, as cells."""
    cells = stacks.USUAL.get(row.get("source"), {}) | row
    for words, said in stacks.SAID.items():
        if re.search(words, row.get("assumed", "")):
            cells = said | cells
    ranks, axis = int(cells.get("dp", 1)), "fsdp"
    if cells.get("zero") == "1" and ranks > 1 and cells.get(axis, "1") == "1":
        cells |= {"dp": "1", axis: str(ranks), "reshard_after_forward": "false", "reduce": "step"}
    return cells


def run_of(row, site, where):
    """The Run of a row, as a training of ours: one step, no evaluation, compiled where the source's code is tuned."""
    row = cells_of(row)
    layout, world = _settings(row, LAYOUT), int(row.get("gpus", 1))
    held = min(world, layout.setdefault("gpus_per_node", site.gpus_per_node))
    layout |= {
        "gpus_per_node": held,
        "nodes": max(1, world // held),
        "activation_checkpointing": RECOMPUTED.get(row.get("activation_checkpointing"), True),
        "compile": row.get("compile", row.get("tuned")) == "true",
    }
    training = _settings(row, TRAINING) | {"steps": 1, "evaluate": False}
    values = {
        "name": row.get("model", "model"),
        "model": strict.load(Model.variant({}, {}), _settings(row, MODEL), where),
        "training": strict.load(LanguageTraining, training, where),
    }
    workload = strict.load(Workload.variant({}, {}), values, where)
    told = {"reduce_precision": row.get("reduce_precision", "fp32")}
    return Run("row", workload, strict.load(Layout, layout, where), row.get("precision", "bf16"), **told)


def _settings(row, names):
    """The cells of a row with these names, as the numbers, truths and words that settings take."""
    return {name: _value(row[name]) for name in names if name in row}


def _value(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


class Row:
    """A row as a run of ours at its machine, with the prices of its source's code."""

    def __init__(self, cells, sites, where):
        """Raises ConfigError for a machine that is not known, or settings that are none."""
        if cells["machine"] not in sites:
            raise ConfigError(f"{where}: machine `{cells['machine']}` is not in the table of machines")
        self.cells, self.told = cells, cells_of(cells)
        self.site, self.vocabulary = sites[cells["machine"]], int(cells["vocabulary"])
        self.source, self.stack = cells.get("source", ""), stacks.STACKS.get(cells.get("source"), "torch")
        self.run, self.published = run_of(cells, self.site, where), _number(cells.get(RATE))
        sizes = model_sizes(self.run.workload.model, self.vocabulary, *self.run.workload.sizes)
        sizes.chunked = self.told.get("chunked", self.told.get("tuned")) == "true"
        self.sizes = stacks.changed(self, sizes)
        self.tokens = self.run.global_batch * self.sizes.targets / self.run.layout.world_size

    def said(self, words):
        """Whether the row's own words have a word."""
        return words in self.cells.get("assumed", "")

    @cached_property
    def work(self):
        """What each rank does in a step."""
        return stacks.adjusted(self, step_work(self.run, self.sizes, self.site, stacks.stages(self)))

    @cached_property
    def rates(self):
        """Prices at the row's machine; None where its data sheet says nothing of the precision."""
        found = formula_rates(self.site, self.run.precision)
        if found is None:
            return None
        kind, prices = (
            gpu_kind(self.site),
            dict(stacks.TRITON if self.said("Triton attention") else stacks.PRICES.get(self.source, {})),
        )
        if self.source not in stacks.OTHER_ATTENTION and "H100" in kind["names"]:
            prices["attention"] = prices.get("attention", 1.0) * kind["attention"] / stacks.FLASH2
        return found.scaled(prices)

    @property
    def utilisation(self):
        """Model FLOPS utilisation as published; None where it has no rate or no peak."""
        peak = self.site.peak_tflops.get(self.run.precision)
        return self.published and peak and self.published * self.sizes.flops_per_target / (peak * 1e12)

    def predicted(self, factors=None):
        """Tokens a second and GPU; None where it has no price. factors: {price, or `stragglers`: what it is times the shipped one}."""
        if self.rates is None:
            return None
        factors = {"stragglers": 1.0} | (factors or {})
        work = replace(self.work, stragglers=factors.pop("stragglers") * self.work.stragglers)
        return self.tokens / sum(step_seconds(work, self.rates.scaled(factors), self.site).values())


def score_row(cells, sites, where):
    """The Scored of a row. Raises ConfigError as Row does."""
    row = Row(cells, sites, where)
    predicted, published = row.predicted(), row.published
    beside = beside_tensors(row.run, row.site)
    moments = [(parts | beside, room) for parts, room in stacks.moments(row)]
    return Scored(
        source=row.source,
        model=cells.get("model", ""),
        predicted=predicted,
        published=published,
        ratio=predicted / published if predicted and published else None,
        fits=verdict(moments, capacity_bytes(row.run, row.site)),
        ran=has_run(cells),
        utilisation=row.utilisation,
        groups=groups_of(row),
        cells=cells,
    )


def groups_of(row):
    """What a row is scored by: {name: group}."""
    layout, cells = row.run.layout, row.cells
    degrees = [axis for axis in DEGREES if getattr(layout, axis) > 1]
    names = {"source": row.source, "stack": row.stack, "machine": cells["machine"], "grade": cells.get("grade", "-")}
    return names | {"strategy": " ".join(degrees) or "single", "window": f"{int(cells['window']):,}"}


def has_run(row):
    """False of a row that ran out of memory: a cell says so (`OOM`), or there is neither a rate nor a peak of memory."""
    said = any(OUT_OF_MEMORY.fullmatch(text) for text in row.values())
    return not said and (_number(row.get(RATE)) is not None or _number(row.get(PEAK)) is not None)


def _number(text):
    """A cell as a number; None of one that is empty or says something else."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def errors(scored):
    """{source: {rows, median, worst}} of the relative errors of its rates, and of all under `all`."""
    groups = {}
    for each in scored:
        if each.ratio:
            for name in ("all", each.source):
                groups.setdefault(name, []).append(abs(each.ratio - 1))
    return {
        name: {"rows": len(off), "median": statistics.median(off), "worst": max(off)} for name, off in groups.items()
    }


def memory(scored):
    """{what: rows}: those that ran, and of them those predicted not to fit; those that ran out of memory, and of them those that fit."""
    ran, failed = ([row for row in scored if row.ran is did] for did in (True, False))
    return {
        "ran": len(ran),
        "ran_but_does_not_fit": sum(row.fits == "does not fit" for row in ran),
        "out_of_memory": len(failed),
        "out_of_memory_but_fits": sum(row.fits == "fits" for row in failed),
    }


def lines(scored):
    """The comparison as a table for people: rows in their order, errors by source, memory."""
    yield f"{'source':12} {'model':16} {'predicted':>10} {'published':>10} {'ratio':>6}  fits"
    for row in scored:
        rates = ["" if rate is None else f"{rate:,.0f}" for rate in (row.predicted, row.published)]
        rates[1] = rates[1] if row.ran else "OOM"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        yield f"{row.source:12} {row.model:16} {rates[0]:>10} {rates[1]:>10} {ratio:>6}  {row.fits}"
    yield "tokens/s off by, in the median and at worst:"
    for name, error in errors(scored).items():
        yield f"  {name:12} {error['median']:6.1%} {error['worst']:6.1%}   of {error['rows']} rows"
    told = memory(scored)
    yield (
        f"memory: {told['ran_but_does_not_fit']} of {told['ran']} rows that ran are predicted not to fit, "
        f"{told['out_of_memory_but_fits']} of {told['out_of_memory']} that ran out of memory to fit"
    )


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", type=Path, default=RUNS, help="CSV of the runs")
    parser.add_argument("--machines", type=Path, default=MACHINES, help="CSV of the machines that the table names")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--constants", action="store_true", help="print what twice of each constant does, in a minute")
    options = parser.parse_args()
    scored = score(options.table, options.machines)
    if options.json:
        values = {"rows": [asdict(row) for row in scored], "errors": errors(scored), "memory": memory(scored)}
        print(json.dumps(values, indent=2))
    else:
        print("\n".join(lines(scored)))
        print("\n".join(exam.lines(scored)))
    if options.constants:
        sites = sites_of(options.machines)
        print("\n".join(exam.perturbed(scored, lambda cells: Row(cells, sites, "table").predicted())))


if __name__ == "__main__":
    main()
