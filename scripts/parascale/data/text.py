"""Flat token arrays: prepared once from raw text, memory-mapped by every process, cut into windows.

A dataset's `flat/` folder has `<split>.bin` (little-endian uint16 if the vocabulary has fewer than 65,536 entries, else uint32; or a
link to another tool's file that is read in place), `vocabulary.json` (the entry of each number), `manifest.json`, and, for subwords,
`tokenizer.json`.
"""

import functools
from pathlib import Path

import numpy as np

from parascale.data import tokenize
from parascale.data.manifests import MANIFEST, SCHEMA_VERSION, manifest_in, require_whole
from parascale.data.progress import Progress
from parascale.errors import DataError
from parascale.files import atomic_folder, sha256, write_json
from parascale.settings import SPLITS, identity

IGNORED = -100  # label of padding, which the loss ignores


def prepare(raw, text, expected, output, made=None):
    """Learn the vocabulary from the train split and write every split as numbers into the folder `output`; returns the manifest.

    raw: parascale.data.sources.Raw. text, expected: the sections of parascale.settings.Data. made: a function of parascale.data.shards
    instead of `prepared`. Memory does not grow with the documents. Raises DataError for a missing split or one without tokens, and if
    the data differs from `expected`.
    """

    def write(folder, split, tokenizer, documents, dtype):
        left_out = {"without_text": 0}

        def there():
            for document in documents:
                if document is None:
                    left_out["without_text"] += 1
                else:
                    yield document

        return write_documents(folder / f"{split}.bin", tokenizer, there(), dtype) | left_out

    def lacks(counts):
        if counts["words"] == 0:
            return f"no text: {counts['documents']} empty documents, {counts['without_text']} null rows"

    def texts(documents):
        return (document for document in documents if document is not None)

    learn = functools.partial(tokenize.learn, renumbered=False)
    rows = "documents", raw.documents, texts
    return (made or prepared)(raw, text, expected, output, rows, write, learn, lacks)


def prepared(raw, text, expected, output, rows, write, learn, lacks=lambda counts: None):
    """Make the folder `output`: tokenizer, splits, manifest; returns the manifest. Arguments and errors as in `prepare`.

    rows: (their name, function from a split to its rows, function from rows to the texts in them).
    write: function (folder, split, tokenizer, rows, dtype of the numbers) that writes a split's files and returns its counts.
    learn: function (texts of the train split, text) that returns the tokenizer. lacks: function from a split's counts to words for what
    it lacks, or None.
    """
    unit, rows_of, texts_of = rows
    missing = [split for split in SPLITS if split not in raw.splits]
    if missing:
        raise DataError(
            f"{raw.folder}: no split `{missing[0]}`, only {', '.join(raw.splits)}. Name it in `data.source.files`; a part of a file will do: `all.txt[90%:]`"
        )
    with Progress("vocabulary", unit) as progress:
        tokenizer = learn(texts_of(progress.count(rows_of("train"))), text)
    vocabulary_size = len(tokenizer.vocabulary)
    dtype = np.dtype("<u2" if vocabulary_size < 2**16 else "<u4")
    with atomic_folder(output) as partial:
        tokenizer.save(partial)
        splits = {}
        for split in SPLITS:
            with Progress(f"{split} tokens", unit) as progress:
                splits[split] = write(partial, split, tokenizer, progress.count(rows_of(split)), dtype)
            if lacking := lacks(splits[split]):
                raise DataError(f"{raw.folder}: the split `{split}` has {lacking}")
            spelled, tokenizer.marks_spelled = getattr(tokenizer, "marks_spelled", 0), 0
            if text.pretrained and spelled > splits[split]["documents"] / 10:
                print(
                    f"{raw.folder}: the split `{split}` has {spelled:,} special entries in {splits[split]['documents']:,} texts, spelled as other "
                    "text. If a chat template put them there, set `data.text.marks: tokens`"
                )
        train = splits["train"]
        names = ("documents", "without_text", "without_document", "without_summary")
        samples = sum(train.get(name, 0) for name in names)
        found = {
            "vocabulary": (vocabulary_size, "entries of the vocabulary"),
            "train_tokens": (train["tokens"], "tokens in the train split"),
            "train_samples": (samples, "samples in the train split, those left out included"),
        }
        check_expected(expected, found, raw.folder)
        digest = functools.cache(sha256)  # splits may be slices of one large file
        manifest = {
            "schema_version": SCHEMA_VERSION,
            "dtype": dtype.str,
            "vocabulary": vocabulary_size,
            "splits": splits,
            "settings": identity.of_group(text),
            "source": raw.digest,
            "files": {
                path.name: {"bytes": path.stat().st_size, "sha256": digest(path.resolve())}
                for path in sorted(partial.iterdir())
            },
        }
        write_json(partial / MANIFEST, manifest)
    return manifest


def write_documents(path, tokenizer, documents, dtype, ends=None):
    """Write documents as numbers, each ended by `<eos>`; returns counts; `words` excludes the end marks.

    ends: binary file to write the end of each document to, as int64.
    """
    tokens = count = unknown = 0
    with open(path, "wb") as handle:
        for batch in tokenize.batched(documents):
            numbers, lengths = tokenizer.encode_documents(batch)
            handle.write(numbers.astype(dtype).tobytes())
            if ends:
                ends.write((tokens + np.cumsum(lengths)).astype("<i8").tobytes())
            tokens += len(numbers)
            count += len(batch)
            unknown += int(np.count_nonzero(numbers == tokenizer.unknown))
    return {"tokens": tokens, "words": tokens - count, "documents": count, "unknown": unknown}


def check_expected(expected, found, folder):
    """Raise DataError if plans expected other data. expected: the section of Data. found: its keys → (number, unit)."""
    for key, (value, what) in found.items():
        wanted = None if expected.approximate else getattr(expected, key)
        if wanted is not None and wanted != value:
            raise DataError(
                f"{folder}: `data.expected.{key}` is {wanted:,}, but there are {value:,} {what}: correct it, or the source"
            )


class Tokens:
    """A prepared dataset. Opening it checks the size of every file; `verify` checks every byte."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self._remedy = f"remove {folder} and make it again with the target `data`"
        self.manifest = manifest_in(folder, "no prepared data here; the target `data` makes it", self._remedy)
        self.verify(every_byte=False)
        self.tokenizer = tokenize.load(self.folder, self.manifest["settings"])

    @property
    def vocabulary_size(self):
        """Entries of the vocabulary, including special ones: numbers are in [0, vocabulary_size)."""
        return self.manifest["vocabulary"]

    def split(self, name):
        """The numbers of a split, read-only and memory-mapped: a flat array of uint16, uint32, or another tool's type."""
        facts = self.manifest["splits"][name]
        lies = {"dtype": self.manifest["dtype"], "offset": 0} | facts.get("in_place", {})
        return np.memmap(self.folder / f"{name}.bin", mode="r", shape=facts["tokens"], **lies)

    def encode(self, text):
        """The numbers of a text (int64 array). No end mark is added."""
        return self.tokenizer.encode(text)

    def decode(self, numbers):
        """The text of numbers; `<eos>` becomes a line break."""
        return self.tokenizer.decode(numbers)

    def verify(self, every_byte=True):
        """Raise DataError if a file was changed. every_byte: compare its checksum, not only its size."""
        for name, facts in self.manifest["files"].items():
            require_whole(self.folder / name, facts, self._remedy, every_byte)


class Windows:
    """The samples of a language model: windows over a flat array, each with the next token as label.

    stride: from one window's start to the next (default: window). N tokens have N − 1 targets; at stride = window each target
    is in exactly one sample, and the last window may be padded; at stride 1 (the published protocol) there is no padding.
    end: the number that ends a document, if documents are separate: samples then include where each token's document starts.
    """

    def __init__(self, tokens_N, window, stride=None, end=None):
        if len(tokens_N) <= window:
            raise DataError(f"`training.window` = {window} does not fit a split of {len(tokens_N)} tokens: shorten it")
        self.window, self.stride, self.targets, self.end = window, stride or window, len(tokens_N) - 1, end
        to_the_end = -(-(self.targets - window) // self.stride)
        # Strides larger than the window leave gaps, and the last one may lead past the end.
        self._samples = min(to_the_end, (self.targets - 1) // self.stride) + 1
        # Every possible window and its next token, as one item of a view: numpy copies an item in one go.
        tokens_N = np.ascontiguousarray(tokens_N)
        row = np.dtype((np.void, (window + 1) * tokens_N.itemsize))
        self._rows = np.ndarray(len(tokens_N) - window, row, tokens_N, strides=tokens_N.strides)
        self._dtype = tokens_N.dtype

    def __len__(self):
        return self._samples

    def batch(self, indices):
        """Samples by number: (inputs_BT, labels_BT), int64; if documents are separate, with `starts_of` between them. Padding has input 0
        and label IGNORED."""
        starts_B = np.asarray(indices, dtype=np.int64) * self.stride
        # A negative number is very large as unsigned, so one maximum checks both bounds.
        furthest = int(starts_B.view(np.uint64).max(initial=0))
        if furthest > (self._samples - 1) * self.stride:
            raise IndexError(f"sample numbers must lie in [0, {len(self)})")
        last = len(self._rows) - 1  # where the last whole window starts
        whole = furthest <= last
        rows_B = self._rows[starts_B if whole else np.minimum(starts_B, last)]
        tokens_BT = rows_B.view(self._dtype).reshape(len(starts_B), self.window + 1)
        inputs_BT, labels_BT = tokens_BT[:, :-1].astype(np.int64), tokens_BT[:, 1:].astype(np.int64)
        for row in () if whole else np.flatnonzero(starts_B > last):
            shift = starts_B[row] - last
            inputs_BT[row] = [*inputs_BT[row, shift:], *[0] * shift]
            labels_BT[row] = [*labels_BT[row, shift:], *[IGNORED] * shift]
        return inputs_BT, *([] if self.end is None else [starts_of(inputs_BT, self.end)]), labels_BT


def starts_of(tokens_BT, end):
    """The position in the window at which each token's document starts: after the last `end` before it, or 0."""
    starts_BT = np.arange(1, 1 + tokens_BT.shape[1]) * (tokens_BT == end)
    return np.maximum.accumulate(np.roll(starts_BT, 1, 1) * (np.arange(tokens_BT.shape[1]) > 0), 1)
