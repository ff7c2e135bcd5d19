"""Tiny causal language models of `transformers` with random weights, in folders as its `save_pretrained` writes them."""

import pytest
import torch

from parascale.families.build import initialise
from parascale.parallel import tying
from parascale.settings import Workload, make

VOCABULARY, PLACES = 101, 32
LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": PLACES,
    "pad_token_id": None,
}
# Family → (its config in `transformers`, sizes).
FAMILIES = {
    "GPT-2": ("GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": PLACES}),
    "Llama": ("LlamaConfig", LLAMA),
    "Mistral": ("MistralConfig", LLAMA | {"sliding_window": 8}),
    "Qwen2": ("Qwen2Config", LLAMA),
    "Qwen3": ("Qwen3Config", LLAMA | {"head_dim": 8}),
    "Gemma 2": ("Gemma2Config", LLAMA | {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 8}),
    "Phi-3": ("Phi3Config", LLAMA | {"original_max_position_embeddings": PLACES}),
    "OLMo 2": ("Olmo2Config", LLAMA),
    "GPT-NeoX": ("GPTNeoXConfig", {name: size for name, size in LLAMA.items() if name != "num_key_value_heads"}),
    "SmolLM3": ("SmolLM3Config", LLAMA),
}
BERT = {name: size for name, size in LLAMA.items() if name != "num_key_value_heads"} | {"pad_token_id": 0}
GLM = {"n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
QWEN = {"num_experts": 4, "num_experts_per_tok": 2}
OTHERS = {
    "Mixtral": ("MixtralConfig", LLAMA | {"num_local_experts": 4}),
    "Qwen3-MoE": ("Qwen3MoeConfig", LLAMA | {"head_dim": 8, "moe_intermediate_size": 16, **QWEN}),
    "GLM-4-MoE": ("Glm4MoeConfig", LLAMA | {"head_dim": 8, "moe_intermediate_size": 16, **GLM}),
    "Apertus": ("ApertusConfig", LLAMA),
    "BERT": ("BertConfig", BERT),
    "RoBERTa": ("RobertaConfig", BERT),
}


def make_folder(folder, family, **more):
    """The folder of a tiny model of a family, its biases as of a trained one; `more` are settings of its architecture."""
    import transformers

    name, sizes = (FAMILIES | OTHERS)[family]
    config = getattr(transformers, name)(
        **{"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 1, **sizes, **more}
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return folder


def workload_of(folder, **model):
    """A workload of two steps that trains the model in `folder`."""
    settings = {"kind": "transformers", "folder": str(folder), **model}
    return make(Workload, name="x", model=settings, training={"window": PLACES, "steps": 2})


def filled(build, whole=lambda: pytest.fail("the whole model was made"), seed=1):
    """A model as a training begins with it: built without memory by `build`, then filled a tensor at a time."""
    with torch.device("meta"):
        model = build()
    tied = tying.tied_names(model)
    model.to_empty(device="cpu")
    tying.tie(model, tied)
    initialise(model, whole, seed, tied)
    return model
