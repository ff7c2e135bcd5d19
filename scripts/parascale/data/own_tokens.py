"""Data that comes as tokens: read in place if a split is one flat array, otherwise copied once. Every number is checked."""

import os
from functools import partial

import numpy as np

from parascale.data import tokenize
from parascale.data.sources.flat import Flat
from parascale.data.text import prepared
from parascale.data.tokenize import NumberTokenizer
from parascale.errors import ConfigError, DataError
from parascale.files import link_or_copy


def prepare_tokens(raw, text, expected, output):
    """Like `parascale.data.text.prepare`, for a Raw of tokens. Raises DataError for a number outside the vocabulary."""
    learn = partial(_tokenizer_of, raw.folder)
    return prepared(raw, text, expected, output, ("files", raw.files, list), partial(_write, raw), learn)


def _write(raw, folder, split, tokenizer, entries, dtype):
    """Write `<split>.bin`, or link it to a file that can be read in place; returns the split's counts."""
    path, entries = folder / f"{split}.bin", list(entries)
    parts = [raw.tokens(entry) for entry in entries]
    first = parts[0] if len(parts) == 1 and isinstance(parts[0], Flat) else None
    in_place = first if first and first.tokens and first.dtype.isnative else None
    tokens = documents = 0
    with open(os.devnull if in_place else path, "wb") as file:
        for entry, part in zip(entries, parts, strict=True):
            for block_N in part:
                _require_entries(block_N, len(tokenizer.vocabulary), raw.path(entry))
                if not in_place:
                    file.write(block_N.astype(dtype).tobytes())
                tokens += len(block_N)
                documents += 0 if tokenizer.end is None else int(np.count_nonzero(block_N == tokenizer.end))
    if not tokens:
        raise DataError(f"{raw.folder}: the split `{split}` has no tokens")
    if tokenizer.end is not None and not documents:
        end = f"`{tokenizer.vocabulary[tokenizer.end]}`, the end of text of `data.text.pretrained`"
        said = f"the split `{split}` has no end of text: none of its {tokens:,} tokens is {end}"
        print(f"{raw.folder}: {said}. Unless this is intended, write it after each text")
    counts = {"tokens": tokens, "words": tokens - documents, "documents": documents, "unknown": 0}
    if in_place is None:
        return counts
    if os.path.isabs(entries[0]["path"]):
        path.symlink_to(in_place.path.resolve())
    else:  # a downloaded file
        link_or_copy(in_place.path, path)
    return counts | {"in_place": {"dtype": in_place.dtype.str, "offset": in_place.offset}}


def _require_entries(block_N, vocabulary, path):
    """Raise DataError for a number outside the vocabulary."""
    for number in (block_N.min(initial=0), block_N.max(initial=0)):
        if not 0 <= number < vocabulary:
            said = f"holds {number}, but the vocabulary has the numbers 0 to {vocabulary - 1:,}"
            remedy = "name the tokenizer that made it (`data.text.pretrained`) or its size (`data.text.max_vocabulary`)"
            raise DataError(f"{path}: {said}: {remedy}")


def _tokenizer_of(folder, _, settings):
    """The tokenizer that made the tokens in a folder, or a NumberTokenizer if only the vocabulary's size is known."""
    if settings.pretrained:
        return tokenize.learn((), settings, renumbered=False)
    if settings.max_vocabulary is None:
        said = "holds tokens, but not the size of their vocabulary. Set `data.text.max_vocabulary` (GPT-2: 50257)"
        other = "`data.text.tokenizer: pretrained` and the folder of their tokenizer in `data.text.pretrained`"
        raise ConfigError(f"{folder}: {said}, or {other}")
    return NumberTokenizer(settings.max_vocabulary)
