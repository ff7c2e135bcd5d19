"""Finished runs beside each other, as lines of text for a terminal."""

MOST_ROWS = 8  # of a workload


def compared(verdict):
    """The lines of a Verdict: its configurations, the fastest first."""
    heads = [column.title for column in verdict.table.columns[1:]]
    rows = [(verdict.title, "", *heads), *map(_compared, list(verdict.table.rows)[:MOST_ROWS])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    more = len(verdict.table) - MOST_ROWS
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return lines + ([f"and {more} more, on the page"] if more > 0 else [])


def _compared(row):
    label, time, faster, *others = row.cells
    between = f" ({faster.small.text})" if faster.small.text else ""
    return (
        f"  {label.text}",
        label.small.text,
        time.text,
        faster.text + between,
        *(cell.text or cell.kind for cell in others),
    )
