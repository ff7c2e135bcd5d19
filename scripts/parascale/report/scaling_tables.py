"""The tables of a scaling study, each once: the page shows them, `study.md` and `study.tex` hold them."""

import math
from dataclasses import replace
from typing import Any

from parascale.report import numbers
from parascale.report.comparing import grouped
from parascale.report.measured import read_record
from parascale.report.scaling import SHARES, STEP, StudyReport, placed, total
from parascale.report.tables import Column, Table, columns, make_table
from parascale.telemetry import read_samples, sample_files
from parascale.telemetry import total as total_of

TIMES = {"step_seconds_mean": "Step, mean", "step_seconds_median": "Median", "step_seconds_95": "95th"}
HOURS = {"node_hours": "Node-h", "gpu_hours": "GPU-h", "core_hours": "Core-h"}
PROCESSES = {"gpus": "Processes", "gpu_hours": "Process-h", "flops_rate": "FLOP/s a process"}
SIZE = (*columns(numbers.whole, gpus="GPUs", nodes="Nodes"),)
RANGES = {STEP[0]: numbers.duration, "speedup": numbers.significant, "efficiency": numbers.percent}
LADDER = (*SIZE, *columns(layout="Layout"), *columns("{:.3g}".format, threads="Threads each", cores="Cores each"))
LADDER += (*columns(numbers.significant, samples_per_step="Samples a step"), *columns(numbers.duration, **TIMES))
LADDER += (*columns(numbers.duration, job_seconds="Whole job"), *columns(work_rate="Work a second"))
LADDER += (*columns(numbers.significant, speedup="Speed-up"), *columns(numbers.percent, efficiency="Efficiency"))
LADDER += (Column("rests_on", "Basis"),)
LADDER = tuple(replace(each, text=f"{each.name}_text") if each.name in RANGES else each for each in LADDER)
USE = (Column("kind", "Ladder"), *SIZE, *columns(numbers.percent, **{name: name.capitalize() for name in SHARES}))
USE += (*columns(numbers.percent, gpu_utilisation="GPU use", mfu="Share of peak"),)
USE += (Column("flops_rate", "FLOP/s a GPU", numbers.short),)
JOBS = (Column("kind", "Ladder"), *SIZE, Column("peak_memory_bytes", "Memory", numbers.memory))
JOBS += (Column("energy_joules", "Energy", numbers.energy), *columns(numbers.duration, wall_seconds="Whole job"))
JOBS += (Column("startup_seconds", "Start-up", numbers.duration), Column("start_share", "Its share", numbers.percent))
JOBS += (*columns(numbers.duration, evaluation_seconds="Evaluation", saving_seconds="Saving"),)
JOBS += (*columns(numbers.whole, evaluations="Evaluations", saves="Saves"),)
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
    titles = {} if study.site.device == "cuda" else PROCESSES
    return [replace(each, title=titles.get(each.name, each.title)) for each in columns]


def ladders(study: StudyReport) -> dict[str, Table]:
    """Kind → the table of its ladder."""
    found, site = {}, study.site
    for kind, rows in grouped(study.rows, lambda row: row["kind"]).items():
        for row in rows:
            if site.device == "cpu" and site.cores_per_node:
                together = site.processes_together(row["spread"])
                row |= {"threads": site.threads(together), "cores": site.cores_per_node / together}
            for name, shown in RANGES.items():
                low, high = (row.get(f"{name.removesuffix('_mean')}_{end}") for end in ("low", "high"))
                said = shown(row.get(name))
                row[f"{name}_text"] = f"{said} ({shown(low)} to {shown(high)})" if said and low != high else said
            row |= {"work_rate": row["rate"] and f"{numbers.short(row['rate'])} {row['work_unit']}"}
        title = f"{study.ladders.name}: {kind or 'no'} scaling, {study.of('mean')}"
        found[kind] = make_table(title, _headed(study, LADDER), rows).known()
    return found


def use(study: StudyReport) -> tuple[Table, Table]:
    """Of each measured point: where the time of a step went; memory, energy and times of its job."""
    measured = [row for row in study.rows if row["basis"] == "measured"]
    shares, jobs = (make_table("", _headed(study, columns), measured).known() for columns in (USE, JOBS))
    return shares, jobs


def costs(study: StudyReport) -> Table:
    """A row for each point that is trained, and their sum: core-hours planned and charged."""
    kinds = grouped(study.rows, lambda row: row["run"])
    found, hours = [], ("planned", "low", "high", "charged", "node_hours", "gpu_hours")
    for cost in study.costs:
        layout = cost.point.layout
        said = [row["kind"] for row in kinds.get(cost.point.runs[0].run, ())] or [cost.point.kind]
        each = vars(cost) | {"run": cost.point.runs[0].run, "nodes": layout.nodes, "gpus": cost.point.gpus}
        each |= {"kind": ", ".join(filter(None, said)), "place": placed(cost.charged, cost.low, cost.high)}
        node = cost.charged and cost.charged / study.site.cores_charged(layout.nodes)
        each |= {"node_hours": node and node * layout.nodes, "gpu_hours": node and node * cost.point.gpus}
        found.append(each)
    if len(found) > 1:
        sums = {name: total(each[name] for each in found) for name in hours}
        places = [each["place"] for each in found if each["place"]]
        within = f"{places.count('within')} of {len(places)} within" if places else None
        found.append({"kind": "all", "place": within} | sums)
    for each in found:
        low, high = map(numbers.significant, (each["low"], each["high"]))
        each["range"] = low and f"{low} to {high}"
    title = f"{study.ladders.name}: planned and charged, {study.of('sum')}"
    return make_table(title, _headed(study, COST), found).known()


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
