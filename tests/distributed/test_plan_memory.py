"""The step on fake tensors takes what the real step on real processes takes: only then do the formulas rest on something."""

import dataclasses
from concurrent.futures import ProcessPoolExecutor

import pytest

from parascale.settings import run_from_dict
from tests.distributed.cases import ZERO_1, but_slow
from tests.distributed.harness import run_on_ranks
from tests.forks import FORKS
from tests.unit.test_plan_memory import GPT, LLAMA, VOCABULARY, make_run, measured

LAYOUTS = {
    "single": make_run(GPT),
    "ddp": make_run(GPT, dp=2),
    "fsdp": make_run(LLAMA, fsdp=2),
    "tp": make_run(GPT, tp=2),
    "pp": make_run(GPT, pp=2, micro_batches=4),
    "fsdp × tp": make_run(GPT, fsdp=2, tp=2),
    "ZeRO-1": make_run(LLAMA, fsdp=2, accumulate=4, **ZERO_1),
    "ddp, accumulated": make_run(GPT, dp=2, accumulate=4),
    "ddp, accumulated bf16": make_run(GPT, "bf16", dp=2, accumulate=4),
}


def measured_with_data(settings, ranks):
    """Peak bytes of live tensor storages on this process, in a step and in an evaluation, in the group of all."""
    from parascale.parallel import start_processes, stop_processes
    from tests.benchmarks.fake_steps import measure_with_data

    start_processes("cpu", 60.0)
    found = measure_with_data(run_from_dict(settings), VOCABULARY)
    stop_processes()
    return found


@pytest.mark.parametrize("name", but_slow(LAYOUTS, {*LAYOUTS} - {"single"}))
def test_fake_tensors_weigh_what_real_ones_do(name, tmp_path):
    """On every rank, within 2 %."""
    run = LAYOUTS[name]
    settings, ranks = dataclasses.asdict(run), run.layout.world_size
    real = run_on_ranks(measured_with_data, ranks, tmp_path, settings, ranks)
    with ProcessPoolExecutor(1, FORKS, max_tasks_per_child=1) as pool:
        fake = [pool.submit(measured, settings, VOCABULARY, rank).result() for rank in range(ranks)]
    assert fake == [pytest.approx(peaks, rel=0.02) for peaks in real]
