"""The Slurm executor for one root."""

import hashlib
import os
import shlex
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Any

from snakemake_executor_plugin_slurm import Executor
from snakemake_executor_plugin_slurm.utils import get_job_wildcards
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from parascale import slurm, submissions
from parascale.errors import NoAnswerError, ParascaleError, RequirementError
from parascale.files import make_folder, write_text
from parascale.paths import RunFolder
from parascale.store.trainings import Store
from parascale.train.job import show_kept
from parascale_slurm_executor.endings import NOTHING, Signs, ending, lacking
from parascale_slurm_executor.jobs import Pauses, Queued, comment_of, noted_as, training_of, why, why_later

# The longest pause between two status checks, as a multiple of the first pause; the plugin waits 10 s longer after each check.
OFTEN = 5
LOOKS = 3  # status checks in a row that must agree before we give up a job for which the plugin would wait for ever
WATCHED = "the jobs are watched on"
# In these states, Slurm may still requeue the job.
UNDECIDED = (None, "PREEMPTED", "NODE_FAIL")
# The plugin's error for each job of a refused array; only its log has the reason.
ARRAY_REFUSED = "Part of failed array"


class RootExecutor(Executor):
    """Submits the jobs of one root. They have the same name in the queue in every start and for every user."""

    paths: Any = None  # parascale.paths.Paths
    job_of: Any = None  # function from a result of `training_of` to its parascale.train.job.Job
    silence = None  # seconds without a sign of life after which a training counts as dead, even if Slurm reports it as running

    def __post_init__(self, test_mode=False):
        super().__post_init__(test_mode)
        self.queued, self.signs, self.pauses = Queued(self), Signs(self), Pauses(self.logger)
        self.undecided = Counter()  # job → number of status checks in a row in which its state was in UNDECIDED
        self.explained = set()  # printed (job, reason why it waits)
        self.left = set()  # jobs that published their training before this start, but have not ended in Slurm
        self.most = (
            OFTEN * self.workflow.executor_settings.init_seconds_before_status_checks
        )  # seconds between two status checks
        self.ended = []  # jobs that the last status check reported as ended
        # The plugin would use a new name in each start, and asks only for jobs with that name.
        root = hashlib.sha256(str(self.paths.root.resolve()).encode()).hexdigest()[:8]
        self.run_uuid = f"{self.workflow.executor_settings.jobname_prefix or 'parascale'}_{root}"

    def clean_old_logs(self):
        """Do nothing. The plugin's method also deletes empty folders, and a job cannot start without the folder of its log."""

    def get_partition_arg(self, job):
        """The plugin's partition option, plus a comment that identifies the job in the queue, in case we cannot record it."""
        return f"{super().get_partition_arg(job)} --comment={shlex.quote(comment_of(job))}"

    def get_account_arg(self, job):
        """The account option. `preflight` has checked the account; the plugin would ask the accounting for each job, without a timeout."""
        account = job.resources.get("slurm_account")
        yield f" -A {shlex.quote(str(account))}" if account else ""

    def run_job(self, job):
        """Submit a job, unless a job of an earlier start is doing the same work."""
        if self._is_left_to_us(job):
            super().run_job(job)

    def run_array_jobs(self, jobs):
        """Same as `run_job`, for jobs that become one array."""
        free = [job for job in jobs if self._is_left_to_us(job)]
        if free:
            super().run_array_jobs(free) if len(free) > 1 else super().run_job(free[0])

    def _is_left_to_us(self, job):
        """True if no job in the queue does this job's work; else we watch the one that does. Errors count as failures of this job, because
        Snakemake would not see them."""
        try:
            left = self.queued.left_by_others(job)
            if left:
                self._watch(job, *left)
            return not left
        except NoAnswerError as error:
            self._ask_later(job, str(error))
        except RequirementError as error:
            self._end(error)
        except Exception as error:
            super()._report_job_error_threadsafe(SubmittedJobInfo(job), f"{error or type(error).__name__} ")
        return False

    def _report_job_error_threadsafe(self, job_info, msg):
        """Use a retry for a failed submission only if Slurm refused the job for good; without an answer, it may be in the queue."""
        job = job_info.job
        if reason := why_later(msg):
            self._ask_later(job, reason)
        elif msg.startswith(ARRAY_REFUSED):
            self._submit_again(job)
        elif self._is_left_to_us(job):
            super()._report_job_error_threadsafe(job_info, msg)

    def _ask_later(self, job, reason):
        """Submit a job again after a pause that grows each time. An immediate retry would be wasted."""
        seconds = self.pauses.longer(job, reason, f"{job.name} is submitted when Slurm takes it, without using a retry")
        timer = threading.Timer(seconds, self._submit_again, [job])
        timer.daemon = True
        timer.start()

    def _end(self, error):
        """End the workflow, because it can no longer submit or watch jobs. The next start continues to watch the jobs in the queue."""
        self.left.clear()
        self.workflow.scheduler.executor_error_callback(WorkflowError(str(error)))

    def see_end(self, job, identity, key):
        """Watch a job until it ends, though it has published its training and Snakemake does not need it: it could hang until its limit."""
        if key == noted_as(job)["key"] and self.is_finished(training_of(job)):
            self.logger.info(f"Slurm job {identity} of {job.name} has published its training: waiting for it to end.")
            self.left.add(identity)
            aux = {"slurm_logfile": self._log_of(job, identity), "ours": False}
            with self.lock:
                self.active_jobs.append(SubmittedJobInfo(job, external_jobid=identity, aux=aux))

    def shutdown(self):
        while self.left and self.wait_thread.is_alive():
            time.sleep(1)
        super().shutdown()

    def _log_of(self, job, identity):
        folder = f"{'group' if job.is_group() else 'rule'}_{job.name}"
        return self.slurm_logdir / folder / get_job_wildcards(job) / f"{identity}.log"

    def _watch(self, job, identity, key):
        """Continue with a job in the queue as ours, or, if its settings differ, wait for its end before we submit ours."""
        wildcards, ours = get_job_wildcards(job), key == noted_as(job)["key"]
        line = f"Job {job.jobid}: Slurm job {identity} already works on {f'{job.name} {wildcards}'.strip()}"
        if ours:
            line += "; it is taken up."
        else:
            line += " with other settings; this one is submitted when it has ended."
            line += f" `scancel --signal=TERM {identity}` makes it save its state and end." if training_of(job) else ""
        self.logger.info(line)
        aux = {"slurm_logfile": self._log_of(job, identity), "ours": ours, "submitted": False}
        self._report_job_submission_threadsafe(SubmittedJobInfo(job, external_jobid=identity, aux=aux))

    def _report_job_submission_threadsafe(self, job_info):
        self.pauses.end(job_info.job)
        if job_info.aux.get("submitted", True):
            self.queued.note(job_info.job, job_info.external_jobid)
        super()._report_job_submission_threadsafe(job_info)

    async def check_active_jobs(self, active_jobs):
        """Cancel silent jobs, then ask Slurm for the state of all. (If a job's daemon was killed or its processes hang, Slurm reports it as
        running until its time limit.) While Slurm does not answer, we ask less and less often, with one query each time."""
        if not active_jobs:  # also when called before `__post_init__`
            self.next_seconds_between_status_checks = self.workflow.executor_settings.init_seconds_before_status_checks
            return
        try:
            states = slurm.states(self.run_uuid)
            self.pauses.end(WATCHED)
        except (RequirementError, NoAnswerError) as error:
            if isinstance(error, NoAnswerError):
                self.next_seconds_between_status_checks = self.pauses.longer(WATCHED, str(error), WATCHED, self.most)
            else:
                self._end(error)
            for job_info in active_jobs:
                yield job_info
            return
        for job_info in active_jobs:
            if what := self.signs.what_is_wrong(job_info):
                identity = job_info.external_jobid
                self.logger.warning(f"Slurm job {identity} of {job_info.job.name} {what}: cancelled.")
                slurm.cancel(identity)
        self.ended = []
        watched = [job_info async for job_info in super().check_active_jobs(active_jobs)]
        # If it gets no answer, the plugin drops all jobs, and Snakemake would wait for them for ever.
        seen = {id(job_info) for job_info in (*watched, *self.ended)}
        watched += [job_info for job_info in active_jobs if id(job_info) not in seen]
        self.next_seconds_between_status_checks = min(self.next_seconds_between_status_checks, self.most)
        for job_info in self._still_there(watched, states):
            yield job_info

    def _still_there(self, watched, states):
        """Report jobs that have ended unnoticed; return the others. The plugin would wait for ever for a job that Slurm has forgotten
        (`MinJobAge`), or removed from its nodes without requeueing it."""
        there = []
        for number, job_info in enumerate(watched):
            identity = job_info.external_jobid
            state, reason = states.get(identity, (None, None))
            reason = reason if state == "PENDING" else None
            if (identity, reason) not in self.explained and (said := why(identity, reason)):  # print each reason once
                self.logger.warning(f"Slurm job {identity} of {job_info.job.name} waits: {said}")
            self.explained.add((identity, reason))
            self.undecided[identity] = self.undecided[identity] + 1 if state in UNDECIDED else 0
            if self.undecided[identity] < LOOKS:
                there.append(job_info)
                continue
            try:
                final = slurm.last_state(identity)
                self.pauses.end(identity)
            except NoAnswerError as error:
                self.next_seconds_between_status_checks = self.pauses.longer(identity, str(error), WATCHED, self.most)
                return there + watched[number:]
            del self.undecided[identity]
            if final in ("PENDING", "RUNNING", "SUSPENDED", "REQUEUED"):
                there.append(job_info)
            elif final == "COMPLETED":
                self.report_job_success(job_info)
            else:
                message = f"SLURM-job '{identity}' has ended, SLURM status is: '{final or 'unknown'}'. "
                self.report_job_error(job_info, msg=message)
        return there

    def cancel_jobs(self, active_jobs):
        """Cancel this workflow's jobs, but not those that it only waits for."""
        self.left.clear()
        super().cancel_jobs([job_info for job_info in active_jobs if (job_info.aux or {}).get("ours", True)])

    def report_job_success(self, job_info):
        """Handle a job that succeeded. If it was not ours, ours is next."""
        self.ended.append(job_info)
        if job_info.aux.get("ours", True):
            super().report_job_success(job_info)
        else:
            self._is_next(job_info)

    def _is_next(self, ended):
        """A job that was not ours has ended. If it had published its training, show that again (its end may have hidden it); else submit
        ours."""
        if ended.external_jobid in self.left:
            self._publish(training_of(ended.job))
            self.left.discard(ended.external_jobid)
        else:
            self._submit_again(ended.job)

    def report_job_error(self, job_info, msg=None, **more):
        """Handle a job that failed. If it was not ours, ours is next. A job that has published its training counts as done; one that was
        stopped is submitted again without using a retry; one that would fail again is not retried."""
        self.ended.append(job_info)
        job, identity, training = job_info.job, job_info.external_jobid, training_of(job_info.job)
        if not (job_info.aux or {}).get("ours", True):
            self._is_next(job_info)
            return
        named = f"Slurm job {identity} of {job.name}"
        if identity and self._publish(training):
            self.logger.info(f"{named} had published its training when it ended: it is done.")
            # Snakemake writes it at the end of the job, but was killed too.
            if job.benchmark and not os.path.exists(job.benchmark):
                make_folder(os.path.dirname(job.benchmark))
                write_text(job.benchmark, "")
            super().report_job_success(job_info)
            return
        said = slurm.described(identity)
        outcome = training and submissions.outcome_of(self.work_of(training), identity)
        # After a plain `scancel`, the job should not continue. A preempted job continues, as if Slurm had requeued it.
        state = said.get("JobState")
        if training and state != "CANCELLED" and (state == "PREEMPTED" or outcome == "stopped"):
            self.logger.info(f"{named} was stopped, and has not failed: it is submitted again.")
            self._submit_again(job)
            return
        logs = [(job_info.aux or {}).get("slurm_logfile"), *([] if job.is_group() else job.log)]
        missed = lacking(said, logs, self._failed_nodes)
        self._failed_nodes.update(missed)  # the plugin excludes these for later jobs
        if said:
            msg = (msg or "").replace(NOTHING, "") + ending(said, missed, job.name, not training or outcome)
        if not missed and slurm.fails_permanently(said):
            self.logger.info(f"{named} would fail again: it is not submitted again.")
            job.attempt = 1 + job.restart_times
        super().report_job_error(job_info, msg, **more)

    def _publish(self, training):
        """Publish our job's training, if it is finished; Snakemake inside a failing job removes it. Returns True if it is finished."""
        if not self.is_finished(training):
            return False
        with suppress(OSError, ParascaleError):  # for example, a full disk
            job = self.job_of(training)
            files = RunFolder(job.output)
            shown = files.read_record().get("key") == job.key and files.summary.exists()
            return shown or show_kept(job)
        return False

    def is_finished(self, training):
        """True if the store has our job's training, finished. False also if its data or run no longer exists."""
        with suppress(OSError, ParascaleError):
            job = training and self.job_of(training)
            return bool(job and Store(job.store).finished(job.key))
        return False

    def work_of(self, training):
        return self.paths.places(training["kind"])[1](training["run"])

    def _submit_again(self, job):
        with suppress(RuntimeError):  # the workflow has ended
            self._job_submission_executor.submit(self.run_job, job)
