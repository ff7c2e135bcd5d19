"""The job report as PDF, for those who hand it in. A browser would print the page itself, but login nodes have none.

Words, tables, values and drawings are those of the page.
"""

import textwrap

from parascale.files import atomic_path
from parascale.report import figures
from parascale.report.attempts import attempts_figure
from parascale.report.drawing import FONT, LINE, PALETTE, WIDTH, canvas, write_legend
from parascale.report.job import facts
from parascale.report.usage import heat_figure, metrics_table

A4 = (595, 842)  # points
LEFT = 0.08  # of the page
INSIDE = (0.92 * A4[0], 0.88 * A4[1])  # of drawings, above their captions
LINES = 58  # of words on a page of A4
WRAP = 72  # characters of a line of a finding
COLOURS = {"bad": "#b3261e", "note": "#8a5a00", "good": "#12703a"}
HEADING = {"size": 13, "weight": "bold"}
SMALL = {"size": 8, "color": PALETTE["muted"]}


def write_pdf(job, target):
    """Write the report of a JobReport to a PDF file, whole or not at all."""
    from matplotlib.backends.backend_pdf import PdfPages  # loads slowly

    # Without a date, the same records make the same bytes.
    told = {"CreationDate": None, "Title": job.report.title}
    with atomic_path(target) as partial, PdfPages(partial, metadata=told) as pages:
        _words(job, pages)
        _drawings(job, pages)


def _words(job, pages):
    """The first page: findings, facts and the table of extremes. Where they are many, the page is longer."""
    lines = list(_lines(job))
    count = max(LINES, len(lines) + 6)
    with canvas(A4[0], A4[1] * count / LINES, size=9) as page:
        for number, line in enumerate(lines, 4):
            for x, text, look in line:
                page.text(x, 1 - number / count, text, **look)
        pages.savefig(page)


def _lines(job):
    """Yield the (place across, text, look) of what stands in each line."""
    yield [(LEFT, job.report.title, {"size": 20, "weight": "bold"})]
    yield from ([], [(LEFT, "What stands out", HEADING)], [])
    for finding in job.findings:
        look = {"size": 11, "weight": "bold", "color": COLOURS[finding.kind]}
        yield from ([(LEFT, text, look)] for text in textwrap.wrap(finding.text.replace("`", ""), WRAP))
        yield from ([(LEFT, finding.source, SMALL)], [])
    yield from ([(LEFT, "The job", HEADING)], [])
    for name, words, _ in facts(job):
        first, *more = textwrap.wrap(words, WRAP)
        yield [(LEFT, name, {"color": PALETTE["muted"]}), (LEFT + 0.25, first, {})]
        yield from ([(LEFT + 0.25, text, {})] for text in more)
    table = metrics_table(job.devices)
    if table:
        yield from ([], [(LEFT, "Use of the hardware", HEADING)], [])
        rows = [[column.title for column in table.headed], *([cell.text for cell in row.cells] for row in table.rows)]
        for number, (name, *values) in enumerate(rows):
            look = {"weight": "normal" if number else "bold"}
            numeric = zip((0.52, 0.72, 0.94), values, strict=True)
            yield [(LEFT, name, look), *((x, text, {**look, "ha": "right"}) for x, text in numeric)]


def _drawings(job, pages):
    """The second page: the page's panels, two side by side, as large as the paper allows."""
    shown = [
        attempts_figure(job.record),
        figures.phases(job.report),
        figures.loss(job.report),
        heat_figure(job.devices, job.cores),
    ]
    shown = [figure for figure in shown if figure and figure.panels]
    drawn = [(panel, panel.legend or figure.legend) for figure in shown for panel in figure.panels]
    if not drawn:
        return
    rows = [drawn[start : start + 2] for start in range(0, len(drawn), 2)]
    heights = [max(panel.height for panel, _ in row) for row in rows]
    below = [3 * LINE if any(len(legend) > 1 for _, legend in row) else LINE for row in rows]
    scale = min(INSIDE[0] / (2 * WIDTH), INSIDE[1] / sum((*heights, *below, LINE * len(rows))))
    with canvas(*A4, size=FONT * scale) as page:
        page.text(LEFT / 2, 0.03, textwrap.fill(" ".join(figure.caption for figure in shown), 120), **SMALL)
        low = 0.98 * A4[1]
        for row, height, rest in zip(rows, heights, below, strict=True):
            low -= (LINE + height) * scale
            for x, (panel, legend) in zip((LEFT * A4[0] / 2, A4[0] / 2), row, strict=False):
                page.text(x / A4[0], (low + (height + 4) * scale) / A4[1], panel.title, weight="bold")
                panel.place(page, x, low, (WIDTH - LINE) * scale, height * scale)
                if len(legend) > 1:
                    write_legend(page, legend, x, low - 4 * scale, (WIDTH - LINE) * scale)
            low -= rest * scale
        pages.savefig(page)
