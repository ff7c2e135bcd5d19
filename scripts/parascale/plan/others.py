"""How long the jobs take that train nothing: what they read and write by the site's rates, until the ledger knows their rule."""

import dataclasses
from pathlib import Path

from parascale.families.sizes import model_sizes
from parascale.files import read_json
from parascale.plan.calibrate import saved_bytes
from parascale.plan.facts import IMAGE_BYTES
from parascale.plan.time import forward_seconds
from parascale.plan.work import step_work
from parascale.settings import Layout
from parascale.settings.workload import usable_decoders

# Of data that is not there: an English word with its space, an article with its summary.
TOKEN_BYTES, PAIR_BYTES = 5.0, 2500.0
CASE_SECONDS = 1.0  # of the benchmark of readers, beside its passes: processes start
DATA = ("prepare", "index", "convert", "verify", "loaders")
COPIES = {"convert_checkpoint": 3, "verify_checkpoint": 2, "compare_checkpoints": 2}  # a checkpoint is read or written


def other_seconds(job, planner):
    """(seconds, None) of a PlannedJob, or (None, what is missing to tell). The folder of its benchmark says what it does."""
    stage = Path(job.benchmark).parent.name if job.benchmark else None
    if stage in DATA:
        seconds, missing = _of_data(stage, job.wildcards["dataset"], planner)
    elif stage in COPIES or stage == "summarise":
        name = job.wildcards.get("run") or job.wildcards["first"]
        seconds, missing = _of_run(stage, name, planner, max(1, job.gpus))
    else:
        return None, "no earlier job of this rule to go by"
    return (None, missing) if seconds is None else (planner.site.assumed.startup_seconds + seconds, None)


def raw_bytes(name, project):
    """Bytes of a dataset as it is downloaded: of its files where they are there, else from what its workload expects; or None."""
    manifest, data = project.paths.raw(name) / "manifest.json", project.datasets[name]
    if manifest.is_file():
        splits = read_json(manifest).get("splits", {})
        if size := sum(file.get("bytes", 0) for files in splits.values() for file in files):
            return size
    if data.expected_tokens:
        return TOKEN_BYTES * data.expected_tokens
    each = IMAGE_BYTES if name in project.image_datasets else PAIR_BYTES
    return each * data.expected.train_samples if data.expected.train_samples else None


def _of_data(stage, name, planner):
    project, config = planner.project, planner.project.config
    if stage == "loaders":
        readers, of_images = config.loaders, name in project.image_datasets
        formats = len(config.formats.images if of_images else config.formats.tokens) + (not of_images)
        ways = 4 + len(usable_decoders()) * len(readers.workers) if of_images else 2
        cases = formats * (1 + readers.cold) * ways
        return cases * (CASE_SECONDS + readers.repeats * readers.seconds), None
    size = raw_bytes(name, project)
    if size is None:
        wanted = "train_samples" if name in project.image_datasets | project.pair_datasets else "train_tokens"
        return None, f"size of the data: download it, or give data.expected.{wanted} in the workload"
    return size / (planner.site.assumed.data_megabytes_per_second * 1e6), None


def _of_run(stage, name, planner, processes):
    run, site = planner.run(name), planner.site
    facts = planner.facts(run)
    if missing := planner.prediction(name).unknown:
        return None, missing
    size = saved_bytes(run, facts.vocabulary)
    seconds = COPIES.get(stage, 1) * size / (site.assumed.save_gigabytes_per_second * 1e9)
    if stage in ("summarise", "verify_checkpoint"):
        seconds += _forward(stage, run, facts, planner) / (processes if stage == "summarise" else 1)
    return seconds, None


def _forward(stage, run, facts, planner):
    """Seconds in which a process evaluates the validation and the test split, or writes the summaries of the latter.

    Each token of a summary passes through the decoder with all that stand before it, once for each beam, and once for greedy search.
    """
    rates, _ = planner.calibration.rates(planner.site, run, facts.sample_bytes)
    sizes = model_sizes(run.workload.model, facts.vocabulary, *run.workload.sizes)
    alone = dataclasses.replace(run, layout=Layout())
    batch = forward_seconds(step_work(alone, sizes, planner.site), rates, planner.site)
    batches = (facts.validation_samples or 0) / alone.global_batch
    if stage == "verify_checkpoint":
        return 2 * batches * batch
    settings, (window, written) = planner.project.config.summaries, run.workload.sizes
    if settings.documents:
        batches = min(batches, settings.documents / alone.global_batch)
    return batches * batch * written / (window + written) * written * (1 + settings.beams) / 2
