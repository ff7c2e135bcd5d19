"""A Transformer language model in the words of Hugging Face's `transformers`: as GPT-2 or as Llama, where one is exactly ours.

GPT-2   learned positions, LayerNorm before each sublayer, gelu, gelu_tanh or relu, as many key heads as heads. Its matrices
        are turned, and queries, keys and values stand in one. A bias that ours lacks becomes zeros: of the keys always,
        because it changes nothing (see `models/transformer_lm.py`), of all where `bias` is false.
Llama   rotary positions, RMSNorm before each sublayer, swiglu, any number of key heads, with or without bias.
"""

import torch

from parascale.checkpoint.pieces import read_whole
from parascale.errors import CheckpointError
from parascale.models.transformer_lm import ROTARY_BASE
from parascale.settings import run_from_dict

ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu"}
GPT2, LLAMA = "gpt2", "llama"


def config(source, dtype):
    """`config.json` of an open CheckpointReader whose weights are written as `dtype`, as plain values.

    Raises CheckpointError for settings without an equal there.
    """
    model, window, vocabulary = _settings(source)
    shared = {
        "vocab_size": vocabulary,
        "tie_word_embeddings": model.tied,
        "dtype": str(dtype).removeprefix("torch."),
        "bos_token_id": 1,
        "eos_token_id": 1,
    }
    if family(model) == GPT2:
        return shared | {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "n_positions": window,
            "n_embd": model.dim,
            "n_layer": model.layers,
            "n_head": model.heads,
            "n_inner": model.hidden_width,
            "activation_function": ACTIVATIONS[model.activation],
            "layer_norm_epsilon": model.norm_eps,
            "attn_pdrop": model.dropout,
            "embd_pdrop": model.dropout,
            "resid_pdrop": model.dropout,
        }
    return shared | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": model.dim,
        "intermediate_size": model.hidden_width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads or model.heads,
        "hidden_act": "silu",
        "max_position_embeddings": window,
        "rms_norm_eps": model.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROTARY_BASE},
        "attention_bias": model.bias,
        "mlp_bias": model.bias,
        "attention_dropout": model.dropout,
    }


def tensors(source, weights):
    """Name in `transformers` → tensor, of `weights` (our name → tensor)."""
    model, _, _ = _settings(source)
    rename = {GPT2: _gpt2, LLAMA: _llama}[family(model)]
    return rename(model, weights)


def family(model):
    """`gpt2` or `llama` for a Model; CheckpointError that names what has no equal."""
    needs = {
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


def _settings(source):
    """(Model, window, vocabulary) of the run that a checkpoint is of."""
    if source.run_record is None:
        raise CheckpointError(f"{source.folder}: run.json is needed beside the checkpoint to know the model's settings")
    workload = run_from_dict(source.run_record["settings"]).workload
    model = workload.model
    if model.kind != "transformer_lm":
        raise CheckpointError(
            f"transformers has no equal of model.kind = {model.kind}; only transformer_lm is exported"
        )
    return model, workload.training.window, source.weights["embedding.tokens.weight"].shape[0]


def _llama(model, weights):
    places = {
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
    outside = {
        "embedding.tokens.weight": "model.embed_tokens.weight",
        "norm.weight": "model.norm.weight",
        "head.weight": "lm_head.weight",
    }
    renamed = {}
    for name, tensor in weights.items():
        if name in outside:
            renamed[outside[name]] = tensor
        else:
            _, layer, rest = name.split(".", 2)
            module, _, kind = rest.rpartition(".")
            renamed[f"model.layers.{layer}.{places[module]}.{kind}"] = tensor
    return renamed


def _gpt2(model, weights):
    renamed = {
        "transformer.wte.weight": weights["embedding.tokens.weight"],
        "transformer.wpe.weight": weights["embedding.positions.weight"],
        "transformer.ln_f.weight": weights["norm.weight"],
        "transformer.ln_f.bias": weights.get("norm.bias") or Zeros(weights["norm.weight"]),
    }
    if not model.tied:
        renamed["lm_head.weight"] = weights["head.weight"]
    for layer in range(model.layers):
        ours, theirs = f"blocks.{layer}", f"transformer.h.{layer}"
        for norm, place in (("attention_norm", "ln_1"), ("feed_forward_norm", "ln_2")):
            weight = weights[f"{ours}.{norm}.weight"]
            renamed[f"{theirs}.{place}.weight"] = weight
            renamed[f"{theirs}.{place}.bias"] = weights.get(f"{ours}.{norm}.bias") or Zeros(weight)
        for projections, place in (
            (("attention.q", "attention.k", "attention.v"), "attn.c_attn"),
            (("attention.o",), "attn.c_proj"),
            (("feed_forward.up",), "mlp.c_fc"),
            (("feed_forward.down",), "mlp.c_proj"),
        ):
            matrices = [weights[f"{ours}.{name}.weight"] for name in projections]
            biases = [weights.get(f"{ours}.{name}.bias") for name in projections]
            renamed[f"{theirs}.{place}.weight"] = Turned(matrices)
            renamed[f"{theirs}.{place}.bias"] = Joined(
                [bias or Zeros(matrix) for bias, matrix in zip(biases, matrices, strict=True)]
            )
    return renamed


class Zeros:
    """As many zeros as another tensor has rows."""

    indivisible = False

    def __init__(self, like):
        self.shape, self.dtype = like.shape[:1], like.dtype

    def rows(self, first, last):
        """Rows `first` to before `last`."""
        return torch.zeros(last - first, dtype=self.dtype)


class Joined:
    """Tensors one after the other along their first dimension."""

    indivisible = True

    def __init__(self, parts):
        self.parts = parts
        self.shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
        self.dtype = parts[0].dtype

    def rows(self, first, last):
        """Rows `first` to before `last`."""
        return torch.cat([read_whole(part) for part in self.parts])[first:last]


class Turned(Joined):
    """Matrices joined along their rows, then transposed: GPT-2 multiplies from the other side."""

    def __init__(self, parts):
        super().__init__(parts)
        self.shape = self.shape[::-1]

    def rows(self, first, last):
        """Rows `first` to before `last` of the transposed matrix."""
        joined = torch.empty(self.shape, dtype=self.dtype)
        start = 0
        for part in self.parts:
            joined[:, start : start + part.shape[0]] = read_whole(part).T
            start += part.shape[0]
        return joined[first:last]
