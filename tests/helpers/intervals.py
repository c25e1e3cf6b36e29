"""Intervals of docs/statistics.md by loops and numerical integration, to compare the harness with."""

from __future__ import annotations

import itertools
import math

import numpy as np
from known import known
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import stdtr, stdtrit

from harness.table.statistics import Estimate

LEAST_OF_SEEDS = 0.01
NEAR_BOUND = 3


def limits(estimate: Estimate | None) -> tuple[float, float, float]:
    """Return the mean and the limits of an estimate of the harness, which must all be there."""
    whole = known(estimate)
    return whole.mean, known(whole.low), known(whole.high)


def slow_parts(x_SJ: np.ndarray) -> tuple[float, float, float]:
    """Return the mean and the parts of its variance by seeds and by problems."""
    seeds, problems = x_SJ.shape
    cells = [(s, p) for s in range(seeds) for p in range(problems)]
    mean = math.fsum(x_SJ[c] for c in cells) / len(cells)
    by_seed = [math.fsum(x_SJ[s, p] for p in range(problems)) / problems for s in range(seeds)]
    by_problem = [math.fsum(x_SJ[s, p] for s in range(seeds)) / seeds for p in range(problems)]
    ms_s = problems * math.fsum((m - mean) ** 2 for m in by_seed) / (seeds - 1)
    ms_p = seeds * math.fsum((m - mean) ** 2 for m in by_problem) / (problems - 1)
    residuals = [x_SJ[s, p] - by_seed[s] - by_problem[p] + mean for s, p in cells]
    ms_r = math.fsum(r**2 for r in residuals) / ((seeds - 1) * (problems - 1))
    return mean, max(ms_s, LEAST_OF_SEEDS * ms_r) / len(cells), max(ms_p - ms_r, 0) / len(cells)


def slow_beyond(distance: float, of_seeds: float, of_problems: float, seeds: int, problems: int) -> float:
    """Return the chance that a sum of two independent t variables is larger, by integrating over the smaller one."""
    parts = [(of_seeds, seeds - 1), (of_problems, problems - 1)]
    (small, df), (large, large_df) = sorted(parts)
    scale = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(df * math.pi)

    def density(v: float) -> float:
        """Return the density of the smaller variable at sinh(v), times the tail of the larger beyond the rest."""
        t = math.sinh(v)
        rest = -(distance - math.sqrt(small) * t) / math.sqrt(large)
        return scale * (1 + t * t / df) ** (-(df + 1) / 2) * math.cosh(v) * float(stdtr(large_df, rest))

    edge = math.asinh(distance / math.sqrt(small)) if small > 0 else 0.0
    ends = [-40.0, *sorted({0.0, min(edge, 39.0)}), 40.0]
    pieces = itertools.pairwise(ends)
    return 2 * math.fsum(quad(density, low, high, limit=500, epsabs=1e-14, epsrel=1e-11)[0] for low, high in pieces)


def slow_interval(x_SJ: np.ndarray, confidence: float = 0.95) -> tuple[float, float, float]:
    """Return the mean with the limits of its interval."""
    mean, of_seeds, of_problems = slow_parts(x_SJ)
    shape = (of_seeds, of_problems, *x_SJ.shape)
    widest = float(stdtrit(1, 1 - (1 - confidence) / 8)) * (math.sqrt(of_seeds) + math.sqrt(of_problems))
    half = brentq(lambda x: slow_beyond(x, *shape) - (1 - confidence), 0, widest, xtol=1e-13)
    return mean, mean - half, mean + half


def slow_share_interval(x_SJ: np.ndarray) -> tuple[float, float, float]:
    """Return the mean share over seeds and problems with its limits."""
    return slow_bounded(*slow_interval(x_SJ), x_SJ.shape[1])


def slow_bounded(mean: float, low: float, high: float, problems: int) -> tuple[float, float, float]:
    """Return a mean share with its limits; near 0 or 1 at least those where its score test rejects a true share."""
    if min(mean, 1 - mean) * problems < NEAR_BOUND:

        def score(share: float) -> float:
            return (mean - share) ** 2 - 1.959963984540054**2 * share * (1 - share) / problems

        low = min(low, brentq(score, 0, min(mean, 1 - 1e-9), xtol=1e-15) if score(0) > 0 else 0.0)
        high = max(high, brentq(score, max(mean, 1e-9), 1, xtol=1e-15) if score(1) > 0 else 1.0)
    return mean, max(low, 0.0), min(high, 1.0)


def slow_difference_interval(x_SJ: np.ndarray) -> tuple[float, float, float]:
    """Return the mean difference of shares with its limits."""
    mean, low, high = slow_interval(x_SJ)
    return mean, max(low, -1.0), min(high, 1.0)
