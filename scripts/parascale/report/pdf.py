"""The job report as PDF, for those who hand it in. A browser would print the page itself, but login nodes have none.

Words, tables, values and drawings are those of the page.
"""

import textwrap

from parascale.files import atomic_path
from parascale.report import figures
from parascale.report.attempts import attempts_figure
from parascale.report.chart import PALETTE
from parascale.report.job import facts
from parascale.report.usage import heat_figure, metrics_table

A4 = (595, 842)  # points
LEFT = 0.08  # of the page
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
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    lines = list(_lines(job))
    count = max(LINES, len(lines) + 6)
    with rc_context({"text.parse_math": False, "font.size": 9}):
        page = Figure(figsize=(A4[0] / 72, A4[1] * count / LINES / 72))
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
    """A page for each of the page's pictures."""
    drawn = (
        attempts_figure(job.record),
        figures.phases(job.report),
        figures.loss(job.report),
        heat_figure(job.devices, job.cores),
    )
    for chart in filter(None, drawn):
        with chart.drawn() as figure:
            figure.suptitle(chart.title, size="large")
            pages.savefig(figure)
