"""Core-hours used, core-hours left and the time of the end, while a workflow runs."""

import json
import os
from collections import Counter
from datetime import UTC, datetime

from parascale.files import append_line
from parascale.plan.hours import total, wall_hours
from parascale.plan.ledger import ran_seconds
from parascale.plan.tables import duration
from parascale.report.live import Live
from parascale.report.numbers import plural

DEARER = 1.5  # times what a training was planned to cost, beyond which a user is warned


class Ledger:
    """Follows the jobs of a plan; every change is a line of `events.jsonl`.

    The record of a training, parity run or probe, and Snakemake's benchmark of another job, say how long it ran. Without either, and
    while a job runs, it counts from its submission, its wait in a queue included. Jobs that share one of the scheduler count equal
    parts of it.
    """

    def __init__(self, plan, planner):
        self.plan, self.events, self.planner = plan, planner.project.paths.events, planner
        self.jobs = {job.id: job for job in plan.jobs}
        self.waiting = dict(self.jobs)
        self.running = {}  # id → (job, when it was started, with how many, itself among them, it shares a job of the scheduler)
        self.failures = Counter()  # of each job
        self.lost = 0  # jobs that will not run: they failed in all their attempts, or need one that did
        self.used = 0.0
        self.done = 0
        self.announced = set()  # jobs announced as costing more than planned

    def started(self, ids, now):
        """Jobs were started or submitted."""
        started = [self.waiting.pop(identity) for identity in ids if identity in self.waiting]
        shared = Counter(job.together for job in started if job.together)
        for job in started:
            self.running[job.id] = job, now, shared.get(job.together, 1)
            # Needed by `plan.ledger` if this workflow is killed before its end.
            benchmark = job.benchmark and os.path.abspath(job.benchmark)
            self._write("started", job, now, cores=job.charged, kind=job.kind, benchmark=benchmark)

    def finished(self, identity, now):
        """A job ended well."""
        self.done += 1
        self._end(identity, now, "finished")

    def failed(self, identity, now):
        """A job ended badly. While it has attempts left it waits as before."""
        job = self._end(identity, now, "failed")
        if job is None:
            return
        self.failures[identity] += 1
        if self.failures[identity] < job.attempts:
            self.waiting[identity] = job
            return
        lost = {identity}  # it is not tried again, and nothing that needs it will run
        for other in self.plan.jobs:  # each stands behind those that it needs
            if other.id in self.waiting and not lost.isdisjoint(other.after):
                lost.add(other.id)
                del self.waiting[other.id]
        self.lost += len(lost)

    def line(self, now):
        """Jobs done, core-hours used, and what is to go."""
        used, left = self.used, [*self.waiting.values()]
        for job, began, shared in self.running.values():
            ran = (now - began) / shared / 3600
            used += job.charged * ran
            left.append(job.rest(max(0.0, 1 - ran / job.expected)) if job.expected else job)
        sums = total(left)
        lost = f", {self.lost} failed or depend on one that did" if self.lost else ""
        line = f"parascale: {self.done} of {len(self.plan.jobs)} jobs done{lost}, {used:,.2f} core-h used"
        if not left:
            return line
        to_go, unknown = f"{sums['core_hours_expected']:,.2f}", sums["jobs_unknown"]
        if unknown:
            return f"{line}, at least {to_go} left, and {plural(unknown, 'job')} without a price"
        hours = wall_hours(left, self.plan.capacity)
        end = datetime.fromtimestamp(now + 3600 * hours).strftime("%d %b %H:%M")
        ends = f"({sums['core_hours_low']:,.2f} to {sums['core_hours_high']:,.2f})"
        return f"{line}, about {to_go} {ends} left, {duration(hours)}: done around {end}, plus queues"

    def dearer(self):
        """A sentence on each training under way that will cost more than DEARER of what it was planned to, once."""
        for job, began, _ in [*self.running.values()]:
            if not job.kind or job.id in self.announced:
                continue
            training = Live(job.run, self.planner.project.paths.places(job.kind)[1](job.run))
            training.update()
            if not training.attempts or training.attempts[-1]["started"] < began:
                continue  # it waits in a queue, and what is there is an older training's
            if (times := training.times_planned() or 0.0) > DEARER:
                self.announced.add(job.id)
                hours = times * training.described["prediction"]["core_hours"]
                pace = f"{times:.1f} × the planned time, at the pace of its last steps"
                yield f"{job.title} will cost about {hours:,.2f} core-h, {pace}"

    def _end(self, identity, now, event):
        if identity not in self.running:
            return None
        job, began, shared = self.running.pop(identity)
        seconds = ran_seconds(self.planner.project.paths, job, began, now)
        seconds = seconds or (now - began) / shared
        charged = job.charged * seconds / 3600
        self.used += charged
        self._write(event, job, now, seconds=seconds, core_hours=charged)
        return job

    def _write(self, event, job, now, **more):
        at = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
        entry = {"time": at, "event": event, "job": job.id, "rule": job.rule, "wildcards": job.wildcards}
        entry |= {"site": self.planner.site.name, **more}
        append_line(self.events, json.dumps(entry))
