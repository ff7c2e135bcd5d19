"""The job report as PDF, for those who hand it in: drawn by matplotlib, which is there wherever the project is.

A browser would print the page itself, but login nodes have none. The words, tables and values are those of the page.
"""

import textwrap

import numpy as np
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure

from parascale.files import atomic_path
from parascale.report.findings import findings
from parascale.report.job import attempts_spans, facts
from parascale.report.numbers import time_unit
from parascale.report.records import PHASES
from parascale.report.usage import heat_maps, metrics_table

A4 = (8.27, 11.69)  # inches
LEFT, RIGHT = 0.08, 0.94  # of the page
LINE_INCHES = 0.19
WRAP = 72  # characters of a line of a finding
COLOURS = {"bad": "#b3261e", "note": "#8a5a00", "good": "#12703a"}
OUTCOMES = {"finished": "#12793a", "stopped": "#85560a", "killed": "#b8203a", "failed": "#b8203a", "running": "#1f5fbf"}
# Those of the page's style.
PHASE_COLOURS = dict(
    zip(PHASES, ("#c98a00", "#74aae8", "#2a62b8", "#cf4f2b", "#3c9a62", "#b9c0ca", "#7d8896"), strict=True)
)


def write_pdf(job, target):
    """Write the report of a JobReport to a PDF file, whole or not at all."""
    # Without a date, the same records make the same bytes.
    with (
        atomic_path(target) as partial,
        PdfPages(partial, metadata={"CreationDate": None, "Title": job.report.title}) as pages,
    ):
        for page in job_pages(job):
            pages.savefig(page)


def job_pages(job):
    """The pages as matplotlib's figures."""
    drawings = _drawings(job)
    return [_words(job), *([_page(drawings)] if drawings else [])]


def _words(job):
    """The first page: findings, facts and the table of extremes. Where they are many, the page is longer."""
    table, found, known = metrics_table(job.devices), findings(job.record, job.devices), facts(job)
    lines = 14 + 4 * len(found) + len(known) + (len(table.rows) if table else 0)
    page = Figure(figsize=(A4[0], max(A4[1], lines * LINE_INCHES)))
    line = LINE_INCHES / page.get_figheight()
    y = 1 - 4 * line
    page.text(LEFT, y, job.report.title, size=20, weight="bold")
    y -= 2 * line
    y = _heading(page, y, line, "What stands out")
    for finding in found:
        for text in textwrap.wrap(finding.text.replace("`", ""), WRAP):
            page.text(LEFT, y, text, size=11, color=COLOURS[finding.kind], weight="bold")
            y -= 1.2 * line
        page.text(LEFT, y, finding.source, size=8, color="#55606e")
        y -= 1.5 * line
    y = _heading(page, y, line, "The job")
    for name, words, _ in known:
        page.text(LEFT, y, name, size=9, color="#55606e")
        for text in textwrap.wrap(words, WRAP):
            page.text(LEFT + 0.25, y, text, size=9)
            y -= line
    if table is not None:
        y = _heading(page, y - line, line, "Use of the hardware")
        _table(page, y, line, table)
    return page


def _heading(page, y, line, text):
    page.text(LEFT, y - line, text, size=13, weight="bold")
    return y - 2.8 * line


def _table(page, y, line, table):
    places = [LEFT, 0.52, 0.72, RIGHT]
    texts = [[name for name, _ in table.columns], *([cell.text for cell in row.cells] for row in table.rows)]
    for number, row in enumerate(texts):
        for x, text in zip(places, row, strict=True):
            weight, side = "normal" if number else "bold", "left" if x == LEFT else "right"
            page.text(x, y, text, size=9, weight=weight, ha=side)
        y -= line


def _drawings(job):
    """(height, function that draws into axes) of each figure of the second page."""
    made = []
    if spans := attempts_spans(job.record):
        made.append((0.6 + 0.25 * len(spans), lambda axes: _timeline(axes, spans)))
    curve = job.record.curve
    if curve is not None and any(curve.phases.values()):
        made.append((0.8, lambda axes: _phases(axes, curve.phases)))
    if curve is not None and len(curve.steps):
        made.append((2.4, lambda axes: _loss(axes, curve)))
    for shown in heat_maps(job.devices):
        made.append((0.7 + 0.16 * len(shown.rows), lambda axes, shown=shown: _heat(axes, shown)))
    return made


def _page(drawings):
    """Figures below one another, each as high as it wants where the page has room for all."""
    page = Figure(figsize=A4, layout="constrained")
    heights = [height for height, _ in drawings]
    rest = max(0.1, A4[1] - sum(heights))
    grid = page.add_gridspec(len(drawings) + 1, 1, height_ratios=[*heights, rest])
    for number, (_, draw) in enumerate(drawings):
        axes = page.add_subplot(grid[number])
        axes.tick_params(labelsize=8)
        draw(axes)
    return page


def _title(axes, text):
    axes.set_title(text, size=10, loc="left", weight="bold")


def _timeline(axes, spans):
    first = min(span.start for span in spans)
    size, unit = time_unit(max(span.end for span in spans) - first)
    for number, span in enumerate(spans):
        axes.barh(number, (span.end - span.start) / size, left=(span.start - first) / size, color=OUTCOMES[span.kind])
    axes.set_yticks(range(len(spans)), [f"{span.label}, {span.kind}" for span in spans])
    axes.invert_yaxis()
    axes.set_xlabel(f"{unit} since the start", size=8)
    _title(axes, "Attempts")


def _phases(axes, phases):
    total, left = sum(phases.values()), 0.0
    for name in PHASES:
        part = phases.get(name, 0.0) / total
        if part > 0:
            axes.barh(0, part, left=left, color=PHASE_COLOURS[name], label=f"{name} {100 * part:.0f} %")
            left += part
    axes.set_yticks([])
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    axes.legend(fontsize=7, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.35), frameon=False)
    _title(axes, "Where the time of a step goes")


def _loss(axes, curve):
    axes.plot(curve.steps, curve.losses, lw=0.8, color="#1f5fbf", label="training")
    if curve.evaluations:
        steps = [curve.steps[index] for index, _ in curve.evaluations]
        axes.plot(steps, [loss for _, loss in curve.evaluations], "o", ms=3, color="#bf4a0a", label="validation")
    axes.set_xlabel("optimizer steps", size=8)
    axes.legend(fontsize=7, frameon=False)
    _title(axes, "Loss in nats")


def _heat(axes, shown):
    cells = np.array([[np.nan if cell is None else cell for cell in cells] for _, cells in shown.rows], dtype=float)
    size, unit = time_unit(shown.seconds)
    extent = (0, max(shown.seconds / size, 1e-9), len(shown.rows), 0)
    axes.imshow(cells, aspect="auto", cmap="Blues", vmin=0, vmax=shown.end, extent=extent, interpolation="nearest")
    axes.set_yticks([number + 0.5 for number in range(len(shown.rows))], [label for label, _ in shown.rows])
    axes.set_xlabel(f"running time ({unit})", size=8)
    _title(axes, shown.title)
