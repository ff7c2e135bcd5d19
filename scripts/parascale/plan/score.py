"""Published trainings beside what plans say of them: each row of a table is priced as an uncalibrated run."""

import csv
import re
import statistics
from contextlib import suppress
from dataclasses import dataclass

from parascale.errors import ConfigError
from parascale.families.sizes import model_sizes
from parascale.plan.facts import DataFacts
from parascale.plan.memory import total
from parascale.plan.predict import capacity_bytes, memory_parts, predict, verdict
from parascale.settings import Layout, Model, Run, Site, Workload, strict
from parascale.settings.workload import LanguageTraining

MODEL = ("dim", "heads", "kv_heads", "layers", "hidden", "tied", "norm", "position", "activation", "bias", "dropout")
LAYOUT = ("gpus_per_node", "dp", "fsdp", "tp", "pp", "micro_batches", "schedule")
RECOMPUTED = {None: False, "none": False, "false": False, "selective": "selective"}
# What the code of a source does where its table says nothing. Megatron-LM drops 0.1 of the attention weights and of what layers give
# (`--attention-dropout`, `--hidden-dropout`): FlashAttention came a year after its paper of 2021.
USUAL = {"megatron": {"dropout": 0.1}}
TRAINING = ("window", "global_batch", "accumulate")
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


def score(table, machines):
    """A list of Scored for the rows of a CSV file, in its order. machines: CSV file of the machines that it names."""
    sites = {row["machine"]: site_of(row) for row in read(machines)}
    return [score_row(row, sites, f"{table}, line {line}") for line, row in enumerate(read(table), 2)]


def read(path):
    """Rows of a CSV file as mappings, empty cells left out."""
    try:
        with open(path, encoding="utf-8", newline="") as handle:
            return [{key: value for key, value in row.items() if value} for row in csv.DictReader(handle)]
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error


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
    layout = {name: row[name] for name in LAYOUT if name in row}
    world = int(row.get("gpus", 1))
    held = min(world, int(layout.setdefault("gpus_per_node", site.gpus_per_node)))
    layout |= {
        "gpus_per_node": held,
        "nodes": max(1, world // held),
        "activation_checkpointing": RECOMPUTED.get(row.get("activation_checkpointing"), True),
        "compile": tuned(row),
    }
    model = USUAL.get(row.get("source"), {}) | {name: row[name] for name in MODEL if name in row}
    training = {name: row[name] for name in TRAINING if name in row} | {"steps": 1, "evaluate": False}
    workload = Workload.variant({}, {})
    values = {
        "name": row.get("model", "model"),
        "model": strict.load(Model.variant({}, {}), _plain(model), where),
        "training": strict.load(LanguageTraining, _plain(training), where),
    }
    layout = strict.load(Layout, _plain(layout), where)
    return Run("row", strict.load(workload, values, where), layout, row.get("precision", "bf16"))


def tuned(row):
    """Whether the source's code is compiled and makes its loss in chunks: a cell says so."""
    return row.get("tuned") == "true"


def score_row(row, sites, where):
    """The Scored of a row. Raises ConfigError for a machine that is not known, or settings that are none."""
    if row["machine"] not in sites:
        raise ConfigError(f"{where}: machine `{row['machine']}` is not in the table of machines")
    site = sites[row["machine"]]
    run = run_of(row, site, where)
    vocabulary = int(row["vocabulary"])
    prediction = predict(run, site, facts=DataFacts(vocabulary), remedy=False)
    used = total(memory_parts(run, site, vocabulary, chunked=tuned(row)))
    targets = model_sizes(run.workload.model, vocabulary, *run.workload.sizes).targets
    published = _number(row.get(RATE))
    step = prediction.step_seconds
    predicted = run.global_batch * targets / step / run.layout.world_size if step else None
    ratio = predicted / published if predicted and published else None
    return Scored(
        source=row.get("source", ""),
        model=row.get("model", ""),
        predicted=predicted,
        published=published,
        ratio=ratio,
        fits=verdict(used, capacity_bytes(run, site)),
        ran=has_run(row),
    )


def has_run(row):
    """False of a row that ran out of memory: a cell says so (`OOM`), or there is neither a rate nor a peak of memory."""
    said = any(OUT_OF_MEMORY.fullmatch(str(text)) for text in row.values())
    return not said and (_number(row.get(RATE)) is not None or _number(row.get(PEAK)) is not None)


def errors(scored):
    """{source: {rows, median, worst}} of the relative errors of its rates, and of all under `all`."""
    groups = {"all": [each for each in scored if each.ratio]}
    for each in groups["all"]:
        groups.setdefault(each.source, []).append(each)
    said = {}
    for name, members in groups.items():
        off = [abs(each.ratio - 1) for each in members]
        if off:
            said[name] = {"rows": len(off), "median": statistics.median(off), "worst": max(off)}
    return said


def memory(scored):
    """{what: rows}: those that ran, and of them those predicted not to fit; those that ran out of memory, and of them those that fit."""
    ran, failed = ([row for row in scored if row.ran is did] for did in (True, False))
    return {
        "ran": len(ran),
        "ran_but_does_not_fit": sum(row.fits == "does not fit" for row in ran),
        "out_of_memory": len(failed),
        "out_of_memory_but_fits": sum(row.fits == "fits" for row in failed),
    }


def _number(text):
    """A cell as a number; None of one that is empty or says something else."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def _plain(values):
    """Cells as the numbers, truths and words that settings take."""
    return {key: _value(text) if isinstance(text, str) else text for key, text in values.items()}


def _value(text):
    if text in ("true", "false"):
        return text == "true"
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return text
