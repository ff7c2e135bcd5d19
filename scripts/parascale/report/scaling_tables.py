"""The tables of a scaling study, for the page, `study.md` and `study.tex`."""

from dataclasses import replace

from parascale.report import numbers
from parascale.report.comparing import grouped
from parascale.report.scaling import SHARES, STEP, StudyReport, placed, total
from parascale.report.tables import Column, Table, columns, make_table

TIMES = {"step_seconds_mean": "Step, mean", "step_seconds_median": "Median", "step_seconds_95": "95th"}
PROCESSES = {"gpus": "Processes", "gpu_hours": "Process-h", "flops_rate": "FLOP/s a process"}
SIZE = (*columns(numbers.whole, gpus="GPUs", nodes="Nodes"),)
RANGES = {STEP[0]: numbers.duration, "speedup": numbers.significant, "efficiency": numbers.percent}
LADDER = (*SIZE, *columns(layout="Layout"), *columns("{:.3g}".format, threads="Threads each", cores="Cores each"))
LADDER += (*columns(numbers.significant, samples_per_step="Samples a step"), *columns(numbers.duration, **TIMES))
LADDER += (*columns(numbers.duration, job_seconds="Whole job"), *columns(work_rate="Work a second"))
LADDER += (*columns(numbers.significant, speedup="Speed-up"), *columns(numbers.percent, efficiency="Efficiency"))
LADDER += (Column("rests_on", "Basis"),)
LADDER = tuple(replace(each, text=f"{each.name}_text") if each.name in RANGES else each for each in LADDER)
USE = (Column("kind", "Scaling"), *SIZE, *columns(numbers.percent, **{name: name.capitalize() for name in SHARES}))
USE += (*columns(numbers.percent, gpu_utilisation="GPU use", mfu="Share of peak"),)
USE += (Column("flops_rate", "FLOP/s a GPU", numbers.short),)
JOBS = (Column("kind", "Scaling"), *SIZE, Column("peak_memory_bytes", "Memory", numbers.memory))
JOBS += (Column("energy_joules", "Energy", numbers.energy), *columns(numbers.duration, wall_seconds="Whole job"))
JOBS += (Column("startup_seconds", "Start-up", numbers.duration), Column("start_share", "Its share", numbers.percent))
JOBS += (*columns(numbers.duration, evaluation_seconds="Evaluation", saving_seconds="Saving"),)
JOBS += (*columns(numbers.whole, evaluations="Evaluations", saves="Saves"),)
COST = (*SIZE, *columns(kind="Scaling"), *columns(numbers.significant, planned="Core-h planned"))
COST += (*columns(range="Range of the plan", basis="Basis of the plan"),)
COST += (*columns(numbers.significant, charged="Core-h charged", node_hours="Node-h", gpu_hours="GPU-h"),)
COST += (*columns(place="In that range", source="Charge says"),)


def headed(study: StudyReport, columns: tuple[Column, ...]) -> list[Column]:
    """Columns with headings that say processes instead of GPUs on a site with only CPUs."""
    titles = {} if study.site.device == "cuda" else PROCESSES
    return [replace(each, title=titles.get(each.name, each.title)) for each in columns]


def ladders(study: StudyReport) -> dict[str, Table]:
    """Kind of scaling → table of its points."""
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
        found[kind] = make_table(title, headed(study, LADDER), rows).known()
    return found


def use(study: StudyReport) -> tuple[Table, Table]:
    """Two tables of the measured points: parts of a step's time; memory, energy and times of the job."""
    measured = [row for row in study.rows if row["basis"] == "measured"]
    shares, jobs = (make_table("", headed(study, columns), measured).known() for columns in (USE, JOBS))
    return shares, jobs


def costs(study: StudyReport) -> Table:
    """Table of planned and charged core-hours: a row per trained point, then the sum."""
    kinds = grouped(study.rows, lambda row: row["run"])
    found, hours = [], ("planned", "low", "high", "charged", "node_hours", "gpu_hours")
    for cost in study.costs:
        layout = cost.point.layout
        said = [row["kind"] for row in kinds.get(cost.point.runs[0].run, ())] or [cost.point.kind]
        each = vars(cost) | {"run": cost.point.runs[0].run, "nodes": layout.nodes, "gpus": cost.point.gpus}
        each |= {"kind": ", ".join(filter(None, said)), "place": placed(cost.charged, cost.low, cost.high)}
        whole = study.site.charges == "whole_nodes"  # otherwise a job may have used only some of the cores
        node = cost.charged / study.site.cores_charged(layout.nodes) if cost.charged and whole else None
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
    return make_table(title, headed(study, COST), found).known()
