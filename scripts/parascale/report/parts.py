"""The folded parts below the comparison: parity, memory, loss, quality, formats, checkpoints and provenance.

To add a part, write a function that turns a Report into a Section and add it to PARTS. Empty Sections are left out.
"""

from dataclasses import dataclass

from parascale.errors import shorten_list
from parascale.report import figures, numbers
from parascale.report.comparing import grouped
from parascale.report.machines import machines_text
from parascale.report.summary import of_runs
from parascale.report.tables import RUN, Column, columns, make_table


@dataclass(frozen=True)
class Section:
    """A folded part of the page. words: sentences above its charts and tables; notes: a list below them."""

    identity: str
    title: str
    words: tuple = ()
    charts: tuple = ()
    tables: tuple = ()
    notes: tuple = ()

    def __bool__(self):
        return any((self.charts, *map(len, self.tables), self.notes))


def parts(report):
    return [part for part in (*(make(report) for make in PARTS), *report.studies) if part]


def figure(name, title):
    """A function that turns a Report into a Section with a single figure."""
    return lambda report: Section(name, title, charts=tuple(filter(None, [figures.chart(report, name)])))


# --- is the result the same?

PARITY = (
    Column("verdict", "Verdict", kind="verdict"),
    *columns(numbers.tiny, loss_difference="Loss difference, nats", grad_norm_difference="Gradient norm, relative"),
    Column("weight_difference", "Weights, relative", numbers.tiny, below="worst_tensor"),
    Column("first_step_outside", "First step outside", numbers.whole),
    *columns(compared="Compared over", baseline="Baseline"),
)
SAME = (
    "Each comparable layout trained a few extra steps from the same start as its baseline. `same` is about these "
    "short exact runs: layouts sum in different orders, so over a whole training, in its own precision, final losses may end slightly apart. A difference is the "
    "largest over the steps.",
)
ALLOWED = {"loss": "in a loss", "grad_norm": "in a gradient norm", "weights": "in a tensor of weights"}


def parity(report):
    """Parity of each run with its baseline, the tolerances, and the reasons for other verdicts than `same`."""
    checked = [record for record in report.records if record.parity is not None]
    allowed, reasons = {}, []
    for name, found in ((record.name, record.parity) for record in checked):
        limits = found.tolerances
        values = [f"{numbers.tiny(limits[key])} {what}" for key, what in ALLOWED.items() if key in limits]
        if values:
            allowed[f"Allowed in {found.precision}: {', '.join(values)}."] = None
        if found.verdict not in ("same", "baseline"):
            reasons.append(f"`{name}`: {found.reason}")

    def row(record):
        found = record.parity
        compared = f"{numbers.plural(found.steps, 'step')} in {found.precision}" if found.steps else ""
        return vars(found) | {"compared": compared}

    table = of_runs(report, "Parity of each run with its baseline", PARITY, checked, row)
    return Section("parity", "Is the result the same?", SAME, tables=(table,), notes=(*allowed, *reasons))


# --- how good are the models?

ROUGE = columns("{:.3f}".format, rouge1="ROUGE-1", rouge2="ROUGE-2", rougeL="ROUGE-L")
SCORES = (RUN, Column("writer", "Written by"), *ROUGE, Column("documents", "Documents", numbers.whole))
ACCURACY = {"validation_accuracy": "Validation accuracy", "validation_top5": "Validation, top 5"}
ACCURACY |= {"test_accuracy": "Test accuracy", "test_top5": "Test, top 5"}
LOSS = {"train_loss": "Training loss, last 10 steps", "validation_loss": "Validation loss", "test_loss": "Test loss"}
QUALITY = (*columns(numbers.loss, **LOSS), Column("test_perplexity", "Test perplexity", numbers.significant))
QUALITY += (*columns(numbers.share, **ACCURACY),)
EXAMPLES = (RUN, *columns(document="Document", reference="Reference", summary="Summary"))


def quality(report):
    """Losses and accuracies of all runs, ROUGE and examples of summaries, and samples that were left out."""
    rouge = "Summaries of the test split: mean F1 with the references"
    tables = (
        of_runs(report, "Losses and accuracies", QUALITY, report.done).known(),
        make_table(rouge, SCORES, _scores(report), report.series),
        make_table("Some summaries", EXAMPLES, _examples(report)),
    )
    kept = tuple(table for table in tables if len(table))
    return Section("quality", "How good the models are", tables=kept, notes=tuple(_exclusions(report)))


def _scores(report):
    """Rows for beam search, greedy search and the document's first words, which a summariser must beat."""
    for record in (record for record in report.done if record.summaries):
        found = record.summaries
        writers = {"beam": f"{found['beams']} beams", "greedy": "greedy search"}
        for key, writer in (writers | {"lead": f"first {found['lead_words']} words"}).items():
            yield {"run": record.name, "case": key, "writer": writer, "documents": found["documents"], **found[key]}


def _examples(report):
    """Example summaries of the first summariser of each workload."""
    known = [record for record in report.done if record.summaries.get("examples")]
    for record, *_ in grouped(known, lambda record: record.run.workload.name).values():
        yield from ({"run": record.name, **example} for example in record.summaries["examples"])


def _exclusions(report):
    """Sentences on samples that were left out or cut, once for each workload."""
    said = {}
    for record in report.done:
        for split, counts in (record.provenance.get("excluded") or {}).items():
            if words := [f"{reason.replace('_', ' ')} {count:,}" for reason, count in counts.items() if count]:
                said[f"Left out or cut of `{record.run.workload.name}`, {split}: {', '.join(words)}."] = None
    return said


# --- data formats and checkpoints

# Way of reading a format → (access, cache, True if decoded into tensors).
WAYS = {"random": ("random", "warm", False), "sequential": ("sequential", "warm", False)}
WAYS |= {"cold": ("random", "cold", False), "decoded": ("random", "warm", True)}
RATES = {"random": "At random", "sequential": "In order", "cold": "Cold, at random", "decoded": "File to tensor"}
FORMATS = (
    Column("format", "Format", below="advised"),
    *columns(numbers.significant, **RATES),
    Column("bytes", "Size", numbers.memory),
    Column("inodes", "Inodes", numbers.whole),
    Column("write_seconds", "Written in", numbers.duration),
)
# The page shows columns with a title; `checkpoints.csv` has all.
FORMS = (
    *(RUN, Column("layout", "From layout"), Column("form", "To form", below="dtype"), Column("dtype")),
    Column("bytes", "Size", numbers.memory),
    Column("seconds", "Time", numbers.duration),
    Column("gb_per_second", "GB/s", numbers.significant),
    Column("peak_memory_bytes", "Peak memory", numbers.memory),
    Column("identical", "Weights", text="alike", kind="verdict", below="apart"),
    Column("logits_difference"),
    Column("optimizer", "Optimizer", text="carried"),
    Column("test_loss", "Test loss", numbers.loss),
)
COPIES = (
    "Each form was written from the shards of its layout, read back by its own library and compared. `identical`: every tensor to the bit, "
    "and the same loss; `same logits`: that library computes the model with its own code, and in fp32 no logit differs by more than shown below.",
)


def formats(report):
    """Reading speed, size and writing time of each format, and the recommended one."""
    known = [each for each in report.readings if each.frame is not None]
    words = tuple(f"`{each.name}`: {each.advice} Measured on {each.machine.get('cpu')}." for each in known)
    notes = tuple(each.note for each in report.readings if each.note)
    return Section("formats", "Which data format", words, tables=tuple(map(_formats_table, known)), notes=notes)


def _formats_table(readings):
    """A row per format, with its highest rate from disk for each of WAYS."""
    frame = readings.frame
    disk, table = frame[frame["place"] == "disk"], frame.groupby("format", sort=False).first()
    for name, (access, cache, decoded) in WAYS.items():
        way = (disk["access"] == access) & (disk["cache"] == cache) & (disk["decoder"].notna() == decoded)
        table[name] = disk[way].groupby("format")["samples_per_second"].max()
    table["advised"] = ["recommended" if name == readings.format else "" for name in table.index]
    caption = f"{readings.name}: {readings.unit} a second, the fastest way of reading each format"
    return make_table(caption, FORMATS, table.reset_index().to_dict("records")).known()


def conversions_table(report):
    """A row for each converted checkpoint."""
    caption = "From the layout that trained, into the form that was written"
    return make_table(caption, FORMS, map(_form, report.conversions), report.series)


def checkpoints(report):
    """Converted checkpoints: layout that trained, form that was written, and the check that both are the same model."""
    return Section("checkpoints", "Checkpoints in other forms", COPIES, tables=(conversions_table(report),))


def _form(row):
    apart, same = row["logits_difference"], row["identical"]
    alike = "differ" if not same else "identical" if apart is None else "same logits"
    words = {"alike": alike, "apart": apart and f"to {numbers.tiny(apart)}", "verdict": "same" if same else "different"}
    return row | words | {"case": row["form"], "carried": "carried along" if row["optimizer"] else "not in it"}


# --- where it comes from

ORIGIN = columns(run="Runs", seed="Seed", code="Code digest", commit="Git commit", site="Site", machine="Machine")
ORIGIN += columns(hosts="Hosts", versions="Versions")


def provenance(report):
    """Code, machine and versions; runs of the same origin share a row."""
    known = [record for record in report.records if record.provenance]
    groups = grouped(known, lambda record: tuple(_origin(record).items()))
    rows = [dict(origin) | {"run": shorten_list([each.name for each in some], 6)} for origin, some in groups.items()]
    left_out = shorten_list([f"`{name}`" for name in report.left_out], 12)
    notes = (f"Not in the run table, and left out: {left_out}.",) if left_out else ()
    tables = (make_table("Origin of the runs", ORIGIN, rows).known(),)
    return Section("provenance", "Where this comes from", tables=tables, notes=notes)


def _origin(record):
    origin, site = record.provenance, record.site
    versions = (f"{name} {version}" for name, version in (origin["versions"] or {}).items() if version)
    return {
        "seed": record.run.seed,
        "code": (origin["code_digest"] or "")[:12] or None,
        "commit": (origin["git_commit"] or "")[:12] or None,
        "site": site.title or site.name,
        "machine": machines_text(record) or None,
        "hosts": ", ".join(dict.fromkeys(origin["hosts"] or ())) or None,
        "versions": ", ".join(versions) or None,
    }


FIGURES = figure("memory", "Memory"), figure("loss", "Loss against training time")
PARTS = [parity, *FIGURES, quality, formats, checkpoints, provenance]
