"""Context parallelism, in one process: how positions are cut, what is exchanged, and what is refused."""

import dataclasses
import itertools
from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch

from parascale.errors import ConfigError
from parascale.families import model_sizes
from parascale.families.build import build_model
from parascale.families.kind import check_offer
from parascale.families.sizes import MicroBatch
from parascale.parallel import context
from parascale.plan.work import all_to_all
from parascale.settings import Layout, Model, make

WINDOW, VOCABULARY, SAMPLES = 32, 50, 3
LLAMA = {"norm": "rms", "position": "rotary", "activation": "swiglu", "bias": False}


class Samples:
    """A text of numbers in order: what follows a token is one more."""

    def __len__(self):
        return 5

    def batch(self, numbers):
        inputs = np.asarray(numbers)[:, None] * WINDOW + np.arange(WINDOW)
        return inputs, inputs + 1


@pytest.mark.parametrize("parts", [1, 2, 8])
def test_parts_of_positions_are_the_whole_and_the_target_of_the_last_is_the_first_of_the_next(parts):
    cut = [context.Positions(Samples(), part, parts) for part in range(parts)]
    inputs, labels = zip(*(each.batch([0, 3]) for each in cut), strict=True)
    for whole, pieces in zip(Samples().batch([0, 3]), (inputs, labels), strict=True):
        assert np.array_equal(np.concatenate(pieces, 1), whole)
    for before, after in zip(labels, inputs[1:], strict=False):
        assert np.array_equal(before[:, -1], after[:, 0])
    assert {len(each) for each in cut} == {5}


@pytest.mark.parametrize(
    ("model", "cp"),
    [
        ({}, 2),
        ({}, 8),
        ({"kv_heads": 4, **LLAMA}, 2),
        ({"kv_heads": 4, **LLAMA}, 8),
        ({"kv_heads": 2}, 4),
        ({"heads": 12, "dim": 48, "kv_heads": 6}, 4),
        ({"kv_heads": 1, "dropout": 0.1}, 4),
    ],
)
def test_what_is_exchanged_is_as_planned_and_each_rank_computes_equal_parts_of_the_heads(model, cp):
    settings = make(Model, **{"dim": 32, "heads": 8, "layers": 2, "hidden": 64, **model})
    module = build_model(settings, VOCABULARY, WINDOW)
    sent, heads = [], []

    def exchange(by_rank, mesh):
        sent.append(by_rank.numel() * by_rank.itemsize)
        return by_rank.clone()

    def attention(queries, keys, values, *_, **keywords):
        heads.append((queries.shape[1:3], keys.shape[1:3], values.shape[1:3]))
        return queries.clone()

    mesh = SimpleNamespace(size=lambda: cp)
    with (
        patch.object(context, "_exchange", exchange),
        patch.object(torch.nn.functional, "scaled_dot_product_attention", attention),
    ):
        context.split_positions(module, 1, cp, partial(context.exchanged, mesh=mesh))
        module.eval()(torch.zeros(SAMPLES, WINDOW // cp, dtype=torch.int64))
    batch = MicroBatch(SAMPLES, 1, False, 4, 4, False, "cpu", cp)
    planned = model_sizes(settings, VOCABULARY, WINDOW).exchanged_bytes(batch)
    assert sum(sent) == settings.layers * planned
    for queries, keys, values in heads:
        assert queries == (settings.heads // cp, WINDOW) and keys == values and keys[1] == WINDOW
        least = max(1, (settings.kv_heads or settings.heads) // cp)  # repeated only as far as they must be
        assert least <= keys[0] <= queries[0] and queries[0] % keys[0] == 0


def test_masks_are_of_the_share_of_both_where_tensor_parallelism_has_split_before():
    """Of a rank's heads a part, and of a part of the positions its own: (heads, positions) by tp and cp rank."""
    shares = []
    for tp, cp in itertools.product(range(2), repeat=2):
        attention, hidden = SimpleNamespace(part=tp), SimpleNamespace(part=tp, parts=2)
        plan = {"attention": "drops_of_heads", "hidden": "drops_of_positions"}
        modules = {"attention": attention, "hidden": hidden}
        model = SimpleNamespace(context_plan=plan, named_modules=modules.items)
        context.split_positions(model, cp, 2, None)
        shares.append((attention.part, hidden.part))
    assert shares == [(0, 0), (1, 2), (2, 1), (3, 3)]


def test_each_rank_has_the_keys_of_its_queries():
    """Heads are numbered; what a rank gets of all others is what they would send it."""
    for heads, keys, cp in ((8, 8, 4), (8, 4, 2), (8, 4, 8), (8, 2, 4), (12, 6, 4), (12, 3, 2), (6, 1, 3)):
        queries, groups = torch.arange(heads) // (heads // keys), torch.arange(keys)
        for rank in range(cp):
            got = []
            mesh = SimpleNamespace(size=lambda cp=cp: cp)
            mixed = context.exchanged(lambda q, k, v, *whole, got=got: got.append((q, k)) or q, mesh)
            # All ranks send the same: this one's part from each.
            with patch.object(context, "_exchange", lambda x, mesh, rank=rank: x[rank].expand(len(x), *x.shape[1:])):
                mixed(
                    *(each[None, :, None, None].expand(1, -1, 2, 1).clone() for each in (queries, groups, groups)), None
                )
            of_queries, of_keys = (each[0, :, 0, 0] for each in got[0])
            times = len(of_queries) // len(of_keys)
            assert torch.equal(of_keys.repeat_interleave(times), of_queries), (heads, keys, cp, rank)


@pytest.mark.parametrize(("nodes", "cp"), [(1, 8), (2, 8), (4, 4), (4, 16)])
def test_a_rank_sends_every_other_its_part_once_over_the_link_between_them(nodes, cp):
    layout = Layout(nodes=nodes, gpus_per_node=8, cp=cp, dp=8 * nodes // cp)
    sent, within = all_to_all(layout, "cp", 1600.0), min(8, cp)
    assert sent.node_bytes == 1600.0 * (within - 1) / cp
    assert sent.network_bytes == 1600.0 * (cp - within) / cp


def test_a_degree_that_a_stored_offer_does_not_name_is_refused():
    """It may have been counted before there was such a degree."""
    offer = {"name": "Own", "layouts": ["single", "ddp", "fsdp"], "refusals": {"tp": "why", "pp": "why"}, "units": []}
    check_offer(offer, Layout(fsdp=2))
    with pytest.raises(
        ConfigError, match="Own cannot be trained with cp = 2: it was counted before this degree was there"
    ):
        check_offer(offer, Layout(cp=2))


def test_parameters_are_shared_over_both():
    assert Layout(fsdp=4, cp=2, dp=3).of_parameters == Layout(fsdp=8, dp=3)
    assert Layout(cp=2, dp=3, tp=5).of_parameters == Layout(dp=6, tp=5)
    layouts = [dataclasses.replace(Layout(), **degrees) for degrees in ({"cp": 2}, {"dp": 2}, {"fsdp": 2}, {"tp": 2})]
    assert [each.uses_fsdp for each in layouts] == [True, False, True, False]
