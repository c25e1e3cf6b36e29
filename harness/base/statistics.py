"""Estimators and their intervals; no torch. docs/statistics.md says why these."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    mean: float  # of a skewed quantity the geometric one
    low: float | None = None  # None where the data cannot tell how far off the mean may be
    high: float | None = None


@overload
def pass_at_k(n: int, right: int, k: int) -> float: ...
@overload
def pass_at_k(n: int, right: NDArray[np.integer[Any]], k: int) -> Floats: ...
def pass_at_k(n: int, right: int | NDArray[np.integer[Any]], k: int) -> float | Floats:
    """Returns the chance that k of n samples, drawn without replacement, hold one of the c right ones.

    That is 1 - C(n-c, k) / C(n, k). The quotient is the product of the c factors (n-k-i) / (n-i), so that no binomial
    coefficient grows large.
    """
    assert 1 <= k <= n, f"Pass@{k} of {n} samples"
    return 1 - none_right(n, k)[right]


@functools.cache
def none_right(n: int, k: int) -> Floats:
    """Returns the chance that none of k of n samples is right, by the number of right ones."""
    i = np.arange(n)
    return np.concatenate([[1.0], np.cumprod(np.maximum(n - k - i, 0) / (n - i))])


@dataclass(frozen=True)
class Spread:
    """A mean whose variance is a sum of parts, each with its degrees of freedom."""

    mean: float
    variances: Sequence[float]
    dfs: Sequence[int]

    def half(self, confidence: float) -> float:
        """Returns half the width of the interval."""
        from scipy.special import stdtrit

        return self.weighted(stdtrit(np.asarray(self.dfs, dtype=float), (1 + confidence) / 2))

    def weighted(self, quantiles: Floats) -> float:
        """Returns the deviation times the mean of the parts' quantiles, weighted by the parts (Cochran and Cox)."""
        return float(np.dot(quantiles, self.variances) / np.sqrt(sum(self.variances)))

    def interval(self, confidence: float) -> Estimate:
        half = self.half(confidence)
        return Estimate(self.mean, self.mean - half, self.mean + half)

    def p_value(self) -> float:
        """Returns 1 - the confidence of the widest interval that excludes 0, two-sided."""
        from scipy.optimize import brentq
        from scipy.special import stdtr, stdtrit

        dfs = np.asarray(self.dfs, dtype=float)

        def beyond(log_p: float) -> float:
            return self.weighted(-stdtrit(dfs, math.exp(log_p) / 2)) - abs(self.mean)

        # At the smallest of the parts' own p-values no quantile is smaller than what was found.
        least = 2 * float(stdtr(dfs, -abs(self.mean) / np.sqrt(sum(self.variances))).min())
        if least == 0 or beyond(math.log(least)) <= 0:
            return least
        return math.exp(brentq(beyond, math.log(least), 0))


def mean_interval(x_S: Floats, confidence: float = 0.95) -> Estimate:
    """Estimates the mean over seeds."""
    seeds = len(x_S)
    if seeds < 2 or np.ptp(x_S) == 0:
        return Estimate(float(x_S.mean()))
    return Spread(float(x_S.mean()), [float(x_S.var(ddof=1)) / seeds], [seeds - 1]).interval(confidence)


def geometric_interval(x_S: Floats, confidence: float = 0.95) -> Estimate:
    """Estimates the geometric mean over seeds of a skewed quantity that is never negative, by that of its logarithms.

    Where a value is 0 the geometric mean is 0, and has no interval.
    """
    if len(x_S) < 2 or np.ptp(x_S) == 0:
        return Estimate(float(x_S[0]))
    with np.errstate(divide="ignore"):
        log_S = np.log(np.maximum(x_S, 0))  # rounding leaves the entropy of a collapsed policy at -1e-9
    if not np.isfinite(log_S).all():
        return Estimate(float(np.exp(log_S.mean())))
    found = mean_interval(log_S, confidence)
    if found.low is None or found.high is None:  # values so alike that their logarithms are the same
        return Estimate(math.exp(found.mean))
    return Estimate(math.exp(found.mean), math.exp(found.low), math.exp(found.high))


def crossed_interval(x_SJ: Floats, confidence: float = 0.95) -> Estimate:
    """Estimates the mean over seeds and problems, both of them samples of what might have been drawn."""
    spread = crossed(x_SJ)
    return Estimate(float(x_SJ.mean())) if spread is None else spread.interval(confidence)


def crossed(x_SJ: Floats) -> Spread | None:
    """Returns how far off the mean over seeds and problems may be; None where the data cannot tell.

    The variance of the mean is (MS_seed + MS_problem - MS_residual) / (S J). An effect whose estimate is negative
    counts as none: its mean square leaves the sum, and the residual enters.
    """
    seeds, problems = x_SJ.shape
    mean = float(x_SJ.mean())
    if seeds < 2 or problems < 2 or np.ptp(x_SJ) == 0:
        return None
    seed_S = x_SJ.mean(axis=1) - mean
    problem_J = x_SJ.mean(axis=0) - mean
    residual_SJ = x_SJ - mean - seed_S[:, None] - problem_J
    dfs = [seeds - 1, problems - 1, (seeds - 1) * (problems - 1)]
    of_seeds = problems * float((seed_S**2).sum()) / dfs[0]
    of_problems = seeds * float((problem_J**2).sum()) / dfs[1]
    of_residuals = float((residual_SJ**2).sum()) / dfs[2]
    seeds_count, problems_count = of_seeds > of_residuals, of_problems > of_residuals
    variances = [
        of_seeds * seeds_count / x_SJ.size,
        of_problems * problems_count / x_SJ.size,
        of_residuals * (1 - seeds_count - problems_count) / x_SJ.size,
    ]
    return Spread(mean, variances, dfs)


# Comparisons of a difference with 0, and of many


def crossed_p_value(x_SJ: Floats) -> float | None:
    """Returns the p-value of a mean of 0; below 0.05 where the 95 % interval excludes 0. None without an interval."""
    spread = crossed(x_SJ)
    return None if spread is None else spread.p_value()


def detectable(x_SJ: Floats, power: float = 0.8, confidence: float = 0.95) -> float | None:
    """Returns the least true mean that an experiment as large, and as noisy, tells from 0 with this chance."""
    spread = crossed(x_SJ)
    return None if spread is None else spread.half(confidence) + spread.half(2 * power - 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusts p-values so that the chance of even one false alarm among them stays below the level they are held to."""
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for place, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, (len(p_values) - place) * p_values[i])
        adjusted[i] = min(highest, 1.0)
    return adjusted


def wins(ours: Floats, theirs: Floats) -> Floats:
    """Returns 1 where ours is higher and 1/2 where the two are equal; the mean is the probability of improvement."""
    return (np.sign(ours - theirs) + 1) / 2


def iqm(x: Floats) -> float:
    """Returns the mean of the middle half of the values; one that lies across its border counts in part."""
    n = x.size
    i = np.arange(n)
    share = np.clip(np.minimum(i + 1, 0.75 * n) - np.maximum(i, 0.25 * n), 0, None)
    return float(np.dot(np.sort(x, axis=None), share) / share.sum())


def iqm_interval(x_ST: Floats, confidence: float = 0.95) -> Estimate:
    """Estimates the interquartile mean over the runs of all seeds on all tasks, by leaving out one seed at a time."""
    seeds, whole = len(x_ST), iqm(x_ST)
    if seeds < 2:
        return Estimate(whole)
    without_S = np.array([iqm(np.delete(x_ST, seed, axis=0)) for seed in range(seeds)])
    if np.ptp(without_S) == 0:
        return Estimate(whole)
    variance = (seeds - 1) ** 2 * float(without_S.var(ddof=1)) / seeds
    return Spread(whole, [variance], [seeds - 1]).interval(confidence)


def ranks(beats_MM: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Returns the best and the worst rank that each method may have, given which of them beats which."""
    better_M, worse_M = beats_MM.sum(axis=0), beats_MM.sum(axis=1)
    return [(1 + int(b), len(beats_MM) - int(w)) for b, w in zip(better_M, worse_M, strict=True)]
