"""Export a Transformer language model to Hugging Face's `transformers`, as GPT-2 or Llama if one is exactly equivalent.

GPT-2   learned positions, LayerNorm before each sublayer, gelu, gelu_tanh or relu, as many key heads as heads. Its matrices
        are transposed, with queries, keys and values in one. A bias that ours lacks becomes zeros: always for keys,
        because it changes nothing (see `modules.py`), and for all if `bias` is false.
Llama   rotary positions, RMSNorm before each sublayer, swiglu, any number of key heads, with or without bias.
"""

from parascale.errors import CheckpointError
from parascale.families.language.modules import ROTARY_BASE

ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu"}
GPT2, LLAMA = "gpt2", "llama"
VOCABULARY = "embedding.tokens.weight"  # the tensor with one row per vocabulary entry
# Our module → theirs, inside a block.
LLAMA_PLACES = {
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.o": "self_attn.o_proj",
    "attention_norm": "input_layernorm",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.down": "mlp.down_proj",
    "feed_forward_norm": "post_attention_layernorm",
}
GPT2_NORMS = {"attention_norm": "ln_1", "feed_forward_norm": "ln_2"}
GPT2_PLACES = {
    ("attention.q", "attention.k", "attention.v"): "attn.c_attn",
    ("attention.o",): "attn.c_proj",
    ("feed_forward.up",): "mlp.c_fc",
    ("feed_forward.down",): "mlp.c_proj",
}


def config(model, weights, window):
    """The contents of `config.json` for a Model, without the `dtype`. Raises CheckpointError for settings without an equivalent.

    weights: our names → tensors; only their shapes are used.
    """
    found = {"vocab_size": weights[VOCABULARY].shape[0], "tie_word_embeddings": model.tied}
    found |= {"bos_token_id": 1, "eos_token_id": 1, "model_type": architecture(model)}
    if architecture(model) == GPT2:
        found |= {"n_positions": window, "n_embd": model.dim, "n_layer": model.layers, "n_head": model.heads}
        found |= {"n_inner": model.hidden_width, "activation_function": ACTIVATIONS[model.activation]}
        found |= dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), model.dropout)
        return found | {"architectures": ["GPT2LMHeadModel"], "layer_norm_epsilon": model.norm_eps}
    found |= {"hidden_size": model.dim, "intermediate_size": model.hidden_width, "num_hidden_layers": model.layers}
    found |= {"num_attention_heads": model.heads, "num_key_value_heads": model.kv_heads or model.heads}
    found |= {"hidden_act": "silu", "max_position_embeddings": window, "rms_norm_eps": model.norm_eps}
    found |= {"attention_bias": model.bias, "mlp_bias": model.bias, "attention_dropout": model.dropout}
    rotation = {"rope_type": "default", "rope_theta": ROTARY_BASE}
    return found | {"architectures": ["LlamaForCausalLM"], "rope_parameters": rotation}


def architecture(model):
    """`gpt2` or `llama` for a Model. Raises CheckpointError naming the settings that have no equivalent."""
    needs: dict = {
        GPT2: {"position": ("learned",), "norm": ("layer",), "activation": tuple(ACTIVATIONS)},
        LLAMA: {"position": ("rotary",), "norm": ("rms",), "activation": ("swiglu",)},
    }
    name = LLAMA if model.position == "rotary" else GPT2
    wrong = [
        f"model.{key} = {getattr(model, key)} (needed: {' or '.join(allowed)})"
        for key, allowed in needs[name].items()
        if getattr(model, key) not in allowed
    ]
    if not model.pre_norm:
        wrong.append("model.pre_norm = false (needed: true)")
    if name == GPT2 and model.kv_heads not in (None, model.heads):
        wrong.append(f"model.kv_heads = {model.kv_heads} (needed: as many as model.heads)")
    if wrong:
        raise CheckpointError(f"transformers has no equal of this model; nearest is {name}, but {'; '.join(wrong)}")
    return name


def tensors(model, weights):
    """Name in `transformers` → (our names, transposed): our tensors are joined along rows, then transposed if the flag is set.

    A bias that we do not have means zeros.
    """
    return {GPT2: _gpt2, LLAMA: _llama}[architecture(model)](model)


def _llama(model):
    found = {"model.embed_tokens.weight": VOCABULARY, "model.norm.weight": "norm.weight"}
    if not model.tied:
        found["lm_head.weight"] = "head.weight"
    for layer in range(model.layers):
        for ours, theirs in LLAMA_PLACES.items():
            found[f"model.layers.{layer}.{theirs}.weight"] = f"blocks.{layer}.{ours}.weight"
            if model.bias and not ours.endswith("norm"):
                found[f"model.layers.{layer}.{theirs}.bias"] = f"blocks.{layer}.{ours}.bias"
    return {theirs: ((ours,), False) for theirs, ours in found.items()}


def _gpt2(model):
    found: dict = {
        "transformer.wte.weight": ((VOCABULARY,), False),
        "transformer.wpe.weight": (("embedding.positions.weight",), False),
    }
    if not model.tied:
        found["lm_head.weight"] = (("head.weight",), False)
    norms = {"transformer.ln_f": "norm"}
    for layer in range(model.layers):
        ours, theirs = f"blocks.{layer}", f"transformer.h.{layer}"
        norms |= {f"{theirs}.{place}": f"{ours}.{norm}" for norm, place in GPT2_NORMS.items()}
        for matrices, place in GPT2_PLACES.items():
            found[f"{theirs}.{place}.weight"] = (tuple(f"{ours}.{name}.weight" for name in matrices), True)
            found[f"{theirs}.{place}.bias"] = (tuple(f"{ours}.{name}.bias" for name in matrices), False)
    for place, norm in norms.items():
        found |= {f"{place}.{part}": ((f"{norm}.{part}",), False) for part in ("weight", "bias")}
    return found
