"""How good the trained models are: ROUGE of summaries, accuracy of classes."""

from parascale.report import numbers
from parascale.report.summary import of_runs
from parascale.report.tables import RUN, Column, columns, make_table

ROUGE = (("rouge1", "ROUGE-1"), ("rouge2", "ROUGE-2"), ("rougeL", "ROUGE-L"))
WRITERS = (("beam", "beam search"), ("greedy", "greedy search"), ("lead", "lead words"))
SCORES = (
    RUN,
    Column("writer", "Written by", below="how"),
    *(Column(name, heading, "{:.3f}".format) for name, heading in ROUGE),
    Column("documents", "Documents", numbers.whole),
)
ACCURACIES = columns(
    numbers.tenths,
    validation_accuracy="Validation",
    validation_top5="Validation, top 5",
    test_accuracy="Test",
    test_top5="Test, top 5",
)
REASONS = {
    "without_text": "without a text left out",
    "without_document": "without a document left out",
    "without_summary": "without a summary left out",
    "long_summary": "with too long a summary left out",
    "long_document": "with too long a document left out",
    "cut_documents": "documents cut to the window",
    "bad_images": "that are not whole images left out",
}


def rouge_table(report):
    """ROUGE of every summariser: both searches, and the first words of the document as what must be beaten."""
    rows = []
    for record in report.done:
        found = record.summaries
        for key, writer in WRITERS if found else ():
            more = {"lead": f"first {found['lead_words']} words", "beam": f"{found['beams']} beams"}.get(key)
            row = {"run": record.name, "case": key, "writer": writer, "how": more, "documents": found["documents"]}
            rows.append(row | found[key])
    return make_table("Summaries of the test split: mean F1 with the references", SCORES, rows, report.all_series)


def accuracy_table(report):
    """Accuracy of every classifier: the last weights on the validation split, the best ones on the test split."""
    names = [column.name for column in ACCURACIES]
    known = [record for record in report.done if any(getattr(record.summary, name) is not None for name in names)]
    return of_runs(report, "Accuracy of the classifiers", ACCURACIES, known)


def _not_above_lead(found):
    """Names of the ROUGE in which neither search of a summariser beats the first words of the documents."""
    return [
        heading for name, heading in ROUGE if max(found[key][name] for key in ("beam", "greedy")) <= found["lead"][name]
    ]


def not_shown(report):
    """(runs, where they are no better than the lead words) of the summarisers whose samples would show nothing but that."""
    below = {}
    for record in report.done:
        if record.summaries and (headings := _not_above_lead(record.summaries)):
            below.setdefault(numbers.listed(headings), []).append(record.name)
    return [(names, headings) for headings, names in below.items()]


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
