"""How good the trained models are: ROUGE of summaries, accuracy of classes."""

from parascale.report import numbers
from parascale.report.tables import Cell, make_table, number, records_table

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
            more = {"lead": f"first {found['lead_words']} words", "beam": f"{found['beams']} beams"}.get(key, "")
            scores = {heading: number(found[key][name], "{:.3f}".format, f"{key}_{name}") for name, heading in ROUGE}
            row = {"Run": record.name, "Written by": Cell(writer, small=Cell(more)), **scores}
            rows.append((record.name, {**row, "Documents": Cell(f"{found['documents']:,}", numeric=True)}))
    return make_table("Summaries of the test split: mean F1 with the references", rows, report.all_series)


def accuracy_table(report):
    """Accuracy of every classifier: the last weights on the validation split, the best ones on the test split."""
    figures = {"Validation": "validation_accuracy", "Validation, top 5": "validation_top5"}
    figures |= {"Test": "test_accuracy", "Test, top 5": "test_top5"}

    def cells(record):
        values = ((heading, name, getattr(record.summary, name)) for heading, name in figures.items())
        return {heading: number(value, lambda part: numbers.percent(part, 1), name) for heading, name, value in values}

    known = [record for record in report.done if any(cell.text for cell in cells(record).values())]
    return records_table(report, "Accuracy of the classifiers", known, cells)


def _not_above_lead(found):
    """Names of the ROUGE in which neither search of a summariser beats the first words of the documents."""
    return [
        heading for name, heading in ROUGE if max(found[key][name] for key in ("beam", "greedy")) <= found["lead"][name]
    ]


def not_shown(report):
    """(run, where it is no better than the lead words) of the summarisers whose samples would show nothing but that."""
    below = [(record.name, _not_above_lead(record.summaries)) for record in report.done if record.summaries]
    return [(name, numbers.listed(headings)) for name, headings in below if headings]


def examples(report):
    """The (run, examples of its summaries) that are shown: of the first summariser of each workload that beats the lead words."""
    shown = {}
    for record in report.done:
        if record.summaries.get("examples") and not _not_above_lead(record.summaries):
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
