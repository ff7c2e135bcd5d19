"""Every strategy trains the same model to the same numbers as one process: losses, gradient norms, weights, evaluation."""

import pytest

from parascale.files import read_json
from parascale.train.job import job_from_settings
from parascale.train.parity import compare

from .examine import train_settings
from .harness import run_on_ranks


def ranks_of(settings):
    layout = job_from_settings(settings).run.layout
    return layout.world_size


def pp(degree, micro_batches, schedule, **more):
    return {"pp": degree, "micro_batches": micro_batches, "schedule": schedule, **more}


# name, layout (nodes × gpus_per_node follows from it), model settings, training settings
CASES = {
    "ddp 2": ({"dp": 2}, {}, {}),
    "ddp 4": ({"dp": 4}, {}, {}),
    "ddp 2 accumulated": ({"dp": 2}, {}, {"accumulate": 3}),
    "ddp uneven": ({"dp": 2}, {}, {"global_batch": 13}),
    "fsdp 2": ({"fsdp": 2}, {}, {}),
    "fsdp 4": ({"fsdp": 4}, {}, {}),
    "fsdp tied": ({"fsdp": 2}, {"tied": True}, {}),
    "fsdp kept gathered": ({"fsdp": 2, "reshard_after_forward": False}, {}, {}),
    "fsdp uneven accumulated": ({"fsdp": 2}, {}, {"global_batch": 13, "accumulate": 2}),
    "hsdp 2x2": ({"dp": 2, "fsdp": 2}, {}, {}),
    "tp 2": ({"tp": 2}, {}, {}),
    "tp 2 no sequence": ({"tp": 2, "sequence_parallel": False}, {}, {}),
    "tp 2 no loss": ({"tp": 2, "loss_parallel": False}, {}, {}),
    "tp 2 neither": ({"tp": 2, "sequence_parallel": False, "loss_parallel": False}, {}, {}),
    "tp 4": ({"tp": 4}, {}, {}),
    "tp tied": ({"tp": 2}, {"tied": True}, {}),
    "tp llama": ({"tp": 2}, {"norm": "rms", "position": "rotary", "activation": "swiglu", "bias": False, "kv_heads": 2}, {}),
    "pp 2 GPipe": (pp(2, 4, "GPipe"), {}, {}),
    "pp 2 1F1B": (pp(2, 4, "1F1B"), {}, {}),
    "pp 2 interleaved": (pp(2, 4, "Interleaved1F1B"), {}, {}),
    "pp 2 zero bubble": (pp(2, 4, "InterleavedZeroBubble"), {}, {}),
    "pp 2 V": (pp(2, 4, "ZBVZeroBubble"), {}, {}),
    "pp 2 tied": (pp(2, 4, "1F1B"), {"tied": True}, {}),
    "pp 2 V tied": (pp(2, 4, "ZBVZeroBubble"), {"tied": True}, {}),
    "pp 2 naive": (pp(2, 1, "1F1B"), {}, {}),
    "pp 4 GPipe": (pp(4, 4, "GPipe"), {}, {}),
    "dp x tp": ({"dp": 2, "tp": 2}, {}, {}),
    "fsdp x tp": ({"fsdp": 2, "tp": 2}, {}, {}),
    "dp x pp": ({"dp": 2, **pp(2, 2, "1F1B")}, {}, {}),
    "fsdp x pp tied": ({"fsdp": 2, **pp(2, 2, "1F1B")}, {"tied": True}, {}),
    "tp x pp": ({"tp": 2, **pp(2, 2, "1F1B")}, {}, {}),
    "checkpointing": ({"fsdp": 2, "activation_checkpointing": True}, {}, {}),
    "3-D 2x2x2": ({"dp": 2, "tp": 2, **pp(2, 2, "1F1B")}, {}, {}),
    "3-D fsdp": ({"fsdp": 2, "tp": 2, **pp(2, 2, "1F1B")}, {"tied": True}, {}),
}


def with_world(layout):
    world = 1
    for axis in ("dp", "fsdp", "tp", "pp"):
        world *= layout.get(axis, 1)
    return {"gpus_per_node": world, **layout}


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("case", CASES)
def test_parity(case, precision, make_settings, tmp_path):
    layout, model, training = CASES[case]
    jobs = {
        name: make_settings(name, where, model, training=training, precision=precision, parity=True)
        for name, where in (("single", {}), ("case", with_world(layout)))
    }
    for name, settings in jobs.items():
        run_on_ranks(train_settings, ranks_of(settings), tmp_path / f"ranks-{name}", settings)
    runs = {name: job_from_settings(settings).run for name, settings in jobs.items()}
    verdict = compare(runs["case"], runs["single"], tmp_path / "results/case", tmp_path / "results/single")
    print(case, precision, {key: verdict[key] for key in ("loss_difference", "grad_norm_difference", "weight_difference")})
    assert verdict["verdict"] == "same", verdict
    summaries = [read_json(tmp_path / "results" / name / "summary.json") for name in ("case", "single")]
    assert summaries[0]["evaluated_tokens"] == summaries[1]["evaluated_tokens"] == {"validation": 516, "test": 500}
    assert summaries[0]["test_loss"] == pytest.approx(summaries[1]["test_loss"], abs=1e-6)
    assert summaries[0]["parameters"] == summaries[1]["parameters"]
