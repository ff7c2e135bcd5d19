"""The section on data formats: how fast each is read here, what it costs to write, and which to take."""

from parascale.report import numbers
from parascale.report.drawing import Figure
from parascale.report.plots import Bar, bars_panel
from parascale.report.section import Section
from parascale.report.tables import Cell, make_table, number

ACCESS = (("random", "at random"), ("sequential", "in order"))


def loaders(report):
    """Samples a second of each format, in order and at random, from the page cache."""
    return Figure(
        "loaders",
        "Reading each format",
        "Samples a second of one process that takes the encoded bytes and nothing else, from the page cache, by pread or "
        "mmap, whichever is faster. Whiskers are as long as the passes are apart; the recommended format is set in bold.",
        tuple(panel for readings in report.readings if readings.rows for panel in _panels(readings)),
        table=_details(report.readings),
    )


def loaders_section(report):
    """A table and a recommendation for each dataset."""
    figure = loaders(report)
    values = {
        "datasets": [(readings, _formats_table(readings), _ceilings(readings)) for readings in report.readings],
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
    """One row a format: its fastest ways of reading, and what it costs to make and to keep. None where nothing was read.

    What was measured of no format is left out.
    """
    rows = [(name, _formats_row(readings, name)) for name in readings.formats]
    empty = [heading for heading in (rows[0][1] if rows else ()) if not any(row[heading].text for _, row in rows)]
    rows = [(name, {heading: row[heading] for heading in row if heading not in empty}) for name, row in rows]
    return make_table(f"{readings.dataset}: {readings.unit} a second, fastest way of reading each format", rows)


def _formats_row(readings, name):
    first = next(row for row in readings.rows if row.format == name)
    decoded = max(
        (row for row in readings.rows if row.format == name and row.decode and row.cache == "warm"),
        key=lambda row: row.samples_per_second,
        default=None,
    )
    workers = decoded and (numbers.plural(decoded.workers, "worker") if decoded.workers else "no workers")
    return {
        "Format": Cell(name, small=Cell("recommended" if name == readings.format else "")),
        "At random": _rate_cell(readings.fastest(name, "random"), "random_rate"),
        "In order": _rate_cell(readings.fastest(name, "sequential"), "sequential_rate"),
        "Cold, at random": _rate_cell(readings.fastest(name, "random", cache="cold"), "cold_rate"),
        "Decoded": _rate_cell(decoded, "decoded_rate", workers),
        "Size": number(first.bytes, numbers.memory, "format_bytes"),
        "Inodes": number(first.inodes, numbers.whole, "inodes"),
        "Written in": _written_cell(first),
    }


def _rate_cell(reading, figure, small=None):
    if reading is None:
        return Cell("", numeric=True)
    return number(reading.samples_per_second, numbers.significant, figure, small=Cell(small or reading.io))


def _written_cell(reading):
    processor = reading.write_cpu_seconds
    small = Cell(f"CPU {numbers.duration(processor)}" if processor is not None else "")
    return number(reading.write_seconds, numbers.duration, "write_seconds", small=small)


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
    """Every case that was measured."""
    caption = "Every way of reading that was measured; an empty cell is not known"
    rows = [(readings.dataset, _details_row(readings.dataset, row)) for readings in every for row in readings.rows]
    return make_table(caption, rows)


def _details_row(dataset, row):
    hundredths = "{:,.2f}".format
    return {
        "Dataset": dataset,
        "Format": row.format,
        "Access": row.access,
        "Cache": row.cache,
        "Call": row.io,
        "Place": row.place,
        "Workers": number(row.workers, numbers.whole),
        "Decoded": "yes" if row.decode else "no",
        "Samples/s": number(row.samples_per_second, numbers.significant),
        "Spread": number(row.spread, numbers.percent),
        "Read per byte": number(row.bytes_read_per_byte, hundredths),
        "Calls a sample": number(row.read_calls_per_sample, hundredths),
        "Opens a sample": number(row.opens_per_sample, hundredths),
        "First batch": number(row.first_batch_seconds, numbers.duration_of_step),
        "Peak memory": number(row.peak_memory_bytes, numbers.memory),
    }
