"""Renders the page of a Report from templates and writes the files of `results/report/`."""

import dataclasses
import re
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from parascale import files
from parascale.errors import shorten_list
from parascale.report import chart, figures, numbers
from parascale.report.comparing import grouped, is_different
from parascale.report.machines import contradictions
from parascale.report.parts import conversions_table, parts
from parascale.report.plans import advice_table, next_steps
from parascale.report.summary import runs_table
from parascale.report.verdict import lines, verdicts

QUOTED = re.compile(r"`([^`]*)`")
TABLES = ("summary.csv", "plan-against-actual.csv", "advice.csv", "checkpoints.csv")  # beside the page
NOTHING = (
    "Nothing is finished yet. `make run` trains the runs of the default table on this machine and builds this page again; "
    "`snakemake report` does so for the configuration that you name."
)


def render_page(report):
    """Render the page as self-contained HTML."""
    return render(
        "comparison.html",
        report=report,
        title=report.title,
        subtitle=_subtitle(report),
        warnings=warnings(report),
        state="" if report.done else NOTHING,
        workloads=[(verdict, _charts(report, verdict)) for verdict in verdicts(report)],
        steps=next_steps(report),
        cost=figures.chart(report, "cost"),
        parts=parts(report),
        tables=(*TABLES, *report.tables),
    )


def render(template, **values):
    strict = {"autoescape": template.endswith(".html"), "undefined": jinja2.StrictUndefined}
    loader = jinja2.PackageLoader("parascale.report")
    made = jinja2.Environment(loader=loader, trim_blocks=True, lstrip_blocks=True, **strict)
    # Escapes text and turns `names` in backticks into <code>.
    made.filters["quoted"] = lambda text: Markup(QUOTED.sub(r"<code>\1</code>", str(escape(text))))
    return made.get_template(template).render(**values)


def write_report(report, output):
    """Write `index.html`, `verdict.txt` (comparisons and warnings for a terminal), the CSV files and `figures/*.svg` into the folder
    `output`, each file atomically."""
    output = Path(output)
    for name in figures.FIGURES:
        drawn = figures.chart(report, name) or chart.empty(name)
        files.write_text(output / "figures" / f"{name}.svg", drawn.file)
    for name, table in (("summary", runs_table), ("advice", advice_table), ("checkpoints", conversions_table)):
        files.write_text(output / f"{name}.csv", table(report).csv)
    said = [line for verdict in verdicts(report) if verdict.sentences for line in lines(verdict)]
    files.write_text(output / "verdict.txt", "".join(f"{line}\n" for line in [*said, *warnings(report)]))
    files.write_text(output / "index.html", render_page(report))


def _charts(report, verdict):
    """The two figures of a workload; runs keep their colours of the whole page."""
    records = tuple(record for record in report.records if record.name in verdict.runs)
    experiments = tuple(each for each in report.experiments if each.first.name in verdict.runs)
    alone = dataclasses.replace(report, records=records, experiments=experiments)
    made = [found for make in (figures.scaling, figures.phases) if (found := make(alone))]
    return [dataclasses.replace(each, name=f"{each.name}-{verdict.identity}") for each in made]


def _subtitle(report):
    """Sites, day of the last run, commit, number of finished runs, and how many of them train the same."""
    done = report.done
    sites = sorted({record.site.title or record.site.name for record in done})
    days = sorted(attempt["end"][:10] for record in done for attempt in record.attempts if attempt.get("end"))
    commits = {record.provenance["git_commit"] for record in done if record.provenance.get("git_commit")}
    finished = f"{len(done)} of {numbers.plural(len(report.records), 'run')} finished"
    commit = [f"commit {min(commits)[:10]}"] if len(commits) == 1 else []
    judged = [found for record in done if record.parity and (found := record.parity.verdict) in ("same", "different")]
    same = [f"{judged.count('same')} of {len(judged)} that have a baseline train the same"] if judged else []
    return " · ".join([*sites, *days[-1:], *commit, finished, *same])


def warnings(report):
    """Warnings for the top of the page: runs that compute something else than their baseline, or ran on another machine than the site's."""
    elsewhere = grouped(report.done, contradictions)
    said = [
        f"{shorten_list([f'`{each.name}`' for each in records])} {text}" for text, records in elsewhere.items() if text
    ]
    alone = {each.name for each in report.records if each.run and each.run.layout.world_size == 1}
    for record in filter(is_different, report.records):
        wrong = f"`{record.name}` does not compute the same as its baseline `{record.parity.baseline}`: {record.parity.reason}"
        found = f"; `parascale parity explain {record.name}` finds where they first differ" * (
            record.parity.baseline in alone
        )
        said.append(f"{wrong}. Do not compare its cost{found}.")
    return said
