"""The tables of a scaling study, each once: the page shows them, `study.md` and `study.tex` hold them."""

from dataclasses import replace

from parascale.report import numbers
from parascale.report.comparing import grouped
from parascale.report.scaling import StudyReport, placed, total
from parascale.report.tables import Column, Table, columns, make_table

TIMES = {"step_seconds_mean": "Step, mean", "step_seconds_median": "Median", "step_seconds_95": "95th"}
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


def headed(study: StudyReport, columns: tuple[Column, ...]) -> list[Column]:
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
        found[kind] = make_table(f"{study.ladders.name}: {kind or 'no'} scaling", headed(study, LADDER), rows).known()
    return found


def use(study: StudyReport) -> Table:
    """Where the time of each measured point went, its memory and its energy."""
    measured = (row for row in study.rows if row["basis"] == "measured")
    return make_table("", headed(study, USE), measured).known()


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
    return make_table(f"{study.ladders.name}: planned and charged", headed(study, COST), found).known()
