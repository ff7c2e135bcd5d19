"""Runs of a user's own training script: the launcher keeps the record and publishes the results.

work/runs/<run>/files/   the script's folder, `PARASCALE_FOLDER` in its environment, where it saves and finds its files. In a finished run
                         it is `checkpoint/`. The rest of the record is the same as for other trainings (`train/state.py`).
"""

import os
import statistics
from functools import partial

from parascale import slurm
from parascale.checkpoint.manifest import MANIFEST, describe_files, write_manifest
from parascale.files import make_folder, read_json, read_json_lines, write_json
from parascale.paths import RunFolder
from parascale.store.folders import copy_tree
from parascale.telemetry import read_samples, sample_files
from parascale.train import monitor, surroundings
from parascale.train.acquire_run import acquire_run, continuation_of
from parascale.train.gauges import distinct, host
from parascale.train.job import FILES
from parascale.train.record import Recorder, description, publish


def train(job, node, run, saved, ended, environment=os.environ):
    """Run a script's processes on this node; the first node keeps the record. Returns the exit code.

    run: function from `watched`, a context manager over {rank: process id}, to the exit code of all nodes. saved, ended: exit codes of runs
    that were asked to stop and exited on their own, or by the signal. environment: the processes' environment as the launcher knows it.
    """
    if node:
        return run(partial(_watched, job, node))
    lease, died_at, job, _ = acquire_run(job)
    if job is None:  # another job has finished it
        return 0
    record = Recorder(job.work)
    described = description(job, job.run.workload.steps)
    write_json(RunFolder(job.work).record, {"continuation": continuation_of(job), **described})
    make_folder(job.work / FILES)
    allocation = (job.allocation or {}) | surroundings.noted(
        [surroundings.look(job, 0, environment, job.run.layout.processes_per_node)]
    )
    record.begin(None, [slurm.node_name()], died_at, allocation=allocation)
    code = None
    try:
        code = run(partial(_watched, job, node))
    except SystemExit as exit:  # asked to stop while the nodes met
        code = exit.code
        raise
    finally:
        outcome = {0: "finished", saved: "stopped", ended: "stopped"}.get(code, "failed")
        _end(record, outcome, job.work / FILES, itself=code == saved)
        if outcome != "finished":
            lease.release()
    if outcome == "finished":
        machines = [read_json(path) for path in sorted(job.work.glob("machine-*.json"))]
        described |= {"parameters": None, "vocabulary": None, "excluded": {}}
        described |= {"hosts": [each["host"] for each in machines], "machines": distinct(machines)}
        # The largest sampled memory of a process, or on a GPU.
        kind = "gpu" if job.site.device == "cuda" else "rank"
        devices = (device for device in read_samples(sample_files(job.work)) if device.kind == kind)
        most = max((int(value) for device in devices for value in device.known("memory_bytes")), default=None)
        publish(job, record, lease, described, {"peak_memory_bytes": most}, partial(_fill, job))
    return code


def _watched(job, node, processes):
    """A context that samples a node and its ranks, and records the node's hardware."""
    write_json(job.work / f"machine-{node:05d}.json", host())
    return monitor.sampled(job, node, processes)


def _end(record, outcome, files, itself):
    """Close the attempt with the script's records, and `saved`: True if a new start can resume from its files. The start of an attempt's
    first step is not recorded, so it is assumed to take the median of the others. files: the script's folder. itself: True if the script
    exited on its own when asked to stop."""
    lines = record.steps()
    firsts = [line for line in lines if "first" in line]
    if others := [line["seconds"]["total"] for line in lines if "first" not in line]:
        for line in firsts:
            line["seconds"]["total"] = statistics.median(others)
    record.take(lines)
    own = [line["step"] for line in firsts if line["first"] > record.started]
    record.last_step = lines[-1]["step"] if own else None
    times = [path.stat().st_mtime for path in files.rglob("*") if path.is_file()]
    # A script that records steps must also start later than before: if its file is no checkpoint but a log, it would restart forever.
    stopped = [each for each in record.attempts[:-1] if each.get("outcome") == "stopped"]
    before = [each["first_step"] for each in stopped if each["first_step"] is not None]
    moved = bool(own) and own[-1] > max(before, default=-1) if lines else itself
    saved = moved and max(times, default=0.0) > record.started
    if outcome != "finished":  # the launcher has written the cause into the file
        cause = read_json_lines(record.attempts_path, readable=True)[-1].get("cause")
        record.attempts[-1] |= {"cause": cause} if cause else {}
    record.attempts[-1] |= {"first_step": own[-1] if own else None, "saved": saved}
    record.end(outcome)


def _fill(job, folder):
    """Put the script's files into the finished run's folder."""
    kept = RunFolder(folder).checkpoint
    copy_tree(job.work / FILES, kept)
    paths = [path for path in sorted(kept.rglob("*")) if path.is_file() and path != kept / MANIFEST]
    files = describe_files(kept, [path.relative_to(kept) for path in paths])
    write_manifest(kept, {"run": job.run.run, "script": job.run.workload.command}, files)
