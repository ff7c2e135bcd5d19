"""Who in torch asks whether there is a GPU while we start, train, save and load: each caller is read and judged, a new one fails.

Runs on CPUs, with CUDA made to look present: so what follows a yes is seen too. What is compiled, and what C++ asks, is not.
"""

import sys
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import pytest
import torch

from parascale.checkpoint import compare, convert, load
from parascale.settings.config import Checkpoints

from .cases import but_slow, ranks_of
from .examine import train_settings
from .harness import run_on_ranks
from .test_resharding import load_and_save_again

# Caller → what it does where there is a GPU. Read in torch 2.13.0 and Lightning 2.6.5.
VERDICTS = {
    "torch/_subclasses/fake_tensor.py:FakeTensorMode.avoid_device_init": "right: shapes alone, no device is touched",
    "torch/distributed/checkpoint/filesystem.py:_write_files_from_queue": "right with per_thread_copy_ahead=0: never waits",
    "torch/distributed/device_mesh.py:DeviceMesh._init_one_process_group": "right: CPU ranks get a group of their own, timed by us",
    "torch/distributed/distributed_c10d.py:barrier": "right: the bound device with NCCL, the CPU with gloo",
    "torch/distributed/distributed_c10d.py:init_process_group": "right: compared with the device that we bind",
    "torch/optim/optimizer.py:Optimizer._accelerator_graph_capture_health_check": "right: is the stream captured? waits for nothing",
    "torch/random.py:_manual_seed_impl": "right: seeds every generator, opens no device",
    "torch/random.py:fork_rng": "right: callers name their device or none, so no other is opened",
    "torch/utils/checkpoint.py:DefaultDeviceType.get_device_type": "right: only where all inputs are on CPUs; no state is read then",
    "lightning/fabric/accelerators/cuda.py:num_cuda_devices": "right: a count; `accelerator` is named by us",
    "lightning/fabric/utilities/seed.py:_collect_rng_states": "right: states of generators lie on the host",
    "lightning/fabric/utilities/seed.py:_set_rng_states": "right: likewise",
    "lightning/pytorch/trainer/connectors/checkpoint_connector.py:_CheckpointConnector.resume_end": "right: nothing is cached yet",
}
ASKED = {
    torch.cuda: (
        *("is_available", "device_count", "current_device", "current_stream", "stream", "synchronize", "empty_cache"),
        *("is_bf16_supported", "get_device_capability", "get_device_properties", "get_rng_state", "set_rng_state"),
        *("manual_seed_all", "get_rng_state_all", "set_rng_state_all", "Stream", "Event"),
    ),
    torch.accelerator: ("device_count", "current_accelerator", "current_device_index", "current_stream", "synchronize"),
    torch._C: ("_get_accelerator", "_accelerator_getAccelerator"),
}
STREAM = mock.Mock(device_type="cuda", is_capturing=lambda: False)
PRESENT = {
    "is_available": lambda: True,
    "device_count": lambda: 8,
    "current_stream": lambda *_: STREAM,
    "stream": lambda _: ExitStack(),
    "_get_accelerator": lambda: torch.device("cuda"),
    "_accelerator_getAccelerator": lambda: torch.device("cuda"),
    **dict.fromkeys(("empty_cache", "synchronize", "manual_seed_all", "set_rng_state_all"), lambda *_: None),
    "get_rng_state_all": lambda: [torch.get_rng_state()],
}


def asked(function, *arguments):
    """[those within libraries who asked for a GPU while a function of ours ran, waits for a GPU's stream]."""
    found = set()

    def recording(name, answer):
        def answered(*values, **keys):
            frame = sys._getframe(1)
            while "/torch/cuda/" in frame.f_code.co_filename or "/torch/accelerator/" in frame.f_code.co_filename:
                frame = frame.f_back
            _, installed, file = frame.f_code.co_filename.rpartition("site-packages/")
            found.update([f"{file}:{frame.f_code.co_qualname}"] if installed else [])
            return PRESENT.get(name, answer)(*values, **keys)

        return answered

    with ExitStack() as stack:
        for owner, names in ASKED.items():
            for name in names:
                stack.enter_context(mock.patch.object(owner, name, recording(name, getattr(owner, name))))
        function(*arguments)
    return [sorted(found), len(STREAM.synchronize.mock_calls) + len(STREAM.wait_stream.mock_calls)]


def read_and_move(folder, target):
    """What verbs do with the checkpoint of a finished run."""
    settings = Checkpoints(memory_mb=1, file_mb=1)
    load.load_run(folder)
    convert.convert(folder / "checkpoint", target, settings, ("safetensors", "pt"))
    convert.convert(target, target.with_name("back"), settings, ["sharded"], "pt")
    compare.compare(folder / "checkpoint", target.with_name("back"), settings)


CASES = {
    "single": ({}, {}),
    "fsdp": ({"fsdp": 2, "activation_checkpointing": True}, {}),
    "pp": ({"pp": 2, "micro_batches": 2}, {}),
    "3d": ({"dp": 2, "tp": 2, "pp": 2, "micro_batches": 2}, {}),
    "selective": ({"dp": 2, "activation_checkpointing": "selective"}, {}),
    "powersgd": ({"dp": 2}, {"compression": "powersgd"}),
    "lightning": ({}, {"engine": "lightning"}),
}


@pytest.mark.parametrize("name", but_slow(CASES, {*CASES} - {"fsdp"}))
def test_each_question_for_a_gpu_is_known_and_nothing_waits_for_one(name, make_settings, tmp_path):
    """A save in the background that waited for a GPU's stream would wait for the training."""
    (layout, keys), every = CASES[name], []
    training = {"steps": 4, "checkpoint_every": 2, "checkpoint_async": True}
    settings = make_settings(name, layout, {"dropout": 0.1}, {"warmup_steps": 1}, training, **keys)
    finished = Path(settings["output"])
    again = [(finished / "checkpoint", tmp_path / "again")]
    every += run_on_ranks(asked, ranks_of(layout), tmp_path / "train", train_settings, settings)
    every += run_on_ranks(asked, ranks_of(layout), tmp_path / "load", load_and_save_again, settings, again)
    every += run_on_ranks(asked, 1, tmp_path / "move", read_and_move, finished, tmp_path / "moved")
    assert sum(waits for _, waits in every) == 0
    known = {caller for found, _ in every for caller in found}
    assert known <= VERDICTS.keys(), (
        f"read what these do where there is a GPU, and list them: {known - VERDICTS.keys()}"
    )
    assert "torch/distributed/checkpoint/filesystem.py:_write_files_from_queue" in known
