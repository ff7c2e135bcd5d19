"""The section on data formats: how fast each is read here, what it costs to write, and which to take."""

from parascale.report import numbers
from parascale.report.drawing import Figure
from parascale.report.machines import machines_of
from parascale.report.plots import Bar, bars_panels
from parascale.report.section import Section
from parascale.report.tables import Column, columns, make_table

ACCESS = (("random", "at random"), ("sequential", "in order"))
# How a format is read, in the order of its table.
RATES = {"random": "At random", "sequential": "In order", "cold": "Cold, at random", "decoded": "File to tensor"}
COSTS = (
    Column("bytes", "Size", numbers.memory),
    Column("inodes", "Inodes", numbers.whole),
    Column("write_seconds", "Written in", numbers.duration, below="write_cpu_seconds"),
    Column("write_cpu_seconds", shown=lambda seconds: f"CPU {numbers.duration(seconds)}"),
)
# Every case that was measured.
CASES = (
    *columns(dataset="Dataset", format="Format", access="Access", cache="Cache", io="Call", place="Place"),
    Column("workers", "Workers", numbers.whole),
    Column("decoder", "Decoder"),
    Column("samples_per_second", "Samples/s", numbers.significant, below="unit"),
    Column("a_core", "Samples/s of a core", numbers.significant),
    Column("spread", "Spread", numbers.percent),
    *columns(
        "{:,.2f}".format,
        bytes_read_per_byte="Bytes read per byte of a sample",
        read_calls_per_sample="Calls a sample",
        opens_per_sample="Opens a sample",
    ),
    Column("first_batch_seconds", "First batch", numbers.duration_of_step),
    Column("peak_memory_bytes", "Peak memory", numbers.memory),
)


def loaders(report):
    """Samples a second of each format, in order and at random, from the page cache."""
    return Figure(
        "loaders",
        "Reading each format",
        "Samples a second of one process that takes the encoded bytes and nothing else, from the page cache, by pread or "
        "mmap, whichever is faster. Whiskers show the spread of the passes; the recommended format is set in bold.",
        tuple(panel for readings in report.readings if readings.rows for panel in _panels(readings)),
        samples=True,
        table=_details(report.readings),
    )


def loaders_section(report):
    """A table and a recommendation for each dataset."""
    figure = loaders(report)
    values = {
        "datasets": [
            (
                readings,
                _formats_table(readings),
                (_read_by(report, readings), _measured_on(report, readings), _ceilings(readings)),
            )
            for readings in report.readings
        ],
        "figures": [figure] if figure.panels else [],
    }
    files = numbers.listed(f"`results/loaders/{readings.dataset}.csv`" for readings in report.readings)
    return Section("formats", "Which data format", "loaders.html", values, f"{files} and the `.json` beside it")


def _trained(report, readings):
    """The runs that train on a dataset."""
    return [record for record in report.records if record.run and record.run.workload.data.dataset == readings.dataset]


def _read_by(report, readings):
    """Which workloads train on a dataset."""
    names = sorted({f"`{record.run.workload.name}`" for record in _trained(report, readings)})
    return f"`{readings.dataset}` is the data of {numbers.listed(names)}." if names else ""


def _panels(readings):
    """A panel of bars for each kind of access."""
    for access, words in ACCESS:
        bars = []
        for name in readings.formats:
            fastest = readings.fastest(name, access)
            if fastest is not None:
                rate, half = fastest.samples_per_second, fastest.samples_per_second * fastest.spread / 2
                text = f"{numbers.significant(rate)}/s"
                parts = (("c0", rate, f"{name} {words}, {fastest.io}: {text}"),)
                bars.append(Bar(name, parts, text, (max(rate - half, 0), rate + half), name == readings.format))
        if bars:
            title = f"{readings.dataset}: {readings.unit} a second {words}"
            yield from bars_panels(title, f"Bars of {readings.unit} read a second {words}", bars)


def _formats_table(readings):
    """One row a format: its fastest ways of reading, and what it costs to make and to keep. What was measured of none is left out."""
    caption = f"{readings.dataset}: {readings.unit} a second, fastest way of reading each format"
    made = (
        Column("format", "Format", below="advised"),
        *(
            Column(f"{way}_rate", f"{title}, {readings.unit}/s", numbers.significant, below=f"{way}_way")
            for way, title in RATES.items()
        ),
        Column("decoded_a_core", f"File to tensor, {readings.unit}/s of a core", numbers.significant),
        *COSTS,
    )
    return make_table(caption, made, [_formats_row(readings, name) for name in readings.formats]).known()


def _formats_row(readings, name):
    rows = [row for row in readings.rows if row.format == name]
    ways = {
        "random": readings.fastest(name, "random"),
        "sequential": readings.fastest(name, "sequential"),
        "cold": readings.fastest(name, "random", cache="cold"),
        "decoded": readings.fastest(name, "random", decoded=True),
    }
    row = vars(rows[0]) | {"advised": "recommended" if name == readings.format else ""}
    for way, reading in ways.items():
        if reading is not None:
            workers = numbers.plural(reading.workers, "worker") if reading.workers else "no workers"
            row |= {
                f"{way}_rate": reading.samples_per_second,
                f"{way}_way": f"{reading.decoder}, {workers}" if way == "decoded" else reading.io,
                f"{way}_a_core": reading.a_core,
            }
    return row


def _measured_on(report, readings):
    """Which processors read, and whether those that trained are others: then readers may be faster or slower there."""
    cpu = readings.machine.get("cpu")
    if not cpu:
        return ""
    others = {node["cpu"] for record in _trained(report, readings) for node in machines_of(record)} - {cpu}
    if not others:
        return f"Measured on {cpu}."
    there = "`--config data_partition=none` measures on their nodes"
    return f"Measured on {cpu}, while trainings ran on {numbers.listed(sorted(others))}; {there}."


def _ceilings(readings):
    """A sentence on what the machine can do at best, and what part of it the recommended format reaches."""
    known = [
        (words, readings.ceilings[key])
        for key, words in (("preadv", "reading a large file from the page cache"), ("memcpy", "copying memory"))
        if readings.ceilings.get(key)
    ]
    if not known:
        return ""
    said = f"While it was measured, this machine managed at best {numbers.listed([f'{value / 1e9:.1f} GB/s {words}' for words, value in known])}"
    best = readings.fastest(readings.format, "random")
    if best is None or not best.sample_bytes:
        return f"{said}."
    rate = best.samples_per_second * best.sample_bytes
    size = numbers.memory(best.sample_bytes)
    return f"{said}; `{readings.format}` at random gives {rate / 1e9:.2f} GB/s in samples of {size}."


def _details(every):
    rows = (
        {"dataset": readings.dataset, **vars(row), "a_core": row.a_core, "unit": readings.unit}
        for readings in every
        for row in readings.rows
    )
    return make_table("Every way of reading that was measured; an empty cell is not known", CASES, rows)
