"""Made-up results of every kind at once, so that every section of the report has something to show."""

from parascale.data.benchmark import write_rows
from parascale.files import read_json, write_json, write_text
from tests.command import parascale
from tests.unit.fake_results import CLUSTER, fake, matrix, workload, write_results
from tests.unit.test_report_communication import write as write_transfers
from tests.unit.test_report_conversions import proof
from tests.unit.test_report_loaders import FACTS, ROWS
from tests.unit.test_report_quality import SUMMARIES
from tests.workflow.small_project import link_project

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


def finished():
    """Runs of all strategies and tasks, weak, different and repeated with another seed, on processors and on GPUs."""
    sums = {"train": SUMMARISER, "baseline": "summary-single"}
    published = {"train": COURSE, "baseline": "wikitext", "site": CLUSTER}
    return [
        *matrix(TEXT),
        fake("ddp-again", dp=2, gpus_per_node=2, seed=2, step_seconds=0.047, train=TEXT),
        fake("weak", dp=2, gpus_per_node=2, scaling="weak", step_seconds=0.09, train=TEXT),
        fake("wrong", tp=2, gpus_per_node=2, verdict="different", loss_shift=0.01, train=TEXT),
        fake("summary-single", verdict="baseline", **sums),
        fake("summary-ddp", dp=2, gpus_per_node=2, step_seconds=0.06, **sums),
        fake("summary-mmmmmm-wwwwww", fsdp=2, gpus_per_node=2, step_seconds=0.07, **sums),
        fake("images", baseline="images", verdict="baseline", train=CLASSIFIER),
        fake("wikitext", verdict="baseline", **published),
        fake("wikitext-ddp", dp=4, gpus_per_node=4, step_seconds=0.03, **published),
    ]


def unfinished():
    """A run that failed and one that is under way."""
    return [
        fake("broken", dp=4, gpus_per_node=4, status="failed", steps=12, train=TEXT),
        fake("under-way", tp=4, gpus_per_node=4, status="running", steps=30, train=TEXT),
    ]


def write_everything(root, fakes):
    """Write runs, and beside them what summarisers, converters, the preparation of data and benchmarks leave.

    Returns the folders `results` and `work`.
    """
    results, work = write_results(root, fakes)
    write_json(results / "summaries/summary-single.json", SUMMARIES)
    _add(results / "runs/summary-single/run.json", excluded={"train": {"long_summary": 7, "cut_documents": 1200}})
    _add(results / "runs/wrong/run.json", code_digest="fedcba9876543210" * 4)
    accuracies = {"validation_accuracy": 0.97, "validation_top5": 1.0, "test_accuracy": 0.96, "test_top5": 0.999}
    _add(results / "runs/images/summary.json", **accuracies)
    write_rows(results / "loaders/shapes.csv", ROWS)
    write_json(results / "loaders/shapes.json", FACTS)
    write_text(results / "loaders/torn.csv", "")
    write_transfers(results, "ddp")
    write_transfers(results, "tp", [])
    for run, forms in (("fsdp", {"safetensors": {}, "pt": {"seconds": 0.25}}), ("tp", {"pt": {"identical": False}})):
        write_json(results / f"checkpoints/{run}/verify.json", proof(run, **forms))
    splits = {name: {"tokens": 50_000} for name in ("train", "validation", "test")}
    for dataset in ("prose", "wikitext2"):
        write_json(results / f"data/{dataset}/flat/manifest.json", {"vocabulary": 4000, "splits": splits})
    write_json(results / "runs/ddp/profile/operators.json", list(OPERATORS))
    return results, work


def build_report(root, *options):
    """The folder of the report that its command builds of the results in `root`."""
    if not (root / "Snakefile").exists():
        link_project(root)
    parascale("report", "--everything", *options, cwd=root, check=True)
    return root / "results/report"


def _add(path, **values):
    write_json(path, read_json(path) | values)
