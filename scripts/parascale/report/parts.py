"""What stands folded below the comparison: parity's numbers, memory, loss, quality, formats, checkpoints and origins.

To add a part, write a function of a Report that returns a Part and name it in PARTS; one that holds nothing is left out.
"""

from dataclasses import dataclass

from parascale.errors import few
from parascale.report import figures, numbers
from parascale.report.derived import grouped
from parascale.report.machines import machines_of, machines_text
from parascale.report.summary import of_runs
from parascale.report.tables import RUN, Column, columns, make_table


@dataclass(frozen=True)
class Part:
    """words: sentences above its charts and tables; notes: a list below them."""

    identity: str
    title: str
    words: tuple = ()
    charts: tuple = ()
    tables: tuple = ()
    notes: tuple = ()

    def __bool__(self):
        return any((self.charts, *map(len, self.tables), self.notes))


def parts(report):
    """The Parts that have something to say."""
    return [part for make in PARTS if (part := make(report))]


def of_figure(make):
    """A function that makes the Part of a figure alone."""

    def part(report):
        chart = make(report)
        return Part(make.__name__, chart.title, (), (chart,)) if chart else None

    return part


# --- is the result the same?

PARITY = (
    Column("verdict", "Verdict", kind="verdict"),
    *columns(numbers.tiny, loss_difference="Loss difference, nats", grad_norm_difference="Gradient norm, relative"),
    Column("weight_difference", "Weights, relative", numbers.tiny, below="worst_tensor"),
    *columns(outside="First step outside", compared="Compared over", baseline="Baseline"),
)
SAME = (
    "Each layout trained a few steps of its own beside its baseline, from the same start. `same` is about these short exact runs: layouts "
    "add sums in other orders, so over a whole training, in its own precision, final losses may end slightly apart. A difference is the largest over the steps.",
)


def parity(report):
    """Parity of each run with its baseline, what is allowed, and why a run is not the same."""
    checked = [record for record in report.records if record.parity is not None]
    reasons = [f"`{each.name}`: {each.parity.reason}" for each in checked if each.parity.reason]
    unchecked = [f"`{record.name}`" for record in report.done if record.parity is None]
    notes = [*_allowed(checked), *reasons, *([f"Not checked: {few(unchecked, 8)}."] if unchecked else [])]
    table = of_runs(report, "Parity of each run with its baseline", PARITY, checked, _parity_row)
    return Part("parity", "Is the result the same?", SAME, (), (table,), tuple(notes)) if checked else None


def _parity_row(record):
    found = record.parity
    outside = numbers.whole(found.first_step_outside) or ("none" if found.verdict == "same" else "")
    return vars(found) | {"outside": outside, "compared": compared_over(found) if found.steps else ""}


def compared_over(found):
    """What a parity run was, in words."""
    return f"{numbers.plural(found.steps, 'step')} in {found.precision}"


def _allowed(checked):
    """The tolerances in words, once for each precision."""
    names = (("loss", "in a loss"), ("grad_norm", "in a gradient norm"), ("weights", "in a tensor of weights"))
    said = {}
    for found in (record.parity for record in checked if record.parity.tolerances):
        values = [f"{numbers.tiny(found.tolerances[key])} {what}" for key, what in names if key in found.tolerances]
        said[f"Allowed in {found.precision}: {numbers.listed(values)}."] = None
    return list(said)


# --- how good are the models?

ROUGE = columns("{:.3f}".format, rouge1="ROUGE-1", rouge2="ROUGE-2", rougeL="ROUGE-L")
SCORES = (RUN, Column("writer", "Written by"), *ROUGE, Column("documents", "Documents", numbers.whole))
ACCURACIES = columns(
    numbers.tenths,
    validation_accuracy="Validation",
    validation_top5="Validation, top 5",
    test_accuracy="Test",
    test_top5="Test, top 5",
)
LOSSES = columns(
    numbers.loss, train_loss="Training loss, last 10 steps", validation_loss="Validation loss", test_loss="Test loss"
)
EXAMPLES = (RUN, *columns(document="Document", reference="Reference", summary="Summary"))
REASONS = {
    "without_text": "without a text left out",
    "without_document": "without a document left out",
    "without_summary": "without a summary left out",
    "long_summary": "with too long a summary left out",
    "long_document": "with too long a document left out",
    "cut_documents": "documents cut to the window",
    "bad_images": "that are not whole images left out",
}


def quality(report):
    """Losses of every run, ROUGE of summaries with examples, accuracy of classes, and what was left out of the data."""
    classified = [record for record in report.done if record.summary.validation_accuracy is not None]
    tables = (
        of_runs(
            report, "Losses", (*LOSSES, Column("test_perplexity", "Test perplexity", numbers.significant)), report.done
        ).known(),
        make_table(
            "Summaries of the test split: mean F1 with the references", SCORES, _scores(report), report.all_series
        ),
        of_runs(report, "Accuracy of the classifiers", ACCURACIES, classified),
        make_table("Some summaries", EXAMPLES, _examples(report)),
    )
    below = [
        f"The summaries of `{record.name}` do not beat the first words of the documents."
        for record in report.done
        if _below(record)
    ]
    return Part(
        "quality",
        "How good the models are",
        (),
        (),
        tuple(each for each in tables if len(each)),
        (*below, *exclusions(report)),
    )


def _scores(report):
    """Both searches, and the first words of the document, which any summariser must beat."""
    for record in (record for record in report.done if record.summaries):
        found = record.summaries
        writers = {
            "beam": f"{found['beams']} beams",
            "greedy": "greedy search",
            "lead": f"first {found['lead_words']} words",
        }
        for key, writer in writers.items():
            yield {"run": record.name, "case": key, "writer": writer, "documents": found["documents"], **found[key]}


def _below(record):
    """Whether neither search of a summariser beats the first words of the documents in some ROUGE."""
    found = record.summaries
    return found and any(
        max(found["beam"][each.name], found["greedy"][each.name]) <= found["lead"][each.name] for each in ROUGE
    )


def _examples(report):
    """Of the first summariser of each workload that beats the first words."""
    good = [record for record in report.done if record.summaries.get("examples") and not _below(record)]
    for records in grouped(good, lambda record: record.run.workload.name).values():
        yield from ({"run": records[0].name, **example} for example in records[0].summaries["examples"])


def exclusions(report):
    """Sentences on samples that were left out or cut, once for each workload."""
    said = {}
    for record in report.done:
        for split, counts in (record.provenance.get("excluded") or {}).items():
            words = [f"{count:,} {REASONS.get(reason, reason)}" for reason, count in counts.items() if count]
            if words:
                said[f"`{record.run.workload.name}`, {split}: {numbers.listed(words)}."] = None
    return list(said)


# --- data formats, checkpoints, communication

FORMATS = (
    Column("format", "Format", below="advised"),
    Column("random", "At random", numbers.significant),
    Column("sequential", "In order", numbers.significant),
    Column("cold", "Cold, at random", numbers.significant),
    Column("decoded", "File to tensor", numbers.significant, below="how"),
    Column("decoded_a_core", "File to tensor, a core", numbers.significant),
    Column("bytes", "Size", numbers.memory),
    Column("inodes", "Inodes", numbers.whole),
    Column("write_seconds", "Written in", numbers.duration),
)
FORMS = (
    RUN,
    *columns(layout="From layout", form="To form"),
    Column("bytes", "Size", numbers.memory),
    Column("seconds", "Time", numbers.duration),
    Column("gb_per_second", "GB/s", numbers.significant),
    Column("peak_memory_bytes", "Peak memory", numbers.memory),
    Column("identical", "Weights", text="alike", kind="verdict", below="apart"),
    Column("optimizer", "Optimizer", text="carried"),
    Column("test_loss", "Test loss", numbers.loss),
)
CONVERTED = (
    *("run", "layout", "form", "dtype", "bytes", "seconds", "gb_per_second", "peak_memory_bytes", "identical"),
    *("logits_difference", "optimizer", "test_loss"),
)
COPIES = (
    "Each form was written from the shards of its layout, read back by its own library and compared. `identical`: every tensor to the bit, and "
    "the same loss; `same logits`: that library computes the model by code of its own, and in fp32 no logit is further off than stands below.",
)
TRANSFERS = (
    RUN,
    *columns(group="Group", operation="Operation"),
    *columns(numbers.whole, ranks="Processes", nodes="Nodes"),
    Column("bytes", "Size", numbers.memory),
    Column("seconds", "Time", numbers.duration_of_step),
    *columns(
        numbers.significant, algorithm_gigabytes_per_second="Algorithm, GB/s", bus_gigabytes_per_second="Bus, GB/s"
    ),
)


def formats(report):
    """How fast each format of a dataset is read, what it costs to write, and which to take."""
    known = [each for each in report.readings if each.rows]
    words = [f"`{each.dataset}`: {each.advice} {_measured_on(report, each)}" for each in known]
    tables = (
        make_table(
            f"{each.dataset}: {each.unit} a second, the fastest way of reading each format", FORMATS, _formats(each)
        ).known()
        for each in known
    )
    return Part(
        "formats",
        "Which data format",
        tuple(words),
        (),
        tuple(tables),
        tuple(each.note for each in report.readings if each.note),
    )


def _formats(readings):
    for name in readings.formats:
        rows = [row for row in readings.rows if row.format == name]
        ways = {
            "random": readings.fastest(name, "random"),
            "sequential": readings.fastest(name, "sequential"),
            "cold": readings.fastest(name, "random", cache="cold"),
            "decoded": readings.fastest(name, "random", decoded=True),
        }
        row = vars(rows[0]) | {way: found.samples_per_second for way, found in ways.items() if found}
        if decoded := ways["decoded"]:
            workers = numbers.plural(decoded.workers, "worker") if decoded.workers else "no workers"
            row |= {"how": f"{decoded.decoder}, {workers}", "decoded_a_core": decoded.a_core}
        yield row | {"advised": "recommended" if name == readings.format else ""}


def _measured_on(report, readings):
    """Which processors read, and whether those that trained are others: then readers may be faster or slower there."""
    cpu = readings.machine.get("cpu")
    trained = [
        record for record in report.records if record.run and record.run.workload.data.dataset == readings.dataset
    ]
    others = {node["cpu"] for record in trained for node in machines_of(record)} - {cpu}
    if not cpu:
        return ""
    there = f", while trainings ran on {numbers.listed(sorted(others))}" if others else ""
    return f"Measured on {cpu}{there}."


def conversions_table(report):
    """A row for each form that a run's checkpoint was converted into: `checkpoints.csv`."""
    return make_table("Converted checkpoints", map(Column, CONVERTED), report.conversions)


def checkpoints(report):
    """Converted checkpoints: the layout that trained, the form that was written, and whether it is the same model."""
    caption = "From the layout that trained, into the form that was written"
    return Part(
        "checkpoints",
        "Checkpoints in other forms",
        COPIES,
        (),
        (make_table(caption, FORMS, map(_form, report.conversions), report.all_series),),
    )


def _form(row):
    apart = row["logits_difference"]
    alike = ("identical" if apart is None else "same logits") if row["identical"] else "differ"
    words = {
        "alike": alike,
        "apart": "" if apart is None else f"to {numbers.tiny(apart)}",
        "verdict": "same" if row["identical"] else "different",
    }
    return row | words | {"case": row["form"], "carried": "carried along" if row["optimizer"] else "not in it"}


def communication(report):
    """Collective operations alone: what the slowest link carries, counted as nccl-tests does."""
    rows = [{"run": found.run, "case": row.operation, **vars(row)} for found in report.transfers for row in found.rows]
    table = make_table("Collective operations: the median of several calls", TRANSFERS, rows)
    return Part(
        "communication",
        "How fast processes talk",
        (),
        (),
        (table,),
        tuple(found.note for found in report.transfers if found.note),
    )


# --- where it comes from

ORIGIN = columns(
    seed="Seed", code="Code digest", commit="Git commit", site="Site", machine="Machine", hosts="Hosts", jobs="Jobs"
)


def provenance(report):
    """By what code, on what, and when: once what all runs share, and a table of the rest."""
    known = [record for record in report.records if record.provenance]
    versions = dict.fromkeys(name for record in known for name in record.provenance["versions"] or ())
    facts = (RUN, *ORIGIN, *(Column(f"version of {name}", name) for name in versions))
    table = make_table("What the runs do not share", facts, map(_origin, known)).known()
    alike = [each for each in table.columns[1:] if table.frame[each.name].nunique(dropna=False) == 1]
    apart = tuple(each for each in table.columns[1:] if each not in alike)
    shared = "; ".join(f"{each.title}: {table.frame.iloc[0][each.name]}" for each in alike)
    notes = [f"Runs of `{name}` were made by different versions of the training code." for name in mixed(report)]
    if report.left_out:
        notes.append(f"Not in the run table, and left out: {few([f'`{name}`' for name in report.left_out], 12)}.")
    rows = [
        group.iloc[0].to_dict() | {"run": few(list(group["run"]), 6)}
        for _, group in (table.frame.groupby([each.name for each in apart], sort=False, dropna=False) if apart else ())
    ]
    tables = (make_table(table.caption, (Column("run", "Runs"), *apart), rows),) if apart else ()
    return (
        Part(
            "provenance",
            "Where this comes from",
            (shared,),
            (),
            tables,
            (*notes, f"{len(known)} records in `results/runs`"),
        )
        if known
        else None
    )


def mixed(report):
    """Names of the workloads whose runs different code trained. Workloads differ in code of their own: formats, model classes."""
    groups = grouped(report.done, lambda record: record.run.workload.name)
    return [name for name, some in groups.items() if len({record.provenance["code_digest"] for record in some}) > 1]


def _joined(values):
    """Each value once, in words; None without any."""
    return ", ".join(dict.fromkeys(map(str, values or ()))) or None


def _origin(record):
    """What is known of a run's origin; each version is a fact of its own, so that only those differ that do."""
    origin = record.provenance
    return {
        "run": record.name,
        "seed": record.run.seed,
        "code": (origin["code_digest"] or "")[:12] or None,
        "commit": (origin["git_commit"] or "")[:12] or None,
        "site": record.site.title or record.site.name,
        "machine": machines_text(record) or None,
        "hosts": _joined(origin["hosts"]),
        "jobs": _joined(origin["job_ids"]),
        **{f"version of {name}": version or None for name, version in (origin["versions"] or {}).items()},
    }


PARTS = [
    parity,
    of_figure(figures.memory),
    of_figure(figures.loss),
    quality,
    formats,
    checkpoints,
    communication,
    provenance,
]
