"""The made-up cluster: output of `scontrol` (SHARED, AMD, SMALL, RECORDED, PARTITIONS), and an executor that submits nothing
(`executor_in`), with jobs for it (`job_of`, `data_job`). To replace Slurm's programs, use `program` of tests/command.py.

SHARED, AMD and SMALL are composed: (nodes, partitions, configuration). Their lines have the fields of Slurm 22.05 to 24.05 in order,
without long ones, and made-up names. RECORDED is the output of real clusters: source → (nodes, partitions), one line each, empty if
only nodes were published; fields that `site init` does not read are left out. PARTITIONS: only partitions, of two more clusters.
"""

from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

from snakemake_executor_plugin_slurm import Executor

from parascale import slurm
from parascale.paths import Paths
from parascale_slurm_executor import RootExecutor
from parascale_slurm_executor.endings import Signs
from parascale_slurm_executor.jobs import Pauses, Queued
from tests import golden

BLOCKS = {
    name: "".join(f"{line}\n" for line in text.split("\n") if not line.startswith("# "))
    for name, text in golden.read(Path(__file__).parents[1] / "unit/recorded/clusters.txt").items()
}
SHARED, AMD, SMALL = (
    tuple(BLOCKS[f"{name}, {part}"] for part in ("nodes", "partitions", "configuration"))
    for name in ("shared", "amd", "small")
)
PLACES = [name.removesuffix("; nodes") for name in BLOCKS if name.endswith("; nodes")]
RECORDED = {
    place.removeprefix("recorded: "): (BLOCKS[f"{place}; nodes"], BLOCKS.get(f"{place}; partitions", ""))
    for place in PLACES
}
PARTITIONS = {name: BLOCKS[f"partitions of {name}"] for name in ("seawulf", "aris")}


class Names(SimpleNamespace):
    """Named values, like Snakemake's wildcards and params."""

    def get(self, name):
        return vars(self).get(name)

    def items(self):
        return vars(self).items()

    def __iter__(self):
        return iter(vars(self).values())


class Thing(SimpleNamespace):
    """A rule or job; hashable, because Snakemake keeps them in sets."""

    __hash__ = object.__hash__


def made(name, wildcards, params, output=()):
    rule = Thing(name=name, wildcard_names=set(wildcards), params=Names(**params), group=None)
    job = {"rule": rule, "name": name, "jobid": 1, "wildcards": Names(**wildcards), "params": rule.params}
    return Thing(**job, attempt=1, restart_times=3, benchmark=None, log=(), output=output, is_group=lambda: False)


def job_of(run, key="key", kind="run"):
    return made("train_ddp", {"run": run}, {"kind": kind, "key": key})


def data_job(dataset="text", prepared="tokens", tokens=9, output=()):
    return made("prepare", {"dataset": dataset, "prepared": prepared}, {"settings": tokens}, output)


def executor_in(root, monkeypatch):
    """A RootExecutor that only records its actions (`did`), with a made-up queue (`queue`)."""
    made = object.__new__(type("Executor", (RootExecutor,), {"paths": Paths(root), "silence": 300}))
    made.run_uuid, made.slurm_logdir, made.did, made.queue = "parascale_0", root / "slurm_logs", [], {}
    made.undecided, made.queued, made.signs = Counter(), Queued(made), Signs(made)
    (root / "store").mkdir(exist_ok=True)
    made.paths.site.touch()
    made.job_of = lambda training: SimpleNamespace(store=root / "store/trainings", key="key")
    ends = SimpleNamespace(executor_error_callback=lambda error: made.did.append(f"ends: {error}"))
    made.most = 5
    made.workflow = SimpleNamespace(dag=SimpleNamespace(jobs=[], needrun=lambda job: False), scheduler=ends)
    made.next_seconds_between_status_checks = 1
    made._failed_nodes, made.left, made.active_jobs, made.lock = set(), set(), [], nullcontext()
    made.explained, made.warned, made.ended = set(), [], []
    made.logger = SimpleNamespace(info=lambda text: None, warning=made.warned.append)
    made.pauses = Pauses(made.logger)
    made._job_submission_executor = SimpleNamespace(submit=lambda function, job: made.did.append("again"))
    monkeypatch.setattr(slurm, "waiting_or_running", lambda name, noted: made.queue)
    monkeypatch.setattr(slurm, "submitted", lambda name, since: {})
    monkeypatch.setattr(slurm, "described", lambda identity: made.queue.get(identity, {}))
    monkeypatch.setattr(Executor, "run_job", lambda self, job: made.did.append("submitted"))

    def fails(self, info, msg, **more):
        made.did.append("failed")
        made.told = msg

    reported = lambda self, info: made.did.append(f"watches {info.external_jobid}")  # noqa: E731
    monkeypatch.setattr(Executor, "_report_job_submission_threadsafe", reported)
    monkeypatch.setattr(Executor, "_report_job_error_threadsafe", lambda self, info, msg: self.did.append(msg))
    monkeypatch.setattr(Executor, "report_job_success", lambda self, info: made.did.append("done"))
    monkeypatch.setattr(Executor, "report_job_error", fails)
    return made
