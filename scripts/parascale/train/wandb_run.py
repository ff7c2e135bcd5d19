"""A run's curves at Weights & Biases: the values of TensorBoard's events, in a folder for `wandb sync` or sent while the run goes on.

Only a thread of rank 0's talks to the package. Where the network is slow or away, a login is missing or the package fails, these
curves end; that is said once, and the training goes on.
"""

import queue
import shutil
import threading
from contextlib import suppress
from typing import Any

import psutil

from parascale.store.folders import copy_tree

FOLDER, PROCESS = "wandb", "wandb-core"  # the package's own names
BEGIN_SECONDS = 30.0  # the thread waits so long for the network at the start
# The end of an attempt waits so long for the thread. Before a time limit, little time is left.
END_SECONDS = 10.0
MISSING = "the package `wandb` is not installed: pip install wandb, into the environment of this command"


def watch(job, describe):
    """The WandbRun of a job, or None where its configuration asks for none. describe: function that gives what `run.json` says."""
    # Curves of an earlier attempt: this one makes them again, or none.
    shutil.rmtree(job.work / FOLDER, ignore_errors=True)
    watched = job.monitor
    if watched is None or watched.wandb == "none":
        return None
    return WandbRun(job.work, watched.wandb, watched.wandb_project, describe())


def publish(work, folder):
    """Copy what the package has written in a work folder, if it has, to the folder of the finished run."""
    if (made := work / FOLDER).is_dir():
        try:
            copy_tree(made, folder / FOLDER, shutil.copy2)
        except OSError:  # a package that did not come to its end may still write: no reason to fail
            shutil.rmtree(folder / FOLDER, ignore_errors=True)


class WandbRun:
    """One run there, from `begin` to `end`; all attempts of a training are the same one."""

    def __init__(self, folder, mode, project, described):
        """folder: gets `wandb/`, which is not there yet. mode: `offline` or `live`. project: its name there. described: the run, as
        its `run.json` says it."""
        self.folder, self.mode, self.project, self.described = folder, mode, project, described
        self.steps = queue.SimpleQueue()
        self.ended: Any = None
        self.failure = None
        self.thread = threading.Thread(target=self._follow, name="wandb", daemon=True)

    def begin(self, started):
        """started: start of the run's first attempt, in seconds since 1970; with the run's name it says which one it is there."""
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
        """Log the values of a step, a mapping of names; steps of earlier attempts come first, and are not sent twice."""
        self.steps.put((step, values))

    def end(self, outcome, facts):
        """Close it, and wait for what is still to be written or sent, END_SECONDS at most.

        outcome: of the attempt; W&B only tells `finished` from all others. facts: what the run came to; its numbers are kept.
        """
        self.ended = outcome, {key: value for key, value in facts.items() if isinstance(value, (int, float))}
        self.steps.put(None)
        if self.thread.ident is None:  # the package is not there
            return
        self.thread.join(END_SECONDS)
        if self.thread.is_alive():
            self._fail(f"it took longer than {END_SECONDS:g} s to end")
        if self.failure:
            # Kill the package's own process: the end of ours would wait for it, and it for a network that may never come.
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

        # At a terminal, `init` would ask for one, and a question that is still open at the end aborts Python.
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
            # Say little of this machine: `device.csv` describes it better.
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
        wandb.teardown()  # its process may still write the last steps, and the folder is copied next

    def _fail(self, error):
        """Say the first reason why there are no more curves."""
        if self.failure is None:
            self.failure = " ".join(str(error).split()) or type(error).__name__
            name = self.described["run"]
            print(f"{name}: no more curves for Weights & Biases: {self.failure}. The training goes on", flush=True)
