"""What hundreds of GPUs cost: collectives beside NCCL's own figures, where FSDP over all stops paying, and what advice makes of it."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from parascale.families import model_sizes
from parascale.plan.advise import advise, reason
from parascale.plan.predict import DataFacts, predict
from parascale.plan.time import Prices, formula_rates, gpu_kind, step_seconds
from parascale.plan.work import all_reduce, half_ring, step_work
from parascale.settings import Layout, Run, Site, load_workload
from tests.made_up.project import changed, shipped_site
from tests.unit.test_plan_memory import LLAMA_7B, make_run
from tests.unit.test_plan_score import utilisation

SITES = {name: shipped_site(name) for name in ("juwels-booster", "jureca", "jupiter")}
GPUS = [2**power for power in range(4, 12)]
# By which NCCL chooses (src/graph/tuning.cc, 5067397c): microseconds of a call, of a step within a node and of one between nodes, and the
# part of the bandwidth. Within a node of a ring that leaves it a step takes as long as posting a message, on hosts of AMD 2, or 3 × 2.
RINGS = {"LL128": (14.0, max(1.9, 2.0), 4.0, 0.92), "Simple": (8.4, max(3.4, 6.0), 14.0, 1.0)}
TREES = {"LL128": (14.0, max(1.25, 2.0), 8.5, 0.92 * 120 / 128), "Simple": (8.4, max(4.0, 6.0), 14.0, 0.92)}
# JURECA with Ethernet: four GPUs share 100 Gbit/s.
SLOW = changed(SITES["jureca"], network_link={"gigabytes_per_second": 100 / 8 / 4})


def by_nccl(figures, inner, outer, sent):
    """{protocol: seconds} of so many steps within nodes and between them, which send so many bytes of a node at its bandwidth of 1."""
    return {
        name: (call + inner * step + outer * hop) / 1e6 + sent / part
        for name, (call, step, hop, part) in figures.items()
    }


@pytest.mark.parametrize("size", [100e6, 400e6, 1.6e9])
@pytest.mark.parametrize("gpus", GPUS)
def test_collectives_cost_what_nccl_reckons_with(gpus, size):
    """On JUWELS Booster, of a block of 0.8 to 13 billion parameters in all: sums by trees or rings, whichever is cheaper; what FSDP gathers by rings
    alone, whose steps take between those of its two protocols. Bandwidths are 0.8 of the links'."""
    site, nodes = SITES["juwels-booster"], gpus // 4
    prices, layout = Prices(formula_rates(site, "bf16")), Layout(nodes=nodes, gpus_per_node=4, dp=gpus)
    once = size * (gpus - 1) / gpus / (4 * site.network_link.gigabytes_per_second * 1e9)
    rings = by_nccl(RINGS, gpus - nodes, nodes - 1, once)
    twice = by_nccl(RINGS, 2 * (gpus - nodes), 2 * (nodes - 1), 2 * once)
    trees = by_nccl(TREES, 2 * 3, 2 * math.floor(math.log2(nodes)), 2 * once)
    summed = prices.transfer(all_reduce(layout, "dp", size)) / min(*twice.values(), *trees.values())
    assert 1.0 < summed < 1.3
    gathered = prices.transfer(half_ring(replace(layout, dp=1, fsdp=gpus), "fsdp", size))
    assert min(rings.values()) < gathered < 1.3 * max(rings.values())


def seven_billion(gpus, **layout):
    """7 billion parameters on nodes of four, two samples of 2,048 tokens a GPU."""
    run = make_run(LLAMA_7B, "bf16", window=2048, batch=2 * gpus, compile=True, **layout)
    return replace(run, layout=replace(run.layout, nodes=gpus // 4, gpus_per_node=4))


def both(site):
    """(utilisation of FSDP over all GPUs, of shards of a node) for each of GPUS."""
    return [
        (utilisation(seven_billion(n, fsdp=n), site), utilisation(seven_billion(n, dp=n // 4, fsdp=4), site))
        for n in GPUS
    ]


@pytest.mark.parametrize(("name", "last"), [("juwels-booster", 512), ("jureca", 512), ("jupiter", 256)])
def test_fsdp_over_all_gpus_stops_paying_at_hundreds(name, last):
    """Beside hybrid shards of a node, which the number of nodes hardly matters to. MosaicML's rows on 512 H100 had not lost by it yet."""
    found = dict(zip(GPUS, both(SITES[name]), strict=True))
    assert [gpus for gpus, (over_all, of_node) in found.items() if over_all > of_node] == [n for n in GPUS if n <= last]
    assert found[1024][0] < 0.98 * found[1024][1]
    assert found[2048][0] < 0.8 * found[2048][1] and found[2048][1] > 0.97 * found[256][1]


@pytest.mark.parametrize("nodes", [1, 2, 64])
def test_a_step_waits_for_the_slowest_of_its_nodes(nodes):
    """By as much of all that it takes with each doubling; processors by nothing."""
    run = seven_billion(4 * nodes, dp=nodes, fsdp=4)
    site, sizes = SITES["juwels-booster"], model_sizes(run.workload.model, 32_000, *run.workload.sizes)
    work, rates = step_work(run, sizes, site), formula_rates(site, "bf16")
    waiting, alone = (sum(step_seconds(each, rates, site).values()) for each in (work, replace(work, stragglers=0.0)))
    assert waiting == pytest.approx(alone * (1 + gpu_kind(site)["stragglers"] * math.log2(nodes)))
    assert step_work(run, sizes, Site("laptop", cores_per_node=2, plays_nodes=True)).stragglers == 0


def test_the_document_shows_these_shares():
    columns = [both(site) for site in (SITES["juwels-booster"], SITES["jureca"], SLOW, SITES["jupiter"])]
    rows = Path("docs/prices.md").read_text("utf-8").splitlines()
    for gpus, shares in zip(GPUS, zip(*columns, strict=True), strict=True):
        if line := next((row for row in rows if row.startswith(f"| {gpus:,} | ")), None):
            told = re.findall(r"(\d+) %, (\d+) %", line)
            wanted = shares if len(told) == 4 else (shares[0], shares[3]) if len(told) == 2 else shares[:1]
            assert told == [tuple(f"{100 * share:.0f}" for share in pair) for pair in wanted], gpus


def test_fsdp_between_nodes_needs_infiniband():
    """Of what JURECA's network gives, 100 Gbit/s of Ethernet a node leave less than a third, with shards of a node no more; JUWELS
    Booster's, which is twice as fast, hides what is gathered."""
    for name, least, most in (("jureca", 2.9, 4.0), ("juwels-booster", 4.0, 5.5)):
        for fast, ethernet in list(zip(both(SITES[name]), both(SLOW), strict=True))[:5]:
            assert least < fast[0] / ethernet[0] < most and ethernet[1] < 1.05 * ethernet[0] + 0.02


@pytest.mark.parametrize(
    ("gpus", "first"),
    [(64, {"fsdp"}), pytest.param(1024, {"hsdp"}), pytest.param(2048, {"hsdp"}, marks=pytest.mark.slow)],
)
def test_advice_weighs_what_large_numbers_ask_for(gpus, first):
    """Shards of the optimizer alone (ZeRO-1), of a part of the GPUs, and stages in several pieces; on 1,024 GPUs and more plain FSDP is slower by a tenth."""
    llama = load_workload("config/workloads", "llama-7b")
    workload = changed(llama, training={"global_batch": 2 * gpus, "steps": 10**5})
    ranked = advise(workload, SITES["juwels-booster"], gpus, "bf16", facts=DataFacts(32_000))
    assert ranked[0].layout.strategy() in first and ranked[0].prediction.fits == "fits"
    assert gpus != 1024 or ranked[0].layout.fsdp == 16
    over_all = next(each for each in ranked if each.layout.fsdp == gpus)
    assert (over_all.prediction.step_seconds > 1.08 * ranked[0].prediction.step_seconds) == (gpus > 512)
    layouts = [each.layout for each in ranked]
    assert any(layout.zero_1 for layout in layouts) and any(layout.dp > 1 and layout.fsdp > 1 for layout in layouts)
    assert any(layout.stages > layout.pp for layout in layouts)


@pytest.mark.parametrize(("name", "workers", "waits"), [("jureca", 8, 0.0), ("jupiter", 8, 0.5), ("jupiter", 16, 0.0)])
def test_on_jupiter_the_loader_decides_before_the_layout(name, workers, waits):
    """ImageNet's JPEGs, with as many threads as are shipped: its GPUs compute more than twice as fast as those for which that is enough."""
    imagenet = load_workload("config/workloads", "imagenet")
    imagenet = changed(imagenet, training={"workers": workers, "global_batch": 1024})
    run = Run("r", imagenet, Layout(gpus_per_node=4, dp=4), "bf16")
    predicted = predict(run, SITES[name], facts=DataFacts(1000, 1_281_167, 50_000, 1.1e5))
    assert predicted.phases["data"] / predicted.step_seconds == pytest.approx(waits, abs=0.1)
    assert ("samples to be read" in reason(run, SITES[name], predicted)) == (waits > 0)
