"""The tasks beside the language model, tiny: their data, their workloads, and the table of cases of each."""

import dataclasses
import json

import numpy as np

from parascale.config import Source, Text
from parascale.config.workload import Expected
from parascale.data.pairs import prepare_pairs
from parascale.data.sources import download

VOCABULARY = 53  # does not divide
PAIRS = 17  # of the train split; a batch of 12 crosses the epoch's end in most steps


def make_pairs(folder):
    """A folder of pairs: a summary repeats some words of its document, which has 3 to 14 of them."""
    generator = np.random.default_rng(0)
    for split, count in (("train", PAIRS), ("validation", 11), ("test", 9)):
        rows = []
        for _ in range(count):
            words = [f"w{number}" for number in generator.integers(0, 60, generator.integers(3, 15))]
            rows.append({"document": " ".join(words), "summary": " ".join(words[:: generator.integers(2, 4)])})
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = {split: f"{split}.jsonl" for split in ("train", "validation", "test")}
    raw = download(Source(kind="files", location=str(folder), files=files), folder / "raw")
    prepare_pairs(raw, Text(max_vocabulary=VOCABULARY), Expected(), folder / "pairs")
    return folder / "pairs"


@dataclasses.dataclass(frozen=True)
class Case:
    """A layout, what differs from the task's tiny workload, and whether it is compared in fp32 too."""

    layout: dict
    model: dict = dataclasses.field(default_factory=dict)
    training: dict = dataclasses.field(default_factory=dict)
    fp32: bool = False


SUMMARISATION = {
    "model": {"kind": "encoder_decoder", "layers": 2},
    "training": {"window": 12, "summary_window": 8},  # longer documents are cut, the longest summary just fits
}
TIED = {"tied": True}
LLAMA = {"norm": "rms", "position": "rotary", "activation": "swiglu", "bias": False, "kv_heads": 2}
PUBLISHED = {"pre_norm": False, "position": "sinusoidal", "activation": "relu"}
UNEVEN = {"global_batch": 13}

SUMMARISATION_CASES = {
    "ddp 2": Case({"dp": 2}, fp32=True),
    "ddp 2 uneven accumulated": Case({"dp": 2}, training={**UNEVEN, "accumulate": 2}),
    "fsdp 2": Case({"fsdp": 2}, fp32=True),
    "fsdp 2 tied uneven": Case({"fsdp": 2}, TIED, UNEVEN),
    "fsdp 2 checkpointing": Case({"fsdp": 2, "activation_checkpointing": True}, PUBLISHED),
    "hsdp 2x2": Case({"dp": 2, "fsdp": 2}, training=UNEVEN),
    "tp 2": Case({"tp": 2}, fp32=True),
    "tp 2 tied": Case({"tp": 2}, TIED),
    "tp 2 llama": Case({"tp": 2}, LLAMA),
    "tp 2 published checkpointing": Case({"tp": 2, "activation_checkpointing": True}, PUBLISHED),
    "tp 2 whole sequence and logits": Case({"tp": 2, "sequence_parallel": False, "loss_parallel": False}),
    "dp 2 x tp 2": Case({"dp": 2, "tp": 2}, training=UNEVEN),
    "fsdp 2 x tp 2 tied": Case({"fsdp": 2, "tp": 2}, TIED, UNEVEN, fp32=True),
}
