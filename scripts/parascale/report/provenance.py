"""The section that says by what code, on what, when, and in how many attempts each run was made: once what all share."""

from dataclasses import replace

from parascale.errors import few
from parascale.report.attempts import attempts_table
from parascale.report.machines import machines_text
from parascale.report.section import Section
from parascale.report.tables import RUN, Column, columns, make_table

FACTS = (
    Column("seed", "Seed"),
    Column("code", "Code digest", note="code_digest"),
    Column("commit", "Git commit", note="git_commit"),
    *columns(site="Site", machine="Machine", hosts="Hosts", jobs="Jobs"),
)


def provenance_section(report, attempts=True):
    """By what code, on what, when, and, with `attempts`, in how many attempts."""
    known = [record for record in report.records if record.provenance]
    versions = dict.fromkeys(name for record in known for name in record.provenance["versions"] or ())
    facts = (RUN, *FACTS, *(Column(f"version of {name}", name) for name in versions))
    table = make_table("What the runs do not share", facts, map(_row, known), report.all_series).known()
    alike = [each for each in table.columns if table.frame[each.name].nunique(dropna=False) == 1 and each is not RUN]
    apart = tuple(each for each in table.columns if each not in alike)
    values = {
        "shared": [(each.title, table.frame.iloc[0][each.name], table.frame.iloc[0].get(each.note)) for each in alike],
        "table": _grouped(table, apart) if len(apart) > 1 else None,
        "attempts": attempts_table(known) if attempts else None,
        "mixed": _mixed(report),
        "left_out": report.left_out,
    }
    files = "`results/runs/<run>/run.json`; of unfinished runs `work/runs/<run>/`"
    return Section("provenance", "Where this comes from", "provenance.html", values, files)


def _grouped(table, apart):
    """A row for runs that differ in nothing. Rows of several runs have no colour, and stay whatever runs are chosen."""
    rows, names = [], [each.name for each in apart if each.name != RUN.name]
    beside = [note for each in apart for note in each.beside.values()]
    for _, group in table.frame.groupby(names, sort=False, dropna=False):
        runs = list(group["run"])
        rows.append(group.iloc[0][[*names, *beside]].to_dict() | {"run": few(runs, 6), "every": ", ".join(runs)})
    return make_table(table.caption, (replace(RUN, title="Runs", note="every"), *apart[1:]), rows, table.series)


def _mixed(report):
    """Names of the workloads whose runs different code trained. Workloads differ in code of their own: formats, model classes."""
    digests = {}
    for record in report.done:
        digests.setdefault(record.run.workload.name, set()).add(record.provenance["code_digest"])
    return [name for name, found in digests.items() if len(found) > 1]


def _joined(values):
    """Each value once, in words; None without any."""
    return ", ".join(dict.fromkeys(map(str, values or ()))) or None


def _row(record):
    """What is known of a run's origin; each version is a fact of its own, so that only those differ that do."""
    origin = record.provenance
    return {
        "run": record.name,
        "seed": record.run.seed,
        "code": (origin["code_digest"] or "")[:12] or None,
        "code_digest": origin["code_digest"],
        "commit": (origin["git_commit"] or "")[:12] or None,
        "git_commit": origin["git_commit"],
        "site": record.site.title or record.site.name,
        "machine": machines_text(record) or None,
        "hosts": _joined(origin["hosts"]),
        "jobs": _joined(origin["job_ids"]),
        **{f"version of {name}": version or None for name, version in (origin["versions"] or {}).items()},
    }
