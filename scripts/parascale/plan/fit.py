"""Fit prices to observed steps, with their uncertainty.

A price is its prior times a factor whose logarithm is normal around 0. The fit finds the most probable factors: it minimises

    Σ ρ((log predicted − log observed) / deviation) + Σ (log factor / belief)²

with the Levenberg–Marquardt method and the same model that predicts. ρ grows linearly beyond 2 deviations (Huber 1964,
doi:10.1214/aoms/1177703732), so a disturbed probe has little influence. The inverse of the Hessian is the covariance of the factors'
logarithms (Laplace's approximation).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parascale.plan.time import Rates, gpu_kind, step_seconds
from parascale.plan.work import Work
from parascale.settings import Site

# Parameters fitted together → (prices, belief, belief if a data sheet or `calibrate --machine` states the device's speed). A belief is
# the log standard deviation of the prior's error. For computing: published GPU steps are off by 0.085, eight models on measured CPUs by
# 0.13 (tests/benchmarks/RESULTS.md), where the same step may take 1.5 times as long an hour later.
FITTED = {
    "compute": (("flops", "attention", "contended"), 1.0, 0.1),
    "memory": (("moved",), 1.0, 0.2),
    "start": (("kernels",), 1.0, 0.6),
    "splits": (("splits",), 1.0, 0.6),
    "shards": (("shards",), 1.0, 0.6),
    "node bandwidth": (("node_bytes",), 1.0, 0.4),
    "node latency": (("node_messages",), 1.5, 0.8),
    "network bandwidth": (("network_bytes",), 1.0, 0.5),
    "network latency": (("network_messages",), 1.5, 0.8),
    "step": (("steps",), 1.0, 1.0),
    "samples": (("samples",), 1.5, 1.5),
}
# A device is never faster than its data sheet: a factor is at least the fraction of the peak in the prior (a key of gpus.yaml).
AT_PEAK = {"compute": "product", "memory": "memory", "node bandwidth": "node", "network bandwidth": "network"}
LARGEST = math.log(100.0)
HUBER = 2.0
PRIOR_MISFIT = 2.0  # deviations between an observed step and the model, before any residual is known
ROUNDS = 25


@dataclass(frozen=True)
class ObservedStep:
    """An observed step: its Work, {phase: seconds} or {"step": seconds}, and the log standard deviation of these."""

    work: Any
    seconds: Any
    deviation: float


@dataclass(frozen=True)
class Fitted:
    """Rates, and the covariance of the logarithms of the factors in FITTED. misfit: see `_misfit`."""

    rates: Rates
    covariance: np.ndarray = field(compare=False)
    misfit: float

    def deviation(self, work: Work, site: Site) -> float:
        """Standard deviation of the logarithm of a step's seconds due to uncertain prices."""

        def logarithm(rates: Rates) -> float:
            return math.log(sum(step_seconds(work, rates, site).values()))

        before = logarithm(self.rates)
        steps = (self.rates.scaled(dict.fromkeys(prices, 1.0001)) for prices, *_ in FITTED.values())
        gradient = np.array([(logarithm(changed) - before) / 1e-4 for changed in steps])
        return math.sqrt(max(0.0, gradient @ self.covariance @ gradient))


def fit(prior: Rates, seen: Any, site: Site, stated: bool) -> Fitted:
    """Fit Rates of a `site` to a list of ObservedStep, from `prior` Rates. stated: the speed of its device is known (see FITTED)."""
    belief = np.array([fitted[2 if stated else 1] for fitted in FITTED.values()])
    lowest = np.log([gpu_kind(site).get(AT_PEAK.get(name), 0.01) for name in FITTED])
    factors, curvature, misfit = most_probable(lambda factors: _residuals(prior, factors, seen, site), belief, lowest)
    return Fitted(prior.scaled(_by_price(factors)), np.linalg.inv(curvature), misfit)


def most_probable(residuals_of: Callable[[Any], Any], belief: Any, lowest: Any) -> tuple[Any, Any, float]:
    """Minimise the loss. Returns (logarithms of the factors, Hessian there, misfit).

    residuals_of: maps logarithms of factors to residuals in deviations. belief: deviation of each logarithm. lowest: lower bounds.
    """
    factors, damping = np.zeros(len(belief)), 1e-3
    residuals = residuals_of(factors)
    for _ in range(ROUNDS):
        slopes = np.array([(residuals_of(factors + step) - residuals) / 1e-4 for step in 1e-4 * np.eye(len(belief))]).T
        weights = np.minimum(1.0, HUBER / np.maximum(np.abs(residuals), 1e-9))
        shown = slopes.T @ (weights[:, None] * slopes)
        curvature = shown + np.diag(belief**-2.0)
        downhill = slopes.T @ (weights * residuals) + factors / belief**2
        step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), downhill)
        tried = np.clip(factors - step, lowest, LARGEST)
        after = residuals_of(tried)
        if _loss(after, tried / belief) > _loss(residuals, factors / belief):
            damping *= 10
            continue
        moved = np.abs(tried - factors).max()
        factors, residuals, damping = tried, after, damping / 5
        if moved < 1e-3:
            break
    return factors, curvature, _misfit(residuals, np.trace(np.linalg.solve(curvature, shown)))


def _misfit(residuals: Any, degrees_of_freedom: float) -> float:
    """How many of their stated deviations the steps are off the model: from the residuals and one more residual of PRIOR_MISFIT.

    degrees_of_freedom: number that the fitted prices used up. A single disturbed step adds little (Huber).
    """
    weighted = np.minimum(residuals**2, HUBER * np.abs(residuals)).sum()
    return math.sqrt((PRIOR_MISFIT**2 + weighted) / (1 + max(0.0, len(residuals) - degrees_of_freedom)))


def _by_price(factors: Any) -> dict[str, float]:
    fitted = zip(FITTED.values(), factors, strict=True)
    return {price: math.exp(factor) for (prices, *_), factor in fitted for price in prices}


def _residuals(prior: Rates, factors: Any, seen: Any, site: Site) -> Any:
    """log(predicted / observed seconds) of each phase or step, in deviations."""
    rates = prior.scaled(_by_price(factors))
    found = []
    for each in seen:
        predicted = step_seconds(each.work, rates, site)
        for name, seconds in each.seconds.items():
            value = sum(predicted.values()) if name == "step" else predicted[name]
            found.append(math.log(max(value, 1e-9) / seconds) / each.deviation)
    return np.array(found)


def _loss(residuals: Any, beliefs: Any) -> float:
    size = np.abs(residuals)
    return np.where(size < HUBER, size**2, HUBER * (2 * size - HUBER)).sum() + (beliefs**2).sum()
