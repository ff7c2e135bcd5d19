"""Predict published trainings, each as an uncalibrated run without evaluation, and compare.

An empty cell is the default. Where tuned is true, torch.compile and the loss in chunks are on, else both are off. Rows of the source
megatron train with a dropout of 0.1 unless a column says otherwise. A row ran out of memory if a cell says OOM, or if it has neither a
rate nor a peak of memory.

    python -m tests.published.score runs.csv --machines machines.csv
"""

import argparse
import csv
import json
import re
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

from parascale.errors import ConfigError
from parascale.families.sizes import model_sizes
from parascale.plan.memory import capacity_bytes, memory_parts, total, verdict
from parascale.plan.predict import DataFacts, predict
from parascale.settings import Layout, Model, Run, Site, Workload, strict
from parascale.settings.layout import DEGREES
from parascale.settings.workload import LanguageTraining

RUNS, MACHINES = (Path(__file__).with_name(f"{name}.csv") for name in ("runs", "machines"))
MODEL = ("dim", "heads", "kv_heads", "layers", "hidden", "tied", "norm", "position", "activation", "bias", "dropout")
LAYOUT = ("gpus_per_node", *DEGREES, "micro_batches", "schedule")
TRAINING = ("window", "global_batch", "accumulate")
RECOMPUTED = {None: False, "none": False, "false": False, "selective": "selective"}
# What the code of a source does where its table says nothing. Megatron-LM drops 0.1 of the attention weights and of what layers give
# (`--attention-dropout`, `--hidden-dropout`): FlashAttention came a year after its paper of 2021.
USUAL = {"megatron": {"dropout": 0.1}}
RATE, PEAK = "tokens_per_second_per_gpu", "peak_memory_gb"
OUT_OF_MEMORY = re.compile(r"\s*(oom|out[ _-]of[ _-]memory)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Scored:
    """A row: tokens a second and GPU. published: None of a run that ran out of memory, or states no rate.

    predicted: None where the machine's data sheet says nothing of the row's precision. ran: it did not run out of memory.
    """

    source: str
    model: str
    predicted: float | None
    published: float | None
    ratio: float | None
    fits: str
    ran: bool = True


def score(table=RUNS, machines=MACHINES):
    """A list of Scored for the rows of a CSV file, in its order. machines: CSV file of the machines that it names."""
    sites = {row["machine"]: site_of(row) for row in read(machines)}
    return [score_row(row, sites, f"{table}, line {line}") for line, row in enumerate(read(table), 2)]


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
        "node_link": link("node_link_gigabytes_per_second"),
        "network_link": link("network_link_gigabytes_per_second_per_gpu"),
    }
    return strict.load(Site, values, f"machine {row['machine']}")


def run_of(row, site, where):
    """The Run of a row, as a training of ours: one step, no evaluation, compiled where the source's code is tuned."""
    layout, world = _settings(row, LAYOUT), int(row.get("gpus", 1))
    held = min(world, layout.setdefault("gpus_per_node", site.gpus_per_node))
    layout |= {
        "gpus_per_node": held,
        "nodes": max(1, world // held),
        "activation_checkpointing": RECOMPUTED.get(row.get("activation_checkpointing"), True),
        "compile": tuned(row),
    }
    model = USUAL.get(row.get("source"), {}) | _settings(row, MODEL)
    training = _settings(row, TRAINING) | {"steps": 1, "evaluate": False}
    values = {
        "name": row.get("model", "model"),
        "model": strict.load(Model.variant({}, {}), model, where),
        "training": strict.load(LanguageTraining, training, where),
    }
    workload = strict.load(Workload.variant({}, {}), values, where)
    return Run("row", workload, strict.load(Layout, layout, where), row.get("precision", "bf16"))


def _settings(row, names):
    """The cells of a row with these names, as the numbers, truths and words that settings take."""
    return {name: _value(row[name]) for name in names if name in row}


def _value(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def tuned(row):
    """Whether the source's code is compiled and makes its loss in chunks: a cell says so."""
    return row.get("tuned") == "true"


def score_row(row, sites, where):
    """The Scored of a row. Raises ConfigError for a machine that is not known, or settings that are none."""
    if row["machine"] not in sites:
        raise ConfigError(f"{where}: machine `{row['machine']}` is not in the table of machines")
    site = sites[row["machine"]]
    run, vocabulary = run_of(row, site, where), int(row["vocabulary"])
    step = predict(run, site, facts=DataFacts(vocabulary), remedy=False).step_seconds
    used = total(memory_parts(run, site, vocabulary, chunked=tuned(row)))
    targets = model_sizes(run.workload.model, vocabulary, *run.workload.sizes).targets
    published = _number(row.get(RATE))
    predicted = run.global_batch * targets / step / run.layout.world_size if step else None
    return Scored(
        source=row.get("source", ""),
        model=row.get("model", ""),
        predicted=predicted,
        published=published,
        ratio=predicted / published if predicted and published else None,
        fits=verdict(used, capacity_bytes(run, site)),
        ran=has_run(row),
    )


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
    options = parser.parse_args()
    scored = score(options.table, options.machines)
    if options.json:
        values = {"rows": [asdict(row) for row in scored], "errors": errors(scored), "memory": memory(scored)}
        print(json.dumps(values, indent=2))
    else:
        print("\n".join(lines(scored)))


if __name__ == "__main__":
    main()
