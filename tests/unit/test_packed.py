"""Documents that are packed into a window and kept apart: where they start, what attention sees, and what is refused."""

import dataclasses
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import flex_attention

from parascale.data.text import IGNORED, Windows, starts_of
from parascale.data.tokenize import NumberTokenizer
from parascale.errors import ConfigError, DataError
from parascale.evaluation.task import empty_batch
from parascale.families import model_sizes
from parascale.families.build import build_model
from parascale.families.language import modules
from parascale.families.language.modules import Attention, block_mask, documents
from parascale.families.language.sizes import has_dense_mask
from parascale.families.sizes import MicroBatch
from parascale.files import write_json
from parascale.parallel.context import Positions
from parascale.plan.planner import require_windows
from parascale.settings import Model, Site, identity, make
from parascale.settings.workload import LanguageTraining
from parascale.train.clock import AttentionSeen

from .test_identity import run_of
from .test_plan_memory import GPT, make_run

END, SEPARATE = 1, {"workload.training.documents": "separate"}


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(0, 3), min_size=7, max_size=7), min_size=1, max_size=4))
def test_a_document_starts_behind_the_end_of_the_one_before(rows):
    for tokens, starts in zip(rows, starts_of(np.array(rows), END), strict=True):
        expected = [max([0, *(place + 1 for place in range(at) if tokens[place] == END)]) for at in range(7)]
        assert starts.tolist() == expected


def test_samples_say_where_documents_start_only_if_they_are_separate():
    text = np.array([5, 6, END, 7, 8, 9, END, 4, 3], "<u2")
    joined, separate = Windows(text, 5), Windows(text, 5, end=END)
    inputs, starts, labels = separate.batch([0, 1])
    assert [each.tolist() for each in joined.batch([0, 1])] == [inputs.tolist(), labels.tolist()]
    assert starts.tolist() == [[0, 0, 0, 3, 3], [0, 0, 2, 2, 2]] and labels[1, -1] == IGNORED
    for part in (0, 1):  # of context parallelism: attention has the whole window
        samples = SimpleNamespace(batch=lambda _: (inputs[:, :4], starts[:, :4], labels[:, :4]))
        tokens, whole, _ = Positions(samples, part, 2).batch([0, 1])
        assert tokens.shape == (2, 2) and np.array_equal(whole, starts[:, :4])


def test_an_empty_batch_has_the_shapes_of_a_real_one():
    workload = run_of("transformer_lm", **SEPARATE).workload
    window = workload.training.window
    assert [each.shape for each in empty_batch(workload, 3)] == [(3, window)] * 3


def test_joined_documents_are_no_part_of_a_recipe():
    """Earlier results stay valid."""
    plain, joined, separate = (
        run_of("transformer_lm", **changes) for changes in ({}, {"workload.training.documents": "joined"}, SEPARATE)
    )
    assert identity.recipe(plain) == identity.recipe(joined)
    assert identity.recipe(separate) == identity.recipe(plain) | SEPARATE


@pytest.mark.parametrize("kind", ["transformers", "own"])
def test_other_models_refuse_separate_documents_in_a_line(kind, tmp_path):
    (tmp_path / "mine.py").write_text("class Mine: ...")
    model = {"kind": f"{tmp_path}/mine.py:Mine"} if kind == "own" else {"kind": kind, "folder": str(tmp_path)}
    changes = {f"workload.model.{key}": value for key, value in model.items()}
    run = run_of("transformer_lm", **SEPARATE, **changes, **{"workload.training.steps": 1})
    with pytest.raises(ConfigError, match=r"training.documents = separate is for our own decoder alone") as refused:
        run.check()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("task", ["summarisation", "classification"])
def test_other_tasks_do_not_know_the_setting(task):
    kind = {"summarisation": "encoder_decoder", "classification": "xresnet"}[task]
    with pytest.raises(ConfigError, match="documents"):
        run_of(kind, **SEPARATE)


def test_data_without_ends_is_refused_in_a_line(tmp_path):
    assert NumberTokenizer(9).end is None  # whose tokens are counted as no documents
    splits = {name: {"tokens": 999, "documents": int(name != "test")} for name in ("train", "validation", "test")}
    write_json(tmp_path / "manifest.json", {"splits": splits})
    run_of("transformer_lm").workload.training.require_ends(tmp_path, splits)
    with pytest.raises(DataError, match="no token of the split `test` ends a document") as refused:
        require_windows(run_of("transformer_lm", **SEPARATE).workload, tmp_path)
    assert "\n" not in str(refused.value)


def packed(window, kind=torch.float64, kv_heads=2, position="rotary"):
    """(Attention, hidden states of two windows, where their documents start)."""
    torch.manual_seed(0)
    settings = {"dim": 64, "heads": 4, "kv_heads": kv_heads, "position": position}
    tokens = torch.where(torch.rand(2, window) < 4 / window, END, 2)
    hidden = torch.randn(2, window, 64, dtype=kind)
    return Attention(make(Model, **settings)).to(kind), hidden, torch.from_numpy(starts_of(tokens.numpy(), END))


def test_a_document_behind_many_blocks_of_others_is_as_if_it_were_alone():
    """Kernels go over blocks of places, whole ones of which are of other documents."""
    attention, hidden, starts = packed(1100)
    together = attention(hidden, documents=documents(starts, hidden, False))
    for sample in (0, 1):
        for first in starts[sample].unique():
            own = starts[sample] == first
            torch.testing.assert_close(
                together[sample, own], attention(hidden[sample : sample + 1, own])[0], atol=1e-12, rtol=1e-12
            )


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("window", "kv_heads"), [(300, 2), (256, 4)])
def test_the_kernel_of_gpus_computes_what_the_dense_mask_does(compiled, window, kv_heads, monkeypatch):
    """In the forward pass: on CPUs `flex_attention` has no other."""
    attention, hidden, starts = packed(window, torch.float32, kv_heads)
    mask, places = documents(starts, hidden, False)
    blocks = block_mask(starts, flex_attention.create_block_mask)
    if not compiled:
        monkeypatch.setattr(modules, "_flex", lambda: flex_attention.flex_attention)
    with torch.no_grad():
        dense, flexible = (attention(hidden, documents=(each, places)) for each in (mask, blocks))
    torch.testing.assert_close(flexible, dense, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("stance", ["default", "force_eager"])
def test_the_kernel_stays_one_where_all_else_is_eager(stance, recwarn):
    """A short batch of an evaluation and a pipeline's first step are; written out, the kernel would make all scores."""
    attention, hidden, starts = packed(256, torch.float32, 4)
    _, places = documents(starts, hidden, False)
    with torch.no_grad(), torch.compiler.set_stance(stance):
        attention(hidden, documents=(block_mask(starts, flex_attention.create_block_mask), places))
    assert not [each for each in recwarn if "without torch.compile" in str(each.message)]


def test_narrow_heads_have_a_dense_mask_which_plans_know():
    for width, dense in ((16, False), (8, True)):
        model = dataclasses.replace(GPT, dim=width * GPT.heads, dropout=0.0)
        run = make_run(model, "bf16", window=64, documents="separate")
        assert has_dense_mask(model, MicroBatch.of(run, "cuda")) == build_model(model, 50, 64).dense == dense


@pytest.mark.parametrize(("schedule", "refused"), [("1F1B", False), ("ZBVZeroBubble", True)])
def test_schedules_that_go_backward_twice_are_refused_on_gpus(schedule, refused):
    run = make_run(GPT, "bf16", documents="separate", pp=2, micro_batches=4, schedule=schedule)
    Site("cpus", device="cpu").check_run(run)
    with pytest.raises(ConfigError, match="two backward passes") if refused else nullcontext():
        Site("gpus", device="cuda").check_run(run)


@pytest.mark.gpu
def test_on_gpus_the_kernel_has_the_gradients_of_the_dense_mask():
    attention, hidden, starts = (each.to("cuda") for each in packed(300, torch.float32))
    results, noted = [], []
    for dropped in (True, False):  # with dropout it would be dense
        seen = AttentionSeen(1, noted.append)
        attention.zero_grad()
        for step in (0, 1):
            seen.begin_step(step)
            made = attention(hidden, documents=documents(starts, hidden, dropped))
            made.square().sum().backward()
            seen.end_step(step)
        results.append([made.detach(), *(each.grad for each in attention.parameters())])
    for dense, flexible in zip(*results, strict=True):
        torch.testing.assert_close(flexible, dense, atol=1e-3, rtol=1e-3)
    assert noted[1] == "flex"


def test_the_record_names_the_kernel_that_compiled_code_tells():
    noted = []
    seen = AttentionSeen(1, noted.append)
    seen.begin_step(1)
    assert torch.autograd.profiler._is_profiler_enabled
    with torch._C._profiler._RecordFunctionFast("triton_tem_fused_flex_attention_0"):
        pass
    seen.end_step(1)
    assert noted == ["flex"] and not torch.autograd.profiler._is_profiler_enabled


def test_dense_masks_are_where_no_kernel_drops_or_computes(monkeypatch):
    monkeypatch.setattr(modules, "block_mask", lambda starts: "blocks")
    starts = torch.zeros(2, 8, dtype=torch.int64)
    for cuda, kind, dropped, blocks in (
        (True, torch.bfloat16, False, True),
        (True, torch.float32, False, True),
        (True, torch.float64, False, False),
        (True, torch.bfloat16, True, False),
        (False, torch.float32, False, False),
    ):
        hidden = SimpleNamespace(is_cuda=cuda, dtype=kind, itemsize=kind.itemsize, device="cpu")
        mask, _ = documents(starts, hidden, dropped)
        assert (mask == "blocks") if blocks else (mask.shape == (2, 1, 8, 8) and mask.dtype == kind)


def test_plans_price_a_dense_mask_and_at_most_one_document_where_a_kernel_skips():
    window, amounts, model = 2048, {}, dataclasses.replace(GPT, heads=GPT.dim // 16)
    for kept in ("joined", "separate"):
        run = make_run(model, "bf16", window=window, documents=kept)
        for device in ("cpu", "cuda"):
            batch = MicroBatch.of(run, device)
            sizes = model_sizes(model, 50, window)
            amounts[kept, device] = sizes.block_operations(batch, False).attention, sizes.shared_bytes(batch)
    (joined, none), (all_places, dense) = amounts["joined", "cpu"], amounts["separate", "cpu"]
    assert all_places == joined / (0.5 + 512 / (2 * window)) and none == 0 and dense == 16 * window**2 * 2
    (fused, _), (skipping, blocks) = amounts["joined", "cuda"], amounts["separate", "cuda"]
    assert skipping == fused and 0 < blocks < dense / 1000


def test_the_setting_is_a_choice():
    with pytest.raises(ConfigError, match="documents"):
        make(LanguageTraining, documents="apart")
