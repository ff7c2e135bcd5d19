"""Predictions for the runs of a project, each made once: rules, the logger plugin and verbs ask the same one."""

import functools

from parascale.errors import ConfigError
from parascale.plan import calibrate
from parascale.plan.predict import data_facts, predict, time_limit
from parascale.plan.probes import probes
from parascale.settings import strict
from parascale.store.reasons import Reasons


class Planner:
    """Knows a project's calibration and data as they are now; reads them when first asked."""

    def __init__(self, project):
        self.project = project
        self.site = project.site
        self._predictions, self._workloads = {}, {}
        self._reasons = Reasons(project)

    @functools.cached_property
    def calibration(self):
        """What probes and finished runs of this site said."""
        return calibrate.known(self.project.paths, self.site.name)

    def _facts(self, run):
        """What is known of a run's data; looked up once a workload."""
        if run.workload.name not in self._workloads:
            self._workloads[run.workload.name] = data_facts(run, self.project.paths)
        return self._workloads[run.workload.name]

    @functools.cached_property
    def _all_probes(self):
        """The probes of this run table by name, whatever they need."""
        return probes(self.project.runs, self.site)

    @functools.cached_property
    def probes(self):
        """The probes of this run table by name, those that memory allows."""
        found = self._all_probes
        foretold = {name: predict(run, self.site, facts=self._facts(run), remedy=False) for name, run in found.items()}
        return {name: run for name, run in found.items() if foretold[name].fits not in ("risky", "does not fit")}

    def run(self, name, kind="run"):
        """A Run of the table, its `parity` run, or a `probe`. Raises ConfigError, with the nearest name, where there is none."""
        where = self.project.config.runs
        known = self._all_probes if kind == "probe" else self.project.runs
        if name not in known:
            what = f"a probe of {where}" if kind == "probe" else f"in {where}"
            raise ConfigError(f"run `{name}` is not {what}{strict.nearest(name, known)}")
        if kind == "probe":
            return known[name]
        run, parity = known[name], self.project.config.parity
        return run.parity(parity.steps, parity.precision) if kind == "parity" else run

    def strategy(self, name):
        """The strategy of a run of the table or a probe; None for any other name, or none."""
        run = self.project.runs.get(name) or (self.probes.get(name) if name is not None else None)
        return run.strategy if run else None

    def vocabulary(self, name):
        """Entries of a run's vocabulary, or None."""
        return self._facts(self.run(name)).vocabulary

    def prediction(self, name, kind="run"):
        """The Prediction for a run of a kind (see `run`)."""
        if (name, kind) not in self._predictions:
            run = self.run(name, kind)
            self._predictions[name, kind] = predict(run, self.site, self.calibration, self._facts(run))
        return self._predictions[name, kind]

    def reason(self, name, kind="run", ready=True):
        """The Reason why a run of a kind has to run. ready: whether what it reads is there, and not to be made anew."""
        return self._reasons.of(self.run(name, kind), kind, ready)

    def runtime_minutes(self, name, attempt=1, kind="run", partition=None):
        """The time limit that a run's job asks for at its `attempt` (from 1)."""
        return time_limit(self.prediction(name, kind), self.site, attempt, partition)
