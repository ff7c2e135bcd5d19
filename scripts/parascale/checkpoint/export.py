"""Export a checkpoint for `transformers`: the model's family maps the names, and tensors are renamed as they are read."""

import json

import torch

from parascale.checkpoint.tensors import Rows, joined
from parascale.data.tokenize import END, SUBWORD_FILE, UNKNOWN, NumberTokenizer, PretrainedTokenizer, WordTokenizer
from parascale.errors import CheckpointError
from parascale.families import kinds, part_of
from parascale.files import read_json
from parascale.settings import run_from_dict


def config(source, dtype):
    """`config.json` for a StoredCheckpoint whose weights are written as `dtype`, as plain values.

    Raises CheckpointError for settings that `transformers` has no equivalent of.
    """
    workload = _workload(source)
    words = words_of(workload.model.kind)
    described = words.config(workload.model, source.weights, workload.training.window)
    return described | {"dtype": str(dtype).removeprefix("torch.")}


def tensors(source, weights):
    """Name in `transformers` → Rows, made from `weights` (our name → Rows)."""
    model = _workload(source).model
    found = {}
    for theirs, (ours, turned) in words_of(model.kind).tensors(model, weights).items():
        parts = [weights.get(name) or _no_bias(weights[name.removesuffix("bias") + "weight"]) for name in ours]
        found[theirs] = joined(parts, turned) if turned or len(parts) > 1 else parts[0]
    return found


def tokenizer(source, tokens):
    """File → its values, for `AutoTokenizer`, which then encodes texts as `tokens` (of data.text), the training's data, were encoded.

    Special entries in a text, other than `<unk>`, stay text here too, unless `data.text.marks: tokens`: `split_special_tokens` does this
    in the library, except for pieces of a unigram model.
    """
    ours = tokens.tokenizer
    if isinstance(ours, NumberTokenizer):
        return {}
    state = _of_words(ours) if isinstance(ours, WordTokenizer) else read_json(tokens.folder / SUBWORD_FILE)
    if isinstance(ours, PretrainedTokenizer):
        state = _renumbered(state, ours)
    end, unknown = (None if number is None else ours.vocabulary[number] for number in (ours.end, ours.unknown))
    for token in state["added_tokens"]:  # `<unk>` is recognised in a text
        token["special"] = (token["special"] or token["content"] == end) and token["content"] != unknown
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": end,
        "split_special_tokens": not getattr(ours, "marks", False),
        "clean_up_tokenization_spaces": False,
        "model_max_length": _workload(source).training.window,
    }
    return {"tokenizer.json": state, "tokenizer_config.json": described}


def _of_words(ours):
    """A WordTokenizer in the form that the `tokenizers` library writes."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(ours.vocabulary)}, UNKNOWN))
    final_sigma = normalizers.Replace(Regex(r"(?<=\p{L})Σ(?!\p{L})"), "ς")  # as Python's `lower` does
    lower = [final_sigma, normalizers.Lowercase()] if ours.lowercase else []
    end_is_text = normalizers.Replace(Regex(rf"(?<!\S){END}(?!\S)"), UNKNOWN)
    made.normalizer = normalizers.Sequence([*lower, end_is_text])
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\x1c-\x1f]+"), "removed")  # as `str.split` does
    made.add_special_tokens([AddedToken(END, normalized=False)])
    return json.loads(made.to_str())


def _renumbered(state, ours):
    """A PretrainedTokenizer in the library's form, with our numbers. Tokens before a text stay; no end mark is added."""
    from tokenizers import Tokenizer, processors

    numbers = {entry: number for number, entry in enumerate(ours.vocabulary)}
    model = state["model"]
    if isinstance(model["vocab"], list):  # a unigram model: pieces with their scores
        unknown = model.get("unk_id")
        model["unk_id"] = None if unknown is None else numbers[model["vocab"][unknown][0]]
        model["vocab"].sort(key=lambda piece: numbers[piece[0]])
    else:
        model["vocab"] = {entry: numbers[entry] for entry in model["vocab"] if entry in numbers}
    known = [token for token in state["added_tokens"] if token["content"] in numbers]
    added = sorted((token | {"id": numbers[token["content"]]} for token in known), key=lambda token: token["id"])
    made = Tokenizer.from_str(json.dumps(state | {"added_tokens": added, "post_processor": None}))
    before = [(ours.vocabulary[number], number) for number in ours.encode("").tolist()]
    made.post_processor = processors.TemplateProcessing([*(entry for entry, _ in before), "$A"], special_tokens=before)
    return json.loads(made.to_str())


def _no_bias(weight):
    return Rows(weight.shape[:1], weight.dtype, lambda first, last: torch.zeros(last - first, dtype=weight.dtype))


def _workload(source):
    """The workload that a checkpoint was trained on."""
    if source.run_record is None:
        raise CheckpointError(f"{source.folder}: run.json is needed beside the checkpoint to know the model's settings")
    return run_from_dict(source.run_record["settings"]).workload


def words_of(kind):
    """The `export` module of a model kind's family, such as `families/language/export.py`.

    Raises CheckpointError for a kind that `transformers` has no equivalent of.
    """
    words = part_of(kind, "export")
    if words is None:
        exported = ", ".join(name for name, kind in kinds().items() if kind.export)
        raise CheckpointError(f"transformers has no equivalent of model.kind = {kind}. Exported: {exported}")
    return words
