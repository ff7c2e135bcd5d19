"""What a training could reach at most on a GPU, counted from what its step dispatches: no change may take it back unseen."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.made_up.project import changed

SCRIPT = Path(__file__).parents[1] / "benchmarks/ceiling.py"


@pytest.fixture
def script(monkeypatch):
    """What is defined there."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    return runpy.run_path(str(SCRIPT))


@pytest.mark.slow
@pytest.mark.parametrize(("compile", "least"), [("true", 0.55), ("false", 0.25)])
def test_the_ceiling_of_gpt2_on_one_h200(compile, least):
    """Of two of its layers; with all twelve it was 0.60 compiled."""
    command = [sys.executable, SCRIPT, "gpt2-124m", "accumulate=4", f"compile={compile}", "--layers", "2"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    share = float(re.search(r"ceiling ([\d.]+)% MFU", said)[1]) / 100
    assert least < share < 0.79, said
    products = re.search(r"products .* ms +([\d.]+) TFLOP", said)
    # 6 operations for each of 2 × 12 × 768² + 50,304 × 768 elements and each token of 16 × 1,024 × 4.
    assert float(products[1]) * 1e12 == pytest.approx(6 * (24 * 768**2 + 50304 * 768) * 65536, rel=0.01)


# Tokens a second and GPU of Llama 3 8B on H200s, as measured (KempnerInstitute/KempnerForge, benchmarks/mfu_scaling).
@pytest.mark.slow
@pytest.mark.parametrize(("layout", "batch", "measured"), [("fsdp=4", 32, 9745.8), ("fsdp=2", 16, 9364.0)])
def test_no_ceiling_is_below_what_was_measured(layout, batch, measured):
    model = "dim=4096 heads=32 kv_heads=8 layers=32 hidden=14336 window=4096"
    step = f"global_batch={batch} accumulate=2 compile=true activation_checkpointing=true {layout}"
    command = [sys.executable, SCRIPT, "llama-1b", *model.split(), *step.split()]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    milliseconds = float(re.search(r"step +([\d.]+) ms", said)[1])
    assert batch * 4096 / int(layout[-1]) / milliseconds * 1000 > measured


@pytest.mark.slow
def test_convolutions_cost_what_the_plan_says(script):
    """Forward, and as much again for the gradient of the images and for that of the weights; compiled as much as eagerly."""
    for compile in (False, True):
        run = script["run_of"]("imagewoof", {"compile": compile, "depths": [1, 1]})
        counter, _, _ = script["ceiling"](run, 10)
        planned = script["CountedSizes"](script["count"](run.workload, 10)).flops_per_target * run.global_batch
        assert counter.flops["convolutions"] == pytest.approx(planned, rel=0.02)


def test_clipping_moves_four_bytes_a_parameter(script):
    """The optimizer writes back the gradient that it scales; a pass of its own would move eight."""
    run, moved = script["run_of"]("gpt2-124m", {"dim": 64, "heads": 2, "compile": False}, 1), []
    for limit in (1.0, None):
        counter, _, _ = script["ceiling"](changed(run, workload={"optim": {"clip_norm": limit}}), 100)
        moved.append(counter.bytes["eager"])
    parameters = script["model_sizes"](run.workload.model, 100, *run.workload.sizes).count
    assert moved[0] - moved[1] == pytest.approx(4 * parameters, rel=0.001)
