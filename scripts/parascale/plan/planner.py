"""Predictions for the runs of a project, each made once: rules, the logger plugin and scripts ask the same one."""

import functools

from parascale.plan import calibrate
from parascale.plan.predict import data_facts, predict, time_limit


class Planner:
    """Knows a project's calibration and data as they are now; reads them when first asked."""

    def __init__(self, project):
        self.project = project
        self.site = project.site
        self._predictions, self._workloads = {}, {}

    @functools.cached_property
    def calibration(self):
        """What probes and finished runs of this site said."""
        results = self.project.paths.results
        stored = calibrate.load(calibrate.store(results, self.site.name), self.site.name)
        return calibrate.with_runs(stored, results)

    def _facts(self, name):
        """What is known of a run's data; looked up once a workload."""
        run = self.project.runs[name]
        if run.workload.name not in self._workloads:
            self._workloads[run.workload.name] = data_facts(run, self.project.paths)
        return self._workloads[run.workload.name]

    def run(self, name, parity=False):
        """The Run `name`, or its parity run."""
        run = self.project.runs[name]
        settings = self.project.config.parity
        return run.parity(settings.steps, settings.precision) if parity else run

    def vocabulary(self, name):
        """Entries of a run's vocabulary, or None."""
        return self._facts(name).vocabulary

    def prediction(self, name, parity=False):
        """The Prediction for a run, or for its parity run."""
        if (name, parity) not in self._predictions:
            run = self.run(name, parity)
            self._predictions[name, parity] = predict(run, self.site, self.calibration, self._facts(name))
        return self._predictions[name, parity]

    def runtime_minutes(self, name, attempt=1, parity=False, partition=None):
        """The time limit that a run's job asks for at its `attempt` (from 1)."""
        return time_limit(self.prediction(name, parity), self.site, attempt, partition)
