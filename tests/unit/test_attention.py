"""Which kernel computes attention: the table of `docs/how-it-works.md`, and what our blocks do where torch has none."""

import re
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend

from parascale.families.language.modules import Attention
from parascale.settings import Model, make
from parascale.train.clock import AttentionSeen

DOCUMENT = Path(__file__).parents[2] / "docs" / "how-it-works.md"
ROW = re.compile(r"\| ([\d., ]+) \| (`.+`) \| (no|yes|any) \| (no|yes|any) \| (\w+) \|")
TYPES = {"fp64": torch.float64, **dict.fromkeys(("fp32", "tf32"), torch.float32)}
TYPES |= {"bf16": torch.bfloat16, "fp16": torch.float16}
BACKENDS = {"flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "cudnn": "CUDNN_ATTENTION", "math": "MATH"}
BOTH = {"no": [False], "yes": [True], "any": [False, True]}


def lines():
    """(generation of GPUs, precision, whether there is a mask, whether the run is deterministic, kernel) of the document's table."""
    found = [row for row in map(ROW.fullmatch, DOCUMENT.read_text(encoding="utf-8").splitlines()) if row]
    return [
        (int(generation), precision, mask, deterministic, row[5])
        for row in found
        for generation in row[1].split(", ")
        for precision in re.findall(r"`(\w+)`", row[2])
        for mask in BOTH[row[3]]
        for deterministic in BOTH[row[4]]
    ]


def asked(kv_heads, kind, device="cpu", mask=False, length=16, dim=64, heads=8):
    """(what Attention asks torch for, by position and by name; its result)."""
    torch.manual_seed(0)
    attention = Attention(make(Model, dim=dim, heads=heads, kv_heads=kv_heads), causal=not mask).to(device, kind)
    hidden_BTD = torch.randn(2, length, dim, dtype=kind, device=device)
    mask_BS = torch.ones(2, length, dtype=torch.bool, device=device) if mask else None
    with patch.object(F, "scaled_dot_product_attention", wraps=F.scaled_dot_product_attention) as fused:
        result = attention(hidden_BTD, mask_BS=mask_BS)
    return fused.call_args.args, fused.call_args.kwargs, result


@pytest.mark.parametrize(
    ("kind", "mask", "heads"),
    [
        (torch.float64, False, 8),
        (torch.float32, False, 8),
        (torch.float32, True, 8),
        (torch.bfloat16, True, 8),
        (torch.bfloat16, False, 2),
    ],
)
def test_groups_are_repeated_where_gpus_have_no_kernel_for_them(kind, mask, heads):
    """Of the same bits; on CPUs they are never repeated."""
    _, keywords, grouped = asked(2, kind, mask=mask)
    assert keywords["enable_gqa"]
    with patch.object(torch.Tensor, "is_cuda", True):
        (_, *keys_and_values, _, _), keywords, result = asked(2, kind, mask=mask)
    assert [values.shape[1] for values in keys_and_values] == [heads] * 2
    assert keywords["enable_gqa"] == (heads == 2)
    assert torch.equal(result, grouped)


def test_the_table_of_kernels_has_each_precision_of_each_generation():
    assert {line[:2] for line in lines()} == {(each, precision) for each in (8, 9, 10) for precision in TYPES}
    assert len({line[:4] for line in lines()}) == len(lines()) == 3 * len(TYPES) * 4


@pytest.mark.gpu
@pytest.mark.parametrize(("generation", "precision", "mask", "deterministic", "kernel"), lines())
def test_torch_chooses_the_kernel_of_the_table(generation, precision, mask, deterministic, kernel, request):
    """With and without groups, at every length."""
    if torch.cuda.get_device_capability()[0] != generation:
        pytest.skip(f"a line of compute capability {generation}")
    request.addfinalizer(lambda: torch.use_deterministic_algorithms(False))
    torch.use_deterministic_algorithms(deterministic)
    for kv_heads in (16, 4):
        for length, width in ((2, 64), (100, 64), (1024, 64), (2048, 128)):
            shape = {"length": length, "dim": 16 * width, "heads": 16}
            arguments, keywords, _ = asked(kv_heads, TYPES[precision], "cuda", mask, **shape)
            chosen = torch._fused_sdp_choice(*arguments, **keywords)
            assert chosen == int(getattr(SDPBackend, BACKENDS[kernel])), (kv_heads, length, SDPBackend(chosen))


@pytest.mark.parametrize(("probability", "kernel"), [(0.0, "flash"), (0.1, "math")])
def test_the_kernel_that_ran_is_noted(probability, kernel):
    """Of the chosen step alone; on CPUs no fused kernel draws masks."""
    noted = []
    seen, query = AttentionSeen(2, noted.append), torch.rand(1, 2, 4, 8)
    for step in (1, 2, 3):
        seen.begin_step(step)
        F.scaled_dot_product_attention(query, query, query, dropout_p=probability if step == 2 else 0.5)
        seen.end_step(step)
    assert noted == [kernel]
