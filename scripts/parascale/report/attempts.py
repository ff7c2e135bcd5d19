"""The attempts of a run: over time, and as a table."""

from dataclasses import dataclass
from datetime import datetime

from parascale.report import numbers
from parascale.report.chart import PALETTE, Chart, bars_height
from parascale.report.findings import ending
from parascale.report.tables import Column, columns, make_table

COLOURS = {"finished": "C2", "stopped": "C7", "killed": "C5", "failed": "C5", "running": "C0"}
COLUMNS = (
    Column("attempt", "Attempt", numbers.whole),
    Column("job", "Job", link="page"),
    *columns(start="Start (UTC)", end="End (UTC)"),
    Column("attempt_seconds", "Duration", numbers.duration),
    Column("outcome", "Outcome"),
    *columns(numbers.whole, first_step="First step", last_step="Last step"),
)


def _rows(record):
    for count, attempt in enumerate(record.attempts, 1):
        job = str(attempt.get("job_id") or "")
        page = record.site.job_page.replace("{job}", job) if record.site is not None and job else ""
        row = {"run": record.name, "attempt": count, "job": job, "page": page, "outcome": _outcome(attempt)}
        yield attempt | row | {"attempt_seconds": attempt.get("seconds")}


def attempts_figure(record):
    """The timeline of the attempts; None where no attempt tells its times."""
    spans = _spans(record)
    if not spans:
        return None
    first = min(span.start if span.waiting is None else min(span.waiting, span.start) for span in spans)
    size, unit = numbers.time_unit(max(span.end for span in spans) - first)

    def draw(figure):
        axes = figure.subplots()
        for row, span in enumerate(spans):
            if span.waiting is not None:
                axes.plot(
                    ((span.waiting - first) / size, (span.start - first) / size), (row, row), color=PALETTE["muted"]
                )
            axes.barh(
                row, (span.end - span.start) / size, 0.7, (span.start - first) / size, color=COLOURS[span.outcome]
            )
        axes.set_yticks(range(len(spans)), [f"{span.label}: {span.outcome}" for span in spans])
        axes.set(xlim=(0, None), ylim=(len(spans) - 0.5, -0.5))
        axes.set_xlabel(f"{unit} since {'submission' if first < min(span.start for span in spans) else 'the start'}")

    said = "; ".join(span.note for span in spans)
    return Chart(
        "attempts",
        "Attempts",
        "Each start of the run; a thin line is waiting in the queue.",
        draw,
        bars_height(len(spans)),
        said,
    )


def attempts_table(record):
    """The attempts with their times and steps."""
    return make_table("Each start of this run", COLUMNS, _rows(record))


@dataclass(frozen=True)
class Span:
    """An attempt: seconds since 1970; outcome: one of COLOURS. waiting: since when it waited in the queue, or None."""

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
