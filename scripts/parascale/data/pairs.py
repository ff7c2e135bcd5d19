"""Documents and their summaries as numbers: made once from raw rows, memory-mapped, padded into samples.

A dataset's `pairs/` folder is like a `flat/` one (see `text.py`): `<split>.bin` holds document, summary, document, … one
after the other, each ended by `<eos>`, and `<split>.ends.npy` where they end: a row (document, summary) a pair.
"""

import numpy as np

from parascale.data import tokenize
from parascale.data.progress import Progress
from parascale.data.text import IGNORED, prepared, require_splits
from parascale.errors import DataError


def prepare_pairs(raw, text, expected, output):
    """Learn subwords or words from documents and summaries of the train split, and write every split into `output`.

    Every document gets the prefix of the settings. A row without document or without summary is left out and counted in the
    manifest. Arguments, result and errors are those of `parascale.data.text.prepare`.
    """
    require_splits(raw)
    with Progress("vocabulary", unit="pairs") as progress:
        pairs = (_parts(pair, text.prefix) for pair in progress.count(raw.pairs("train")) if _whole(pair))
        tokenizer = tokenize.learn((part for pair in pairs for part in pair), text)

    def write_split(folder, split, dtype):
        with Progress(f"{split} tokens", unit="pairs") as progress:
            counts = _write_split(folder, split, tokenizer, progress.count(raw.pairs(split)), dtype, text.prefix)
        if not counts["documents"]:
            raise DataError(
                f"{raw.folder}: the split `{split}` has no pair of document and summary ({counts['without_document']:,} rows without "
                f"document, {counts['without_summary']:,} without summary). Are `data.source.columns: {{document: …, summary: …}}` right?"
            )
        return counts

    return prepared(raw, text, expected, output, tokenizer, write_split)


def _whole(pair):
    return all(part and part.strip() for part in pair)


def _parts(pair, prefix):
    """Document and summary as they are encoded. An end mark within a text would end it for good."""
    return [part.replace(tokenize.END, " ") for part in (prefix + pair[0], pair[1])]


def _write_split(folder, split, tokenizer, pairs, dtype, prefix):
    counts = dict.fromkeys(("tokens", "words", "documents", "unknown", "without_document", "without_summary"), 0)
    lengths = []

    def whole_pairs():
        for pair in pairs:
            if _whole(pair):
                yield _parts(pair, prefix)
            else:
                counts["without_summary" if pair[0] and pair[0].strip() else "without_document"] += 1

    with open(folder / f"{split}.bin", "wb") as handle:
        for batch in tokenize.batched(whole_pairs()):
            numbers = tokenizer.encode_documents([part for pair in batch for part in pair])
            handle.write(numbers.astype(dtype).tobytes())
            ends = np.flatnonzero(numbers == tokenize.END_ID)
            lengths.append(np.diff(ends, prepend=-1))
            counts["tokens"] += len(numbers)
            counts["documents"] += len(batch)
            counts["unknown"] += int(np.count_nonzero(numbers == tokenize.UNKNOWN_ID))
    ends_N2 = np.cumsum(np.concatenate([np.zeros(0, np.int64), *lengths])).reshape(-1, 2)
    np.save(folder / f"{split}.ends.npy", ends_N2)
    counts["words"] = counts["tokens"] - ends_N2.size
    return counts


class Pairs:
    """The samples of a summariser: a document, and its summary as what is given and what is asked for.

    tokens: parascale.data.text.Tokens of a `pairs/` folder. window, summary_window: places of a document and of a
    summary. over_long: `cut` or `leave_out`, as in Training. The attribute `prefix` is what each document begins with.
    """

    def __init__(self, tokens, split, window, summary_window, over_long="cut"):
        self.window, self.summary_window = window, summary_window
        self.prefix = tokens.manifest["settings"].get("prefix", "")
        self._tokens = np.asarray(tokens.split(split))
        ends_N2 = np.load(tokens.folder / f"{split}.ends.npy")
        if not ends_N2.size or ends_N2[-1, 1] != len(self._tokens):
            raise DataError(f"{tokens.folder}: `{split}.ends.npy` does not fit its tokens; make the data again")
        starts = np.concatenate([[0], ends_N2.reshape(-1)[:-1]]).reshape(-1, 2)
        lengths = ends_N2 - starts
        long_document, long_summary = lengths[:, 0] > window, lengths[:, 1] > summary_window
        kept = ~long_summary if over_long == "cut" else ~(long_summary | long_document)
        counts = tokens.manifest["splits"][split]
        self.excluded = {name: counts[name] for name in ("without_document", "without_summary")} | {
            "long_summary": int(long_summary.sum()),
            "long_document": int((long_document & ~long_summary).sum()) if over_long == "leave_out" else 0,
            "cut_documents": int((long_document & kept).sum()),
        }
        if not kept.any():
            raise DataError(
                f"{tokens.folder}: no pair of the split `{split}` fits `training.window` = {window} and "
                f"`training.summary_window` = {summary_window}; make them larger"
            )
        self._starts, self._lengths = starts[kept], lengths[kept]

    def __len__(self):
        return len(self._starts)

    def batch(self, indices):
        """Samples by number: (documents_BS, mask_BS, summaries_BT, labels_BT), numbers as int64, mask True at tokens.

        Summaries begin with `<eos>` and are one place behind their labels (teacher forcing). Padding has input 0 and label IGNORED.
        """
        indices = np.asarray(indices, dtype=np.int64)
        documents_BS, mask_BS = self._padded(indices, 0, self.window)
        labels_BT, there_BT = self._padded(indices, 1, self.summary_window)
        first_B1 = np.full((len(indices), 1), tokenize.END_ID, np.int64)
        summaries_BT = np.concatenate([first_B1, labels_BT[:, :-1]], axis=1)
        return documents_BS, mask_BS, summaries_BT, np.where(there_BT, labels_BT, IGNORED)

    def numbers(self, index):
        """(document, summary) of a sample as arrays without end marks, the document as long as it is."""
        parts = (self._tokens[start : start + length] for start, length in zip(*self._place(index), strict=True))
        return tuple(part[:-1].astype(np.int64) for part in parts)

    def _place(self, index):
        return self._starts[index].tolist(), self._lengths[index].tolist()

    def _padded(self, indices, part, places):
        """(numbers, where there are any) of one part of each sample, in rows of `places`."""
        offsets = np.arange(places)
        there = offsets < self._lengths[indices, part, None]
        rows = self._tokens[np.where(there, self._starts[indices, part, None] + offsets, 0)]
        return np.where(there, rows, 0).astype(np.int64), there
