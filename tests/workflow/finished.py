"""A small project of every task: what its files say, what a plan reads of its results, and which of its jobs train."""

import json

COLUMNS = "run workload gpus_per_node dp engine seed init_from precision compile baseline profile"
ROWS = """
lm           lm      1 1 -         1 -  fp32 - lm      -
lm-ddp       lm      2 2 -         1 -  fp32 - lm      -
lm-lightning lm      1 1 lightning 1 -  fp32 - lm      -
lm-later     lm      1 1 -         1 lm fp32 - lm      -
summary      summary 1 1 -         1 -  fp32 - summary -
images       images  1 1 -         1 -  fp32 - images  -
"""
FILES = {
    "config/config.yaml": "site: here\ntitle: Reruns\nformats: {images: [hdf5, arrow], tokens: [arrow]}\n",
    "config/sites/here.yaml": "device: cpu\ncores_per_node: 4\nthreads_per_process: 1\nhost_memory_gb: 16\n"
    "partitions: [{name: batch, max_hours: 24}, {name: long}]\n",
    "config/runs.tsv": "".join("\t".join(line.split()) + "\n" for line in (COLUMNS, *ROWS.strip().splitlines())),
    "config/workloads/lm.yaml": """
title: Words
data: {dataset: words, source: {kind: files, location: ../../text, files: {train: a.txt, validation: b.txt, test: c.txt}}}
model: {dim: 16, heads: 2, layers: 2, hidden: 32}
optim: {lr: 1.0e-3}
training: {window: 8, global_batch: 8, steps: 10}
""",
    "config/workloads/summary.yaml": """
title: Summaries
task: summarisation
data: {dataset: pairs, source: {kind: builtin, name: docstrings}}
model: {kind: encoder_decoder, dim: 16, heads: 2, layers: 2, hidden: 32}
training: {window: 16, summary_window: 8, global_batch: 8, steps: 10}
""",
    "config/workloads/images.yaml": """
title: Shapes
task: classification
data: {dataset: shapes, source: {kind: builtin, name: shapes}, format: hdf5}
model: {kind: xresnet, dim: 32, depths: [1, 1]}
training: {image_size: 32, global_batch: 8, steps: 10}
""",
    "README.md": "A project.\n",
    **{f"text/{name}.txt": "some words\n" for name in "abc"},
}
SPLITS = ("train", "validation", "test")
RESULTS = {
    "results/calibration/here.json": json.dumps({"schema_version": 1, "site": "here", "observations": []}),
    **{f"results/data/{name}/raw/manifest.json": "{}" for name in ("words", "pairs", "shapes")},
    "results/data/words/flat/manifest.json": json.dumps(
        {"vocabulary": 100, "splits": {split: {"tokens": 1000} for split in SPLITS}}
    ),
    "results/data/pairs/pairs/manifest.json": json.dumps(
        {"vocabulary": 100, "splits": {split: {"documents": 100} for split in SPLITS}}
    ),
    **{
        f"results/data/shapes/{format}/manifest.json": json.dumps(
            {"classes": ["a", "b"], "splits": {split: {"samples": 100} for split in SPLITS}}
        )
        for format in ("hdf5", "arrow")
    },
}
TARGETS = ["all", "calibrate", "checkpoints", "communication", "formats", "results/comparisons/lm-vs-lm-ddp.txt"]

# The jobs that train for each workload: its runs, their parity runs, and the probes of its speed. `lm-later` begins with the weights
# of `lm`, so its training only follows from that one.
PROBES_OF = {
    "lm": {f"probe lm@{label}-fp32" for label in ("single-2", "single-8", "dp-2")},
    "summary": {f"probe summary@single-{divisor}-fp32" for divisor in (2, 8)},
    "images": {f"probe images@single-{divisor}-fp32" for divisor in (2, 8)},
}
RUNS_OF = {
    "lm": {"train_single lm", "train_ddp lm-ddp", "train_lightning lm-lightning"}
    | {f"parity_run {run}" for run in ("lm", "lm-ddp", "lm-lightning", "lm-later")},
    "summary": {"train_single summary"},
    "images": {"train_single images"},
}
LATER = {"train_single lm-later"}


def trainings(*workloads):
    """All jobs that train for some workloads, those aside that only follow."""
    return set().union(*(RUNS_OF[name] | PROBES_OF[name] for name in workloads))
