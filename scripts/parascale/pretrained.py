"""A folder with a pretrained model in Hugging Face's format: its files, and the renumbering of its vocabulary.

This module reads only JSON; it does not load torch, `transformers` or `tokenizers`.
"""

import functools
import hashlib
import json
import math
from pathlib import Path
from typing import Any

from parascale.errors import ConfigError, DataError, shorten_list
from parascale.paths import expanded

CONFIG, TOKENIZER, TOKENIZER_CONFIG = "config.json", "tokenizer.json", "tokenizer_config.json"
SPECIAL_TOKENS, ADDED_TOKENS = "special_tokens_map.json", "added_tokens.json"  # in older folders
NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
FLAGS = ("single_word", "lstrip", "rstrip", "special")
GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")  # classes that take everything from `tokenizer.json`
SPACED = ("Blenderbot", "LayoutLMv3")  # classes whose `add_prefix_space` is true by default
# For other classes: step of `tokenizer.json` → its setting → (the key that overrides it, default).
DECIDED: dict[str, Any] = {
    "BertNormalizer": {
        "lowercase": ("do_lower_case", True),
        "strip_accents": ("strip_accents", None),
        "handle_chinese_chars": ("tokenize_chinese_chars", True),
    },
    "ByteLevel": {"add_prefix_space": ("add_prefix_space", False)},
}
WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
# Reading these may run code, and needs memory for the whole model.
OTHER_WEIGHTS = ("pytorch_model*.bin", "consolidated*.pth", "tf_model.h5", "flax_model.msgpack", "*.gguf")
END_BYTES, SAMPLE_BYTES, SAMPLES_APART = 1 << 20, 4096, 4 << 20
UNKNOWN = "<unk>"  # the unknown token of T5 and BART, whose folders need not name it


class Pretrained:
    """The folder at `location`, a path in which `~`, `$VARIABLES` and `${NAME:-other}` are expanded.

    Files are read when needed. A missing or damaged file raises DataError, which names the file and says how to download it.
    renumbered: data uses the token ids that `order` gives.
    """

    def __init__(self, location: str, key: str = "data.text.pretrained", renumbered: bool = False) -> None:
        self.folder, self.renumbered = Path(expanded(location, key)), renumbered

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """The model's settings in `config.json`."""
        return self._json(CONFIG)

    @property
    def tokenizer_file(self) -> Path:
        """The tokenizer in the format of the `tokenizers` library."""
        return self._file(TOKENIZER)

    @property
    def weight_files(self) -> list[Path]:
        """The safetensors with the weights: one file, or those that the index names."""
        return [self._file(name) for name in self._parts()] if self._in_parts else [self._file(WEIGHTS)]

    @property
    def _in_parts(self) -> bool:
        """True if the weights are in several files. If there is also a single file, `transformers` reads that."""
        return (self.folder / WEIGHTS_INDEX).is_file() and not (self.folder / WEIGHTS).is_file()

    @functools.cached_property
    def order(self) -> list[int]:
        """Our token id → the folder's token id: a permutation in which our 0 is `<unk>` and our 1 is the end.

        It swaps these two with the entries at 0 and 1; all others keep their ids. It leaves out entries for which the model has no row
        (BART's `<mask>` after fine-tuning), and rows without an entry.
        """
        numbers = self._numbers()
        order = list(range(len(numbers)))
        if sorted(numbers.values()) != order:
            raise DataError(f"{self.folder / TOKENIZER} lacks entries below `vocab_size` of {CONFIG}")
        for ours, theirs in enumerate(self._unknown_and_end(numbers)):
            place = order.index(theirs)
            order[ours], order[place] = order[place], order[ours]
        return order

    def check(self, tokenizer: bool = True, weights: bool = True) -> None:
        """Raise DataError if a required file is missing: the tokenizer, the weights, or `config.json` where one of these needs it."""
        described = weights or self.renumbered or not tokenizer
        _ = described and self.config, tokenizer and self.tokenizer_file, weights and self.weight_files

    def found_files(self, tokenizer: bool, weights: bool) -> list[Path]:
        """The existing files that prepared data depends on (with `tokenizer`) or a training depends on (with `weights`)."""
        names = [CONFIG, *([TOKENIZER, TOKENIZER_CONFIG] if tokenizer else [])]
        path = self.folder / TOKENIZER_CONFIG
        if tokenizer and not (path.is_file() and b'"added_tokens_decoder"' in path.read_bytes()):
            names += [SPECIAL_TOKENS, ADDED_TOKENS]
        if weights and self._in_parts:
            names += [WEIGHTS_INDEX, *self._parts()]
        elif weights:
            names.append(WEIGHTS)
        return [self.folder / name for name in names if (self.folder / name).is_file()]

    def digests(self, weights: bool) -> dict[str, str]:
        """File → sha256, to recognise a model. For large weights it covers both ends, samples in between, and the size."""
        found = {}
        for path in self.found_files(False, weights):
            state = path.stat()
            found[f"model/{path.name}"] = _digest_of(path, state.st_size, state.st_mtime_ns)
        return found

    def _parts(self) -> list[str]:
        """Names of the weight files in the index."""
        return sorted(set(self._json(WEIGHTS_INDEX).get("weight_map", {}).values()))

    @property
    def size(self) -> int | None:
        """The highest token id plus one; None without a tokenizer."""
        path = self.folder / TOKENIZER
        return _size_of(str(self.folder), path.stat().st_mtime_ns) if path.is_file() else None

    def _numbers(self, rows: float | None = None) -> dict[str, int]:
        """Entry → its token id in the folder, without special entries for which the model has no row. rows: default: `vocab_size`."""
        _ = self.tokenizer_file
        state, _ = tokenizer_state(self.folder)
        rows = rows or self.config.get("vocab_size")
        if rows is None:
            raise DataError(f"{self.folder / CONFIG}: it has no `vocab_size`")
        special = {token["content"]: token["id"] for token in state["added_tokens"]}
        return {entry: n for entry, n in (_entries(state) | special).items() if n < rows or entry not in special}

    def _unknown_and_end(self, numbers: dict[str, int]) -> tuple[int, Any]:
        """The folder's token ids of the unknown token and of the end."""
        unknown = content_of(tokenizer_state(self.folder)[1].get("unk_token")) or UNKNOWN
        if unknown not in numbers:
            raise DataError(f"{self.folder / TOKENIZER}: no entry `{unknown}` for unknown text")
        end = self.config.get("eos_token_id")
        if end not in numbers.values() or end == numbers[unknown]:
            raise DataError(f"{self.folder / CONFIG}: `eos_token_id` = {end} is not an entry of {TOKENIZER}")
        return numbers[unknown], end

    def _json(self, name: str) -> dict[str, Any]:
        return _json_if_there(self._file(name))

    def _file(self, name: str) -> Path:
        path = self.folder / name
        if not path.is_file():
            if name == WEIGHTS:
                self.refuse_other_forms()
            raise DataError(
                f"{path}: no such file; a tokenizer has {TOKENIZER}, a model {CONFIG} and {WEIGHTS} too: fetch it on a login node, as by `hf download google-t5/t5-small --local-dir {self.folder}`"
            )
        return path

    def refuse_other_forms(self) -> None:
        """Raise ConfigError if the folder has weights, but none as safetensors."""
        there = sorted(path.name for pattern in OTHER_WEIGHTS for path in self.folder.glob(pattern))
        if there and not any(self.folder.glob("*.safetensors*")):
            raise ConfigError(
                f"{self.folder}: its weights are {shorten_list(there, 1)}, not {WEIGHTS}: load it with `from_pretrained`, and `save_pretrained` it again"
            )


def refuse_other_forms(location: str) -> None:
    """Raise ConfigError if the folder has weights, but none as safetensors."""
    try:
        folder = Pretrained(location)
    except ConfigError:  # an unset variable, which may be set on another machine
        return
    folder.refuse_other_forms()


def tokenizer_state(folder: Path) -> tuple[dict, dict]:
    """(`tokenizer.json` plus entries of other files, their settings), as `transformers` reads a folder. DataError if they contradict."""
    state, said = _json_if_there(folder / TOKENIZER), _json_if_there(folder / TOKENIZER_CONFIG)
    try:
        there, entries = {token["content"]: token for token in state["added_tokens"]}, _entries(state)
        added = said.get("added_tokens_decoder")
        if added is None:  # an older folder, where `tokenizer.json` takes precedence
            said |= _json_if_there(folder / SPECIAL_TOKENS)
            special = [said.get(name) for name in NAMED] + list(said.get("additional_special_tokens") or ())
            special, older = list(map(content_of, special)), _json_if_there(folder / ADDED_TOKENS).items()
            added = {n: there.get(entry, {"content": entry, "special": entry in special}) for entry, n in older}
        for number, token in sorted((int(number), token) for number, token in added.items()):
            entry = token["content"]
            known = there[entry]["id"] if entry in there else entries.get(entry, number)
            if known != number:
                raise DataError(f"{folder}: `{entry}` is {known} in {TOKENIZER}, but {number} in another file: fix it")
            flags = dict.fromkeys(FLAGS, False) | {"normalized": not token.get("special")}
            there[entry] = {**flags, **token, "id": number}
        state["added_tokens"] = list(there.values())
        _obey(said, _json_if_there(folder / CONFIG), state)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DataError(f"{folder}: no vocabulary of `tokenizers` in {TOKENIZER}, or a damaged file") from None
    return state, said


def _obey(said: dict, config: dict, state: dict) -> None:
    """Override steps in `tokenizer.json` as the tokenizer's class in `transformers` does, from its settings."""
    kind = said.get("tokenizer_class") or config.get("tokenizer_class") or config.get("model_type") or GENERIC[0]
    parts: Any = [] if kind in GENERIC else filter(None, (state.get("normalizer"), state.get("pre_tokenizer")))
    for part in parts:
        for step in (part, *part.get("normalizers", ()), *part.get("pretokenizers", ())):
            if step["type"] == "ByteLevel" and kind.lower().startswith("llama"):
                continue  # `transformers` reads it with a generic class
            for name, (key, default) in DECIDED.get(step["type"], {}).items():
                default = kind.startswith(SPACED) if name == "add_prefix_space" else default
                step[name] = default if said.get(key) is None else said[key]


def _entries(state: dict) -> dict[str, int]:
    """Entry → token id in the original vocabulary, without added tokens."""
    entries = state["model"]["vocab"]
    return {piece: n for n, (piece, _) in enumerate(entries)} if isinstance(entries, list) else entries  # with scores


def content_of(token: str | dict | None) -> str | None:
    """The text of an entry, which files give as text or as a mapping with flags."""
    token = token[0] if isinstance(token, list) and len(token) == 1 else token
    token = token["content"] if isinstance(token, dict) else token
    if not isinstance(token, str | None):
        raise DataError(f"a special token of a tokenizer is {token!r}; it must be text")
    return token


def _json_if_there(path: Path) -> dict:
    """The mapping in a JSON file; empty if there is no file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise DataError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise DataError(f"{path}: not a mapping")
    return values


def folders(data: Any, model: Any = None) -> list[tuple[Pretrained, bool, bool]]:
    """(Pretrained, whether its tokenizer is read, whether its weights are read) for the data and for the `model` of a training."""
    begun, found = model.pretrained if model else None, []
    if data.pretrained:
        found.append((Pretrained(data.pretrained, renumbered=data.format == "pairs"), True, begun == data.pretrained))
    if model and model.folder:
        found.append((Pretrained(model.folder, "model.folder"), False, begun is not None))
    return found


@functools.cache
def _size_of(location: str, modified: int) -> int:
    """`Pretrained.size`, cached until the file changes: the file may be large, and plans ask often."""
    return 1 + max(Pretrained(location)._numbers(math.inf).values())


@functools.cache
def _digest_of(path: Path, size: int, modified: int) -> str:
    """A file's digest in `Pretrained.digests`, cached until the file changes: plans ask often."""
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(END_BYTES))
        for place in range(SAMPLES_APART, size - END_BYTES, SAMPLES_APART):
            file.seek(place)
            digest.update(file.read(SAMPLE_BYTES))
        file.seek(max(min(size, END_BYTES), size - END_BYTES))
        digest.update(file.read() + str(size).encode())
    return digest.hexdigest()
