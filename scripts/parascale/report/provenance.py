"""The section that says by what code, on what, when, and in how many attempts each run was made: once what all share."""

from parascale.report import numbers
from parascale.report.machines import machines_text
from parascale.report.section import Section
from parascale.report.tables import Cell, make_table, number, records_table


def provenance_section(report):
    """By what code, on what, when, and in how many attempts."""
    known = [record for record in report.records if record.provenance]
    cells = {record.name: _cells(record) for record in known}
    headings = list(dict.fromkeys(heading for row in cells.values() for heading, cell in row.items() if cell.text))
    shared = {
        heading: found.pop()
        for heading in headings
        if len(found := {row.get(heading, Cell("")) for row in cells.values()}) == 1
        and any(cell.text for cell in found)
    }
    apart = [heading for heading in headings if heading not in shared]
    rows = records_table(
        report,
        "What the runs do not share",
        known,
        lambda record: {heading: cells[record.name].get(heading, Cell("")) for heading in apart},
    )
    attempts = [
        (record.name, _attempt_row(record, *each)) for record in known for each in enumerate(record.attempts, 1)
    ]
    values = {
        "shared": shared,
        "table": rows if apart and len(known) > 1 else None,
        "attempts": make_table("Attempts", attempts),
        "mixed": _mixed(report),
        "left_out": report.left_out,
    }
    files = "`results/runs/<run>/run.json`; of unfinished runs `work/runs/<run>/`"
    return Section("provenance", "Where this comes from", "provenance.html", values, files)


def _mixed(report):
    """Names of the workloads whose runs different code trained. Workloads differ in code of their own: formats, model classes."""
    digests = {}
    for record in report.done:
        digests.setdefault(record.run.workload.name, set()).add(record.provenance["code_digest"])
    return [name for name, found in digests.items() if len(found) > 1]


def _cells(record):
    """Heading → Cell of what is known of a run's origin; each version is a fact of its own, so that only those differ that do."""
    origin = record.provenance
    versions = {name: Cell(version) for name, version in (origin["versions"] or {}).items() if version}
    return {
        "Seed": number(record.run.seed, numbers.whole),
        "Code digest": _digest_cell(origin["code_digest"], "code_digest"),
        "Git commit": _digest_cell(origin["git_commit"], "git_commit"),
        "Site": Cell(record.site.title or record.site.name),
        "Machine": Cell(machines_text(record)),
        "Hosts": Cell(", ".join(dict.fromkeys(origin["hosts"] or ()))),
        "Jobs": Cell(", ".join(map(str, origin["job_ids"] or ()))),
        **versions,
    }


def _digest_cell(value, figure):
    return Cell((value or "")[:12], value, figure, note=value or "")


def _attempt_row(record, count, attempt):
    first, last = attempt.get("first_step"), attempt.get("last_step")
    return {
        "Run": record.name,
        "Attempt": number(count, numbers.whole),
        "Start (UTC)": attempt.get("start") or "",
        "End (UTC)": attempt.get("end") or "",
        "Duration": number(attempt.get("seconds"), numbers.duration),
        "Steps": f"{first:,} to {last:,}" if first is not None and last is not None else "",
        "Outcome": attempt.get("outcome") or "",
    }
