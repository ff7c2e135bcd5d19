"""The section on data formats: how fast each is read here, what it costs to write, and which to take."""

from parascale.report import numbers
from parascale.report.drawing import Figure
from parascale.report.plots import Bar, bars_panel
from parascale.report.section import Section
from parascale.report.tables import Cell, Row, Table

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
    if not report.readings:
        return None
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
    """One row a format: its fastest ways of reading, and what it costs to make and to keep. None where nothing was read."""
    if not readings.rows:
        return None
    columns = (("Format", False), ("At random", True), ("In order", True), ("Cold, at random", True), ("Decoded", True))
    columns += (("Size", True), ("Inodes", True), ("Written in", True))
    rows = []
    for name in readings.formats:
        first = next(row for row in readings.rows if row.format == name)
        decoded = max(
            (row for row in readings.rows if row.format == name and row.decode and row.cache == "warm"),
            key=lambda row: row.samples_per_second,
            default=None,
        )
        cells = (
            Cell(name, small=Cell("recommended" if name == readings.format else "")),
            _rate_cell(readings.fastest(name, "random"), "random_rate"),
            _rate_cell(readings.fastest(name, "sequential"), "sequential_rate"),
            _rate_cell(readings.fastest(name, "random", cache="cold"), "cold_rate"),
            _rate_cell(decoded, "decoded_rate", decoded and _workers(decoded.workers)),
            Cell(numbers.memory(first.bytes), first.bytes, "format_bytes"),
            Cell(numbers.whole(first.inodes), first.inodes, "inodes"),
            _written_cell(first),
        )
        rows.append(Row(name, cells))
    caption = f"{readings.dataset}: {readings.unit} a second, fastest way of reading each format"
    return _without_empty_columns(Table(caption, columns, tuple(rows)))


def _without_empty_columns(table):
    """What was measured of no format is left out."""
    kept = [
        place
        for place, cells in enumerate(zip(*(row.cells for row in table.rows), strict=True))
        if any(cell.text for cell in cells)
    ]
    rows = tuple(Row(row.run, tuple(row.cells[place] for place in kept), row.series) for row in table.rows)
    return Table(table.caption, tuple(table.columns[place] for place in kept), rows)


def _workers(count):
    return numbers.plural(count, "worker") if count else "no workers"


def _rate_cell(reading, figure, small=None):
    if reading is None:
        return Cell("")
    rate = reading.samples_per_second
    return Cell(numbers.significant(rate), rate, figure, small=Cell(small or reading.io))


def _written_cell(reading):
    seconds, processor = reading.write_seconds, reading.write_cpu_seconds
    small = Cell(f"CPU {numbers.duration(processor)}" if processor is not None else "")
    return Cell(numbers.duration(seconds), seconds, "write_seconds", small=small)


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
    columns = [(name, False) for name in ("Dataset", "Format", "Access", "Cache", "Call", "Place")]
    columns += [("Workers", True), ("Decoded", False)]
    numeric = ("Samples/s", "Spread", "Read per byte", "Calls a sample", "Opens a sample", "First batch", "Peak memory")
    columns += [(name, True) for name in numeric]
    rows = [_details_row(readings.dataset, row) for readings in every for row in readings.rows]
    caption = "Every way of reading that was measured; an empty cell is not known"
    return Table(caption, columns, tuple(rows)) if rows else None


def _details_row(dataset, row):
    first = row.first_batch_seconds
    cells = (
        *map(Cell, (dataset, row.format, row.access, row.cache, row.io, row.place)),
        Cell(numbers.whole(row.workers), row.workers),
        Cell("yes" if row.decode else "no"),
        Cell(numbers.significant(row.samples_per_second), row.samples_per_second),
        Cell(numbers.percent(row.spread), row.spread),
        Cell(numbers.fixed(row.bytes_read_per_byte, 2), row.bytes_read_per_byte),
        Cell(numbers.fixed(row.read_calls_per_sample, 2), row.read_calls_per_sample),
        Cell(numbers.fixed(row.opens_per_sample, 2), row.opens_per_sample),
        Cell("" if first is None else numbers.duration_of_step(first), first),
        Cell(numbers.memory(row.peak_memory_bytes), row.peak_memory_bytes),
    )
    return Row(dataset, cells)
