"""Estimators and their intervals; no torch. docs/statistics.md says why these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    mean: float
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
    i = np.arange(n)
    none_right_C = np.concatenate([[1.0], np.cumprod(np.maximum(n - k - i, 0) / (n - i))])
    return 1 - none_right_C[right]


def mean_interval(x_S: Floats, confidence: float = 0.95) -> Estimate:
    """Estimates the mean over seeds."""
    seeds = len(x_S)
    if seeds < 2 or np.ptp(x_S) == 0:
        return Estimate(float(x_S.mean()))
    return _interval(float(x_S.mean()), [float(x_S.var(ddof=1)) / seeds], [seeds - 1], confidence)


def crossed_interval(x_SJ: Floats, confidence: float = 0.95) -> Estimate:
    """Estimates the mean over seeds and problems, both of them samples of what might have been drawn.

    The variance of the mean is (MS_seed + MS_problem - MS_residual) / (S J). An effect whose estimate is negative
    counts as none: its mean square leaves the sum, and the residual enters.
    """
    seeds, problems = x_SJ.shape
    mean = float(x_SJ.mean())
    if seeds < 2 or problems < 2 or np.ptp(x_SJ) == 0:
        return Estimate(mean)
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
    return _interval(mean, variances, dfs, confidence)


def _interval(mean: float, variances: Sequence[float], dfs: Sequence[int], confidence: float) -> Estimate:
    """Returns a mean with the interval that follows from its variance, a sum of parts with so many degrees of freedom.

    The quantile is the mean of the parts' t quantiles, weighted by the parts (Cochran and Cox).
    """
    from scipy.special import stdtrit

    quantiles = stdtrit(np.asarray(dfs, dtype=float), (1 + confidence) / 2)
    half = float(np.dot(quantiles, variances) / np.sqrt(sum(variances)))
    return Estimate(mean, mean - half, mean + half)
