"""The section that says by what code, on what, when, and in how many attempts each run was made."""

from parascale.report import numbers
from parascale.report.section import Section
from parascale.report.tables import Cell, Row, Table


def provenance_section(report):
    """By what code, on what, when, and in how many attempts."""
    known = [record for record in report.records if record.provenance]
    if not known and not report.left_out:
        return None
    values = {
        "table": _provenance_table(report, known) if known else None,
        "attempts": _attempts_table(known),
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


def _provenance_table(report, records):
    rows = []
    for record in records:
        origin = record.provenance
        versions = [f"{name} {version}" for name, version in (origin["versions"] or {}).items() if version]
        cells = (
            Cell(record.name),
            Cell(numbers.whole(record.run.seed), record.run.seed),
            _digest_cell(origin["code_digest"], "code_digest"),
            _digest_cell(origin["git_commit"], "git_commit"),
            Cell(", ".join(versions)),
            Cell(record.site.title or record.site.name),
            Cell(", ".join(origin["hosts"] or ())),
            Cell(", ".join(map(str, origin["job_ids"] or ()))),
        )
        rows.append(Row(record.name, cells, report.series(record)))
    columns = (("Run", False), ("Seed", True), ("Code digest", False), ("Git commit", False), ("Versions", False))
    columns += (("Machine", False), ("Hosts", False), ("Jobs", False))
    return Table("Provenance of each run", columns, tuple(rows))


def _digest_cell(value, figure):
    return Cell((value or "")[:12], value, figure, note=value or "")


def _attempts_table(records):
    rows = []
    for record in records:
        for number, attempt in enumerate(record.attempts, 1):
            first, last = attempt.get("first_step"), attempt.get("last_step")
            steps = f"{first:,} to {last:,}" if first is not None and last is not None else ""
            seconds = attempt.get("seconds")
            cells = (
                Cell(record.name),
                Cell(numbers.whole(number), number),
                Cell(attempt.get("start") or ""),
                Cell(attempt.get("end") or ""),
                Cell(numbers.duration(seconds), seconds),
                Cell(steps),
                Cell(attempt.get("outcome") or ""),
            )
            rows.append(Row(record.name, cells))
    columns = (("Run", False), ("Attempt", True), ("Start (UTC)", False), ("End (UTC)", False), ("Duration", True))
    return Table("Attempts", (*columns, ("Steps", False), ("Outcome", False)), tuple(rows)) if rows else None
