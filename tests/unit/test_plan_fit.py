"""Prices fitted to steps that were made with known prices and noise: what a probe shows comes back, and ranges hold what they promise."""

import dataclasses
import math
import random

import numpy as np
import pytest

from parascale.families import model_sizes
from parascale.plan.calibrate import Calibration
from parascale.plan.fit import FITTED, PRIOR_MISFIT, fit, most_probable
from parascale.plan.predict import DataFacts
from parascale.plan.probes import probes
from parascale.plan.time import REFERENCE, formula_rates, step_seconds
from parascale.plan.work import step_work
from parascale.settings import Layout, Model, Run, Workload, make
from parascale.settings.workload import LanguageTraining
from tests.made_up.project import CLUSTER, CPUS
from tests.made_up.results import observed

NOISE = 0.05
VOCABULARY = 32_000
FACTS = DataFacts(VOCABULARY)
LAYOUTS = [
    Layout(),
    Layout(gpus_per_node=4, dp=4),
    Layout(gpus_per_node=4, tp=4),
    Layout(gpus_per_node=4, fsdp=4),
    Layout(nodes=2, gpus_per_node=4, fsdp=8),
    Layout(nodes=16, gpus_per_node=4, fsdp=64),
    Layout(nodes=128, gpus_per_node=4, dp=4, fsdp=32, tp=4),
    Layout(nodes=4, gpus_per_node=4, dp=4, pp=4, micro_batches=16),
]


def workload(dim, layers, window, batch):
    model = make(Model, dim=dim, heads=dim // 64, layers=layers)
    training = LanguageTraining(steps=1000, window=window, global_batch=batch, evaluate=False)
    return make(Workload, name="w", model=model, training=training)


class Truth:
    """A machine whose prices are off the prior's by random factors, and what runs on it take."""

    def __init__(self, site, precision, seed):
        self.site, self.random = site, random.Random(seed)
        prior = formula_rates(site, precision)
        widths = {"cuda": 2, "cpu": 1}[site.device]
        self.factors = {name: math.exp(self.random.gauss(0, 0.7 * fitted[widths])) for name, fitted in FITTED.items()}
        for name in ("compute", "memory", "node bandwidth", "network bandwidth"):  # the data sheet is a bound
            self.factors[name] = max(1.0, self.factors[name]) if site.device == "cuda" else self.factors[name]
        self.rates = prior.scaled(
            {price: self.factors[name] for name, (prices, *_) in FITTED.items() for price in prices}
        )

    def phases(self, run, rates=None):
        sizes = model_sizes(run.workload.model, VOCABULARY, *run.workload.sizes)
        return step_seconds(step_work(run, sizes, self.site), rates or self.rates, self.site)

    def seconds(self, run):
        return sum(self.phases(run).values())

    def observe(self, run):
        noise = math.exp(self.random.gauss(0, NOISE))
        phases = self.phases(run)
        seen = {"forward": phases["compute"], "optimizer": phases["optimizer"], "data": phases["data"]}
        seen = {name: noise * value for name, value in seen.items()}
        return observed(run, noise * sum(phases.values()), VOCABULARY, seen, "probe")


def table(site, dim, precision):
    """Runs of a site, of which some are probed."""
    layouts = [layout for layout in LAYOUTS if site.device == "cuda" or layout.world_size <= 8]
    small = site.device == "cpu"
    each = workload(dim, 4 if small else 16, 64 if small else 2048, 16 if small else 2048)
    return {f"r{number}": Run(f"r{number}", each, layout, precision) for number, layout in enumerate(layouts)}


@pytest.mark.parametrize(
    ("site", "precision", "dim"), [(CLUSTER, "bf16", 1024), (CLUSTER, "bf16", 4096), (CPUS, "fp32", 256)]
)
def test_prices_that_move_a_probe_come_back(site, precision, dim):
    """Those that change a probe by over 20 % when they are doubled, within 10 %; of the others, the uncertainty covers the truth."""
    strong, covered = [], []
    for seed in range(12):
        truth = Truth(site, precision, seed)
        run = table(site, dim, precision)
        seen = tuple(truth.observe(each) for each in probes(run, site).values())
        rates, fitted = Calibration(site.name, seen).rates(site, run["r0"])
        for index, (name, (prices, *_)) in enumerate(FITTED.items()):
            moved = max(_moved(truth, each.resolved, prices) for each in seen)
            error = math.log(getattr(rates, prices[0]) / getattr(truth.rates, prices[0]))
            (strong if moved > 0.2 else covered).append((name, seed, error, math.sqrt(fitted.covariance[index, index])))
    assert strong and covered
    assert sum(abs(error) > math.log(1.1) for _, _, error, _ in strong) <= 0.1 * len(strong)
    assert sum(abs(error) < 2.5 * deviation for _, _, error, deviation in covered) >= 0.9 * len(covered)


def _moved(truth, run, prices):
    """By which part a step of a run is longer where prices are half as high again."""
    dearer = sum(truth.phases(run, truth.rates.scaled(dict.fromkeys(prices, 1.5))).values())
    return dearer / truth.seconds(run) - 1


def test_a_price_that_was_fitted_uses_up_a_residual():
    *_, misfit = most_probable(lambda prices: prices[0] + np.array([-1.0, 1.0]), np.array([1e3]), -9.0)
    assert misfit == pytest.approx(math.sqrt((PRIOR_MISFIT**2 + 2) / (1 + 2 - 1)), rel=1e-3)


@pytest.mark.parametrize("factor", [10.0, 1 / 10])
def test_one_probe_that_was_disturbed_decides_little(factor):
    """Whichever of the probes it is: what the others show of a strong price stays, and the range grows."""
    truth, run = Truth(CLUSTER, "bf16", 3), table(CLUSTER, 2048, "bf16")
    seen = [truth.observe(each) for each in probes(run, CLUSTER).values()]
    # Two of each size, as of the workloads of a table: of a cost that a single probe shows nobody can tell that it was disturbed.
    seen += [truth.observe(each.resolved) for each in seen]
    calm, calm_fit = Calibration(CLUSTER.name, tuple(seen)).rates(CLUSTER, run["r0"])
    for place, each in enumerate(seen):
        disturbed = dataclasses.replace(each, run="disturbed", step_seconds=factor * each.step_seconds)
        one = (*seen[:place], disturbed, *seen[place + 1 :])
        rates, fitted = Calibration(CLUSTER.name, one).rates(CLUSTER, run["r0"])
        assert rates.flops / calm.flops == pytest.approx(1, rel=0.05) and fitted.misfit > calm_fit.misfit


def test_ranges_hold_80_of_100_runs():
    """At least 160 of 200 runs that were not probed lie between low and high, and 95 of 100 below what their time limit rests on."""
    inside = below = total = 0
    for seed in range(29):
        truth = Truth(CLUSTER, "bf16", 100 + seed)
        runs = table(CLUSTER, (1024, 2048)[seed % 2], "bf16")
        seen = tuple(truth.observe(each) for each in list(probes(runs, CLUSTER).values()))
        calibration = Calibration(CLUSTER.name, seen)
        for run in list(runs.values())[1:]:
            predicted = calibration.predict(run, CLUSTER, FACTS, remedy=False)
            steps = predicted.steps * truth.seconds(run) * math.exp(truth.random.gauss(0, NOISE))
            wall = steps + sum(predicted.beside.values())
            inside += predicted.wall_low <= wall <= predicted.wall_high
            below += wall <= predicted.limit_seconds
            total += 1
    assert total >= 200
    assert inside / total >= 0.8
    assert below / total >= 0.95
    assert inside < below


def test_probes_in_a_slow_minute_move_the_price_of_a_measured_processor_less():
    """One that was measured as the reference, whose probes all took 1.3 times as long: a price lies between both, for another one near the probes."""
    truth, run = Truth(CPUS, "fp32", 1), table(CPUS, 256, "fp32")
    truth.rates = formula_rates(CPUS, "fp32").scaled({price: 1.3 for prices, *_ in FITTED.values() for price in prices})
    seen = tuple(truth.observe(each) for each in probes(run, CPUS).values())
    measured, other = (
        Calibration(CPUS.name, seen, machine=machine).rates(CPUS, run["r0"])[0].flops for machine in (REFERENCE, None)
    )
    least = formula_rates(CPUS, "fp32").flops
    assert least < measured < other and other == pytest.approx(1.3 * least, rel=0.05)


@pytest.mark.parametrize(("site", "width"), [(CLUSTER, 2), (CPUS, 1), (CPUS, 2)])
def test_what_nobody_measured_is_as_uncertain_as_it_was_believed_of_such_a_device(site, width):
    """A data sheet, or a measurement of the processors alone, says more than nothing."""
    found = fit(formula_rates(site, "bf16" if site is CLUSTER else "fp32"), [], site, stated=width == 2)
    believed = [fitted[width] for fitted in FITTED.values()]
    assert [math.sqrt(found.covariance[n, n]) for n in range(len(believed))] == pytest.approx(believed)
