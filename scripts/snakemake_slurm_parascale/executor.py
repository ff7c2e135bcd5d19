"""The executor of a root."""

import hashlib
import time
from dataclasses import dataclass

from snakemake_executor_plugin_slurm import Executor
from snakemake_executor_plugin_slurm.utils import get_job_wildcards
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from parascale import slurm, submissions
from parascale.errors import ParascaleError
from parascale.lease import Lease
from snakemake_logger_plugin_parascale import trained_by


@dataclass(frozen=True)
class Training:
    """What a job trains: kind (`run`, `parity` or `probe`), name of the run, and the key of its settings and code."""

    kind: str
    run: str
    key: str


def training_of(job):
    """The Training of a job of Snakemake's; None where it trains nothing."""
    kind = None if job.is_group() else trained_by(job.rule)
    return kind and Training(kind, job.wildcards.run, job.params.key)


class RootExecutor(Executor):
    """Submits the jobs of one root, under one name in the queue, whoever starts the workflow and however often."""

    paths = None  # parascale.settings.paths.Paths
    silence = None  # seconds without a sign of life after which a training that Slurm calls running is dead

    def __post_init__(self, test_mode=False):
        super().__post_init__(test_mode)
        # The plugin makes up a name for each start, and asks for the state of jobs of that name alone.
        root = hashlib.sha256(str(self.paths.root.resolve()).encode()).hexdigest()[:8]
        self.signs = {}  # job → (its training's last sign of life, when we first saw that)
        self.run_uuid = f"{self.workflow.executor_settings.jobname_prefix or 'parascale'}_{root}"

    def clean_old_logs(self):
        """Nothing: the plugin's own also deletes empty folders, and a job whose log has no folder cannot start."""

    def run_job(self, job):
        """Submit a job, unless one that an earlier start of the workflow left is at the same training."""
        training = training_of(job)
        try:
            left = self._left_by_others(job, training) if training else None
        except ParascaleError as error:
            self._report_job_error_threadsafe(SubmittedJobInfo(job), f"{error} ")
            return
        if left is None:
            super().run_job(job)
        else:
            self._watch(job, training, *left)

    def _left_by_others(self, job, training):
        """(id, key or None where it is unknown) of a job in the queue that works on a training; of the same key first."""
        queue = slurm.waiting_or_running(self.run_uuid)
        if not queue:
            return None
        known = {line["job_id"]: line for line in submissions.noted(self.paths.store)}
        comment = f"rule_{job.name}_wildcards_{get_job_wildcards(job)}"  # the plugin's
        found = {}
        for identity, said in queue.items():
            if identity in known:
                line = known[identity]
                if (line["kind"], line["run"]) == (training.kind, training.run):
                    found[identity] = line["key"]
            elif said == comment:  # Snakemake was killed before it could write the job down
                found[identity] = None
        return min(found.items(), key=lambda item: (item[1] != training.key, int(item[0])), default=None)

    def _watch(self, job, training, identity, key):
        """Take a job of Slurm's for ours, or wait for its end before ours is submitted."""
        log = self.slurm_logdir / f"rule_{job.name}" / get_job_wildcards(job) / f"{identity}.log"
        ours = key == training.key
        if ours:
            self.logger.info(f"Job {job.jobid}: Slurm job {identity} already trains {training.run}; it is taken up.")
        else:
            self.logger.info(
                f"Job {job.jobid}: Slurm job {identity} works on {training.run} with other settings; this one is submitted "
                f"when it has ended. `scancel --signal=TERM {identity}` makes it save its state and end."
            )
        aux = {"slurm_logfile": log, "ours": ours, "submitted": False}
        self._report_job_submission_threadsafe(SubmittedJobInfo(job, external_jobid=identity, aux=aux))

    def _report_job_submission_threadsafe(self, job_info):
        if job_info.aux.get("submitted", True):
            self._note(job_info)
        super()._report_job_submission_threadsafe(job_info)

    def _note(self, job_info):
        job, training = job_info.job, training_of(job_info.job)
        try:
            submissions.note(self.paths.store, job_info.external_jobid, job.name, **vars(training) if training else {})
        except (OSError, ParascaleError) as error:  # the job is in the queue: it is watched in any case
            self.logger.warning(f"Slurm job {job_info.external_jobid} of {job.name} could not be written down: {error}")

    async def check_active_jobs(self, active_jobs):
        """Ask Slurm for the state of jobs, once those are cancelled that are dead: where its daemon on a node was killed, or all
        processes hang, Slurm calls a job running until its time limit."""
        for job_info in active_jobs:
            if self._is_silent(job_info):
                identity = job_info.external_jobid
                self.logger.warning(
                    f"Slurm job {identity} of {job_info.job.name} has given no sign of life for {self.silence:.0f} s: cancelled."
                )
                slurm.cancel(identity)
        async for job_info in super().check_active_jobs(active_jobs):
            yield job_info

    def _is_silent(self, job_info):
        """Whether the training of a job has begun, not ended, and not renewed its lease for too long, by our own clock."""
        training, identity = training_of(job_info.job), job_info.external_jobid
        lease = training and Lease(self.paths.places(training.kind)[1](training.run)).holder()
        if not lease or lease["job_id"] != identity:
            self.signs.pop(identity, None)
            return False
        sign, since = self.signs.get(identity, (None, None))
        if sign != lease["time"]:
            self.signs[identity] = lease["time"], time.monotonic()
            return False
        return time.monotonic() - since > self.silence

    def report_job_success(self, job_info):
        """A job has ended well; if it was another's, it is ours' turn."""
        if job_info.aux.get("ours", True):
            super().report_job_success(job_info)
        else:
            self._submit_again(job_info.job)

    def report_job_error(self, job_info, msg=None, **more):
        """A job has ended badly; if it was another's, it is ours' turn. What stopped on its way goes on without using up a retry,
        and what would fail again is not tried again."""
        job, identity = job_info.job, job_info.external_jobid
        if not (job_info.aux or {}).get("ours", True):
            self._submit_again(job)
        elif identity and self._has_stopped_on_its_way(job, identity):
            self.logger.info(f"Slurm job {identity} of {job.name} stopped with its state saved: it is submitted again.")
            self._submit_again(job)
        else:
            if identity and slurm.is_hopeless(identity):
                self.logger.info(f"Slurm job {identity} of {job.name} would fail again: it is not submitted again.")
                job.attempt = 1 + job.restart_times
            super().report_job_error(job_info, msg, **more)

    def _has_stopped_on_its_way(self, job, identity):
        """Whether a training made steps and saved its state. A plain `scancel` says that it shall not go on: that is a failure."""
        training = training_of(job)
        if training is None or slurm.described(identity).get("JobState") == "CANCELLED":
            return False
        _, work = self.paths.places(training.kind)
        return submissions.stopped_with_progress(work(training.run), identity)

    def _submit_again(self, job):
        self._job_submission_executor.submit(self.run_job, job)
