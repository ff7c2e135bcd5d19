"""Text to numbers and back: words between spaces, subwords learned from the train split, or any `tokenizer.json`.

Learned vocabularies have `<unk>` at 0 and `<eos>` at 1, and so has a pretrained model's when used for summaries; a language model keeps
the numbers of a `tokenizer.json`. Every document (a line of a text file, a row of a table), even an empty one, ends in one `<eos>`, as in
the published WikiText perplexities, by which WikiText-2's test split has 245,569 tokens. No document has `<eos>` inside: special entries
in a text, other than `<unk>`, are encoded as text.
"""

import itertools
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np

from parascale.data.tokenizer_folder import blind_to_marks, end_of, read_tokenizer
from parascale.errors import ConfigError
from parascale.files import read_json, write_json
from parascale.pretrained import TOKENIZER_CONFIG, Pretrained

UNKNOWN, END = "<unk>", "<eos>"
SPECIAL = [UNKNOWN, END]
UNKNOWN_ID, END_ID = 0, 1
DOCUMENTS_AT_ONCE = 1024
BOUNDARY = "\ud800"  # half of a UTF-16 pair, which no text contains
VOCABULARY_FILE, SUBWORD_FILE = "vocabulary.json", "tokenizer.json"


def learn(documents, settings, renumbered=True):
    """Learn a tokenizer from the documents of the train split, or read one from a folder.

    settings: parascale.settings.Text. renumbered: the folder's `<unk>` becomes 0 and its end 1. Raises DataError if the folder's
    tokenizer is missing or damaged, or its end of text is unknown.
    """
    if settings.tokenizer == "word":
        return WordTokenizer.learn(documents, settings)
    if settings.tokenizer == "subword":
        return SubwordTokenizer.learn(documents, settings)
    pretrained, marks = Pretrained(settings.pretrained), settings.marks == "tokens"
    folder = pretrained.tokenizer_file.parent
    if not renumbered:
        return KeptTokenizer.read(folder, marks)
    return PretrainedTokenizer(read_tokenizer(folder, marks), pretrained.order, marks=marks)


def load(folder, settings):
    """Load the tokenizer that `save` wrote to a folder. settings: the mapping of Text settings in its manifest."""
    marks = settings.get("marks") == "tokens"
    if (Path(folder) / TOKENIZER_CONFIG).is_file():
        return KeptTokenizer.read(Path(folder), marks)
    if not (Path(folder) / VOCABULARY_FILE).is_file():
        return NumberTokenizer(settings["max_vocabulary"])
    vocabulary = read_json(Path(folder) / VOCABULARY_FILE)
    if settings["tokenizer"] == "word":
        return WordTokenizer(vocabulary, settings["lowercase"])
    tokenizer = read_tokenizer(Path(folder), marks)
    if settings["tokenizer"] == "subword":
        return SubwordTokenizer(tokenizer)
    return PretrainedTokenizer(tokenizer, [tokenizer.token_to_id(entry) for entry in vocabulary], marks=marks)


def _write_vocabulary(folder, vocabulary):
    text = json.dumps(vocabulary, ensure_ascii=False, indent=0)
    (Path(folder) / VOCABULARY_FILE).write_text(text + "\n", encoding="utf-8")


class WordTokenizer:
    """Splits text at white space; words outside the vocabulary become `<unk>`."""

    unknown, end = UNKNOWN_ID, END_ID

    def __init__(self, vocabulary, lowercase):
        self.vocabulary, self.lowercase = vocabulary, lowercase
        self._ids = {word: number for number, word in enumerate(vocabulary) if number != END_ID} | {BOUNDARY: END_ID}

    @classmethod
    def learn(cls, documents, settings):
        """Sort the vocabulary by descending count, then by spelling, so that the same text always gives the same numbers."""
        counts = Counter()
        for batch in batched(documents):
            text = " ".join(batch)
            counts.update((text.lower() if settings.lowercase else text).split())
        for word in SPECIAL:
            counts.pop(word, None)
        kept = sorted((-count, word) for word, count in counts.items() if count >= settings.min_count)
        room = None if settings.max_vocabulary is None else settings.max_vocabulary - len(SPECIAL)
        return cls(SPECIAL + [word for _, word in kept[:room]], settings.lowercase)

    def save(self, folder):
        """Write the vocabulary into a folder."""
        _write_vocabulary(folder, self.vocabulary)

    def encode_documents(self, documents):
        """(the concatenated numbers of several documents, each ended by `<eos>`; the length of each, with its end)."""
        # One split for all documents is several times faster than one for each.
        numbers = self.encode("".join(f"{document} {BOUNDARY} " for document in documents))
        return numbers, np.diff(np.flatnonzero(numbers == END_ID), prepend=-1)

    def encode(self, text):
        """The numbers of a text, without an end mark."""
        words = (text.lower() if self.lowercase else text).split()
        numbers = map(self._ids.get, words, itertools.repeat(UNKNOWN_ID))
        return np.fromiter(numbers, dtype=np.int64, count=len(words))

    def decode(self, numbers):
        """The words, separated by spaces; `<eos>` becomes a line break."""
        return " ".join("\n" if number == END_ID else self.vocabulary[number] for number in numbers)


class _LibraryTokenizer:
    """Base class for tokenizers of the `tokenizers` library. `vocabulary` has the entries in our order.

    unknown, end: our numbers of the unknown entry (None if there is none) and of the end of a text. marks: special entries in a text
    are tokens. marks_spelled: number of those that were encoded as text in the documents so far.
    """

    def __init__(self, tokenizer, vocabulary, unknown=UNKNOWN_ID, end=END_ID, marks=False):
        self._tokenizer, self.vocabulary, self.unknown, self.end = tokenizer, vocabulary, unknown, end
        self._encoder, self.marks, self.marks_spelled, hidden = tokenizer, marks, 0, []
        if not marks:
            seen = None if unknown is None else vocabulary[unknown]
            self._encoder, hidden = blind_to_marks(tokenizer, seen, vocabulary[end])
        # Grouped by their first two letters: far faster than hundreds of alternatives at each `<`.
        grouped = itertools.groupby(sorted(hidden), lambda entry: entry[:2])
        starts = [(start, "|".join(re.escape(entry[2:]) for entry in reversed([*part]))) for start, part in grouped]
        self._hidden = hidden and re.compile("|".join(f"{re.escape(start)}(?:{rest})" for start, rest in starts))

    def save(self, folder):
        """Write the tokenizer in the library's form, and the vocabulary as a list beside it."""
        self._tokenizer.save(str(Path(folder) / SUBWORD_FILE))
        _write_vocabulary(folder, self.vocabulary)

    def encode_documents(self, documents):
        """(the concatenated numbers of several documents, each ended by `<eos>`; the length of each, with its end)."""
        numbers, lengths = [], []
        if self._hidden:
            self.marks_spelled += sum(len(self._hidden.findall(document)) for document in documents)
        for encoding in self._encoder.encode_batch_fast(list(documents)):
            found = self._numbers(encoding)
            if found[-1:] != [self.end]:
                found.append(self.end)
            numbers += found
            lengths.append(len(found))
        return np.array(numbers, dtype=np.int64), lengths

    def encode(self, text):
        """The numbers of a text, without an end mark."""
        return np.array(self._numbers(self._encoder.encode(text)), dtype=np.int64)

    def decode(self, numbers):
        """The text of numbers; `<eos>` becomes a line break."""
        numbers = np.asarray(numbers, dtype=np.int64)
        lines = np.split(numbers, np.flatnonzero(numbers == self.end))  # an end mark begins the next line
        return "\n".join(self._text(line[line != self.end]) for line in lines)

    def _numbers(self, encoding):
        """Convert the library's encoding of a text to our numbers."""
        return encoding.ids

    def _text(self, line):
        """The text of our numbers."""
        return self._tokenizer.decode(line.tolist(), skip_special_tokens=False)


class SubwordTokenizer(_LibraryTokenizer):
    """Byte-level BPE from the `tokenizers` library: encodes any text, and decoding restores it."""

    def __init__(self, tokenizer):
        entries = sorted((number, entry) for entry, number in tokenizer.get_vocab().items())
        super().__init__(tokenizer, [entry for _, entry in entries])

    @classmethod
    def learn(cls, documents, settings):
        """Learn merges from the train split, up to `max_vocabulary` entries."""
        from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

        alphabet = pre_tokenizers.ByteLevel.alphabet()
        least = len(SPECIAL) + len(alphabet)
        if settings.max_vocabulary is None or settings.max_vocabulary < least:
            wanted = f"`data.text.max_vocabulary` of at least {least} (all bytes and the special entries)"
            said = f"needs {wanted}, not {settings.max_vocabulary}; usual values are 4,000 to 50,000"
            raise ConfigError(f"`data.text.tokenizer: subword` {said}")
        tokenizer = Tokenizer(models.BPE())
        if settings.lowercase:
            tokenizer.normalizer = normalizers.Lowercase()
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=settings.max_vocabulary,
            min_frequency=settings.min_count,
            special_tokens=SPECIAL,
            initial_alphabet=sorted(alphabet),
            show_progress=False,
        )
        tokenizer.train_from_iterator(documents, trainer)
        return cls(tokenizer)


class PretrainedTokenizer(_LibraryTokenizer):
    """The tokenizer of a pretrained model, its vocabulary renumbered so that `<unk>` is 0 and its end mark 1.

    tokenizer: a `tokenizers.Tokenizer`. order: its number for each of our entries, in our order.
    Tokens that it puts before a text (BART's `<s>`) stay, and are dropped when decoding.
    """

    def __init__(self, tokenizer, order, unknown=UNKNOWN_ID, end=END_ID, marks=False):
        super().__init__(tokenizer, [tokenizer.id_to_token(number) for number in order], unknown, end, marks)
        self._theirs = np.array(order, dtype=np.int64)
        # Entries that the model lacks become unknown.
        self._ours = np.full(1 + max(tokenizer.get_vocab().values()), UNKNOWN_ID)
        self._ours[self._theirs] = np.arange(len(order))
        behind = np.append(False, self._ours[tokenizer.encode("a").ids] == end) if marks else [False]
        self._behind = int(np.argmin(behind[::-1]))  # end marks that it appends to a text itself

    def _numbers(self, encoding):
        numbers = self._ours[np.array(encoding.ids, dtype=np.int64)]
        if self.marks:
            return numbers[: len(numbers) - self._behind].tolist()
        return numbers[numbers != self.end].tolist()

    def _text(self, line):
        return self._tokenizer.decode(self._theirs[line].tolist(), skip_special_tokens=not self.marks)


class KeptTokenizer(PretrainedTokenizer):
    """Any tokenizer of the library, with its own numbers. `vocabulary` has None for numbers without an entry.

    end: the entry that ends a text.
    """

    def __init__(self, tokenizer, end, marks=False):
        numbers, model = tokenizer.get_vocab(), json.loads(tokenizer.to_str())["model"]
        unknown = numbers.get(model.get("unk_token"), model.get("unk_id"))
        unknown = None if unknown == numbers[end] else unknown
        super().__init__(tokenizer, range(1 + max(numbers.values())), unknown, numbers[end], marks)

    @classmethod
    def read(cls, folder, marks=False):
        """Read a `tokenizer.json` and the files beside it."""
        tokenizer = read_tokenizer(folder, marks)
        return cls(tokenizer, end_of(folder, tokenizer), marks)

    def save(self, folder):
        """Like the others, and also write the end of text, in Hugging Face's form."""
        super().save(folder)
        write_json(Path(folder) / TOKENIZER_CONFIG, {"eos_token": self.vocabulary[self.end]})


def batched(documents):
    """Yield lists of documents, so that memory does not grow with the data."""
    documents = iter(documents)
    while batch := list(itertools.islice(documents, DOCUMENTS_AT_ONCE)):
        yield batch


class NumberTokenizer:
    """Replaces a tokenizer that is unknown: its texts are the numbers themselves, `464 3290`."""

    unknown = end = None

    def __init__(self, size):
        self.vocabulary = range(size)

    def save(self, folder):
        """Do nothing: there are no files to write."""

    def encode(self, text):
        """The numbers in a text. Raises ConfigError for anything outside the vocabulary."""
        try:
            return np.array([self.vocabulary.index(int(word)) for word in text.split()], dtype=np.int64)
        except ValueError:
            wanted = f"numbers from 0 to {len(self.vocabulary) - 1:,}, such as `464 3290`"
            raise ConfigError(f"{text!r:.100}: this data came without a tokenizer: give {wanted}") from None

    def decode(self, numbers):
        """The numbers, separated by spaces."""
        return " ".join(map(str, numbers))
