"""The tables of a scaling study, each once: the page shows them, `study.md` and `study.tex` hold them."""

import math
from dataclasses import replace
from typing import Any

from parascale.report import numbers
from parascale.report.comparing import grouped
from parascale.report.measured import read_record
from parascale.report.scaling import STEP, StudyReport, placed, total
from parascale.report.tables import Column, Table, columns, make_table
from parascale.telemetry import read_samples, sample_files
from parascale.telemetry import total as total_of

TIMES = {"step_seconds_mean": "Step, mean", "step_seconds_median": "Median", "step_seconds_95": "95th"}
HOURS = {"node_hours": "Node-h", "gpu_hours": "GPU-h", "core_hours": "Core-h"}
WAITS = {"communication": "Communication", "data": "Data", "bubble": "Bubble", "gpu_utilisation": "GPU use"}
BESIDE = {"startup_seconds": "Start-up", "evaluation_seconds": "Evaluation", "saving_seconds": "Saving"}
SIZE = (*columns(numbers.whole, gpus="GPUs", nodes="Nodes"),)
LADDER = (*SIZE, *columns(layout="Layout"), *columns(numbers.significant, samples_per_step="Samples a step"))
LADDER += (*columns(numbers.duration, **TIMES), *columns(range="Range of the mean"))
LADDER += (*columns(numbers.duration, job_seconds="Whole job"), *columns(work_rate="Work a second"))
LADDER += (Column("speedup", "Speed-up", numbers.significant), Column("efficiency", "Efficiency", numbers.percent))
LADDER += (Column("rests_on", "Basis"),)
USE = (Column("kind", "Ladder"), *SIZE, *columns(numbers.percent, **WAITS, mfu="Share of peak"))
USE += (Column("peak_memory_bytes", "Memory", numbers.memory), Column("energy_joules", "Energy", numbers.energy))
USE += (*columns(numbers.duration, wall_seconds="Whole job", **BESIDE),)
COST = (*SIZE, *columns(kind="Ladder"), *columns(numbers.significant, planned="Core-h planned"))
COST += (*columns(range="Range of the plan", basis="Plan rests on"),)
COST += (*columns(numbers.significant, charged="Core-h charged", node_hours="Node-h", gpu_hours="GPU-h"),)
COST += (*columns(place="In that range", source="Charge says"),)
RUNS = (Column("name", "Run"), *columns(numbers.whole, runs="Runs", nodes="Nodes", steps="Steps"))
RUNS += (*columns(work="Work of a run"), *columns(numbers.duration, step="A step"))
RUNS += (*columns(numbers.whole, evaluations="Evaluations", saves="Saves"),)
RUNS += (*columns(numbers.significant, hours="Hours a run", **HOURS), *columns(range="Core-h, range"))
RUNS += (Column("eflop", "EFLOP", numbers.significant), *columns(numbers.percent, efficiency="Efficiency"))
RUNS += (Column("start_share", "Start-up", numbers.percent), Column("rests_on", "Rests on"))
FILES = (Column("run", "Point"), Column("files", "Files of its checkpoint", numbers.whole))
FILES += (*columns(numbers.memory, bytes="Bytes", read_bytes="Read by processes", written_bytes="Written"),)
FILES += (*columns(numbers.duration, saving="Saving", startup="A start"),)
FILES += (*columns(numbers.whole, starts="Starts", resumed="From a checkpoint"),)


def _headed(study: StudyReport, columns: tuple[Column, ...]) -> list[Column]:
    """Columns whose GPUs are processes where the site has CPUs alone."""
    titles = {} if study.site.device == "cuda" else {"gpus": "Processes", "gpu_hours": "Process-h"}
    return [replace(each, title=titles.get(each.name, each.title)) for each in columns]


def ladders(study: StudyReport) -> dict[str, Table]:
    """Kind → the table of its ladder."""
    found = {}
    for kind, rows in grouped(study.rows, lambda row: row["kind"]).items():
        for row in rows:
            low, high = (numbers.duration(row.get(f"step_seconds_{end}")) for end in ("low", "high"))
            row |= {"range": low and f"{low} to {high}"}
            row |= {"work_rate": row["rate"] and f"{numbers.short(row['rate'])} {row['work_unit']}"}
        found[kind] = make_table(f"{study.ladders.name}: {kind or 'no'} scaling", _headed(study, LADDER), rows).known()
    return found


def use(study: StudyReport) -> Table:
    """Where the time of each measured point went, its memory and its energy."""
    measured = (row for row in study.rows if row["basis"] == "measured")
    return make_table("", _headed(study, USE), measured).known()


def costs(study: StudyReport) -> Table:
    """A row for each point that is trained, and their sum: core-hours planned and charged."""
    kinds = grouped(study.rows, lambda row: row["run"])
    found, hours = [], ("planned", "low", "high", "charged", "node_hours", "gpu_hours")
    for cost in study.costs:
        layout = cost.point.layout
        said = [row["kind"] for row in kinds.get(cost.point.runs[0].run, ())] or [cost.point.kind]
        each = vars(cost) | {"run": cost.point.runs[0].run, "nodes": layout.nodes, "gpus": cost.point.gpus}
        each["kind"] = ", ".join(filter(None, said))
        node = cost.charged and cost.charged / study.site.cores_charged(layout.nodes)
        each |= {"node_hours": node and node * layout.nodes, "gpu_hours": node and node * cost.point.gpus}
        found.append(each)
    if len(found) > 1:
        sums = {name: total(each[name] for each in found) for name in hours}
        found.append({"kind": "all"} | sums)
    for each in found:
        each["place"] = placed(each["charged"], each["low"], each["high"])
        low, high = map(numbers.significant, (each["low"], each["high"]))
        each["range"] = low and f"{low} to {high}"
    return make_table(f"{study.ladders.name}: planned and charged", _headed(study, COST), found).known()


def milestones(study: StudyReport) -> Table:
    """A row for each production run: its cost, and what that rests on; of a size that nothing tells of, its size alone."""
    found, by_run = [], {row["run"]: row for row in reversed(study.rows)}
    for asked, point in study.ladders.production:
        row = {"rests_on": "unknown: no point of this size"} | by_run.get(point.runs[0].run, {})
        each = vars(asked) | {"rests_on": row["rests_on"]}
        if "step_seconds_mean" in row:
            cores = asked.runs * study.site.cores_charged(point.layout.nodes)
            often = _on_the_way(study.ladders.row.workload, asked.steps, asked.steps * row[STEP[0]])
            beside = [row.get(f"{name}_seconds") or 0.0 for name in ("startup", "evaluation", "saving")]
            extra = sum(count * seconds for count, seconds in zip((1, *often), beside, strict=True))
            hours, low, high = ((asked.steps * row[name] + extra) / 3600 for name in STEP)
            each |= {"step": row["step_seconds_mean"], "hours": hours, "core_hours": cores * hours}
            each |= {"node_hours": asked.runs * asked.nodes * hours, "gpu_hours": asked.runs * point.gpus * hours}
            each["range"] = f"{numbers.significant(cores * low)} to {numbers.significant(cores * high)}"
            each["eflop"] = row["flops_per_step"] and asked.runs * asked.steps * row["flops_per_step"] / 1e18
            each |= {"start_share": beside[0] / 3600 / hours, "efficiency": row.get("efficiency")}
            each |= {name: count or None for name, count in zip(("evaluations", "saves"), often, strict=True)}
            work = row["rate"] and asked.steps * row["rate"] * row["step_seconds_mean"]
            each["work"] = work and f"{numbers.short(work)} {row['work_unit']}"
        found.append(each)
    if len(found) > 1:
        found.append({"name": "all"} | {name: total(each.get(name) for each in found) for name in (*HOURS, "eflop")})
    return make_table(f"{study.ladders.name}: production runs", _headed(study, RUNS), found).known()


def _on_the_way(workload: Any, steps: int, seconds: float) -> tuple[int, int]:
    """(evaluations, saves) of a training of so many steps, the last of both at its end; a script's are in its steps."""
    if workload.is_script:
        return 0, 0
    training = workload.training
    evaluations = math.ceil(steps / (training.evaluate_every or steps)) if training.evaluate else 0
    saves = math.ceil(steps / (training.checkpoint_every or steps))
    if training.checkpoint_minutes:
        saves = max(saves, 1 + math.floor(seconds / 60 / training.checkpoint_minutes))
    return evaluations, saves


def files_of(study: StudyReport) -> Table:
    """What each point read and wrote."""
    found = []
    for record in study.done:
        folder, timing, starts = study.results / record.name, record.timing, max(1, len(record.attempts))
        devices, manifest = read_samples(sample_files(folder)), folder / "checkpoint/checkpoint.json"
        sizes = [each["bytes"] for each in read_record(manifest)["files"].values()] if manifest.is_file() else []
        row = {"run": record.name, "files": len(sizes) or None, "bytes": sum(sizes) or None, "starts": starts}
        row |= {"saving": timing.saving or None, "startup": timing.startup and timing.startup / starts}
        row |= {name: total_of(devices, "rank", name) for name in ("read_bytes", "written_bytes")}
        row["resumed"] = sum((attempt.get("first_step") or 1) > 1 for attempt in record.attempts)
        found.append(row)
    return make_table("", FILES, found).known()
