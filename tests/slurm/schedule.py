"""A random schedule of faults on a real Slurm: trainings in several layouts are struck again and again.

    python tests/slurm/schedule.py --seed 7    one schedule; the same seed strikes the same runs in the same way
    python tests/slurm/schedule.py --seed 1-8  several schedules in turn; keeps the files of those that fail

Each schedule starts the workflow with one run per layout and strikes every run once its job has begun and a checkpoint
exists. It passes only if in the end every run has the same numbers and weights as an undisturbed one, bit for bit; if every
workflow that ended early named a cause; if only daemons run on the nodes; and if the recorded jobs are those that Slurm
charged, for the same number of seconds. Time limits adapt to the load of the computer.
For requirements see tests/slurm/README.md.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from cluster import Cluster
from shape import Shape
from strikes import DAMAGED, FAULTS, PASSING, TIMEOUT
from workflow import Patience, Workflow, assert_same_numbers
from workloads import STEPS

from parascale import submissions
from parascale.errors import ParascaleError
from parascale.paths import Paths

LAYOUTS = {
    "single": {},
    "ddp": {"gpus_per_node": 2, "dp": 2},
    "fsdp": {"gpus_per_node": 2, "fsdp": 2},
    "tp": {"gpus_per_node": 2, "tp": 2},
    "pp": {"gpus_per_node": 2, "pp": 2, "micro_batches": 2},
    "nodes": {"nodes": 2, "dp": 2},
}
PASSED = "weights bit-equal"
IDLE = ("slurmd -D", "sleep 3600")  # processes of a node without a job
PAUSE = 5.0  # seconds per step until every fault has struck
LATEST = 300 + 2 * TIMEOUT  # seconds for a struck run to begin again; Slurm needs up to 200 to notice some faults
REMEDY = re.compile(r"^.*(?:error: |Error|failed|No space left|signal|CANCELLED|TERM).*$", re.MULTILINE)


def rows(names):
    """Rows of the run table, one for each layout."""
    return [{"run": name, **LAYOUTS[name], "deterministic": "true", "baseline": name} for name in names]


@dataclass
class Injection:
    """One fault. begun: attempts of the run before it. seconds: until the run began again. cause: the workflow's error, if it ended before
    that."""

    seed: int
    fault: str
    layout: str
    begun: int | None = None
    seconds: float | None = None
    cause: str | None = None
    outcome: str = "not struck: the run ended before"


class Schedule:
    """The injections of one seed and the workflow that they strike."""

    def __init__(self, seed, cluster, workflow, disk, names=tuple(LAYOUTS), count=14, faults=None):
        self.cluster, self.workflow, self.disk, self.names = cluster, workflow, disk, names
        pairs = list(product(faults or FAULTS, names))
        random.Random(seed).shuffle(pairs)
        self.injections = [Injection(seed, *pair) for pair in pairs[:count]]
        self.draw = None  # random numbers of the current fault, independent of the timing of others
        self.later, self.struck_at, self.patience, self.causes = [], {}, {}, []

    def run(self, latest=1200):
        """Strike, wait for the end, and check the results. Returns the injections."""
        deadline = Patience(latest)
        self.start()
        while any(self._open(name) for name in self.names):
            self._tick(deadline)
            for name in self.names:
                injection = self._open(name)
                if injection and self._is_ready(name, injection):
                    say(f"seed {injection.seed}: {injection.fault} strikes {name}")
                    injection.begun, injection.outcome = self._begun(name), "struck"
                    self.struck_at[id(injection)], self.patience[id(injection)] = time.monotonic(), Patience(LATEST)
                    self.draw = random.Random(f"{injection.seed} {injection.fault} {name}")
                    FAULTS[injection.fault](self, name)
        self.workflow.full_speed()
        while self.workflow.process.poll() != 0 or self.later:
            self._tick(deadline)
        self._check()
        for injection in self.injections:
            if injection.begun is not None:
                injection.outcome = PASSED
        return self.injections

    # ---- watching

    def start(self):
        """Start or restart the workflow."""
        targets = [self.workflow.run(name).target for name in self.names]
        options = ("--retries", 20)
        self.workflow.start(*targets, options=options, settings=(f"timeout_seconds={TIMEOUT}",))

    def _tick(self, deadline):
        """Run actions that are due, restart the workflow if it has ended, and note runs that have recovered."""
        time.sleep(0.3)
        assert deadline.lasts(), f"not at its end: {self.injections}\n{self.workflow.story()[-6000:]}"
        for due in [each for each in self.later if each[0] < time.monotonic()]:
            self.later.remove(due)
            due[1]()
        if self.workflow.process.poll() not in (None, 0) and not self.later:
            causes = REMEDY.findall(self.workflow.story())
            assert causes, self.workflow.story()
            self.causes.append(causes[-1].strip()[:200])
            assert len(self.causes) < 10, self.causes
            for injection in self._not_yet_recovered():
                injection.cause = self.causes[-1]
            self.start()
        for injection in self._not_yet_recovered():
            waited = time.monotonic() - self.struck_at[id(injection)]
            passing = injection.fault in PASSING and waited > PASSING[injection.fault]
            if passing or self._begun(injection.layout) > injection.begun or self._is_done(injection.layout):
                injection.seconds, injection.outcome = round(waited, 1), "went on"
            hangs = f"hangs since {waited:.0f} s: {injection}\n{self.workflow.story()[-6000:]}"
            assert self.patience[id(injection)].lasts(), hangs

    def _not_yet_recovered(self):
        return [each for each in self.injections if each.begun is not None and each.seconds is None]

    def _open(self, name):
        """A run's next injection, or the one that it has not recovered from; None if there is none."""
        if self._is_done(name):
            return None
        mine = [each for each in self.injections if each.layout == name]
        return next((each for each in mine if each.seconds is None), None)

    def _is_ready(self, name, injection):
        needed = 2 if injection.fault == DAMAGED else 1  # one to damage and one before it
        if injection.begun is not None or len(self.workflow.run(name).checkpoints()) < needed:
            return False
        job, layout = self.job(name), LAYOUTS[name]
        processes = layout.get("gpus_per_node", 1) * layout.get("nodes", 1)
        return bool(job) and self.cluster.state(job) == "RUNNING" and len(self.ranks(name)) == processes

    def _is_done(self, name):
        return self.workflow.run(name).target.exists()

    def _begun(self, name):
        """Number of a run's attempts; 0 while its files are being moved."""
        run = self.workflow.run(name)
        with suppress(OSError, ParascaleError):
            return len(run.attempts()) if self._is_done(name) else run.begun()
        return 0

    def job(self, name):
        """Id of the last job submitted for a run."""
        noted = [line["job_id"] for line in submissions.noted(Paths(self.workflow.root).store) if line["run"] == name]
        return noted[-1] if noted else None

    def ranks(self, name):
        """(node, outer pid) of every training process of a run's job."""
        return self.processes(name, lambda line: "-m parascale train" in line and line.startswith("/"))

    def processes(self, name, wanted):
        """(node, outer pid) of every process of a run's job for whose command line `wanted` is true."""
        found = [
            (node, self.cluster.nodes[node].processes(f"SLURM_JOB_ID={self.job(name)}")) for node in self.cluster.nodes
        ]
        return [(node, number) for node, lines in found for number, line in lines.items() if wanted(line)]

    def after(self, seconds, action):
        """Run an action after some seconds."""
        self.later.append((time.monotonic() + seconds, action))

    # ---- the end

    def _check(self):
        undisturbed = self.workflow.undisturbed
        for name in self.names:
            run = self.workflow.run(name)
            assert [line["step"] for line in run.steps()] == list(range(1, STEPS + 1)), name
            assert_same_numbers(run, undisturbed.run(name))
        until = time.monotonic() + 30
        while (left := self._left()) and time.monotonic() < until:
            time.sleep(0.5)
        assert not left, f"these outlive their jobs: {left}"
        self.workflow.assert_all_is_charged()

    def _left(self):
        """Processes left on nodes, except Snakemake's, which survive if their `slurmstepd` was killed."""
        lines = [line for node in self.cluster.nodes.values() for line in node.processes().values()]
        return [line for line in lines if line and not line.startswith(IDLE) and "-m snakemake" not in line]


def say(text):
    print(f"{time.strftime('%X')} {text}", flush=True)


def undisturbed_runs(cluster, folder, names):
    """Run the same runs on this computer, without Slurm and without faults. Returns the finished workflow."""
    workflow = Workflow(cluster, folder, rows(names))
    workflow.start(*(workflow.run(name).target for name in names), profile="local").wait(timeout=1200)
    return workflow


def struck(seed, cluster, folder, disk, undisturbed, **choices):
    """Run the schedule of a seed. Returns its injections; raises AssertionError and keeps the files in `folder` if it does not pass."""
    names = choices.setdefault("names", tuple(LAYOUTS))
    data, root = undisturbed.root / "results/data", disk / f"seed-{seed}"
    with Workflow(cluster, folder / f"seed-{seed}", rows(names), PAUSE, data, root) as workflow:
        workflow.undisturbed = undisturbed
        schedule = Schedule(seed, cluster, workflow, disk, **choices)
        try:
            return schedule.run()
        except BaseException:
            shutil.copytree(root, folder / f"seed-{seed}-failed")
            raise


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", help="a number, or a range: 1-8")
    parser.add_argument("--count", type=int, default=14, help="injections per schedule (%(default)s)")
    parser.add_argument("--fault", action="append", choices=FAULTS, help="use only this fault (may be repeated)")
    parser.add_argument("--layout", action="append", choices=LAYOUTS, help="strike only this layout (may be repeated)")
    given = parser.parse_args()
    first, _, last = (given.seed or "1").partition("-")
    names = tuple(given.layout or LAYOUTS)
    choices = {"names": names, "count": given.count, "faults": given.fault}
    folder = Path(tempfile.mkdtemp(prefix="schedule-"))
    disk, failed = folder / "disk", 0
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1g", "tmpfs", str(disk)], check=True)
    try:
        with Cluster(folder / "cluster", Shape(nodes=9)) as cluster:
            undisturbed = undisturbed_runs(cluster, folder / "undisturbed", names)
            say("the undisturbed runs have ended")
            for seed in range(int(first), int(last or first) + 1):
                try:
                    injections = struck(seed, cluster, folder, disk, undisturbed, **choices)
                except Exception as error:  # go on with the next schedule
                    failed += 1
                    say(f"seed {seed} FAILED: {type(error).__name__}: {error}; its files: {folder}")
                    continue
                hit = [each.seconds for each in injections if each.seconds is not None]
                say(f"seed {seed}: {len(hit)} injections, weights bit-equal, all went on within {max(hit):.0f} s")
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=False)
    return failed


if __name__ == "__main__":
    sys.exit(main())
