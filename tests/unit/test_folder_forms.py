"""A folder is read as its maker meant it: the first loss is that of `transformers`, or it is refused with the reason."""

from types import SimpleNamespace

import pytest
import torch
import transformers

from parascale.errors import ParascaleError
from parascale.evaluation.evaluate import summed_loss
from parascale.families.build import build_model
from parascale.pretrained import Pretrained
from parascale.settings import Layout, Run, Workload, make
from parascale.train.loss import refuse_foresight

from .checkpoints import ALONE
from .folder_models import PLACES, VOCABULARY, filled, make_folder
from .pretrained_folders import edit_config, edit_weights, make_bart, make_t5

NUMBERS = torch.randint(7, 31, (3, PLACES), generator=torch.Generator().manual_seed(2))
NONE, HEAD = (lambda folder: None), "lm_head.weight"
BALANCE = "model.layers.1.mlp.gate.e_score_correction_bias"
BIAS, POOLER = "model.layers.0.self_attn.q_proj.bias", "bert.pooler.dense.weight"
BESIDE, ODD = "`lm_head.weight` .*`tie_word_embeddings` = false", {"rope_type": "odd"}


def family(name, **more):
    return lambda folder: make_folder(folder, name, **more)


def config(**values):
    return lambda folder: edit_config(folder, **values)


def weights(change):
    return lambda folder: edit_weights(folder, change)


def adds(name, shape=(32,)):
    return weights(lambda _: {name: torch.ones(shape)})


def lacks(name):
    return weights(lambda _: {name: None})


def own_head(of, scale=0.5):
    return weights(lambda stored: {HEAD: scale * stored[of]})


def balanced(stored):
    return {BALANCE: torch.arange(4.0)} if BALANCE in stored else {}


def untied(folder):
    LLAMA_HEAD(folder)
    edit_config(folder, tie_word_embeddings=False)


def only_bin(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


TIED = {"tie_word_embeddings": True}
LLAMA_HEAD, GPT_HEAD = own_head("model.embed_tokens.weight"), own_head("transformer.wte.weight")
T5, BART = (
    (lambda folder, make=make, entries=entries: make(folder, vocab_size=entries))
    for make, entries in ((make_t5, 32), (make_bart, 90))
)
# What a folder is → (how it is made, what is done to it, None where its loss is the library's or a part of the refusal).
FORMS = {
    "decoder, tied": (family("GPT-2"), NONE, None),
    "decoder": (family("Llama"), NONE, None),
    "decoder, told to tie": (family("Llama", **TIED), NONE, None),
    "tied twice alike": (family("Llama", **TIED), own_head("model.embed_tokens.weight", 1.0), None),
    "tied beside a head": (family("Llama", **TIED), LLAMA_HEAD, BESIDE),
    "a layer too many": (family("Llama"), config(num_hidden_layers=1), r"no place .* model\.layers\.1\..* more"),
    "a bias too many": (family("Llama"), adds(BIAS), f"no place .* {BIAS}"),
    "rotary frequencies of old": (family("Llama"), adds("model.layers.0.self_attn.rotary_emb.inv_freq", 4), None),
    "masks of old": (family("GPT-2"), adds("transformer.h.0.attn.bias", (1, 1, 32, 32)), None),
    "its kernels of attention": (family("Llama"), config(_attn_implementation="flash_attention_2"), None),
    "an activation of its own": (family("Llama"), config(hidden_act="silly"), "does not build it: KeyError: 'silly'"),
    "a key that its class lacks": (family("Llama", layer_types=None), config(rope_parameters=ODD), "odd"),
    "weights as .bin": (family("Llama"), only_bin, r"pytorch_model\.bin.*save_pretrained"),
    "mixture, tied": (family("Qwen3-MoE", **TIED), NONE, None),
    "mixture with its second loss": (family("Mixtral", output_router_logits=True), NONE, "`output_router_logits`"),
    "mixture with a trained buffer": (family("GLM-4-MoE", initializer_range=0.2), weights(balanced), None),
    "encoder": (family("BERT"), NONE, "sees tokens that come later.*`is_decoder` = true"),
    "encoder as a decoder": (family("BERT", is_decoder=True), NONE, None),
    "positions after padding": (family("RoBERTa", is_decoder=True), NONE, "positions .* padding"),
    "encoder-decoder": (T5, NONE, None),
    "encoder-decoder, BART": (BART, NONE, None),
    "encoder-decoder beside a head": (T5, own_head("shared.weight"), BESIDE),
    "encoder-decoder, a bias too many": (T5, adds("encoder.block.0.layer.1.DenseReluDense.wo.bias", 16), "no place"),
}
# The same mechanisms in other families and parts.
MORE = {
    "tied beside a head, GPT-2": (family("GPT-2"), GPT_HEAD, BESIDE),
    "untied by its config": (family("Llama", **TIED), untied, None),
    "no head": (family("Llama"), lacks(HEAD), "lack `lm_head.weight`"),
    "a layer too few": (family("Llama"), config(num_hidden_layers=3), r"lack `model.layers.2\."),
    "a bias too few": (family("Qwen2"), lacks("model.layers.1.self_attn.q_proj.bias"), "lack `.*q_proj.bias`"),
    "its slow attention": (family("Gemma 2"), config(attn_implementation="eager"), None),
    "mixture": (family("Mixtral"), NONE, None),
    "an expert too few": (family("Mixtral"), config(num_local_experts=5), r"is \[4, .* config.json \[5"),
    "a name too many": (family("GPT-2"), adds("wte.weight", (VOCABULARY, 32)), "no place .*wte.weight"),
    "its pooler": (family("BERT", is_decoder=True), adds(POOLER, (32, 32)), f"no place .* {POOLER}"),
    "BART beside a head": (BART, own_head("model.shared.weight"), BESIDE),
    "encoder-decoder, a layer too few": (BART, lacks("model.decoder.layers.1.fc1.bias"), "lack `.*fc1.bias`"),
}


def ours(folder, seq2seq):
    """The loss that a training begins with, on NUMBERS."""
    text = {"tokenizer": "pretrained", "pretrained": str(folder)}
    kind = {"kind": "transformers", "folder": str(folder), "weights": True}
    kind = {"kind": "pretrained", "pretrained": str(folder)} if seq2seq else kind
    task = {"task": "summarisation"} if seq2seq else {}
    training = {"window": PLACES, "steps": 2} | ({"summary_window": PLACES} if seq2seq else {})
    workload = make(Workload, name="x", data={"text": text}, model=kind, training=training, **task)
    run = Run("x", workload, Layout())
    run.check()
    order = torch.tensor(Pretrained(str(folder)).order) if seq2seq else torch.arange(VOCABULARY)
    model = filled(lambda: build_model(workload.model, len(order), *workload.sizes))
    mesh = SimpleNamespace(**vars(ALONE), device=torch.device("cpu"))
    refuse_foresight(run, SimpleNamespace(mesh=mesh, copies=None, outputs=model, train=model.train), len(order))
    numbers = order.argsort()[NUMBERS]
    late = torch.cat([numbers[:, :1], numbers[:, :-1]], 1)
    given = (numbers, numbers >= 0, late) if seq2seq else (numbers[:, :-1],)
    labels = numbers if seq2seq else numbers[:, 1:]
    return summed_loss(model.eval()(*given), labels) / labels.numel()


@pytest.mark.parametrize("form", [*FORMS, *(pytest.param(form, marks=pytest.mark.slow) for form in MORE)])
@torch.no_grad()
def test_the_first_loss_is_the_library_s_or_the_folder_is_refused(form, tmp_path):
    create, change, refused = (FORMS | MORE)[form]
    seq2seq = create in (T5, BART)
    folder = create(tmp_path / "model")
    change(folder)
    if refused is not None:
        with pytest.raises(ParascaleError, match=refused) as error:
            ours(folder, seq2seq)
        assert "\n" not in str(error.value) and len(str(error.value)) < 600
        return
    loss = ours(folder, seq2seq)
    edit_config(folder, _attn_implementation=None)
    kind = transformers.AutoModelForSeq2SeqLM if seq2seq else transformers.AutoModelForCausalLM
    theirs = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    expected = theirs(input_ids=NUMBERS, labels=NUMBERS).loss
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=0)
