"""A folder of a pretrained model in Hugging Face's form: which files it has, and how its vocabulary is renumbered here.

Reading JSON only: neither torch nor `transformers` nor `tokenizers` is loaded.
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
SPECIAL_TOKENS, ADDED_TOKENS = "special_tokens_map.json", "added_tokens.json"  # of older folders
NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
FLAGS = ("single_word", "lstrip", "rstrip", "special")
GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")  # classes for which `tokenizer.json` decides all
SPACED = ("Blenderbot", "LayoutLMv3")  # classes whose `add_prefix_space` is true by default
# Of other classes: step → what of it → the key that decides it, and its default.
DECIDED: dict[str, Any] = {
    "BertNormalizer": {
        "lowercase": ("do_lower_case", True),
        "strip_accents": ("strip_accents", None),
        "handle_chinese_chars": ("tokenize_chinese_chars", True),
    },
    "ByteLevel": {"add_prefix_space": ("add_prefix_space", False)},
}
WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
# Reading them may run code, and takes the memory of the whole model.
OTHER_WEIGHTS = ("pytorch_model*.bin", "consolidated*.pth", "tf_model.h5", "flax_model.msgpack", "*.gguf")
END_BYTES, SAMPLE_BYTES, SAMPLES_APART = 1 << 20, 4096, 4 << 20
UNKNOWN = "<unk>"  # as T5 and BART call it, whose folders need not say so


class Pretrained:
    """The folder at `location`, a path in which `~`, `$VARIABLES` and `${NAME:-other}` are filled in.

    Nothing is read before it is asked for. What is missing or damaged then raises DataError, which names the file and says
    how to fetch it. renumbered: data has the numbers that `order` gives its entries.
    """

    def __init__(self, location: str, key: str = "data.text.pretrained", renumbered: bool = False) -> None:
        self.folder, self.renumbered = Path(expanded(location, key)), renumbered

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """The model's settings in `config.json`."""
        return self._json(CONFIG)

    @property
    def tokenizer_file(self) -> Path:
        """The tokenizer in the form of the `tokenizers` library."""
        return self._file(TOKENIZER)

    @property
    def weight_files(self) -> list[Path]:
        """The safetensors that hold the weights: one file, or those that its index names."""
        return [self._file(name) for name in self._parts()] if self._in_parts else [self._file(WEIGHTS)]

    @property
    def _in_parts(self) -> bool:
        """Where both are there, `transformers` reads the one file."""
        return (self.folder / WEIGHTS_INDEX).is_file() and not (self.folder / WEIGHTS).is_file()

    @functools.cached_property
    def order(self) -> list[int]:
        """The folder's number of each entry, by our number: a permutation in which ours are 0 for `<unk>` and 1 for the end.

        Two swaps make it: what stood at 0 and 1 takes the places of those two, all else keeps its number. Entries for which the
        model has no row (BART's `<mask>` after it was fine-tuned) are left out, and so are rows that no entry has.
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
        """Raise DataError unless the tokenizer is there, or without it what describes the model, and with `weights` these as well."""
        described = weights or self.renumbered or not tokenizer
        _ = described and self.config, tokenizer and self.tokenizer_file, weights and self.weight_files

    def found_files(self, tokenizer: bool, weights: bool) -> list[Path]:
        """The files that are there, of those that prepared data depends on for its `tokenizer`, or a training for its model."""
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
        """File → sha256 of what a training knows of a model by: of large weights their ends, samples between, and their size."""
        found = {}
        for path in self.found_files(False, weights):
            state = path.stat()
            found[f"model/{path.name}"] = _digest_of(path, state.st_size, state.st_mtime_ns)
        return found

    def _parts(self) -> list[str]:
        """Names of the files that the index of the weights speaks of."""
        return sorted(set(self._json(WEIGHTS_INDEX).get("weight_map", {}).values()))

    @property
    def size(self) -> int | None:
        """One more than the highest number of an entry; None where no tokenizer is there."""
        path = self.folder / TOKENIZER
        return _size_of(str(self.folder), path.stat().st_mtime_ns) if path.is_file() else None

    def _numbers(self, rows: float | None = None) -> dict[str, int]:
        """Entry → its number in the folder, without the special ones that the model has no row for. rows: default: as it says."""
        _ = self.tokenizer_file
        state, _ = tokenizer_state(self.folder)
        rows = rows or self.config.get("vocab_size")
        if rows is None:
            raise DataError(f"{self.folder / CONFIG}: it has no `vocab_size`")
        special = {token["content"]: token["id"] for token in state["added_tokens"]}
        return {entry: n for entry, n in (_entries(state) | special).items() if n < rows or entry not in special}

    def _unknown_and_end(self, numbers: dict[str, int]) -> tuple[int, Any]:
        """The folder's numbers of the entries for what is unknown and for the end."""
        unknown = content_of(tokenizer_state(self.folder)[1].get("unk_token")) or UNKNOWN
        if unknown not in numbers:
            raise DataError(f"{self.folder / TOKENIZER}: no entry `{unknown}` for what is unknown")
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
        """Raise ConfigError where weights are there, but none as safetensors."""
        there = sorted(path.name for pattern in OTHER_WEIGHTS for path in self.folder.glob(pattern))
        if there and not any(self.folder.glob("*.safetensors*")):
            raise ConfigError(
                f"{self.folder}: its weights are {shorten_list(there, 1)}, not {WEIGHTS}: load it with `from_pretrained`, and `save_pretrained` it again"
            )


def refuse_other_forms(location: str) -> None:
    """Raise ConfigError for a folder whose weights are there in another form alone."""
    try:
        folder = Pretrained(location)
    except ConfigError:  # it may be on another machine, and its variables set there
        return
    folder.refuse_other_forms()


def tokenizer_state(folder: Path) -> tuple[dict, dict]:
    """(`tokenizer.json` with what files beside it add, what these say), as `transformers` reads a folder. DataError for contradictions."""
    state, said = _json_if_there(folder / TOKENIZER), _json_if_there(folder / TOKENIZER_CONFIG)
    try:
        there, entries = {token["content"]: token for token in state["added_tokens"]}, _entries(state)
        added = said.get("added_tokens_decoder")
        if added is None:  # an older folder, in which `tokenizer.json` knows best
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
    """Change steps in `tokenizer.json` as the classes of `transformers` do that decide them, by what they are told."""
    kind = said.get("tokenizer_class") or config.get("tokenizer_class") or config.get("model_type") or GENERIC[0]
    parts: Any = [] if kind in GENERIC else filter(None, (state.get("normalizer"), state.get("pre_tokenizer")))
    for part in parts:
        for step in (part, *part.get("normalizers", ()), *part.get("pretokenizers", ())):
            if step["type"] == "ByteLevel" and kind.lower().startswith("llama"):
                continue  # is read by a generic class all the same
            for name, (key, default) in DECIDED.get(step["type"], {}).items():
                default = kind.startswith(SPACED) if name == "add_prefix_space" else default
                step[name] = default if said.get(key) is None else said[key]


def _entries(state: dict) -> dict[str, int]:
    """Entry → number of the model's own vocabulary, without what was added to it."""
    entries = state["model"]["vocab"]
    return {piece: n for n, (piece, _) in enumerate(entries)} if isinstance(entries, list) else entries  # with scores


def content_of(token: str | dict | None) -> str | None:
    """The text of an entry, which files name alone or with how it is found."""
    token = token[0] if isinstance(token, list) and len(token) == 1 else token
    token = token["content"] if isinstance(token, dict) else token
    if not isinstance(token, str | None):
        raise DataError(f"an entry of a tokenizer is named by {token!r}; name one, as text")
    return token


def _json_if_there(path: Path) -> dict:
    """The mapping in a file; empty where there is none."""
    try:
        values = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise DataError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise DataError(f"{path}: not a mapping")
    return values


def folders(data: Any, model: Any = None) -> list[tuple[Pretrained, bool, bool]]:
    """(Pretrained, whether its tokenizer is read, whether its weights) of what data is made with, and of the `model` of a training."""
    begun, found = model.pretrained if model else None, []
    if data.pretrained:
        found.append((Pretrained(data.pretrained, renumbered=data.format == "pairs"), True, begun == data.pretrained))
    if model and model.folder:
        found.append((Pretrained(model.folder, "model.folder"), False, begun is not None))
    return found


@functools.cache
def _size_of(location: str, modified: int) -> int:
    """`Pretrained.size`, once for each state of a file that may be large: plans ask often."""
    return 1 + max(Pretrained(location)._numbers(math.inf).values())


@functools.cache
def _digest_of(path: Path, size: int, modified: int) -> str:
    """What `Pretrained.digests` says of a file, once for each state of it: plans ask often."""
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(END_BYTES))
        for place in range(SAMPLES_APART, size - END_BYTES, SAMPLES_APART):
            file.seek(place)
            digest.update(file.read(SAMPLE_BYTES))
        file.seek(max(min(size, END_BYTES), size - END_BYTES))
        digest.update(file.read() + str(size).encode())
    return digest.hexdigest()
