"""The page: templates filled with sections, and the files of `results/report/`."""

import re
from importlib import resources
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from parascale import files
from parascale.report import drawing, numbers
from parascale.report.conversions import conversions_table
from parascale.report.figures import FIGURES
from parascale.report.layouts import strategy_word
from parascale.report.plans import advice_table
from parascale.report.sections import sections, warnings
from parascale.report.summary import runs_table
from parascale.report.terminal import compared
from parascale.report.verdict import verdicts

LONG = 30  # characters of a name that may be broken
QUOTED = re.compile(r"`([^`]*)`")
FOOTER = (
    "Made from `results/runs`, `results/parity`, `results/summaries`, `results/checkpoints`, `results/loaders` and "
    "`results/communication`. Each section names the files that hold its numbers."
)
MANY = 12  # runs from which on the page has a filter
TABLES = ("summary.csv", "plan-against-actual.csv", "advice.csv", "checkpoints.csv")  # beside the page
HOW_TO_READ = (
    "Only runs of the same work on the same machine are compared, each with its baseline: the run that its row names.",
    "Speed-up and efficiency are of training alone; start-up and warm-up stand apart. Efficiency counts each GPU or process that a layout asks for, core-hours all that is charged.",
    "A range spans repeats, or blocks of steps of a run that was not repeated.",
    "`same`: a short exact run gave the losses, gradient norms and weights of the baseline's. Never compare a `different` one.",
    "A price or memory is predicted before a run, and kept as it was. Core-hours are of the whole job unless they say otherwise.",
)


def render_page(report, parts=None):
    """The whole page as one text of HTML that asks for no other file. parts: its sections, if they are known."""
    parts = sections(report) if parts is None else parts
    return render(report, parts, _subtitle(report), FOOTER, warnings(report), (*TABLES, *report.tables), HOW_TO_READ)


def render(report, parts, subtitle, footer, said=(), tables=(), how=()):
    """A page of sections. said: warnings that stand above them. footer: where the page's figures come from. tables: CSV files, as a link reaches them.

    how: to read it, in lines.
    """
    page = environment().get_template("page.html")
    return page.render(
        report=report,
        sections=parts,
        warnings=said,
        subtitle=subtitle,
        footer=footer,
        tables=tables,
        how=how,
        facts=_facts(report),
    )


def _facts(report):
    """Run → what the page filters by; empty where there are few."""
    known = [record for record in report.records if record.run is not None]
    if len(report.records) <= MANY:
        return {}
    return {
        record.name: {
            "workload": record.run.workload.name,
            "strategy": strategy_word(record.run),
            "status": record.status,
        }
        for record in known
    }


def write_report(report, output):
    """Write `index.html`, `verdict.txt` with its comparisons as a terminal shows them, its CSV files and `figures/*.svg` below the folder `output`, each
    whole or not at all."""
    output = Path(output)
    parts = sections(report)
    # A panel that is on the page is already drawn.
    shown = {figure.name: figure for part in parts for figure in part.values.get("figures", ())}
    for name, make in FIGURES.items():
        files.write_text(output / "figures" / f"{name}.svg", drawing.standalone(shown.get(name) or make(report)))
    for name, table in (("summary", runs_table), ("advice", advice_table), ("checkpoints", conversions_table)):
        files.write_text(output / f"{name}.csv", table(report).csv)
    said = [line for verdict in verdicts(report) for line in compared(verdict)]
    files.write_text(output / "verdict.txt", "".join(f"{line}\n" for line in said))
    files.write_text(output / "index.html", render_page(report, parts))


def _subtitle(report):
    if not report.records:
        return "no runs yet"
    done = report.done
    sites = sorted({record.site.title or record.site.name for record in done})
    finished = f"{len(done)} of {numbers.plural(len(report.records), 'run')} finished"
    return " · ".join([finished, *report.workloads(), *sites])


def environment():
    """Where templates are filled: strictly, with what they use to write cells, charts and quoted names."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("parascale.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.filters |= {
        "quoted": _quoted,
        "listed": lambda words: numbers.listed([f"`{word}`" for word in words]),
        "exact": lambda value: "" if value is None else str(value),
    }
    made.globals |= {
        "resource": lambda name: Markup(_resource(name)),
        "series_colour": drawing.series_colour,
    }
    return made


def _resource(name):
    return (resources.files("parascale.report") / "templates" / name).read_text(encoding="utf-8")


def _quoted(text):
    """Escaped text in which `names` between backticks are marked as code, which breaks into lines where it is long alone."""

    def code(found):
        return f"<code{' class=long' if len(found[1]) > LONG else ''}>{found[1]}</code>"

    return Markup(QUOTED.sub(code, str(escape(text))))
