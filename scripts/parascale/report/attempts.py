"""The attempts of a run: over time, and as a table."""

from dataclasses import dataclass
from datetime import datetime

from parascale.report import numbers
from parascale.report.drawing import BOX, LINE, PALETTE, Entry, Figure, Panel, mark
from parascale.report.findings import ending
from parascale.report.plots import few, name_rows
from parascale.report.tables import RUN, Column, columns, make_table

OUTCOMES = {"finished": "c2", "stopped": "c7", "killed": "c5", "failed": "c5", "running": "c0"}
COLUMNS = (
    Column("attempt", "Attempt", numbers.whole),
    Column("job", "Job", link="page"),
    *columns(start="Start (UTC)", end="End (UTC)"),
    Column("attempt_seconds", "Duration", numbers.duration),
    Column("outcome", "Outcome"),
    *columns(numbers.whole, first_step="First step", last_step="Last step"),
)


def attempts_table(records):
    """The attempts of several runs."""
    return make_table("Attempts", (RUN, *COLUMNS), (row for record in records for row in _rows(record)))


def _rows(record):
    for count, attempt in enumerate(record.attempts, 1):
        job = str(attempt.get("job_id") or "")
        page = record.site.job_page.replace("{job}", job) if record.site is not None and job else ""
        row = {"run": record.name, "attempt": count, "job": job, "page": page, "outcome": _outcome(attempt)}
        yield attempt | row | {"attempt_seconds": attempt.get("seconds")}


def attempts_figure(record):
    """The timeline of the attempts with their table; None where no attempt tells its times."""
    spans = _spans(record)
    if not spans:
        return None
    table = make_table("Attempts", COLUMNS, _rows(record))
    used = [outcome for outcome in OUTCOMES if any(span.outcome == outcome for span in spans)]
    panel = _timeline("Attempts over time", spans)
    legend = tuple(Entry(outcome, OUTCOMES[outcome], marker=BOX) for outcome in used)
    return Figure(
        "attempts", "Attempts", "Each start of the run; a thin line is waiting in the queue.", (panel,), legend, table
    )


@dataclass(frozen=True)
class Span:
    """An attempt: seconds since 1970; outcome: one of OUTCOMES. waiting: since when it waited in the queue, or None."""

    label: str
    outcome: str
    start: float
    end: float
    waiting: float | None
    note: str


def _spans(record):
    """The attempts on the clock, those that tell when they began."""
    spans = []
    for count, attempt in enumerate(record.attempts, 1):
        start = _began(attempt)
        if start is not None:
            outcome, seconds = attempt.get("outcome") or "running", attempt.get("seconds") or 0.0
            label = f"attempt {count}"
            note = f"{label}: {numbers.duration(seconds)}, {_outcome(attempt)}"
            spans.append(Span(label, outcome, start, start + seconds, attempt.get("submitted"), note))
    return spans


def _outcome(attempt):
    return ending(attempt) or attempt.get("outcome") or "running"


def _began(attempt):
    """Seconds since 1970, or None."""
    try:
        return datetime.fromisoformat(attempt["start"]).timestamp()
    except (KeyError, TypeError, ValueError):
        return None


def _timeline(title, spans):
    """Attempts one below the other over the clock; a thin line is waiting in the queue."""
    first = min(span.start if span.waiting is None else min(span.waiting, span.start) for span in spans)
    size, unit = numbers.time_unit(max(span.end for span in spans) - first)

    def draw(axes):
        name_rows(axes, [span.label for span in spans])
        for row, span in enumerate(spans):
            start, end = (span.start - first) / size, (span.end - first) / size
            if span.waiting is not None:
                axes.plot(((span.waiting - first) / size, start), (row, row), color=PALETTE["muted"])
            mark(axes.barh(row, end - start, 0.8, start, color=PALETTE[OUTCOMES[span.outcome]]), "bar", span.note)
        axes.set_xlim(left=0)
        axes.set_xlabel(f"{unit} since {'submission' if first < min(s.start for s in spans) else 'the start'}")

    return Panel(title, f"Timeline: {few([span.note for span in spans])}.", LINE * len(spans) + 50, draw)
