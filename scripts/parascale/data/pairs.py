"""Documents and summaries as tokens: prepared once from raw rows, memory-mapped, padded into samples.

A dataset's `pairs/` folder is like a `flat/` one (see `text.py`): `<split>.bin` has document, summary, document, … one after the
other, each ended by `<eos>`, and `<split>.ends.npy` their ends, a row (document, summary) per pair. `test.jsonl` has the raw pairs of
the test split, against which summaries are scored.
"""

import functools
import itertools
import json
from contextlib import ExitStack

import numpy as np

from parascale.data import tokenize
from parascale.data.text import IGNORED, prepared, write_documents
from parascale.errors import DataError

JUDGED = "test"  # the split whose raw texts are kept
AT_ONCE = 1 << 16  # pairs whose lengths are checked together, so that memory grows by four bytes per pair


def prepare_pairs(raw, text, expected, output, made=prepared):
    """Like `parascale.data.text.prepare`, for pairs. Rows without document or summary are left out and counted in the manifest."""

    def texts(pairs):
        return (part for pair in pairs if _whole(pair) for part in _parts(pair, text.prefix))

    def lacks(counts):
        if not counts["documents"]:
            return (
                f"no pair of document and summary ({counts['without_document']:,} rows without document, {counts['without_summary']:,} "
                "without summary). Are `data.source.columns: {document: …, summary: …}` right?"
            )

    rows = "pairs", raw.pairs, texts
    write = functools.partial(_write_split, prefix=text.prefix)
    return made(raw, text, expected, output, rows, write, tokenize.learn, lacks)


def _whole(pair):
    return all(part and part.strip() for part in pair)


def _parts(pair, prefix):
    """Document and summary in the form to encode."""
    return prefix + pair[0], pair[1]


def _write_split(folder, split, tokenizer, pairs, dtype, prefix):
    left_out = {"without_document": 0, "without_summary": 0}

    def parts(raw):
        for pair in pairs:
            if _whole(pair):
                if raw:
                    raw.write(json.dumps(pair) + "\n")
                yield from _parts(pair, prefix)
            else:
                left_out["without_summary" if pair[0] and pair[0].strip() else "without_document"] += 1

    with ExitStack() as stack:
        raw = stack.enter_context(open(folder / f"{split}.jsonl", "w")) if split == JUDGED else None
        ends = stack.enter_context(open(folder / f"{split}.ends.npy", "wb"))
        _write_header(ends, 0)
        counts = write_documents(folder / f"{split}.bin", tokenizer, parts(raw), dtype, ends) | left_out
        counts["documents"] //= 2  # each pair is two documents to the tokenizer
        ends.seek(0)
        _write_header(ends, counts["documents"])
    return counts


def _write_header(file, pairs):
    """Write the header of a `.npy` file of ends. NumPy leaves room in it for any number of pairs."""
    np.lib.format.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": (pairs, 2)})


class Pairs:
    """The samples of a summariser: a document, and its summary as input and as label.

    tokens: parascale.data.text.Tokens of a `pairs/` folder. window, summary_window: tokens of a document and of a
    summary. over_long: `cut` or `leave_out`, as in SummaryTraining.
    """

    def __init__(self, tokens, split, window, summary_window, over_long="cut"):
        self.window, self.summary_window = window, summary_window
        self._raw = tokens.folder / f"{split}.jsonl"
        self._tokens = np.asarray(tokens.split(split))
        self._ends = np.asarray(np.load(tokens.folder / f"{split}.ends.npy", mmap_mode="r").reshape(-1))
        if not len(self._ends) or self._ends[-1] != len(self._tokens):
            raise DataError(f"{tokens.folder}: `{split}.ends.npy` does not fit its tokens; make the data again")
        counts = tokens.manifest["splits"][split]
        self.excluded = {name: counts[name] for name in ("without_document", "without_summary")}
        self.excluded |= dict.fromkeys(("long_summary", "long_document", "cut_documents"), 0)
        count = len(self._ends) // 2
        blocks = (np.arange(first, min(first + AT_ONCE, count)) for first in range(0, count, AT_ONCE))
        self._kept = np.concatenate([self._fitting(rows, over_long == "cut") for rows in blocks])
        if not len(self._kept):
            raise DataError(
                f"{tokens.folder}: no pair of the split `{split}` fits `training.window` = {window} and `training.summary_window` = {summary_window}: raise them"
            )

    def _fitting(self, rows, cut):
        """The rows that are samples, as uint32. Counts those that are left out or cut."""
        long_document, long_summary = (
            self._places(rows, part)[1] > most for part, most in enumerate((self.window, self.summary_window))
        )
        kept = ~long_summary if cut else ~(long_summary | long_document)
        self.excluded["long_summary"] += int(long_summary.sum())
        self.excluded["cut_documents" if cut else "long_document"] += int((long_document & ~long_summary).sum())
        return rows[kept].astype(np.uint32)

    def _places(self, rows, part):
        """(starts, lengths) of one part (0: document, 1: summary) of rows, in tokens. Parts follow each other."""
        places = 2 * np.asarray(rows, dtype=np.int64) + part
        starts = np.where(places, self._ends[places - 1], 0)
        return starts, self._ends[places] - starts

    def __len__(self):
        return len(self._kept)

    def batch(self, indices):
        """Samples by number: (documents_BS, mask_BS, summaries_BT, labels_BT), numbers as int64, mask True at tokens.

        Summaries begin with `<eos>` and are one place behind their labels (teacher forcing). Padding has input 0 and label IGNORED.
        """
        indices = self._kept[np.asarray(indices, dtype=np.int64)]
        documents_BS, mask_BS = self.documents(indices)
        labels_BT, there_BT = self._padded(indices, 1, self.summary_window)
        first_B1 = np.full((len(indices), 1), tokenize.END_ID, np.int64)
        summaries_BT = np.concatenate([first_B1, labels_BT[:, :-1]], axis=1)
        return documents_BS, mask_BS, summaries_BT, np.where(there_BT, labels_BT, IGNORED)

    def documents(self, rows):
        """(documents_BS, mask_BS) of rows of the split, counting also rows that are too long."""
        return self._padded(rows, 0, self.window)

    def raw(self, count=None):
        """The raw (document, summary) of the first `count` rows, or of all. DataError for a split or folder without them."""
        try:
            with open(self._raw) as handle:
                return [tuple(json.loads(line)) for line in itertools.islice(handle, count)]
        except FileNotFoundError:
            raise DataError(f"{self._raw} is missing: remove {self._raw.parent} and run the target `data`") from None

    def _padded(self, rows, part, places):
        """(numbers, mask of tokens) of one part of each row, cut or padded to `places`."""
        offsets = np.arange(places)
        starts, lengths = self._places(rows, part)
        there = offsets < lengths[:, None]
        numbers = self._tokens[np.where(there, starts[:, None] + offsets, 0)]
        return np.where(there, numbers, 0).astype(np.int64), there
