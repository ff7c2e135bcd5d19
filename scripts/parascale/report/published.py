"""What others published for the same trainings, beside what was measured here, and whether the two may be compared.

They are facts and no settings: a workload that named them would be stale whenever one is added.
"""

from dataclasses import asdict, dataclass

from parascale.report import layouts, numbers
from parascale.report.section import Section
from parascale.report.summary import perplexity
from parascale.report.tables import RUN, Column, columns, make_table
from parascale.settings.workload import LANGUAGE_MODEL

NOTE = "Times on other hardware say nothing about the code: such rows are there for orientation."
NOTHING_NEAR = "No run here is comparable with the {} published figures of the same kinds of training."
COURSE = "Course `Bringing Deep Learning Workloads to JSC supercomputers`"
AWD_LSTM = "AWD-LSTM: Merity, Keskar and Socher 2017, arXiv:1708.02182"
# Name → heading, value of a record, how it is written.
FIGURES = {
    "seconds": ("Training time", lambda record: record.summary.seconds, numbers.duration),
    "test_loss": ("Test loss", lambda record: record.summary.test_loss, "{:.3f}".format),
    "accuracy": ("Accuracy", lambda record: record.summary.test_accuracy, "{:.3f}".format),
    "perplexity": ("Test perplexity", lambda record: perplexity(record, record.summary.test_loss), "{:,.1f}".format),
    "gpu_use": ("GPU use", lambda record: record.summary.gpu_utilisation, numbers.percent),
}
COLUMNS = (
    RUN,
    *columns(published="Published", figure="Figure"),
    Column("theirs", "Theirs", numbers.significant, text="theirs_words"),
    Column("ours", "Ours", numbers.significant, text="ours_words"),
    *columns(their_hardware="Their hardware", our_hardware="Our hardware", comparable="Comparable", source="Source"),
)


@dataclass(frozen=True)
class Published:
    """Figures of one training: name in FIGURES → its (GPUs, value), None where the hardware does not matter.

    task: what is learned. gpu: a word in the name of its GPUs. machine: where. data: a word in the name or
    source of its data, without hyphens. trained: settings that a comparable run has, of the model and the training, and as
    `_settings` has them. differs: what else is not as here, in words. shown: what is published instead of one value.
    """

    task: str
    what: str
    figures: dict
    source: str = COURSE
    gpu: str = "A100"
    machine: str = "JURECA-DC"
    data: str = ""
    trained: tuple = ()
    differs: str = ""
    shown: str = ""


LANGUAGE = "Transformer on WikiText-2, 10 epochs of windows of 32 at stride 1"
SUMMARIES = "Summaries of XSum"
IMAGES = "xresnet50 on Imagewoof, 160 pixels, 1 + 6 epochs"
OF_LANGUAGE = (("window", 32), ("stride", 1), ("gpu_batch", 128), ("epochs", 10))
ITS_MODEL = (("dim", 128), ("heads", 4), ("layers", 4), ("hidden", 2048))
OF_SUMMARIES = (("window", 512), ("summary_window", 150), ("gpu_batch", 4), ("epochs", 5))
OF_IMAGES = (("image_size", 160), ("gpu_batch", 64), ("epochs", 7), ("label_smoothing", 0.0))
AS_FASTAI = (
    "half precision is fp16 there, the optimizer's means are reset for the second cycle, and an epoch's last batch is left out "
    "where it is not full"
)
OF_LEADERBOARD = (("image_size", 192), ("whole_batch", 128), ("epochs", 5), ("label_smoothing", 0.1))
LEADERBOARD = "Imagewoof leaderboard of April 2019, https://github.com/fastai/imagenette"
PUBLISHED = (
    Published(
        "language_model",
        LANGUAGE,
        {"seconds": ((1, 5520.0), (4, 1500.0), (8, 840.0))},
        data="wikitext2",
        trained=(*OF_LANGUAGE, *ITS_MODEL),
        differs="its attention sees the words that it predicts",
    ),
    Published(
        "language_model",
        f"{LANGUAGE}, with DDP",
        {"gpu_use": ((4, None),)},
        data="wikitext2",
        trained=(("strategy", "ddp"), *OF_LANGUAGE, *ITS_MODEL),
        shown="80 to 86 %",
    ),
    Published(
        "language_model",
        "AWD-LSTM on WikiText-2",
        {"perplexity": ((None, 65.8),)},
        AWD_LSTM,
        machine="any hardware",
        data="wikitext2",
        differs="an LSTM with other regularisation",
    ),
    Published(
        "summarisation",
        SUMMARIES,
        {"seconds": ((1, 780.0), (4, 240.0)), "test_loss": ((1, 0.636), (4, 0.538))},
        data="xsum",
        trained=OF_SUMMARIES,
        differs="it goes on from the weights of T5-base, and its loss is a mean over padding too",
    ),
    Published(
        "classification",
        IMAGES,
        {
            "seconds": ((1, 344.972), (4, 79.979), (8, 75.651)),
            "accuracy": ((1, 0.539), (4, 0.503), (8, 0.394)),
        },
        machine="JUWELS Booster",
        data="imagewoof",
        trained=OF_IMAGES,
        differs=AS_FASTAI,
    ),
    Published(
        "classification",
        "xresnet50 on Imagewoof, 192 pixels, 5 epochs",
        {"accuracy": ((None, 0.602),)},
        LEADERBOARD,
        machine="any hardware",
        data="imagewoof",
        trained=OF_LEADERBOARD,
        differs="the set was split otherwise then, with 12,454 images to train on and 500 to validate, half precision is fp16 there, "
        "and batch norm has the statistics of 64 images",
    ),
)


def published_section(report):
    """A table of what is published for the trainings of this report; None where nothing is."""
    rows = [row for record in report.done for entry in PUBLISHED for row in _rows(record, entry)]
    if not rows:
        return None
    table = make_table("Published figures beside ours", COLUMNS, rows, report.all_series)
    near = sum(row["comparable"] == "yes" for row in rows)
    values = {"table": table, "notes": (NOTE,), "none": "" if near else NOTHING_NEAR.format(len(rows))}
    files = "ours `summary.csv`; theirs the source that a row names"
    return Section("published", "Beside published figures", "published.html", values, files)


def _rows(record, entry):
    """The rows of a run beside the published values on as many GPUs."""
    if record.run.workload.task != entry.task:
        return
    for figure, gpus, value in ((figure, *each) for figure, values in entry.figures.items() for each in values):
        heading, of, shown = FIGURES[figure]
        ours = of(record)
        if ours is None or gpus not in (None, record.run.layout.world_size):
            continue
        if gpus is None and not same_data(entry, record):
            continue  # not even its time can be set beside it
        differs = differences(entry, gpus, record)
        yield {
            "run": record.name,
            "case": figure,
            "published": entry.what,
            "figure": heading,
            "theirs": value,
            "theirs_words": entry.shown or shown(value),
            "ours": ours,
            "ours_words": shown(ours),
            "their_hardware": f"{numbers.plural(gpus, entry.gpu)}, {entry.machine}" if gpus else entry.machine,
            "our_hardware": f"{layouts.hardware_text(record)}, {record.site.gpu or record.site.title or record.site.name}",
            "comparable": f"no: {'; '.join(differs)}" if differs else "yes",
            "source": entry.source.replace("`", ""),
        }


def differences(entry, gpus, record):
    """In words, what keeps a run from being comparable with a published value."""
    differs, ours = [], _settings(record.run)
    if not same_data(entry, record):
        differs.append("other data")
    if gpus is not None and entry.gpu not in record.site.gpu:
        differs.append("other hardware")
    if gpus is not None and gpus != record.gpus:
        differs.append(f"{record.gpus} held instead of {gpus}")
    for name, value in entry.trained:
        if ours[name] != value:
            differs.append(f"{name} {_written(ours[name])} instead of {_written(value)}")
    return [*differs, *([entry.differs] if entry.differs else [])]


def _settings(run):
    """What `Published.trained` may ask for. whole_batch: of all ranks, however it is scaled; gpu_batch: its part for a GPU."""
    training, model = run.workload.training, run.workload.model
    defaults = {}  # those that follow from other settings
    if run.workload.task == LANGUAGE_MODEL:
        defaults = {"hidden": model.hidden_width, "stride": training.stride or training.window}
    return {
        **asdict(model),
        **asdict(training),
        **defaults,
        "strategy": run.strategy,
        "whole_batch": run.global_batch,
        "gpu_batch": run.global_batch / run.layout.world_size,
    }


def _written(value):
    return "unset" if value is None else f"{value:g}" if isinstance(value, int | float) else value


def same_data(entry, record):
    """Whether a run reads the dataset of a published value, by its dataset's or its source's name."""
    data = record.run.workload.data
    return entry.data in f"{data.dataset} {data.source}".lower().replace("-", "").replace("_", "")
