"""The tasks beside the language model, tiny: their data, their workloads, and the table of cases of each."""

import io
import json

import numpy as np
from PIL import Image

from parascale.data.convert import convert
from parascale.data.pairs import prepare_pairs
from parascale.data.sources import download
from parascale.settings import Formats, Source, Text
from parascale.settings.data import ExpectedText
from tests.unit.image_sets import packed_index
from tests.unit.pretrained_folders import MAKERS

from .cases import LLAMA, PUBLISHED, SELECTIVE, TIED, UNEVEN, Case

VOCABULARY = 53  # does not divide
PAIRS = 17  # of the train split; a batch of 12 crosses the epoch's end in most steps


def make_pairs(folder, text=None):
    """A folder of pairs: a summary repeats some words of its document, which has 3 to 14 of them. text: other Text settings."""
    generator = np.random.default_rng(0)
    for split, count in (("train", PAIRS), ("validation", 11), ("test", 9)):
        rows = []
        for _ in range(count):
            words = [f"w{number}" for number in generator.integers(0, 60, generator.integers(3, 15))]
            rows.append({"document": " ".join(words), "summary": " ".join(words[:: generator.integers(2, 4)])})
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = {split: f"{split}.jsonl" for split in ("train", "validation", "test")}
    raw = download(Source(kind="files", location=str(folder), files=files), folder / "raw")
    prepare_pairs(raw, text or Text(max_vocabulary=VOCABULARY), ExpectedText(), folder / "pairs")
    return folder / "pairs"


SUMMARISATION = {
    "model": {"kind": "encoder_decoder", "layers": 2},
    "training": {"window": 12, "summary_window": 8},  # longer documents are cut, the longest summary just fits
}
SUMMARISATION_CASES = {
    "ddp 2": Case({"dp": 2}, fp32=True),
    "ddp 2 uneven accumulated": Case({"dp": 2}, training={**UNEVEN, "accumulate": 2}),
    "fsdp 2": Case({"fsdp": 2}, fp32=True),
    "fsdp 2 tied uneven": Case({"fsdp": 2}, TIED, UNEVEN),
    "fsdp 2 checkpointing": Case({"fsdp": 2, "activation_checkpointing": True}, PUBLISHED),
    "hsdp 2x2 selective": Case({"dp": 2, "fsdp": 2, **SELECTIVE}, training=UNEVEN),
    "tp 2": Case({"tp": 2}, fp32=True),
    "tp 2 tied": Case({"tp": 2}, TIED),
    "tp 2 llama": Case({"tp": 2}, LLAMA),
    "tp 2 llama selective": Case({"tp": 2, **SELECTIVE}, LLAMA, fp32=True),
    "tp 2 published checkpointing": Case({"tp": 2, "activation_checkpointing": True}, PUBLISHED),
    "tp 2 whole sequence and logits": Case({"tp": 2, "sequence_parallel": False, "loss_parallel": False}),
    "dp 2 x tp 2": Case({"dp": 2, "tp": 2}, training=UNEVEN),
    "fsdp 2 x tp 2 tied": Case({"fsdp": 2, "tp": 2}, TIED, UNEVEN, fp32=True),
}


def make_pretrained(folder, name):
    """(folder of a tiny pretrained model, folder of pairs in its numbers)."""
    model = MAKERS[name](folder / name)
    return model, make_pairs(folder, Text(tokenizer="pretrained", pretrained=str(model)))


FINE_TUNING = {"training": {"window": 40, "summary_window": 24}}  # a word is several numbers
FINE_TUNING_CASES = {
    "t5 ddp 2": Case({"dp": 2}),
    "t5 fsdp 2": Case({"fsdp": 2}, training=UNEVEN),
    "t5 fsdp 2 checkpointing": Case({"fsdp": 2, "activation_checkpointing": True}, fp32=True),
    "bart ddp 2 uneven accumulated": Case({"dp": 2}, training={**UNEVEN, "accumulate": 2}),
    "bart fsdp 2": Case({"fsdp": 2}, fp32=True),
    "bart fsdp 2 checkpointing": Case({"fsdp": 2, "activation_checkpointing": True}, training=UNEVEN),
    "bart hsdp 2x2 selective": Case({"dp": 2, "fsdp": 2, **SELECTIVE}, training=UNEVEN),
}


CLASSES = ("even", "odd", "both")
IMAGES = 17


def make_images(folder):
    """A folder of images in a format: three classes, told apart by how bright each half is.

    Of this seed no activation in 20 steps is so near to zero that the rounding of fp32 decides on which side of a ReLU it is.
    """
    generator = np.random.default_rng(1)

    def image(label):
        pixels = generator.integers(0, 120, (20, 24, 3), dtype=np.uint8)
        pixels[:, [slice(0, 12), slice(12, 24), slice(0, 24)][label]] += 120
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG")
        return buffer.getvalue(), label

    splits = {
        split: [image(number % 3) for number in range(count)]
        for split, count in (("train", IMAGES), ("validation", 11), ("test", 9))
    }
    index = packed_index(folder / "index", splits, CLASSES)
    convert(index, "tiny", "hdf5", Formats(), folder / "hdf5")
    return folder / "hdf5"


# Two stages of one block each; the head's three classes do not divide by two.
CLASSIFICATION = {
    "model": {"kind": "xresnet", "dim": 8, "depths": [1, 1], "norm": "batch"},
    "training": {"image_size": 32},
}
GROUP = {"norm": "group"}
SMOOTHED = {**UNEVEN, "label_smoothing": 0.1}

CLASSIFICATION_CASES = {
    "ddp 2": Case({"dp": 2}, fp32=True),
    "ddp 2 uneven smoothed": Case({"dp": 2}, training=SMOOTHED),
    "ddp 2 accumulated": Case({"dp": 2}, training={"accumulate": 3}),
    "ddp 4": Case({"dp": 4}, training=UNEVEN),
    "ddp 2 group norm": Case({"dp": 2}, GROUP, UNEVEN),
    "fsdp 2": Case({"fsdp": 2}, fp32=True),
    "fsdp 2 uneven": Case({"fsdp": 2}, training=UNEVEN),
    "fsdp 2 group norm checkpointing": Case({"fsdp": 2, "activation_checkpointing": True}, GROUP),
    "hsdp 2x2 smoothed": Case({"dp": 2, "fsdp": 2}, training=SMOOTHED),
    "fsdp 2 group norm selective": Case({"fsdp": 2, **SELECTIVE}, GROUP),
}
QUICK = ("fsdp 2 tied uneven", "ddp 2 uneven smoothed", "fsdp 2 group norm checkpointing", "bart fsdp 2")
