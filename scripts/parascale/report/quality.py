"""How good the trained models are: ROUGE of summaries, accuracy of classes."""

from parascale.report import numbers
from parascale.report.tables import Cell, Row, Table

ROUGE = (("rouge1", "ROUGE-1"), ("rouge2", "ROUGE-2"), ("rougeL", "ROUGE-L"))
WRITERS = (("beam", "beam search"), ("greedy", "greedy search"), ("lead", "lead words"))
REASONS = {
    "without_document": "without document",
    "without_summary": "without summary",
    "long_summary": "with too long a summary",
    "long_document": "with too long a document",
    "cut_documents": "cut to the window",
    "bad_images": "that are no whole images",
}


def rouge_table(report):
    """ROUGE of every summariser: both searches, and the first words of the document as what must be beaten."""
    rows = []
    for record in report.done:
        found = record.summaries
        for key, writer in WRITERS if found else ():
            scores = [Cell(numbers.fixed(found[key][name], 3), found[key][name], f"{key}_{name}") for name, _ in ROUGE]
            words = Cell(f"first {found['lead_words']} words") if key == "lead" else None
            width = Cell(f"{found['beams']} beams") if key == "beam" else None
            cells = (Cell(record.name), Cell(writer, small=words or width), *scores, Cell(f"{found['documents']:,}"))
            rows.append(Row(record.name, cells, report.series(record)))
    columns = (("Run", False), ("Written by", False), *((heading, True) for _, heading in ROUGE), ("Documents", True))
    return Table("Summaries of the test split: mean F1 with the references", columns, tuple(rows)) if rows else None


def accuracy_table(report):
    """Accuracy of every classifier: the last weights on the validation split, the best ones on the test split."""
    figures = (("validation_accuracy", "Validation"), ("validation_top5", "Validation, top 5"))
    figures += (("test_accuracy", "Test"), ("test_top5", "Test, top 5"))
    rows = []
    for record in report.done:
        values = [getattr(record.summary, name) for name, _ in figures]
        if any(value is not None for value in values):
            named = zip(values, (name for name, _ in figures), strict=True)
            cells = (Cell(record.name), *(Cell(numbers.percent(value, 1), value, name) for value, name in named))
            rows.append(Row(record.name, cells, report.series(record)))
    columns = (("Run", False), *((heading, True) for _, heading in figures))
    return Table("Accuracy of the classifiers", columns, tuple(rows)) if rows else None


def examples(report):
    """The (run, examples of its summaries) that are shown: those of the first summariser of each workload."""
    shown = {}
    for record in report.done:
        if record.summaries.get("examples"):
            shown.setdefault(record.run.workload.name, (record.name, record.summaries["examples"]))
    return list(shown.values())


def exclusions(report):
    """Sentences on samples that were left out or cut, once for each workload."""
    said = {}
    for record in report.done:
        for split, counts in (record.provenance.get("excluded") or {}).items():
            words = [f"{count:,} {REASONS.get(reason, reason)}" for reason, count in counts.items() if count]
            if words:
                said[record.run.workload.name, split] = numbers.listed(words)
    return [(workload, split, words) for (workload, split), words in said.items()]
