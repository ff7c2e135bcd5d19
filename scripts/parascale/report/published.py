"""What others have published for the same trainings, beside what was measured here, and whether the two may be compared.

The figures of the course are those of its slides and of its repository; two of its figures are comparable only where
hardware, amount of data and way of training are the same, so each row says what is not.
"""

from dataclasses import dataclass

from parascale.report import layouts, numbers
from parascale.report.sections import Section
from parascale.report.tables import Cell, Row, Table, perplexity

COURSE = "Bringing Deep Learning Workloads to JSC supercomputers, course material"
AWD_LSTM = "Merity, Keskar and Socher 2017, arXiv:1708.02182"
A100 = "A100"


@dataclass(frozen=True)
class Published:
    """A published figure. Where `gpus` is None, its hardware does not matter.

    subject: wikitext, summarisation or classification. figure: what it is a figure of: seconds, test_loss, perplexity,
    accuracy or utilisation. trained: settings of the training that a comparable run shares. remark: what else differs.
    """

    subject: str
    what: str
    hardware: str
    gpus: int | None
    figure: str
    value: float
    source: str
    trained: tuple = ()
    remark: str = ""
    idle: bool = False


def _course(subject, what, machine, rows, trained=(), remark="", figure="seconds"):
    """A row for each (GPUs, value)."""
    return tuple(
        Published(subject, what, f"{numbers.plural(gpus, 'A100')} 40 GB, {machine}", gpus, figure, value, COURSE, trained, remark)
        for gpus, value in rows
    )


WIKITEXT = "Transformer on WikiText-2, 10 epochs of windows of 32 at stride 1"
OTHER_LOSS = "its loss is a mean over padding as well"
OTHER_ACCURACY = "more GPUs mean a larger batch at the same learning rate there"
PUBLISHED = (
    *_course(
        "wikitext", WIKITEXT, "JURECA-DC", ((1, 5520.0), (4, 1500.0), (8, 840.0)),
        (("window", 32), ("stride", 1), ("epochs", 10)), "its attention sees the words that it predicts",
    ),
    *_course("summarisation", "Summaries of XSum", "JURECA-DC", ((1, 780.0), (4, 240.0))),
    *_course(
        "summarisation", "Summaries of XSum", "JURECA-DC", ((1, 0.636), (4, 0.538)), remark=OTHER_LOSS, figure="test_loss"
    ),
    *_course(
        "classification", "xresnet50 on Imagewoof, 160 pixels, 1 + 6 epochs", "JUWELS Booster",
        ((1, 344.972), (4, 79.979), (8, 75.651)),
    ),
    *_course(
        "classification", "xresnet50 on Imagewoof, 160 pixels, 1 + 6 epochs", "JUWELS Booster",
        ((1, 0.539), (4, 0.503), (8, 0.394)), remark=OTHER_ACCURACY, figure="accuracy",
    ),
    Published("any", "GPU use, 4 GPUs asked for and 1 used", "4 A100 40 GB", 4, "utilisation", 0.23, COURSE, idle=True),
    Published("any", "GPU use with DDP, at least", "4 A100 40 GB", 4, "utilisation", 0.80, COURSE),
    Published(
        "wikitext", "AWD-LSTM on WikiText-2, 33 k words with <unk>", "any", None, "perplexity", 65.8, AWD_LSTM,
        remark="another model, trained for 750 epochs",
    ),
)  # fmt: skip
FIGURES = {
    "seconds": ("Training time", lambda record: record.summary.seconds, numbers.duration),
    "test_loss": ("Test loss", lambda record: record.summary.test_loss, lambda value: numbers.fixed(value, 3)),
    "accuracy": ("Accuracy", lambda record: record.summary.accuracy, lambda value: numbers.fixed(value, 3)),
    "perplexity": (
        "Test perplexity",
        lambda record: perplexity(record, record.summary.test_loss),
        lambda value: numbers.fixed(value, 1),
    ),
    "utilisation": ("GPU use", lambda record: record.summary.gpu_utilisation, numbers.percent),
}


def published_section(report):
    """A table of what is published for the trainings of this report; None where nothing is."""
    rows = [row for entry in PUBLISHED for row in _rows(report, entry)]
    if not rows:
        return None
    columns = (("Published", False), ("Figure", False), ("Its hardware", False), ("Its value", True), ("Run here", False))
    columns += (("Our hardware", False), ("Our value", True), ("Comparable", False), ("Source", False))
    table = Table("Published figures beside ours", columns, tuple(rows))
    notes = ("A ratio of times across different hardware says nothing about the code; such rows are there for orientation.",)
    return Section("published", "Beside published figures", "table.html", {"table": table, "notes": notes})


def _rows(report, entry):
    """A row for each run whose figure may stand beside a published one."""
    title, of, shown = FIGURES[entry.figure]
    for record in report.done:
        value = of(record) if _concerns(entry, record) else None
        if value is None:
            continue
        differs = differences(entry, record)
        cells = (
            Cell(entry.what),
            Cell(title),
            Cell(entry.hardware),
            Cell(shown(entry.value), entry.value, "published"),
            Cell(record.name),
            Cell(f"{layouts.hardware_text(record)}, {record.site.gpu or record.site.title or record.site.name}"),
            Cell(shown(value), value, "ours"),
            Cell(f"no: {'; '.join(differs)}" if differs else "yes"),
            Cell(entry.source),
        )
        yield Row(record.name, cells, report.series(record))


def _concerns(entry, record):
    """Whether a run is of a published figure's kind: subject, and number of GPUs or processes where that matters."""
    workload, layout = record.run.workload, record.run.layout
    subject = workload.task
    if subject == "language_model":
        source = workload.data.source
        subject = "wikitext" if "wikitext-2" in f"{source.name} {source.config} {workload.data.dataset}".lower() else "text"
    if entry.subject not in ("any", subject):
        return False
    if entry.figure == "utilisation":
        return bool(layout.idle_gpus) == entry.idle and (entry.idle or record.run.strategy in ("ddp", "multi_node"))
    return entry.gpus in (None, layout.world_size)


def differences(entry, record):
    """In words, what keeps a run from being comparable with a published figure."""
    differs, training = [], record.run.workload.training
    if entry.gpus is not None and A100 not in record.site.gpu:
        differs.append("other hardware")
    elif entry.gpus is not None and entry.gpus != record.gpus:
        differs.append(f"{record.gpus} GPUs instead of {entry.gpus}")
    stride = training.stride or training.window
    ours = {"window": training.window, "stride": stride, "epochs": training.epochs}
    differs += [
        f"{name} {'unset' if ours[name] is None else f'{ours[name]:g}'} instead of {value}"
        for name, value in entry.trained
        if ours[name] != value
    ]
    return [*differs, *([entry.remark] if entry.remark else [])]
