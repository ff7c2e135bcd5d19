"""Log a run's curves to Weights & Biases: the values of the TensorBoard events, into a folder for `wandb sync` or live.

Only a thread of rank 0 uses the package. If the network is slow or down, the login is missing or the package fails, logging stops with
one message, and the training continues.
"""

import queue
import shutil
import threading
from contextlib import suppress
from typing import Any

import psutil

from parascale.store.folders import copy_tree

FOLDER, PROCESS = "wandb", "wandb-core"  # the package's own names
BEGIN_SECONDS = 30.0  # how long the thread waits for the network at the start
# How long the end of an attempt waits for the thread. Little time may be left before the job's time limit.
END_SECONDS = 10.0
MISSING = "the package `wandb` is not installed: pip install wandb, into the environment of this command"


def watch(job, describe):
    """The WandbRun of a job, or None if its configuration has none. describe: function that returns the contents of `run.json`."""
    # Delete the curves of an earlier attempt: this one writes them again, or none.
    shutil.rmtree(job.work / FOLDER, ignore_errors=True)
    watched = job.monitor
    if watched is None or watched.wandb == "none":
        return None
    return WandbRun(job.work, watched.wandb, watched.wandb_project, describe())


def publish(work, folder):
    """Copy the package's files, if any, from a work folder to the finished run's folder."""
    if (made := work / FOLDER).is_dir():
        try:
            copy_tree(made, folder / FOLDER, shutil.copy2)
        except OSError:  # if the package did not end, it may still be writing: no reason to fail
            shutil.rmtree(folder / FOLDER, ignore_errors=True)


class WandbRun:
    """One run at Weights & Biases, from `begin` to `end`; all attempts of a training share it."""

    def __init__(self, folder, mode, project, described):
        """folder: `wandb/` is created in it. mode: `offline` or `live`. project: name of the project there. described: contents of the
        run's `run.json`."""
        self.folder, self.mode, self.project, self.described = folder, mode, project, described
        self.steps = queue.SimpleQueue()
        self.ended: Any = None
        self.failure = None
        self.thread = threading.Thread(target=self._follow, name="wandb", daemon=True)

    def begin(self, started):
        """started: start of the run's first attempt, in seconds since 1970; with the run's name it forms the id there."""
        self.id = f"{self.described['run']}-{int(started * 1000):x}"
        try:
            import wandb  # noqa: F401 (takes seconds)
        except ImportError:
            self._fail(MISSING)
        except Exception as error:
            self._fail(error)
        else:
            self.thread.start()

    def add(self, step, values):
        """Log the values of a step, by name. Steps of earlier attempts come first and are not sent twice."""
        self.steps.put((step, values))

    def end(self, outcome, facts):
        """Close the run and wait up to END_SECONDS for pending writes.

        outcome: of the attempt; W&B only distinguishes `finished` from the rest. facts: results of the run; only numbers are logged.
        """
        self.ended = outcome, {key: value for key, value in facts.items() if isinstance(value, (int, float))}
        self.steps.put(None)
        if self.thread.ident is None:  # the package is not installed
            return
        self.thread.join(END_SECONDS)
        if self.thread.is_alive():
            self._fail(f"it took longer than {END_SECONDS:g} s to end")
        if self.failure:
            # Kill the package's own process: at exit ours would wait for it, and it for a network that may never return.
            for child in psutil.Process().children():
                with suppress(psutil.Error):
                    if child.name() == PROCESS:
                        child.kill()

    def _follow(self):
        try:
            self._log_all()
        except Exception as error:
            self._fail(error)

    def _log_all(self):
        import wandb

        # At a terminal, `init` would prompt for a login, and an open prompt at exit aborts Python.
        if self.mode == "live" and not wandb.login(prompt=False):
            raise OSError("no login: run `wandb login`")
        run = wandb.init(
            mode="online" if self.mode == "live" else "offline",
            dir=self.folder,
            project=self.project,
            id=self.id,
            resume="allow",
            name=self.described["run"],
            group=self.described["settings"]["workload"]["name"],
            job_type=self.described["strategy"],
            config={key: self.described[key] for key in ("settings", "site", "versions", "code_digest", "git_commit")},
            # Send little about this machine: `device.csv` describes it better.
            settings=wandb.Settings(
                console="off",
                silent=True,
                x_disable_stats=True,
                x_disable_machine_info=True,
                x_save_requirements=False,
                disable_git=True,
                save_code=False,
                init_timeout=BEGIN_SECONDS,
                finish_timeout=END_SECONDS,
                finish_timeout_raises=True,
            ),
        )
        for step, values in iter(self.steps.get, None):
            if step >= run.starting_step:
                run.log(values, step=step)
        outcome, facts = self.ended
        run.summary.update(facts)
        run.finish(exit_code=int(outcome != "finished"))
        wandb.teardown()  # waits for its process to write the last steps, because the folder is copied next

    def _fail(self, error):
        """Report the first failure; later ones are ignored."""
        if self.failure is None:
            self.failure = " ".join(str(error).split()) or type(error).__name__
            name = self.described["run"]
            print(f"{name}: no more curves for Weights & Biases: {self.failure}. The training goes on", flush=True)
