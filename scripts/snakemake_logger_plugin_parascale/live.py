"""Count core-hours used and left while a workflow runs, and estimate when it ends."""

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

DEARER = 1.5  # times the planned cost of a training, above which the user is warned


class Ledger:
    """Tracks the jobs of a plan; writes every change as a line of `events.jsonl`.

    How long a job ran is taken from its record (training, parity run, probe) or from Snakemake's benchmark. Without these, and while a job
    runs, time counts from submission, including the wait in a queue. Jobs in one group count equal parts of its time.
    """

    def __init__(self, plan, planner):
        self.plan, self.events, self.planner = plan, planner.project.paths.events, planner
        self.jobs = {job.id: job for job in plan.jobs}
        self.waiting = dict(self.jobs)
        self.running = {}  # id → (job, start time, number of jobs in its scheduler job, including itself)
        self.failures = Counter()  # job → failed attempts
        self.lost = 0  # jobs that failed in all attempts, or depend on one that did
        self.used = 0.0
        self.done = 0
        self.announced = set()  # jobs announced as costing more than planned

    def started(self, ids, now):
        """Note that jobs were started or submitted."""
        started = [self.waiting.pop(identity) for identity in ids if identity in self.waiting]
        shared = Counter(job.together for job in started if job.together)
        for job in started:
            self.running[job.id] = job, now, shared.get(job.together, 1)
            # `plan.ledger` needs these fields if the workflow is killed.
            benchmark = job.benchmark and os.path.abspath(job.benchmark)
            self._write("started", job, now, cores=job.charged, kind=job.kind, benchmark=benchmark)

    def finished(self, identity, now):
        """Note that a job succeeded."""
        self.done += 1
        self._end(identity, now, "finished")

    def failed(self, identity, now):
        """Note that a job failed. It waits again while it has attempts left."""
        job = self._end(identity, now, "failed")
        if job is None:
            return
        self.failures[identity] += 1
        if self.failures[identity] < job.attempts:
            self.waiting[identity] = job
            return
        lost = {identity}  # this job and all that depend on it
        for other in self.plan.jobs:  # in order of dependencies
            if other.id in self.waiting and not lost.isdisjoint(other.after):
                lost.add(other.id)
                del self.waiting[other.id]
        self.lost += len(lost)

    def line(self, now):
        """The line on progress: jobs done, core-hours used and left, time of the end."""
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
        """Yield a sentence on each running training that will cost more than DEARER times the plan; once for each."""
        for job, began, _ in [*self.running.values()]:
            if not job.kind or job.id in self.announced:
                continue
            training = Live(job.run, self.planner.project.paths.places(job.kind)[1](job.run))
            training.update()
            if not training.attempts or training.attempts[-1]["started"] < began:
                continue  # still in the queue; the files are from an older training
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
