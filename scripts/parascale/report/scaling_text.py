"""A scaling study as a proposal wants it: `points.csv`, a figure, and its tables and facts as Markdown, as LaTeX and on the page."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from parascale import files
from parascale.report import numbers
from parascale.report.chart import PALETTE, Chart, empty
from parascale.report.comparing import grouped
from parascale.report.layouts import degrees_text
from parascale.report.machines import machines_text
from parascale.report.measured import read_record
from parascale.report.page import render
from parascale.report.parts import Section
from parascale.report.scaling import STEP, Row, StudyReport
from parascale.report.tables import Column, Table, columns, make_table
from parascale.telemetry import read_samples, sample_files, total

TIMES = {"step_seconds_mean": "Step, mean", "step_seconds_median": "Median", "step_seconds_95": "95th"}
POINTS = ("study", "kind", "nodes", "gpus", "basis", "samples_per_step", *TIMES, "rate", "speedup", "efficiency")
POINTS += ("startup_seconds", "peak_memory_bytes", "core_hours")
SIZE = (*columns(numbers.whole, gpus="GPUs", nodes="Nodes"),)
LADDER = (*SIZE, Column("samples_per_step", "Samples a step", numbers.significant), *columns(numbers.duration, **TIMES))
LADDER += (Column("range", "Range of the mean"), Column("job_seconds", "Whole job", numbers.duration))
LADDER += (Column("work_rate", "Work a second"), Column("speedup", "Speed-up", numbers.significant))
LADDER += (Column("efficiency", "Efficiency", numbers.percent), Column("rests_on", "Basis"))
WAITS = {"communication": "Communication", "data": "Data", "bubble": "Bubble", "gpu_utilisation": "GPU use"}
USE = (Column("kind", "Ladder"), *SIZE, *columns(numbers.percent, **WAITS, mfu="Share of peak"))
USE += (Column("peak_memory_bytes", "Memory", numbers.memory), Column("energy_joules", "Energy", numbers.energy))
BESIDE = {"startup_seconds": "Start-up", "evaluation_seconds": "Evaluation", "saving_seconds": "Saving"}
USE += (*columns(numbers.duration, **BESIDE),)
USE += (*columns(numbers.significant, core_hours="Core-h charged", core_hours_planned="Core-h planned"),)
HOURS = {"hours": "Hours a run", "node_hours": "Node-h", "gpu_hours": "GPU-h", "core_hours": "Core-h", "eflop": "EFLOP"}
RUNS = (Column("name", "Run"), *columns(numbers.whole, runs="Runs", nodes="Nodes", steps="Steps"))
RUNS += (Column("step", "A step", numbers.duration), *columns(numbers.significant, **HOURS))
RUNS += (*columns(range="Core-h, range", rests_on="Rests on"), Column("start_share", "Start-up", numbers.percent))
FILES = (Column("run", "Point"), Column("files", "Files of its checkpoint", numbers.whole))
FILES += (*columns(numbers.memory, bytes="Bytes", read_bytes="Read by processes", written_bytes="Written"),)
FILES += (*columns(numbers.duration, saving="Saving", startup="A start"),)
FILES += (*columns(numbers.whole, starts="Starts", resumed="From a checkpoint"),)
ENOUGH = 0.75  # the efficiency that forms ask for
LATEX = {
    **{each: f"\\{each}" for each in "&%$#_{}"},
    "×": "$\\times$",
    "·": "$\\cdot$",
    "₂": "$_2$",
    "`": "",
    "–": "--",
}


def write_study(study: StudyReport, folder: Path) -> None:
    """Write `points.csv`, `scaling.svg`, `scaling.pdf`, `study.md` and `study.tex` into a folder, each whole or not at all."""
    drawn, record = chart(study), next(iter(study.done), None)
    files.write_text(folder / "points.csv", make_table("", map(Column, POINTS), study.rows).csv)
    files.write_text(folder / "scaling.svg", drawn.file)
    with files.atomic_path(folder / "scaling.pdf") as path, drawn.drawn() as figure:
        figure.savefig(path, format="pdf", metadata={"CreationDate": None})
    values = {"study": study, "asked": study.ladders.study, "row": study.ladders.row, "record": record, "drawn": drawn}
    values |= {"ladders": ladders(study), "production": milestones(study), "numbers": numbers}
    values |= {"layout": degrees_text(study.ladders.row), "machines": record and machines_text(record)}
    measured = (row for row in study.rows if row["basis"] == "measured")
    values |= {
        "use": make_table("", _headed(study, USE), measured).known(),
        "files": make_table("", FILES, _files(study)).known(),
    }
    text = re.sub(r"\n{3,}", "\n\n", render("study.md", table=_markdown, **values))
    files.write_text(folder / "study.md", text)
    files.write_text(folder / "study.tex", _latex(text))


def part(studies: list[StudyReport]) -> Section:
    """The folded section of the page."""
    tables = [table for study in studies for table in (*ladders(study).values(), milestones(study)) if len(table)]
    notes = [note for study in studies for note in study.notes]
    return Section("scaling-studies", "Scaling studies", (), tuple(map(chart, studies)), tuple(tables), tuple(notes))


def _headed(study: StudyReport, columns: tuple[Column, ...]) -> list[Column]:
    """Columns whose GPUs are processes where the site has CPUs alone."""
    title = "GPUs" if study.site.device == "cuda" else "Processes"
    return [replace(each, title=title) if each.name == "gpus" else each for each in columns]


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


def milestones(study: StudyReport) -> Table:
    """A row for each production run: its cost, and what that rests on; of a size that nothing tells of, its size alone."""
    found, by_run = [], {row["run"]: row for row in reversed(study.rows)}
    for asked, point in study.ladders.production:
        row = {"rests_on": "unknown: no point of this size"} | by_run.get(point.runs[0].run, {})
        each = vars(asked) | {"rests_on": row["rests_on"]}
        if "step_seconds_mean" in row:
            cores = asked.runs * study.site.cores_charged(point.layout.nodes)
            hours, low, high = ((asked.steps * row[name] + (row["startup_seconds"] or 0)) / 3600 for name in STEP)
            each |= {"step": row["step_seconds_mean"], "hours": hours, "core_hours": cores * hours}
            each |= {"node_hours": asked.runs * asked.nodes * hours, "gpu_hours": asked.runs * point.gpus * hours}
            each["range"] = f"{numbers.significant(cores * low)} to {numbers.significant(cores * high)}"
            each["eflop"] = row["flops_per_step"] and asked.runs * asked.steps * row["flops_per_step"] / 1e18
            each["start_share"] = (row["startup_seconds"] or 0) / 3600 / hours
        found.append(each)
    if len(found) > 1:
        sums = {name: [each.get(name) for each in found] for name in ("node_hours", "gpu_hours", "core_hours", "eflop")}
        found.append({"name": "all", **{name: None if None in each else sum(each) for name, each in sums.items()}})
    return make_table(f"{study.ladders.name}: production runs", RUNS, found).known()


def _files(study: StudyReport) -> list[Row]:
    """What each point read and wrote."""
    found = []
    for record in study.done:
        folder, timing, starts = study.results / record.name, record.timing, max(1, len(record.attempts))
        devices, manifest = read_samples(sample_files(folder)), folder / "checkpoint/checkpoint.json"
        sizes = [each["bytes"] for each in read_record(manifest)["files"].values()] if manifest.is_file() else []
        row = {"run": record.name, "files": len(sizes) or None, "bytes": sum(sizes) or None, "starts": starts}
        row |= {"saving": timing.saving or None, "startup": timing.startup and timing.startup / starts}
        row |= {name: total(devices, "rank", name) for name in ("read_bytes", "written_bytes")}
        row["resumed"] = sum((attempt.get("first_step") or 1) > 1 for attempt in record.attempts)
        found.append(row)
    return found


def _markdown(table: Table) -> str:
    texts = [[each.title for each in table.headed], *([cell.text for cell in row.cells] for row in table.rows)]
    head, *rows = (f"| {' | '.join(line)} |" for line in texts)
    return "\n".join([head, "|" + " --- |" * len(table.headed), *rows])


def _latex(markdown: str) -> str:
    """The Markdown of a study as LaTeX: headings, a picture, tables, lists and paragraphs."""
    made = []
    for block in markdown.strip().split("\n\n"):
        head, _, rest = block.partition(" ")
        lines, plain = block.splitlines(), _tex(block)
        if head in ("#", "##"):
            plain = f"\\{'sub' * (len(head) - 1)}section*{{{_tex(rest)}}}"
        elif block.startswith("!["):
            words = _tex(block[2 : block.rindex("](")])
            plain = f"\\begin{{figure}}\n\\includegraphics[width=\\linewidth]{{scaling}}\n\\caption{{{words}}}\n\\end{{figure}}"
        elif head == "|":
            rows = [" & ".join(map(_tex, line[2:-2].split(" | "))) + r" \\" for line in lines if "---" not in line]
            plain = "\n".join([f"\\begin{{tabular}}{{{'l' * lines[0].count(' | ')}l}}", *rows, "\\end{tabular}"])
        elif head == "-":
            items = [f"\\item {_tex(line[2:])}" for line in lines]
            plain = "\n".join(["\\begin{itemize}", *items, "\\end{itemize}"])
        made.append(plain)
    return "\n\n".join(made) + "\n"


def _tex(text: str) -> str:
    return "".join(LATEX.get(each, each) for each in text)


def chart(study: StudyReport) -> Chart:
    """Speed-up of each ladder, the ideal, 75 %, and the sizes of production runs."""
    drawn = [row for row in study.rows if row.get("speedup")]
    marks = {point.gpus: each.name for each, point in study.ladders.production}
    groups = grouped(drawn, lambda row: row["kind"])

    def draw(figure: Any) -> None:
        for axes, (kind, rows) in zip(figure.subplots(1, len(groups), squeeze=False)[0], groups.items(), strict=True):
            _plot(axes, kind, rows, marks)
            axes.set_xlabel("GPUs" if study.site.device == "cuda" else "processes")

    words = (
        f"{row['kind']}, {row['gpus']}: {row['speedup']:.2f} ({numbers.percent(row['efficiency'])}, {row['basis']})"
        for row in drawn
    )
    caption = "Against the smallest point. Dotted: ideal; dashed: 75 %. Hollow: predicted. Whiskers: range."
    name = study.ladders.name
    return (
        Chart(f"study-{name}", f"Speed-up in the study {name}", caption, draw, 3.2, "; ".join(words))
        if drawn
        else empty(name)
    )


def _plot(axes: Any, kind: str, rows: list[Row], marks: dict[int, str]) -> None:
    sizes, least = sorted({row["gpus"] for row in rows} | marks.keys()), rows[0]["gpus"] / rows[0]["growth"]
    for part, line in ((1.0, ":"), (ENOUGH, "--")):
        axes.plot(sizes, [part * size / least for size in sizes], line, color=PALETTE["muted"])
    for row in rows:
        face = "C0" if row["basis"] == "measured" else PALETTE["paper"]
        axes.vlines(row["gpus"], row["speedup_low"], row["speedup_high"], color="C0")
        axes.plot(row["gpus"], row["speedup"], "o", color="C0", markerfacecolor=face)
    for size, name in marks.items():
        axes.axvline(size, color=PALETTE["line"], zorder=0)
        axes.annotate(
            name, (size, 0.02), xycoords=("data", "axes fraction"), rotation=90, ha="right", color=PALETTE["muted"]
        )
    axes.set(xscale="log", yscale="log", title=f"Speed-up, {kind} scaling")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.set_yticks([size / least for size in sizes], [numbers.significant(size / least, 2) for size in sizes])
    axes.minorticks_off()
