"""Output of a scaling study for a proposal: `points.csv`, a figure, and tables and facts as Markdown, LaTeX and on the page."""

import re
from pathlib import Path
from typing import Any

from parascale import files
from parascale.provenance import DISTRIBUTIONS
from parascale.report import numbers, production
from parascale.report.chart import PALETTE, Chart, empty
from parascale.report.comparing import grouped
from parascale.report.layouts import degrees_text
from parascale.report.machines import machines_text
from parascale.report.page import render
from parascale.report.parts import Section
from parascale.report.scaling import ENOUGH, Row, StudyReport
from parascale.report.scaling_tables import TIMES, costs, ladders, use
from parascale.report.tables import Column, Table, make_table

POINTS = ("study", "kind", "nodes", "gpus", "basis", "samples_per_step", *TIMES, "rate", "speedup", "efficiency")
POINTS += ("startup_seconds", "peak_memory_bytes", "core_hours")
NARROW = 6  # columns that fit on a printed page; LaTeX scales wider tables down
LATEX = {
    **{each: f"\\{each}" for each in "&%$#_{}"},
    **{"\\": "\\textbackslash{}", "~": "\\~{}", "^": "\\^{}"},
    "×": "$\\times$",
    "·": "$\\cdot$",
    "₂": "$_2$",
    "`": "",
    "–": "--",
}


def write_study(study: StudyReport, folder: Path) -> None:
    """Write `points.csv`, `scaling.svg`, `scaling.pdf`, `study.md` and `study.tex` into a folder, each atomically."""
    drawn, record = chart(study), next(iter(study.done), None)
    files.write_text(folder / "points.csv", make_table("", map(Column, POINTS), study.rows).csv)
    files.write_text(folder / "scaling.svg", drawn.file)
    with files.atomic_path(folder / "scaling.pdf") as path, drawn.drawn() as figure:
        figure.savefig(path, format="pdf", metadata={"CreationDate": None})
    values = {"study": study, "asked": study.ladders.study, "row": study.ladders.row, "record": record, "drawn": drawn}
    values |= {"ladders": ladders(study), "costs": costs(study), "production": production, "numbers": numbers}
    values |= {"layout": degrees_text(study.ladders.row), "machines": record and machines_text(record)}
    values |= {"use": use(study), "software": record and _software(record.provenance), "notes": notes(study)}
    text = re.sub(r"\n{3,}", "\n\n", render("study.md", table=_markdown, **values))
    files.write_text(folder / "study.md", text)
    files.write_text(folder / "study.tex", _latex(text))


def part(studies: list[StudyReport]) -> Section:
    """The folded Section of all studies for the page."""
    made = (
        table for study in studies for table in (*ladders(study).values(), costs(study), production.tables(study)[0])
    )
    tables = [table for table in made if len(table)]
    said = [note for study in studies for note in notes(study)]
    return Section("scaling-studies", "Scaling studies", (), tuple(map(chart, studies)), tuple(tables), tuple(said))


def notes(study: StudyReport) -> list[str]:
    """Notes of a study, first on sizes where strong and weak scaling contradict each other."""
    found, apart, word = [], [], "GPU" if study.site.device == "cuda" else "process"
    grown = [row for row in study.rows if row["basis"] == "measured" and row.get("growth", 1.0) > 1]
    for rows in grouped(grown, lambda row: row["gpus"]).values():
        strong, weak = ([row for row in rows if row["kind"] == kind] for kind in ("strong", "weak"))
        for one, other in zip(strong, weak, strict=False):
            better = one["efficiency_low"] > other["efficiency_high"]
            if better or (one["efficiency"] >= ENOUGH) != (other["efficiency"] >= ENOUGH):
                both = (numbers.percent(row["efficiency"]) for row in (one, other))
                apart.append(f"{' and '.join(both)} at {numbers.plural(one['gpus'], word)}")
    if apart:
        why = "one of them alone has 75 %, or strong scaling is the better, which is rare"
        found.append(f"Efficiency of strong and of weak scaling disagree, {', '.join(apart)}: {why}.")
    return [*found, *study.notes]


def _software(origin: dict[str, Any]) -> str:
    """Software of a training, with versions and, if recorded, licences."""
    licences = origin.get("licences") or {}
    found = {name: version for name, version in (origin["versions"] or {}).items() if version}
    used = {name: found[name] for name in found if not licences or name in licences or name not in DISTRIBUTIONS}
    under = {name: f" ({licence})" for name, licence in licences.items() if licence}
    return ", ".join(f"{name} {version}{under.get(name, '')}" for name, version in used.items())


def _markdown(table: Table) -> str:
    texts = [[each.title for each in table.headed], *([cell.text for cell in row.cells] for row in table.rows)]
    head, *rows = (f"| {' | '.join(line)} |" for line in texts)
    return "\n".join([head, "|" + " --- |" * len(table.headed), *rows])


def _latex(markdown: str) -> str:
    """Convert a study's Markdown to LaTeX: headings, a picture, tables, lists and paragraphs."""
    made = ["% Needs \\usepackage{graphicx}."]
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
            if lines[0].count(" | ") > NARROW:
                plain = f"\\resizebox{{\\linewidth}}{{!}}{{%\n{plain}}}"
        elif head == "-":
            items = [f"\\item {_tex(line[2:])}" for line in lines]
            plain = "\n".join(["\\begin{itemize}", *items, "\\end{itemize}"])
        made.append(plain)
    return "\n\n".join(made) + "\n"


def _tex(text: str) -> str:
    return "".join(LATEX.get(each, each) for each in text)


def chart(study: StudyReport) -> Chart:
    """Speed-up for each kind of scaling, with lines for the ideal, 75 % and the sizes of production runs."""
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
    caption = (
        "Relative to the smallest measured size. Dotted: ideal; dashed: 75 %. Hollow: predicted. Cross: disturbed. "
        "Whiskers: range; for predictions, of 80 of 100 such runs."
    )
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
        axes.plot(row["gpus"], row["speedup"], "X" if row.get("disturbed") else "o", color="C0", markerfacecolor=face)
    for size, name in marks.items():
        axes.axvline(size, color=PALETTE["line"], zorder=0)
        axes.annotate(
            name, (size, 0.02), xycoords=("data", "axes fraction"), rotation=90, ha="right", color=PALETTE["muted"]
        )
    axes.set(xscale="log", yscale="log", title=f"Speed-up, {kind} scaling")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.set_yticks([size / least for size in sizes], [numbers.significant(size / least, 2) for size in sizes])
    axes.minorticks_off()
