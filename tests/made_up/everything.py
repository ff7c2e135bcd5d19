"""Made-up results of every kind, so that no section of the report is empty."""

import contextlib

from parascale.data.benchmark import write_rows
from parascale.files import write_json, write_text
from tests.command import call
from tests.made_up.project import link_project
from tests.made_up.results import CLUSTER, ddp, edited, fake, matrix, workload, write_results

TEXT = workload(data={"dataset": "prose"})
SUMMARISER = workload("summary-small", "summarisation", {"dataset": "xsum"}, summary_window=24)
CLASSIFIER = workload("images-small", "classification", {"dataset": "imagewoof", "format": "hdf5"}, {"norm": "batch"})
HUB = {"kind": "hub", "name": "Salesforce/wikitext", "config": "wikitext-2-v1", "revision": "x"}
COURSE = workload("wikitext2-course", data={"dataset": "wikitext2", "source": HUB}, window=32, stride=1)
OPERATORS = (
    {"name": "aten::addmm", "calls": 246, "cpu_seconds": 0.007, "device_seconds": 0.9},
    {"name": "aten::native_layer_norm", "calls": 80, "cpu_seconds": 0.02, "device_seconds": 0.1},
    {"name": "aten::copy_", "calls": 1200, "cpu_seconds": 1.5, "device_seconds": 0.0},
)

# Results of the benchmark of readers, the measurement of communication, and summarisers.
LOADERS = {
    "schema_version": 1,
    "dataset": "shapes",
    "unit": "images",
    "format": "hdf5",
    "advice": "Take hdf5: because.",
}
LOADERS |= {"ceilings": {"preadv": 9.0e9, "memcpy": 2.0e9, "filesystem": "ext4"}}
LOADERS |= {"machine": {"cpu": "AMD EPYC 7742", "cores": 128}}


def reading(name, access, rate, io="pread", cache="warm", decoder=None, workers=0):
    """A row of the benchmark of readers; None is an empty cell."""
    return {
        "dataset": "shapes", "format": name, "access": access, "cache": cache, "io": io, "workers": workers, "decoder": decoder,
        "place": "disk", "samples_per_second": rate, "spread": 0.2, "sample_bytes": 1000.0, "inodes": 3, "bytes": 5 << 20,
        "write_seconds": 1.5, "samples": 4500, "cpu_seconds": 9.0, "bytes_read_per_byte": 1.0 if io == "pread" else None,
    }  # fmt: skip


READINGS = [
    reading("files", "random", 100.0, io="files"),
    reading("hdf5", "random", 250_000.0),
    reading("hdf5", "random", 300_000.0, io="mmap"),
    reading("hdf5", "random", 7.0, cache="cold"),
    reading("hdf5", "sequential", 400_000.0),
    reading("hdf5", "random", 900.0, decoder="scaled", workers=2),
]
TRANSFERS_HEADER = "operation,group,nodes,ranks,bytes,seconds,algorithm_gigabytes_per_second,bus_gigabytes_per_second"
# All-reduce of 4 ranks: bus bandwidth is 1.5 times algorithm bandwidth.
TRANSFERS = [
    ("all_reduce", "all", 2, 4, 1024, 1e-4, 0.01024, 0.01536),
    ("all_reduce", "all", 2, 4, 67108864, 0.01, 6.7108864, 10.0663296),
    ("broadcast", "all", 2, 4, 1024, 1e-4, 0.01024, 0.01024),
    ("broadcast", "all", 2, 4, 67108864, 0.01, 6.7108864, 6.7108864),
    ("all_reduce", "dp", 1, 2, 1024, 1e-5, 0.1024, 0.1024),
]
SCORES = {"rouge1": 0.31, "rouge2": 0.12, "rougeL": 0.28}
SUMMARIES = {"documents": 262, "beam": SCORES, "greedy": {**SCORES, "rouge1": 0.29}, "lead_words": 9, "beams": 4}
SUMMARIES |= {"lead": {"rouge1": 0.18, "rouge2": 0.08, "rougeL": 0.17}}
SUMMARIES |= {"examples": [{"document": "a <long> text", "reference": "text", "summary": "long text"}]}
FORM = {"bytes": 3_000_000, "seconds": 0.5, "peak_memory_bytes": 12 << 20, "identical": True, "optimizer": False}


def proof(run, **forms):
    """The result of verifying converted checkpoints. forms: name → differences from FORM."""
    found = {name: {**FORM, "test_loss": 4.25, "tensors": 9, **changed} for name, changed in forms.items()}
    return {"schema_version": 1, "run": run, "strategy": run, "dtype": None, "forms": found}


def write_transfers(results, name, rows=TRANSFERS):
    """Write a file in the format of the measurement of communication."""
    lines = [TRANSFERS_HEADER, *(",".join(map(str, row)) for row in rows)]
    write_text(results / f"communication/{name}.csv", "\r\n".join(lines))


def write_prepared(results, dataset):
    """Write the manifest of prepared text, which plans and advice read."""
    splits = {name: {"tokens": 50_000} for name in ("train", "validation", "test")}
    write_json(results / f"data/{dataset}/flat/manifest.json", {"vocabulary": 4000, "splits": splits})


def finished():
    """Runs of all strategies and tasks, on CPUs and GPUs; some weak, with different results, or repeated with another seed."""
    sums = {"train": SUMMARISER, "baseline": "summary-single"}
    published = {"train": COURSE, "baseline": "wikitext", "site": CLUSTER}
    return [
        *matrix(TEXT),
        ddp("ddp-again", seed=2, step_seconds=0.047, train=TEXT),
        ddp("weak", scaling="weak", step_seconds=0.09, train=TEXT),
        fake("wrong", tp=2, gpus_per_node=2, verdict="different", loss_shift=0.01, train=TEXT),
        fake("summary-single", verdict="baseline", **sums),
        ddp("summary-ddp", step_seconds=0.06, **sums),
        fake("summary-mmmmmm-wwwwww", fsdp=2, gpus_per_node=2, step_seconds=0.07, **sums),
        fake("images", baseline="images", verdict="baseline", train=CLASSIFIER),
        fake("wikitext", verdict="baseline", **published),
        fake("wikitext-ddp", dp=4, gpus_per_node=4, step_seconds=0.03, **published),
    ]


def unfinished():
    """A failed run and a running one."""
    return [
        fake("broken", dp=4, gpus_per_node=4, status="failed", steps=12, train=TEXT),
        fake("under-way", tp=4, gpus_per_node=4, status="running", steps=30, train=TEXT),
    ]


def write_everything(root, fakes):
    """Write runs, and results of summarisers, converters, preparation of data and benchmarks.

    Returns the folders `results` and `work`.
    """
    results, work = write_results(root, fakes)
    write_json(results / "summaries/summary-single.json", SUMMARIES)
    excluded = {"train": {"long_summary": 7, "without_summary": 0, "cut_documents": 1200}}
    edited(results / "runs/summary-single/run.json", excluded=excluded)
    edited(results / "runs/wrong/run.json", code_digest="fedcba9876543210" * 4)
    accuracies = {"validation_accuracy": 0.97, "validation_top5": 1.0, "test_accuracy": 0.96, "test_top5": 0.999}
    edited(results / "runs/images/summary.json", **accuracies)
    write_rows(results / "loaders/shapes.csv", READINGS)
    write_json(results / "loaders/shapes.json", LOADERS)
    write_text(results / "loaders/torn.csv", "")
    write_transfers(results, "ddp")
    write_transfers(results, "tp", [])
    for run, forms in (
        ("fsdp", {"safetensors": {}, "pt": {"seconds": 0.25}}),
        ("tp", {"pt": {"identical": False, "test_loss": None}}),
        ("ddp", {"transformers": {"test_loss": 4.250001, "logits_difference": 3.1e-6}}),
    ):
        write_json(results / f"checkpoints/{run}/verify.json", proof(run, **forms))
    for dataset in ("prose", "wikitext2"):
        write_prepared(results, dataset)
    write_json(results / "runs/ddp/profile/operators.json", list(OPERATORS))
    return results, work


def build_report(root, *options):
    """Build the report of the results in `root` with its command. Returns the report's folder."""
    if not (root / "Snakefile").exists():
        link_project(root)
    with contextlib.chdir(root):
        call("report", "--everything", *options)
    return root / "results/report"
