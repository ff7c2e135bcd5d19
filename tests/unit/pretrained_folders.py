"""Tiny pretrained models with random weights, in folders as `hf download` leaves them."""

import json

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

WORDS = [f"w{number}" for number in range(60)]
ROWS_BEYOND = 3  # of the embedding, which the tokenizer does not know
T5_SPECIAL = ["<pad>", "</s>", "<unk>"]
# Pieces and their log probabilities, as such a tokenizer learns them of these words; its trainer finds others each time.
PIECES = [(special, 0.0) for special in T5_SPECIAL] + [
    *((f"▁w{digit}", -2.0) for digit in range(1, 6)),
    ("▁w", -3.0),
    *((str(digit), -3.5) for digit in range(10)),
    *((letter, -5.0) for letter in "▁wetmszraix:u"),
]
BART_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


def make_t5(folder, **more):
    """A T5 and its unigram tokenizer below `folder`, which is returned; `more` are settings of its architecture."""
    from transformers import T5Config, T5ForConditionalGeneration

    tokenizer = Tokenizer(models.Unigram(PIECES, unk_id=T5_SPECIAL.index("<unk>"), byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(T5_SPECIAL)
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 2, "num_heads": 4, "relative_attention_num_buckets": 8}
    sizes |= {"vocab_size": tokenizer.get_vocab_size() + ROWS_BEYOND, "decoder_start_token_id": 0}
    config = T5Config(**sizes | more)
    return _save(folder, tokenizer, T5ForConditionalGeneration, config)


def make_bart(folder, **more):
    """A BART and its byte-level tokenizer below `folder`, which is returned; `more` are settings of its architecture."""
    from transformers import BartConfig, BartForConditionalGeneration

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=120, special_tokens=BART_SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(_texts(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    halves = {
        f"{half}_{key}": value
        for half in ("encoder", "decoder")
        for key, value in {"layers": 2, "attention_heads": 4, "ffn_dim": 32}.items()
    }
    sizes = {"d_model": 16, "max_position_embeddings": 64, "init_std": 0.3, **halves}
    config = BartConfig(**{"vocab_size": tokenizer.get_vocab_size() + ROWS_BEYOND, **sizes, **more})
    return _save(folder, tokenizer, BartForConditionalGeneration, config)


MAKERS = {"t5": make_t5, "bart": make_bart}


T5_CONFIG = {
    "model_type": "t5",
    "d_model": 64,
    "d_ff": 256,
    "d_kv": 8,
    "num_layers": 3,
    "num_heads": 8,
    "relative_attention_num_buckets": 32,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
# As google-t5/t5-small has them (Raffel et al. 2020, arXiv:1910.10683).
T5_SMALL = T5_CONFIG | {"d_model": 512, "d_ff": 2048, "d_kv": 64, "num_layers": 6}
BART_CONFIG = {
    "model_type": "bart",
    "d_model": 64,
    "max_position_embeddings": 128,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "decoder_start_token_id": 1,
    **{f"{half}_layers": 3 for half in ("encoder", "decoder")},
    **{f"{half}_attention_heads": 8 for half in ("encoder", "decoder")},
    **{f"{half}_ffn_dim": 256 for half in ("encoder", "decoder")},
}


def describe(folder, config, entries):
    """A folder without weights, of which a plan and fake tensors take the sizes: `config` and a tokenizer of so many entries."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [*T5_SPECIAL, *(f"w{number}" for number in range(entries - len(T5_SPECIAL)))]
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": entries}))
    (folder / "tokenizer.json").write_text(
        json.dumps({"model": {"vocab": [[word, 0.0] for word in words]}, "added_tokens": []})
    )
    return folder


def edit_config(folder, **values):
    """Change values of a folder's `config.json`."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def edit_weights(folder, change):
    """Change what a folder stores, name → tensor, by a function of it that returns what to add; None takes a tensor away."""
    path = folder / "model.safetensors"
    stored = load_file(path)
    stored |= change(stored)
    save_file({name: tensor for name, tensor in stored.items() if tensor is not None}, path, {"format": "pt"})


def _texts():
    return [" ".join(WORDS[first:] + WORDS[:first]) for first in range(0, len(WORDS), 7)] + ["summarize: text"]


def _save(folder, tokenizer, kind, config):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = kind(config)
        if not getattr(config, "scale_decoder_outputs", True):  # T5 1.1 and later: an output layer of its own
            model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
        for name, parameter in model.named_parameters():
            # As in a trained model: the bias of keys has no gradient but rounding noise, and beside zero that would show.
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.1)
        model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
