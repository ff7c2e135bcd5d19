"""The section on data formats: how fast each is read here, what it costs to write, and which to take."""

from parascale.report import numbers
from parascale.report.drawing import Figure
from parascale.report.plots import Bar, bars_panel
from parascale.report.section import Section
from parascale.report.tables import Column, columns, make_table

ACCESS = (("random", "at random"), ("sequential", "in order"))


# Of each format, its fastest ways of reading, and what it costs to make and to keep.
FORMATS = (
    Column("format", "Format", below="advised"),
    Column("random_rate", "At random", numbers.significant, below="random_way"),
    Column("sequential_rate", "In order", numbers.significant, below="sequential_way"),
    Column("cold_rate", "Cold, at random", numbers.significant, below="cold_way"),
    Column("decoded_rate", "File to tensor", numbers.significant, below="decoded_way"),
    Column("decoded_a_core", "A core", numbers.significant),
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
    Column("samples_per_second", "Samples/s", numbers.significant),
    Column("a_core", "A core", numbers.significant),
    Column("spread", "Spread", numbers.percent),
    *columns(
        "{:,.2f}".format,
        bytes_read_per_byte="Read per byte",
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
            (readings, _formats_table(readings), (_measured_on(report, readings), _ceilings(readings)))
            for readings in report.readings
        ],
        "figures": [figure] if figure.panels else [],
    }
    return Section(
        "formats", "Which data format", "loaders.html", values, "`results/loaders/<dataset>.csv` and `.json`"
    )


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
            yield bars_panel(title, f"Bars of {readings.unit} read a second {words}", bars)


def _formats_table(readings):
    """One row a format. What was measured of no format is left out."""
    caption = f"{readings.dataset}: {readings.unit} a second, fastest way of reading each format"
    return make_table(caption, FORMATS, [_formats_row(readings, name) for name in readings.formats]).known()


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
    trained = [each for each in report.records if each.run and each.run.workload.data.dataset == readings.dataset]
    others = {node["cpu"] for record in trained for node in record.provenance.get("machines") or ()} - {cpu}
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
    said = (
        f"At best, this machine manages {numbers.listed([f'{value / 1e9:.1f} GB/s {words}' for words, value in known])}"
    )
    best = readings.fastest(readings.format, "random")
    if best is None or not best.sample_bytes:
        return f"{said}."
    rate = best.samples_per_second * best.sample_bytes
    size = numbers.memory(best.sample_bytes)
    return f"{said}; `{readings.format}` at random gives {rate / 1e9:.2f} GB/s in samples of {size}."


def _details(every):
    rows = (
        {"dataset": readings.dataset, **vars(row), "a_core": row.a_core} for readings in every for row in readings.rows
    )
    return make_table("Every way of reading that was measured; an empty cell is not known", CASES, rows)
