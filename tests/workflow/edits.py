"""Edits of the finished project, and what each makes stale: who adds a setting or a module adds a row."""

import json

from tests.made_up.project import REPOSITORY

from .dry_runs import cell, more, setting, text
from .finished import LATER, PROBES_OF, trainings

CONFIG, SITE, RUNS = "config/config.yaml", "config/sites/here.yaml", "config/runs.tsv"
LM, SUMMARY, IMAGES = (f"config/workloads/{name}.yaml" for name in ("lm", "summary", "images"))
CODE = "scripts/parascale"
LINE = "\nCHANGED = True\n"

# Labels, prices, limits, conduct, words, and code that decides no number. They are edited together, in this order; a value
# that is set rewrites its file, so remarks in it come later.
DECIDES_NOTHING = [
    ("site title", setting(SITE, "title", "That machine")),
    ("site cores", setting(SITE, "cores_per_node", 8)),
    ("site GPU of a machine that computes on CPUs", setting(SITE, "gpu", "A100")),
    ("site memory", setting(SITE, "host_memory_gb", 32)),
    ("site GPU memory", setting(SITE, "gpu_memory_gb", 40)),
    ("site GPUs of a node", setting(SITE, "gpus_per_node", 4)),
    ("site peak rates", setting(SITE, "peak_tflops", {"fp32": 19.5})),
    ("site memory bandwidth", setting(SITE, "memory_gigabytes_per_second", 1500)),
    ("site link in a node", setting(SITE, "node_link.gigabytes_per_second", 250)),
    ("site link between nodes", setting(SITE, "network_link.microseconds", 3)),
    ("site network", setting(SITE, "network.interface", "ib0")),
    ("site environment", setting(SITE, "environment", {"NCCL_IB_TIMEOUT": 50})),
    ("site rate of failures", setting(SITE, "assumed.failures_per_node_day", 0.5)),
    ("site assumed start-up", setting(SITE, "assumed.startup_seconds", 90)),
    ("site charges", setting(SITE, "charges", "cores")),
    ("site partitions", setting(SITE, "partitions", [{"name": "batch", "max_hours": 6}, {"name": "long"}])),
    ("partition", setting(CONFIG, "partition", "long")),
    ("site needs an account", setting(SITE, "needs_account", True)),
    ("site longest job", setting(SITE, "max_hours", 2)),
    ("site purge", setting(SITE, "purge_days", 90)),
    ("site inodes", setting(SITE, "inode_limit", 1000000)),
    ("account", setting(CONFIG, "account", "theirs")),
    ("budget", setting(CONFIG, "budget", {"core_hours": 1000, "quota": 5000})),
    ("studies", setting(CONFIG, "studies", {"mine": {"run": "lm", "gpus": [1], "steps": 30}})),
    ("timeout", setting(CONFIG, "timeout_seconds", 600)),
    ("monitor", setting(CONFIG, "monitor.interval_seconds", 10)),
    ("other code", setting(CONFIG, "continue_with_other_code", True)),
    ("threads of conversions", setting(CONFIG, "checkpoints.threads", 4)),
    ("checkpoints that the report shows", setting(CONFIG, "checkpoints.report", "all")),
    ("memory of conversions", setting(CONFIG, "checkpoints.memory_mb", 512)),
    ("threads that read images", setting(CONFIG, "formats.threads", 8)),
    ("workload title", setting(LM, "title", "Other words")),
    ("summary title", setting(SUMMARY, "title", "Other summaries")),
    ("images title", setting(IMAGES, "title", "Other shapes")),
    ("data staged", setting(LM, "data.stage", "ram")),
    ("data expected", setting(LM, "data.expected", {"vocabulary": 100, "train_tokens": 1000})),
    ("images expected", setting(IMAGES, "data.expected", {"vocabulary": 2, "train_samples": 100})),
    ("images read with other calls", setting(IMAGES, "data.io", "pread")),
    ("mirror of the Hub", setting(LM, "data.source.endpoint", "https://hub.example.org")),
    ("evaluation batch", setting(LM, "training.evaluation_batch", 4)),
    ("checkpoints by steps", setting(LM, "training.checkpoint_every", 5)),
    ("checkpoints by time", setting(LM, "training.checkpoint_minutes", 5)),
    ("checkpoints in the background", setting(LM, "training.checkpoint_async", True)),
    ("checkpoints kept", setting(SUMMARY, "training.keep", 3)),
    ("workers that decode", setting(IMAGES, "training.workers", 2)),
    ("profiled steps", cell(RUNS, "lm-ddp", "profile", "5-7")),
    ("remark in the run table", more(RUNS, "# a remark\n")),
    ("default that is written out", setting(LM, "optim.warmup_steps", 0)),
    ("remark in a workload", more(LM, "# a remark\n")),
    ("README", more("README.md", "More words.\n")),
    ("remark in a rule", more("rules/train.smk", "\n# A remark.\n")),
    ("remark in the step", more(f"{CODE}/train/step.py", "\n# A remark.\n")),
    ("docstring of the step", text(f"{CODE}/train/step.py", "Runs optimizer steps.", "Makes optimizer steps.")),
    ("text of an error", text(f"{CODE}/data/text.py", "sample numbers must lie in", "numbers of samples are in")),
    ("step", more(f"{CODE}/train/step.py", LINE)),
    ("modules of a family", more(f"{CODE}/families/language/modules.py", LINE)),
    ("progress bar", more(f"{CODE}/data/progress.py", LINE)),
    ("generation of text, which no rule does", more(f"{CODE}/evaluation/generate.py", LINE)),
    ("clock", more(f"{CODE}/train/clock.py", LINE)),
    ("state of a training", more(f"{CODE}/train/state.py", LINE)),
    ("launcher", more(f"{CODE}/launch/node.py", LINE)),
    ("command", more(f"{CODE}/commands/train.py", LINE)),
    ("Slurm", more(f"{CODE}/slurm.py", LINE)),
    ("code of settings", more(f"{CODE}/settings/run.py", LINE)),
    ("preparation, whose result its checksums tell", more(f"{CODE}/data/tokenize.py", LINE)),
    ("sizes of a family", more(f"{CODE}/families/language/sizes.py", LINE)),
    ("settings of a family", more(f"{CODE}/families/images/settings.py", LINE)),
]

EVERY = trainings("lm", "summary", "images")
ALL_OF_IMAGES = trainings("images")
# Of another seed than its baseline's, it is not compared with that.
NEW_ROW = {
    f"{rule} lm-2"
    for rule in ("train_single", "parity_verdict", "job_report", "convert_checkpoint", "verify_checkpoint")
}


SHARDS = {f"convert_shard shapes {format} {n:05d}-of-00002" for format in ("hdf5", "arrow") for n in (0, 1)}


def row(name, seed):
    """A line of the run table."""
    return more(RUNS, "\t".join((name, "lm", "1", "1", "-", seed, *"-----")) + "\n")


def version(part):
    """The raised version of a part's numerics."""
    declared = json.loads((REPOSITORY / CODE / "numerics.json").read_text(encoding="utf-8"))["declared"]
    now, raised = (f'"{part}": {{\n   "version": {declared[part]["version"] + by}' for by in (0, 1))
    return text(f"{CODE}/numerics.json", now, raised)


# What is edited: (the edit, what runs again[, trainings that run again because something before them does]).
DECIDES = {
    # The configuration.
    "title of the configuration": (setting(CONFIG, "title", "Other"), {"comparison_report"}),
    "shards": (setting(CONFIG, "formats.shards", 2), {"gather_shards", *SHARDS}, ALL_OF_IMAGES),
    "shuffle of shards": (setting(CONFIG, "formats.seed", 2), {"convert_shard"}, ALL_OF_IMAGES),
    "check of images": (setting(CONFIG, "formats.check", "header"), {"convert_shard"}, ALL_OF_IMAGES),
    "bad samples": (setting(CONFIG, "formats.bad_samples", "skip"), {"gather_shards"}, ALL_OF_IMAGES),
    "another format of images": (
        setting(CONFIG, "formats.images", ["hdf5", "arrow", "binary"]),
        {
            "benchmark_loaders shapes",
            "convert_shard shapes binary 00000-of-00001",
            "gather_shards shapes binary",
            "verify_format shapes binary",
        },
    ),
    "another format of tokens": (
        setting(CONFIG, "formats.tokens", ["arrow", "hdf5"]),
        {"benchmark_loaders words", "convert_tokens words hdf5", "verify_format words hdf5"},
    ),
    "seconds of a pass of readers": (setting(CONFIG, "loaders.seconds", 1), {"benchmark_loaders"}),
    "dtype of conversions": (setting(CONFIG, "checkpoints.dtype", "float16"), {"convert_checkpoint"}),
    "forms of conversions": (setting(CONFIG, "checkpoints.forms", ["pt"]), {"convert_checkpoint"}),
    "which checkpoint": (setting(CONFIG, "checkpoints.which", "last"), {"convert_checkpoint", "compare_checkpoints"}),
    "beams": (setting(CONFIG, "summaries.beams", 2), {"summarise"}),
    "steps of parity runs": (setting(CONFIG, "parity.steps", 5), {"parity_run"}),
    "precision of parity runs": (setting(CONFIG, "parity.precision", "fp64"), {"parity_run"}),
    "cores of a process": (setting(SITE, "threads_per_process", 2), EVERY | {"measure_communication"}, LATER),
    # Workloads.
    "precision of a workload's parity runs": (setting(LM, "parity_precision", "fp64"), {"parity_run"}),
    "learning rate": (setting(LM, "optim.lr", 2e-3), trainings("lm"), LATER),
    "dropout": (setting(SUMMARY, "model.dropout", 0.1), trainings("summary")),
    "window": (setting(LM, "training.window", 16), trainings("lm") | {"benchmark_loaders words"}, LATER),
    "separate documents": (setting(LM, "training.documents", "separate"), trainings("lm"), LATER),
    "label smoothing": (setting(IMAGES, "training.label_smoothing", 0.1), trainings("images")),
    "size of images": (setting(IMAGES, "training.image_size", 20), trainings("images") | {"benchmark_loaders shapes"}),
    "steps": (setting(SUMMARY, "training.steps", 20), {"train_single summary"}),
    "rare words": (setting(LM, "data.text.min_count", 2), {"prepare words flat"}, trainings("lm") | LATER),
    "drawn images": (setting(IMAGES, "data.images.noise", 4), {"download_images"}, ALL_OF_IMAGES),
    "columns": (setting(IMAGES, "data.source.columns", {"image": "picture"}), {"download_images"}, ALL_OF_IMAGES),
    # Their key is the same, but not the files that Snakemake sees.
    "format that is trained on": (setting(IMAGES, "data.format", "arrow"), ALL_OF_IMAGES),
    "a user's text": (more("text/a.txt", "more words\n"), {"download words"}, trainings("lm") | LATER),
    # Rows of the run table.
    "seed of a row": (cell(RUNS, "lm-ddp", "seed", "2"), {"train_ddp lm-ddp", "parity_verdict lm-ddp"}),
    "seed of the row that another begins with": (
        cell(RUNS, "lm", "seed", "2"),
        {"train_single lm", *(f"parity_verdict lm-{name}" for name in ("ddp", "lightning", "later"))},
        LATER,
    ),
    "switch of a row's layout": (
        cell(RUNS, "lm-ddp", "compile", "true"),
        {"train_ddp lm-ddp", "parity_run lm-ddp", "calibrate", *(f"{job}-compiled" for job in PROBES_OF["lm"])},
    ),
    # One kind less: the next one gets its colour.
    "engine of a row": (
        cell(RUNS, "lm-lightning", "engine", "-"),
        {"train_single lm-lightning", "parity_run lm-lightning", "job_report lm-later"},
    ),
    "precision of a row": (
        cell(RUNS, "lm-ddp", "precision", "bf16"),
        {"train_ddp lm-ddp", "calibrate", *(job.replace("fp32", "bf16") for job in PROBES_OF["lm"])},
    ),
    "precision in which ranks of a row sum": (
        cell(RUNS, "lm-ddp", "reduce_precision", "bf16"),
        {"train_ddp lm-ddp", "parity_run lm-ddp"},
    ),
    "baseline of a row": (cell(RUNS, "lm-ddp", "baseline", "lm-lightning"), {"parity_verdict lm-ddp"}),
    "new row": (row("lm-2", "2"), NEW_ROW | {"comparison_report"}),
    "repeat of a row": (row("lm-2", "1"), NEW_ROW | {"parity_run lm-2", "comparison_report"}),
    # Code.
    "numerics of all trainings": (version("training"), EVERY, LATER),
    "numerics of images": (version("families/images"), trainings("images")),
    "numerics of summarisers": (version("families/summaries"), trainings("summary")),
    "numerics of language models, of which summarisers are made": (
        version("families/language"),
        trainings("lm", "summary"),
        LATER,
    ),
    "numerics of pairs": (version("summarisation"), trainings("summary")),
    "numerics of Lightning": (version("lightning"), {"train_lightning lm-lightning", "parity_run lm-lightning"}),
    "classes": (more(f"{CODE}/data/classes.py", LINE), {"benchmark_loaders"}),
    "reading ahead": (more(f"{CODE}/data/ahead.py", LINE), {"benchmark_loaders"}),
    "search for summaries": (more(f"{CODE}/evaluation/summaries.py", LINE), {"summarise"}),
    "verdicts": (more(f"{CODE}/train/parity.py", LINE), {"parity_verdict"}),
    "conversion of checkpoints": (
        more(f"{CODE}/checkpoint/convert.py", LINE),
        {"convert_checkpoint", "compare_checkpoints"},
    ),
    "export": (more(f"{CODE}/families/language/export.py", LINE), {"convert_checkpoint", "compare_checkpoints"}),
    "plan": (more(f"{CODE}/plan/time.py", LINE), {"job_report"}),
    "calibration": (more(f"{CODE}/plan/calibrate.py", LINE), {"job_report", "calibrate"}),
    "report": (more(f"{CODE}/report/page.py", LINE), {"job_report"}),
    "style of the report": (more(f"{CODE}/report/templates/page.css", "\nb {}\n"), {"job_report"}),
    "benchmark of readers": (more(f"{CODE}/data/benchmark.py", LINE), {"benchmark_loaders"}),
    "reader of a format": (more(f"{CODE}/data/formats/hdf5.py", LINE), {"benchmark_loaders"}),
    "measurement of communication": (more(f"{CODE}/parallel/communication.py", LINE), {"measure_communication"}),
}


# Where a new setting is put: the module, and the line below it. One for each class that something is made by.
NEW_SETTINGS = [
    ("config", "    file_mb: int"),
    ("config", "    examples: int"),
    ("config", "    interval_seconds: Number"),
    ("config", "    timeout_seconds: Number"),
    ("formats", "    noise: Number"),
    ("formats", "    threads: int"),
    ("formats", "    cold: bool"),
    ("data", "    revision: str | None"),
    ("data", "    lowercase: bool"),
    ("data", "    stage: Literal"),
    ("optim", "    momentum: Number"),
    ("workload", "    keep: int"),
    ("workload", "    stride: int | None"),
    ("workload", "    smallest_crop: Number"),
    ("workload", "    title: str"),
    ("layout", "    compile: bool"),
    ("run", "    deterministic: bool"),
    ("site", "    purge_days: int | None"),
]
