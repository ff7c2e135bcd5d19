"""Each model of `transformers` that offers context parallelism computes of parts of the positions what one process does of all; what does
not, or is not known to, is refused before anything runs."""

import json
import os
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from parascale.errors import ConfigError
from parascale.families.build import build_model
from parascale.families.folders.settings import OF_PARTS
from parascale.parallel.context import exchanged, split_positions
from parascale.settings import Layout, Model, Run, make
from tests.unit.folder_models import FAMILIES, OTHERS, VOCABULARY, make_folder, workload_of

from ..ports import free_port
from .conftest import WINDOW
from .harness import run_on_ranks
from .test_folder_models import train_each

# Sizes by the names that configs of the library have for them: half a window of sliding attention, two heads for keys.
SMALL = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "embedding_size"), 32),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim"), 48),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 4
    ),  # one in four sees all, if some do not
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 32),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "num_key_value_heads"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("head_dim", "global_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("sliding_window", "attention_chunk_size", "query_pre_attn_scalar"), WINDOW // 2),
    **dict.fromkeys(("first_k_dense_replace", "n_group", "topk_group", "num_shared_experts"), 1),
    **{"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY, "is_decoder": True},
}
IN_ONE = ("afmoe", "axk1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "youtu")  # each head has its keys


def describe(folder, kind):
    """A folder with the config.json of a tiny model of a kind."""
    from transformers import CONFIG_MAPPING

    known, config = CONFIG_MAPPING[kind]().to_dict(), CONFIG_MAPPING[kind]
    sizes = {name: size for name, size in SMALL.items() if name in known}
    if kind in IN_ONE:
        sizes["num_key_value_heads"] = 4
        sizes.pop("head_dim", None)
    made = config(**sizes, vocab_size=VOCABULARY, pad_token_id=None).to_dict() | {"model_type": kind}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(made, default=str))
    return folder


def compare(folders):
    """Folder → by how much outputs, and gradients of weights, differ between this rank's part and the whole, relative to their largest.

    Not to the largest of each weight: keys' biases have no gradient but rounding.
    """
    dist.init_process_group("gloo")
    mesh, found = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),)), {}
    tokens = torch.randint(VOCABULARY, (2, WINDOW), generator=torch.Generator().manual_seed(2))
    place = slice(*(WINDOW // mesh.size() * (mesh.get_local_rank() + end) for end in (0, 1)))
    for folder in folders:
        whole, part = (build(folder) for _ in range(2))
        split_positions(part, mesh.get_local_rank(), mesh.size(), partial(exchanged, mesh=mesh))
        expected, made = whole(tokens), part(tokens[:, place])
        weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(3))
        (expected * weight).sum().backward()
        (made * weight[:, place]).sum().backward()
        largest = max(float(each.grad.abs().max()) for each in whole.parameters() if each.grad is not None)
        worst = [float((made - expected[:, place]).abs().max() / expected.abs().max())]
        for one, other in zip(part.parameters(), whole.parameters(), strict=True):
            gradient = torch.zeros_like(one) if one.grad is None else one.grad
            dist.all_reduce(gradient)
            worst.append(float((gradient - (0 if other.grad is None else other.grad)).abs().max()) / largest)
        found[folder] = max(worst)
    dist.destroy_process_group()
    return found


def build(folder):
    torch.manual_seed(1)
    model = build_model(make(Model, kind="transformers", folder=folder), VOCABULARY, WINDOW)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model.eval()


@pytest.mark.parametrize(
    ("kinds", "ranks"),
    [
        (("gpt2", "llama", "gemma2"), 4),
        pytest.param(sorted(OF_PARTS), 2, marks=pytest.mark.slow),
        pytest.param(sorted(OF_PARTS), 4, marks=pytest.mark.slow),
    ],
    ids=("some on 4", "all on 2", "all on 4"),
)
def test_parts_of_positions_give_what_one_process_does(kinds, ranks, tmp_path):
    """In fp32: mixtures of experts have no fp64. What is wrong is wrong by a tenth and more."""
    folders = {str(describe(tmp_path / kind, kind)): kind for kind in kinds}
    differ = {}
    for rank in run_on_ranks(compare, ranks, tmp_path / "ranks", [*folders], seconds=900):
        differ |= {folders[folder]: worst for folder, worst in rank.items() if not worst < 1e-4}
    assert not differ


NOT_SHARED = "is not one of the models whose attention, masks and positions were tested"
# What `parascale plan` says of cp = 2, before the model is counted. None: it is offered.
TABLE = {
    **dict.fromkeys(FAMILIES),
    **dict.fromkeys(("Mixtral", "Qwen3-MoE", "GLM-4-MoE", "Apertus", "BERT")),
    **dict.fromkeys(("bloom", "falcon", "mpt"), NOT_SHARED),  # ALiBi
    **dict.fromkeys(("mamba", "qwen3_next", "rwkv", "jamba"), NOT_SHARED),  # state, from position to position
    **dict.fromkeys(("gpt_oss", "granite_swa"), NOT_SHARED),  # parameters of each head within its attention
    **dict.fromkeys(
        ("biogpt", "openai-gpt", "cpmant"), NOT_SHARED
    ),  # they count positions from 0, whatever they are given
    "no model of the library": NOT_SHARED,
    "Phi-3, longrope": "`longrope`",
}


@pytest.mark.parametrize("name", TABLE)
def test_the_plan_offers_what_is_shown_and_names_the_reason_otherwise(name, tmp_path):
    family, _, scaled = name.partition(", ")
    if family in FAMILIES | OTHERS:
        make_folder(tmp_path / "model", family)
    else:
        (tmp_path / "model").mkdir()
        (tmp_path / "model/config.json").write_text(json.dumps({"model_type": name}))
    place = tmp_path / "model/config.json"
    if scaled:
        place.write_text(json.dumps(json.loads(place.read_text()) | {"rope_scaling": {"type": scaled}}))
    run = Run("x", workload_of(tmp_path / "model"), Layout(gpus_per_node=2, cp=2))
    if TABLE[name] is None:
        return run.check()
    with pytest.raises(ConfigError, match=TABLE[name]) as refused:
        run.check()
    assert "\n" not in str(refused.value)


def test_a_model_that_sees_later_tokens_is_refused_in_parts_too(make_settings, tmp_path):
    """An encoder's attention, whose masks hide nothing: no rank alone has the tokens that come later."""
    folder = make_folder(tmp_path / "model", "BERT")
    case = make_settings("case", {"cp": 2}, {"kind": "transformers", "folder": str(folder)})
    for rank in run_on_ranks(train_each, 2, tmp_path / "ranks", {"case": (case, free_port())}):
        assert "sees tokens that come later" in rank["case"]
