"""The state of a run on disk: resuming it, and publishing its result.

work/runs/<run>/   run.json (identity), steps.jsonl, attempts.jsonl, lease.json,
                   checkpoints/step-…/ (resumable, the last `keep`), best/step-…/ (weights of the best validation loss)
store/trainings/<key>/   the same, kept as a whole at the end
results/runs/<run>/   published from there
"""

import copy
import dataclasses
import os
import shutil
import socket
import time
from contextlib import suppress
from functools import partial

import torch
import torch.distributed as dist

from parascale.checkpoint import store
from parascale.checkpoint.manifest import read_manifest, step_folder, whole_checkpoints
from parascale.checkpoint.ranks import gather, on_rank0
from parascale.errors import CheckpointError, ConfigError
from parascale.files import link_or_copy, write_json
from parascale.paths import RunFolder
from parascale.store.keys import check_meaning, meaning_of
from parascale.train import surroundings, wandb_run
from parascale.train.acquire_run import acquire_run, continuation_of
from parascale.train.exact import agreed
from parascale.train.gauges import distinct
from parascale.train.machine import Memory, read_machine
from parascale.train.process import peak_memory
from parascale.train.record import Recorder, description, publish


class RunState:
    """Checkpoints, record and result of one run. Rank 0 writes the record; checkpoints are written by all."""

    def __init__(self, job, model, optimizers, alive):
        """alive: called while weights are initialised and compared."""
        self.job, self.model, self.optimizers, self.alive = job, model, optimizers, alive
        self.mesh = model.mesh
        self.lead = self.mesh.rank == 0
        self.files, self.record = RunFolder(job.work), Recorder(job.work)
        self.counted = f"evaluated_{job.run.workload.unit}"
        names = ("validation_loss", "best_validation_loss", "best_step", "test_loss")
        self.facts: dict = dict.fromkeys(names) | {self.counted: {}}
        self.saver = store.Saver(self.mesh, job.run.workload.training.checkpoint_async)
        self.memory = Memory(model.parts, self.mesh.device)
        self.waiting_seconds = [0.0, 0.0]  # bubble and total, to average over ranks
        self.last_checkpoint = time.monotonic()
        self.continued_code = None  # digest of the other code that began this run, if continuing it was requested
        self.saved = {}  # facts of the checkpoint that we resume from
        self.draws = False  # True if a user's class drew random numbers on this rank

    # --- begin

    def begin(self, steps, outputs, excluded):
        """Take over the run and load its newest complete checkpoint, or its initial weights if there is none. Returns the first step
        to do, or None if another job has finished this training in the meantime and it is published.

        outputs: size of the vocabulary, or number of classes. excluded: split → {reason: number of samples left out}.
        """
        self.steps, self.outputs, self.excluded = steps, outputs, excluded
        died_at, finished = on_rank0(self.mesh, self._acquire)
        if finished:
            return None
        self.parameters = self.model.count_parameters()
        reached = self._resume(steps)
        self.model.initialise(self.job.run.seed, reached is not None, self.alive)
        if reached is None:
            self._note_agreed("begun", [])
        first_step = (reached or 0) + 1
        own = socket.gethostname(), os.getpid(), read_machine(self.mesh.device), surroundings.look(self.job)
        self.hosts, self.processes, machines, looks = map(list, zip(*gather(self.mesh, own), strict=True))
        self.machines = distinct(machines)
        if self.lead:
            allocation = (self.job.allocation or {}) | surroundings.noted(looks)
            if self.continued_code:
                allocation["continued_code"] = self.continued_code
            hosts = list(dict.fromkeys(self.hosts))
            wandb = wandb_run.watch(self.job, self._description)
            self.record.begin(first_step, hosts, died_at, self.saved, allocation, steps, wandb)
            if first_step > 1:
                print(f"{self.job.run.run}: continues with step {first_step} of {steps}", flush=True)
        return first_step

    def _acquire(self):
        """Acquire the lease of the work folder and write there what is trained. Returns the last sign of life of a previous holder
        that died, and True if the training is finished."""
        self.job.check_data()  # its files are open by now
        self.lease, died_at, job, self.continued_code = acquire_run(self.job)
        if job is None:
            return died_at, True
        self.job = job
        self.continuation = continuation_of(self.job)
        write_json(self.files.record, {"continuation": self.continuation, **self._description()})
        return died_at, False

    def _description(self):
        """The part of run.json that is known from the start."""
        found = description(self.job, self.steps)
        return found | {"versions": found["versions"] | {"cuda": torch.version.cuda}}

    def _resume(self, steps):
        """Load the newest complete checkpoint, or the other run's checkpoint to start from. Returns its step, or None."""
        for folder in on_rank0(self.mesh, lambda: whole_checkpoints(self.files.checkpoints)):
            try:
                # Check before changing the model: a checkpoint cannot be resumed without the best weights that it names.
                facts = on_rank0(self.mesh, partial(read_manifest, folder))["facts"]
                if (best := facts["evaluation"]["best_step"]) is not None:
                    store.check(self._best(best), self.mesh)
                self.saved = store.load(folder, self.model, self.optimizers)
            except CheckpointError as error:
                if self.lead:
                    print(f"{error}; trying the checkpoint before it", flush=True)
                continue
            self.facts, self.draws = self.saved["evaluation"], self.saved.get("draws", False)
            return self.saved["step"]
        if self.job.start is None:
            return None
        begun_from = on_rank0(self.mesh, partial(read_manifest, self.job.start))["facts"]
        check_meaning(self.job.run, self.job.known_data, begun_from)
        # Take weights, optimizer state and position in the data from the other run, but not its record.
        facts = store.load(self.job.start, self.model, self.optimizers)
        if facts["step"] >= steps:
            raise ConfigError(
                f"run {self.job.run.run} starts after step {facts['step']} of run {facts['run']}, but ends with step {steps}: "
                "give its workload more `training.steps`"
            )
        return facts["step"]

    def _note_agreed(self, when, optimizers):
        """Store the result of `agreed` for a parity run, unless its ranks train independently."""
        if self.job.kind == "parity" and not self.model.ranks_differ:
            self.facts[when] = agreed(self.model, optimizers, self.alive)

    def _best(self, step):
        """The folder for the weights after `step`, the best so far."""
        return step_folder(self.job.work / "best", step)

    # --- on the way

    def add_step(self, line):
        seconds = line["seconds"]
        self.waiting_seconds[0] += seconds.get("bubble", 0.0)
        self.waiting_seconds[1] += seconds["total"]
        if self.lead:
            self.record.add_step(line)

    def note_attention(self, kernels):
        self.facts["attention"] = kernels

    def note_validation(self, step, figures, targets):
        """Keep the weights if this validation loss is the best so far. figures: `loss` and the task's metrics, by name."""
        self.note("validation", figures, targets)
        loss, best = figures["loss"], self.facts["best_validation_loss"]
        if best is None or loss < best:
            self.facts |= {"best_validation_loss": loss, "best_step": step}
            self._save("best", step, [])

    def note(self, split, figures, targets):
        """Keep the figures of a split; for the test split they are those of the best weights."""
        self.facts |= {f"{split}_{name}": value for name, value in figures.items()}
        self.facts[self.counted][split] = targets

    def is_time_to_save(self):
        """True if the next resumable checkpoint is due, by the clock of rank 0; the others learn it from rank 0."""
        minutes = self.job.run.workload.training.checkpoint_minutes
        return self.lead and minutes is not None and time.monotonic() - self.last_checkpoint > 60 * minutes

    def checkpoint(self, step, line, due, loss_scale=None):
        """Save everything needed to resume, including the step's line. Returns additions to that line.

        due: the step is still to be evaluated; a resumed run does so first. loss_scale: the LossScale in fp16.
        """
        started = time.perf_counter()
        more = {"line": line, "due": due, "draws": self.draws}
        if loss_scale is not None:
            more["loss_scale"] = loss_scale.state
        if self.lead:
            self.record.sync()
            more |= {"recorded": self.record.kept(), "continuation": self.continuation}
        if step == self.steps:
            self._note_agreed("ended", self.optimizers)
        self._save("checkpoints", step, self.optimizers, **more)
        self.last_checkpoint = time.monotonic()
        return {"checkpoint_seconds": time.perf_counter() - started}

    def _save(self, kind, step, optimizers, **more):
        # A copy, because the facts change while the checkpoint is written.
        values = {
            "run": self.job.run.run,
            "step": step,
            "evaluation": self.facts,
            "layout": dataclasses.asdict(self.job.run.layout),
            "meaning": meaning_of(self.job.known_data),
            **more,
        }
        facts = copy.deepcopy(values)

        def drop_old():
            kept = whole_checkpoints(self.files.checkpoints)
            keep = self.job.run.workload.training.keep
            named = {self._best(best) for best in (facts["evaluation"]["best_step"], *_best_steps(kept[:keep])) if best}
            for old in (*kept[keep:], *set(whole_checkpoints(self.job.work / "best")) - named):
                shutil.rmtree(old)

        self.saver.save(step_folder(self.job.work / kind, step), self.model, optimizers, facts, drop_old)

    # --- end

    def end(self, outcome):
        """Close this attempt as finished, stopped or failed, once its last checkpoint is complete."""
        if outcome == "stopped":
            self.saver.wait()
        if self.lead:
            self.record.end(outcome)
            self.lease.release()

    def load_best(self):
        """Load the weights with the best validation loss."""
        self.saver.wait()
        store.load(self._best(self.facts["best_step"]), self.model, [])

    def publish(self):
        """Close the record of the finished run, and publish it (see `record.publish`)."""
        self.saver.wait()
        waited = torch.tensor(self.waiting_seconds, dtype=torch.float64, device=self.mesh.device)
        if self.mesh.devices is not None:
            dist.all_reduce(waited)
        own = peak_memory(self.mesh.device)
        taken = gather(self.mesh, (own, self.memory.parts(self.optimizers, own), self.draws))
        if not self.lead:
            return
        bubble = (waited[0] / waited[1]).item() if self.model.pipeline is not None else None
        peak, parts, _ = max(taken, key=lambda rank: rank[0])
        facts = {"parameters": self.parameters, "peak_memory_bytes": peak, "memory": parts, "bubble_measured": bubble}
        facts = self.facts | facts
        if self.job.run.workload.model.is_own:
            facts["draws"] = any(draws for _, _, draws in taken)
        self.record.end("finished", facts)
        described = self._description() | {"parameters": self.parameters, "vocabulary": self.outputs}
        described |= {"excluded": self.excluded, "hosts": self.hosts, "machines": self.machines}
        publish(self.job, self.record, self.lease, described, facts, self._fill)

    def _fill(self, folder):
        """Put the run's checkpoints into the finished run's folder, as links because they are large."""
        checkpoints = {"checkpoint": whole_checkpoints(self.files.checkpoints)[0]}
        if (best := self.facts["best_step"]) is not None:
            checkpoints["best"] = self._best(best)
        for name, checkpoint in checkpoints.items():
            shutil.copytree(checkpoint, folder / name, copy_function=link_or_copy)
        if (made := self.job.work / "profile").is_dir():
            shutil.copytree(made, folder / "profile")
        wandb_run.publish(self.job.work, folder)


def _best_steps(folders):
    """Yield the step of the best weights that each checkpoint names."""
    for folder in folders:
        with suppress(CheckpointError):
            yield read_manifest(folder)["facts"]["evaluation"]["best_step"]
