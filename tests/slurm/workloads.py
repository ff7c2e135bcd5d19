"""The trainings for the cluster in a box, one of each task, and their data.

Each takes a few seconds and uses random numbers everywhere, so that they are tested.
"""

import json
import random

STEPS = 20
WORKLOADS = {
    "tiny": {
        "task": "language_model",
        "data": {"dataset": "prose", "source": {"kind": "files", "location": "$DATA/prose"}, "stage": "ram"},
        "model": {"dim": 32, "heads": 2, "layers": 2, "hidden": 64, "dropout": 0.1},
        "optim": {"lr": 2.0e-3, "warmup_steps": 5},
        "training": {"window": 16, "global_batch": 16, "steps": STEPS, "evaluate_every": 10, "checkpoint_every": 2},
    },
    "texts": {
        "task": "summarisation",
        "data": {"source": {"kind": "files", "location": "$DATA/texts"}, "stage": "ram"},
        "model": {"kind": "encoder_decoder", "dim": 16, "heads": 2, "layers": 1, "hidden": 32, "dropout": 0.1},
        "optim": {"lr": 5.0e-3},
        "training": {"window": 24, "summary_window": 6, "global_batch": 8, "steps": STEPS},
        "parity_precision": "fp64",
    },
    "pictures": {
        "task": "classification",
        "data": {
            "source": {"kind": "builtin", "name": "shapes"},
            "images": {"train": 40, "validation": 20, "test": 20, "size": 32},
            "format": "hdf5",
            "stage": "ram",
        },
        "model": {"kind": "xresnet", "dim": 8, "depths": [1], "norm": "batch"},
        "optim": {"lr": 5.0e-3, "schedule": "one_cycle"},
        "training": {"image_size": 32, "global_batch": 8, "steps": STEPS},
        "parity_precision": "fp64",
    },
}


def write_data(folder):
    """Write the contents of `$DATA` into `folder`: text, and documents with summaries (their first words)."""
    for name in ("prose", "texts"):
        (folder / name).mkdir(parents=True)
    for number, (split, lines) in enumerate({"train": 1_000, "valid": 50, "test": 50}.items()):
        text = prose(lines, seed=number)
        (folder / f"prose/{split}.txt").write_text("".join(f"{line}\n" for line in text))
        pairs = [{"document": line, "summary": " ".join(line.split()[:3])} for line in text[:50]]
        (folder / f"texts/{split}.jsonl").write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs))


def prose(lines, seed):
    """Lines of words that depend on the word before, so that there is something to learn."""
    draw, word, text = random.Random(seed), 0, []
    for _ in range(lines):
        line = []
        for _ in range(20):
            word = (3 * word + draw.randrange(4)) % 200
            line.append(f"word{word}")
        text.append(" ".join(line))
    return text
