"""Tiny pretrained models with random weights, in folders as `hf download` leaves them."""

import json

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

WORDS = [f"w{number}" for number in range(60)]
ROWS_BEYOND = 3  # of the embedding, which the tokenizer does not know
T5_SPECIAL = ["<pad>", "</s>", "<unk>"]
BART_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


def make_t5(folder, **more):
    """A T5 and its unigram tokenizer below `folder`, which is returned; `more` are settings of its architecture."""
    from transformers import T5Config, T5ForConditionalGeneration

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=90, special_tokens=T5_SPECIAL, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(_texts(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 2, "num_heads": 4, "relative_attention_num_buckets": 8}
    config = T5Config(
        vocab_size=tokenizer.get_vocab_size() + ROWS_BEYOND, decoder_start_token_id=0, **{**sizes, **more}
    )
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
    config = BartConfig(vocab_size=tokenizer.get_vocab_size() + ROWS_BEYOND, **{**sizes, **more})
    return _save(folder, tokenizer, BartForConditionalGeneration, config)


MAKERS = {"t5": make_t5, "bart": make_bart}


def edit_config(folder, **values):
    """Change values of a folder's `config.json`."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


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
