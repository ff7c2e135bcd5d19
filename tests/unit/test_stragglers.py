"""A rank or node that is slower than the others by more than they differ is named, and why; nothing else is."""

from types import SimpleNamespace

import pytest

from parascale.report.findings import stragglers
from parascale.telemetry import Device


def device(kind, index, rank=None, node=0, throttled=(), **means):
    """A device with constant samples."""
    made = Device(kind, node, f"node{node}", index, rank)
    made.times.extend(range(10))
    for name, value in means.items():
        made.values[name].extend([value] * 10)
    made.throttled.update(dict(throttled))
    return made


def gpus(clocks, use=0.9, throttled=None):
    """One GPU a rank, four a node."""
    uses = use if isinstance(use, list) else [use] * len(clocks)
    return [
        device(
            "gpu", rank % 4, rank, rank // 4, (throttled or {}).get(rank, ()), clock_mhz=clock, utilisation=uses[rank]
        )
        for rank, clock in enumerate(clocks)
    ]


def ranks(busy, taken):
    """Two ranks a node, and what others take of it."""
    made = [device("rank", rank, rank, rank // 2, cores_busy=cores) for rank, cores in enumerate(busy)]
    return made + [
        device("host", 0, None, node, cores_busy=cores + sum(busy[2 * node : 2 * node + 2]))
        for node, cores in enumerate(taken)
    ]


NOISE = [1740.0, 1755.0, 1750.0, 1745.0]
HOT = {2: {"hw_thermal_slowdown": 8}}
CASES = {
    "nobody": (gpus(NOISE), "cuda", None),
    "a GPU by less than others differ": (gpus([1700.0, 1740.0, 1790.0, 1800.0]), "cuda", None),
    "a hot GPU": (
        gpus([1740.0, 1755.0, 1410.0, 1745.0], throttled=HOT), "cuda",
        "Rank 2 on node0 is slower than the others: 1,410 MHz, the others 1,740 MHz to 1,755 MHz; it was throttled (hw thermal "
        "slowdown) in 80 % of the samples.",
    ),
    "a node": (
        gpus([*NOISE, *(1500.0 + each / 10 for each in range(4))]), "cuda",
        "Node node1 is slower than the others: 1,500 MHz, the others 1,740 MHz to 1,755 MHz; the samples do not show why.",
    ),
    "a GPU that waits for its data": (
        gpus(NOISE, use=[0.5, 0.97, 0.98, 0.99]), "cuda",
        "Rank 0 on node0 is slower than the others: 50 % busy, the others 97 % busy to 99 % busy; rank 0 waited for data 40 % of the time.",
    ),
    "processes beside a rank": (
        ranks([0.60, 0.62, 0.61, 0.95], [0.1, 1.8]), "cpu",
        "Rank 3 on node1 is slower than the others: 0.95 cores busy, the others 0.62 cores busy to 0.60 cores busy; other programs took "
        "1.8 cores there, on other nodes 0.10 at most.",
    ),
    "two ranks, which have no spread": (gpus([1400.0, 1700.0]), "cuda", None),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_slow_one_is_named(case):
    devices, kind, expected = CASES[case]
    run, curve = SimpleNamespace(layout=SimpleNamespace(pp=1)), SimpleNamespace(phases={"data": 4.0, "forward": 6.0})
    record = SimpleNamespace(run=run, site=SimpleNamespace(device=kind), curve=curve)
    assert [text for _, _, text, *_ in stragglers(record, devices)] == ([expected] if expected else [])
