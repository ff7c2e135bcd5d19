"""Encode text in several jobs, a shard each, and join the shards in another: byte for byte the same as with one job.

Both functions take the arguments of `parascale.data.text.prepared` and make a folder of the same form.
"""

import dataclasses
import shutil

import numpy as np

from parascale.data.text import Tokens, prepared
from parascale.data.tokenize import SUBWORD_FILE, VOCABULARY_FILE
from parascale.errors import DataError
from parascale.files import sha256
from parascale.settings import identity


def shard(raw, text, expected, output, rows, write, learn, lacks):
    """Encode the rows of `raw`, one of `Raw.shards`, which may lack text and is not compared with `expected`."""
    expected = dataclasses.replace(expected, approximate=True)
    return prepared(raw, text, expected, output, rows, write, learn)


def join(folders, raw, text, expected, output, rows, write, learn, lacks):
    """Join the shards in `folders`. Raises DataError if one is missing, damaged, or made with another text, tokenizer or settings."""
    shards = [Tokens(folder) for folder in folders]
    for each, part in zip(shards, raw.shards(len(folders)), strict=True):
        if (each.manifest["source"], each.manifest["settings"]) != (part.digest, identity.of_group(text)):
            raise DataError(f"{each.folder}: made from other text or settings; remove it and rebuild it")
        each.verify()

    def joined(folder, split, tokenizer, shards, dtype):
        shards = list(shards)
        own = {name: sha256(folder / name) for name in (VOCABULARY_FILE, SUBWORD_FILE)}
        for each in shards:
            if any(digest != each.manifest["files"][name]["sha256"] for name, digest in own.items()):
                raise DataError(f"{each.folder}: made with another tokenizer; remove it and rebuild it")
        counts = [each.manifest["splits"][split] for each in shards]
        for name in (name for name in shards[0].manifest["files"] if name.startswith(f"{split}.")):
            parts = [each.folder / name for each in shards]
            if name.endswith(".npy"):  # ends of documents, counted from each shard's first token
                starts = np.cumsum([0, *(count["tokens"] for count in counts[:-1])])
                ends = [np.load(part) + start for part, start in zip(parts, starts, strict=True)]
                np.save(folder / name, np.concatenate(ends))
                continue
            with open(folder / name, "wb") as file:
                for part in parts:
                    with open(part, "rb") as source:
                        shutil.copyfileobj(source, file, 1 << 20)
        return {key: sum(count[key] for count in counts) for key in counts[0]}

    return prepared(raw, text, expected, output, ("shards", lambda split: shards, list), joined, learn, lacks)
