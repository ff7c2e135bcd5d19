"""Names of all files and folders below the root."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parascale.errors import ConfigError
from parascale.files import read_json, read_json_lines

WORKLOADS = "config/workloads"
RECORD, SUMMARY, LEASE = "run.json", "summary.json", "lease.json"
DEFAULTED = re.compile(r"\$\{(\w+):-([^}]*)\}")


def expanded(path: str, key: str) -> str:
    """A path with `~`, `$VARIABLES` and `${NAME:-other}` expanded. Raises ConfigError, which names `key`, if a variable is not set."""
    with_defaults = DEFAULTED.sub(lambda match: os.environ.get(match[1]) or match[2], path)
    full = os.path.expanduser(os.path.expandvars(with_defaults))
    if "$" in full:
        raise ConfigError(f"`{key}` = `{path}`: an environment variable in it is not set")
    return full


def defaulted(path: str) -> list[str]:
    """The unset `NAME`s in a path's `${NAME:-other}`."""
    return [match[1] for match in DEFAULTED.finditer(path) if not os.environ.get(match[1])]


class Paths:
    """Paths of a project. Rules declare files in `results`, but none in `work`, so that Snakemake does not delete it after a failed job."""

    def __init__(self, root: Path, workloads: str = WORKLOADS) -> None:
        self.root, self.workloads = root, workloads
        self.results = root / "results"
        self.report = self.results / "report"
        self.events = self.results / "plan/events.jsonl"  # ledger of workflows: start and end of each job
        self.under_way = root / "work"  # unfinished runs and their logs
        # All trainings that were paid for, even if `results` does not show them. No rule declares them, so Snakemake never deletes them.
        self.store = root / "store"
        self.trainings = self.store / "trainings"
        self.site = self.store / "site.json"  # the site that the root belongs to; as old as the root

    def raw(self, dataset: str) -> Path:
        return self.results / "data" / dataset / "raw"

    def data(self, dataset: str, format: str) -> Path:
        return self.results / "data" / dataset / format

    def data_of(self, run: Any) -> Path | None:
        """The prepared data that a Run reads; None for a script, which finds its own data."""
        return None if run.workload.is_script else self.data(run.workload.data.dataset, run.workload.data.format)

    def start_of(self, run: Any) -> Path | None:
        """The checkpoint of another run that a Run starts from; None if it starts from scratch."""
        return RunFolder(self.run(run.init_from)).checkpoint if run.init_from else None

    def run(self, run: str) -> Path:
        return self.results / "runs" / run

    def checkpoint(self, run: str) -> Path:
        """A run's checkpoint in other formats, and the proof that they are the same model."""
        return self.results / "checkpoints" / run

    def summaries(self, run: str) -> Path:
        """The summaries that a run's model wrote, and their scores."""
        return self.results / "summaries" / f"{run}.json"

    def parity(self, run: str) -> Path:
        """A run's parity run and its verdict."""
        return self.results / "parity" / run

    def study(self, name: str) -> Path:
        """The tables, figure and text of a scaling study."""
        return self.results / "scaling" / name

    def probe(self, probe: str) -> Path:
        return self.results / "probes" / probe

    def places(self, kind: str) -> tuple[Callable[[str], Path], Callable[[str], Path]]:
        """Two functions, from a name to its finished folder and to its unfinished folder. kind: `run`, `parity` or `probe`."""
        folder = {"run": "runs", "parity": "parity", "probe": "probes"}[kind]
        return (self.results / folder).joinpath, (self.under_way / folder).joinpath

    def calibration(self, site: str) -> Path:
        """A site's prices, from probes."""
        return self.results / "calibration" / f"{site}.json"

    def machine(self, site: str) -> Path:
        """The measured rates of a site's processors."""
        return self.results / "calibration" / f"{site}-machine.json"

    def logs(self, run: str) -> Path:
        return self.under_way / "logs" / run


class RunFolder:
    """The files of a run, finished or not; see `train/state.py`. record: settings and facts. summary: figures, written last. steps,
    attempts: one line each. lease: its writer's lease. checkpoints: from which it continues.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.record, self.summary, self.lease = (self.folder / name for name in (RECORD, SUMMARY, LEASE))
        self.steps, self.attempts = self.folder / "steps.jsonl", self.folder / "attempts.jsonl"
        self.checkpoint, self.checkpoints = self.folder / "checkpoint", self.folder / "checkpoints"
        self.devices = self.folder / "device.csv"

    def read_record(self) -> dict[str, Any]:
        """The record; empty if it is missing or incomplete."""
        try:
            record = read_json(self.record)
        except (FileNotFoundError, ValueError):
            return {}
        return record if isinstance(record, dict) else {}

    def read_results(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(record, summary) of a finished run. Raises FileNotFoundError or DamagedError unless both can be read."""
        return read_json(self.record), read_json(self.summary)

    def read_steps(self) -> list[dict[str, Any]]:
        return read_json_lines(self.steps)
