"""Read the tokenizer in a folder, from `tokenizer.json` and the files beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from parascale.errors import DataError
from parascale.files import read_json
from parascale.pretrained import CONFIG, NAMED, TOKENIZER, TOKENIZER_CONFIG, content_of, tokenizer_state

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Names for the end of a text in published models (GPT-2, Llama 3, Gemma, Llama 2, ChatML).
ENDS = ("<|endoftext|>", "<|end_of_text|>", "<eos>", "</s>", "<|im_end|>")


def end_of(folder: Path, tokenizer: Tokenizer) -> str:
    """The entry that ends a text: the one that the files in a folder name, else the only one of ENDS in the vocabulary."""
    said = content_of(tokenizer_state(folder)[1].get("eos_token"))
    names = [] if said is None else [said]
    if not names and (folder / CONFIG).is_file():
        numbers = read_json(folder / CONFIG).get("eos_token_id")
        numbers = numbers if isinstance(numbers, list) else [] if numbers is None else [numbers]
        names = [tokenizer.id_to_token(number) or str(number) for number in numbers]
    names = names or [name for name in ENDS if tokenizer.token_to_id(name) is not None]
    remedy = f'write {{"eos_token": "…"}} into {folder / TOKENIZER_CONFIG}, of a copy of the folder if it is not yours'
    if len(names) != 1:
        found = ", ".join(names) or f"none of {', '.join(ENDS)}"
        raise DataError(f"{folder}: cannot tell which entry ends a text ({found}): {remedy}")
    if tokenizer.token_to_id(names[0]) is None:
        raise DataError(f"{folder}: `{names[0]}`, the end of text in its settings, is not an entry: {remedy}")
    return names[0]


def read_tokenizer(folder: Path, marks: bool) -> Tokenizer:
    """The tokenizer in a folder. marks: also recognise entries that only the files beside it call special."""
    from tokenizers import Tokenizer

    state, said = tokenizer_state(folder)
    if "dropout" in state["model"]:  # BPE dropout skips merges at random: each run would have other numbers
        state["model"]["dropout"] = None
    try:
        tokenizer = Tokenizer.from_str(json.dumps(state))
    except Exception as error:  # the library raises nothing more specific
        raise DataError(f"{folder / TOKENIZER}: the `tokenizers` library cannot read it: {error}") from None
    for token in state["added_tokens"]:
        if tokenizer.token_to_id(token["content"]) != token["id"]:
            raise DataError(
                f"{folder}: `{token['content']}` is listed as {token['id']}, but is {tokenizer.token_to_id(token['content'])} to the `tokenizers` library"
            )
    tokenizer.no_truncation()  # either may be left over from making the folder
    tokenizer.no_padding()
    if marks:
        added = {token["content"] for token in state["added_tokens"]}
        tokens = [said.get(name) for name in NAMED] + list(said.get("additional_special_tokens") or ())
        named = {content_of(token) for token in tokens} & tokenizer.get_vocab().keys() - added
        tokenizer.add_special_tokens(sorted(named))
    return tokenizer


def blind_to_marks(tokenizer: Tokenizer, seen: str | None, end: str) -> tuple[Tokenizer, list[str]]:
    """(a `tokenizers.Tokenizer` that encodes `end` and special entries in a text, except `seen`, as plain text; these entries).

    Tokens that it adds itself stay. Its own option `encode_special_tokens` would also spell `<unk>`, but not pieces of a unigram model.
    """
    from tokenizers import Tokenizer

    state = json.loads(tokenizer.to_str())
    hidden = {}
    for token in state["added_tokens"]:
        if (token["special"] or token["content"] == end) and token["content"] != seen:
            # A name that no text contains: U+FFFF is not a character.
            hidden[token["content"]] = token["content"] = f"\uffff{token['id']}\uffff"
    entries = state["model"]["vocab"]
    if state["model"].get("unk_token") in hidden:  # the same entry as the end, as in some copies of GPT-2
        state["model"]["unk_token"] = hidden[state["model"]["unk_token"]]
    if isinstance(entries, list):  # a unigram model: pieces with their scores
        state["model"]["vocab"] = [[hidden.get(piece, piece), score] for piece, score in entries]
    else:
        state["model"]["vocab"] = {hidden.get(entry, entry): number for entry, number in entries.items()}
    return Tokenizer.from_str(json.dumps(state)), list(hidden)
