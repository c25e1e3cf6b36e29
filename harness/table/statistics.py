"""Estimators and their intervals, with the reasons in docs/statistics.md; imports no torch."""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# scipy is loaded only by the functions that need it: most of a start would be its import.

Floats = NDArray[np.float64]

ROUNDING = 1e-12  # differences of scores that are all equal may differ by some 1e-16
# MS_seed counts as at least this share of MS_residual, which chance alone gives. Scores are shares of a few samples, so
# that the means of two seeds agree by rounding now and then, which says nothing about how much seeds differ: without
# this floor, two seeds name a false winner among 50 methods in 16 % of experiments, with it in fewer than 1 %.
LEAST_OF_SEEDS = 0.01
# Problems that a share must be worth away from 0 and 1. Nearer, intervals of means hold the truth down to 43 % of the
# time, and 98 % with Wilson's (`python -m studies.intervals.simulation`). A higher border would widen intervals that
# hold.
NEAR_BOUND = 3
CONFIDENCE, POWER = 0.95, 0.8
LARGEST_LOG = math.log(sys.float_info.max)


@dataclass(frozen=True)
class Estimate:
    mean: float  # of a skewed quantity the geometric one
    low: float | None = None  # None where the data cannot tell how far off the mean may be
    high: float | None = None

    @property
    def ends(self) -> tuple[float, float] | None:
        """Its limits; None without an interval."""
        return None if self.low is None or self.high is None else (self.low, self.high)


@dataclass(frozen=True)
class Spread:
    """A mean over seeds and problems with the two parts of its variance.

    Each part alone makes the mean's error a t variable with its own degrees of freedom. Their sum, after Behrens and
    Fisher, is the distribution that gives both interval and p-value.
    """

    mean: float
    of_seeds: float
    of_problems: float
    seeds: int
    problems: int

    def beyond(self, distance: float) -> float:
        """Return the chance that the mean is off by more than a distance, in either direction."""
        from scipy.special import stdtr

        seeds_df, problems_df = self.seeds - 1, self.problems - 1
        seeds_N, problems_N, weight_N = shares_of_chi_squares(seeds_df, problems_df)
        df = seeds_df + problems_df
        # At each node, the variance of each part is divided by its chi-square's share of the common chi-square.
        variance_N = (self.of_seeds * seeds_df / seeds_N + self.of_problems * problems_df / problems_N) / df
        return 2 * float(np.dot(weight_N, stdtr(df, -distance / np.sqrt(variance_N))))

    def half(self, confidence: float) -> float:
        """Return half the width of the interval."""
        from scipy.optimize import brentq
        from scipy.special import stdtrit

        # Beyond the sum of the parts' own quantiles, each at half the chance, there is less than the whole chance.
        quantiles = stdtrit([self.seeds - 1.0, self.problems - 1.0], 1 - (1 - confidence) / 4)
        widest = float(np.dot(quantiles, np.sqrt([self.of_seeds, self.of_problems])))
        # xtol is an absolute error, so it is scaled: a half width may be tiny.
        return float(brentq(lambda x: self.beyond(x) - (1 - confidence), 0, widest, xtol=1e-14 * widest, rtol=1e-12))


@functools.lru_cache(maxsize=256)
def shares_of_chi_squares(seeds_df: int, problems_df: int) -> tuple[Floats, Floats, Floats]:
    """Return nodes for the shares of two chi-squares in their sum, and the nodes' weights.

    Given the shares, the sum of two t variables is one t variable with the degrees of freedom of both, so that its
    distribution is an integral over the shares, which are beta-distributed.
    """
    from scipy.special import expit, log_expit

    # In the logit of the share the trapezoidal rule errs by less than 1e-16 with steps of 0.2 and half a deviation;
    # outside of the ends lies less than 1e-20.
    center, deviation = math.log(seeds_df / problems_df), math.sqrt(2 / seeds_df + 2 / problems_df)
    # Few degrees of freedom leave a long tail, which falls by exp(-df / 2) for each unit of the logit.
    below, above = max(12 * deviation, 100 / seeds_df), max(12 * deviation, 100 / problems_df)
    logit_N = np.arange(center - below, center + above, min(0.2, deviation / 2))
    log_N = seeds_df / 2 * log_expit(logit_N) + problems_df / 2 * log_expit(-logit_N)
    weight_N = np.exp(log_N - log_N.max())  # without the maximum all might underflow to 0
    return expit(logit_N), expit(-logit_N), weight_N / weight_N.sum()


def student(mean: float, variance: float, df: int) -> Estimate:
    """Return Student's interval of a mean with the degrees of freedom of its variance."""
    from scipy.special import stdtrit

    half = float(stdtrit(df, (1 + CONFIDENCE) / 2)) * math.sqrt(variance)
    return Estimate(mean, mean - half, mean + half)


def mean_interval(x_S: Floats) -> Estimate:
    """Estimate the mean over seeds."""
    seeds = len(x_S)
    if seeds < 2 or np.ptp(x_S) == 0:
        return Estimate(float(x_S.mean()))
    return student(float(x_S.mean()), float(x_S.var(ddof=1)) / seeds, seeds - 1)


def geometric_interval(x_S: Floats) -> Estimate:
    """Estimate the geometric mean over seeds of a skewed quantity that is never negative.

    The interval is that of the mean of the logarithms. If a value is 0, the geometric mean is 0 and has no interval.
    """
    x_S = np.maximum(x_S, 0)  # rounding leaves the entropy of a collapsed policy at -1e-9
    if len(x_S) < 2 or np.ptp(x_S) == 0:
        return Estimate(float(x_S[0]))
    with np.errstate(divide="ignore"):
        log_S = np.log(x_S)
    if not np.isfinite(log_S).all():
        return Estimate(float(np.exp(log_S.mean())))
    of_logs = mean_interval(log_S)
    ends = of_logs.ends or ()  # none of values so close that their logarithms are equal
    # A collapsed seed and a sound one may put an end beyond the largest float.
    return Estimate(math.exp(of_logs.mean), *(math.exp(min(end, LARGEST_LOG)) for end in ends))


def crossed_interval(x_SJ: Floats, confidence: float = CONFIDENCE) -> Estimate:
    """Estimate the mean over seeds and problems, both random samples."""
    spread = crossed(x_SJ)
    if spread is None:
        return Estimate(float(x_SJ.mean()))
    half = spread.half(confidence)
    return Estimate(spread.mean, spread.mean - half, spread.mean + half)


def crossed(x_SJ: Floats) -> Spread | None:
    """Return the spread of the mean over seeds and problems; None where the data cannot give one."""
    seeds, problems = x_SJ.shape
    if seeds < 2 or problems < 2 or np.ptp(x_SJ) < ROUNDING:
        return None
    squares = mean_squares(x_SJ)
    of_seeds, of_problems = squares.parts()
    return Spread(float(squares.mean), float(of_seeds), float(of_problems), seeds, problems)


@dataclass(frozen=True)
class MeanSquares:
    """The two-way analysis of variance of one experiment, or of many."""

    mean: Floats
    of_seeds: Floats
    of_problems: Floats
    of_residuals: Floats
    seeds: int
    problems: int

    def parts(self) -> tuple[Floats, Floats]:
        """Return the variance of the mean by seeds and by problems.

        They are MS_seed / (S J) and max(MS_problem - MS_residual, 0) / (S J). MS_seed stays in the sum however small it
        is, and so do its S - 1 degrees of freedom.
        """
        cells = self.seeds * self.problems
        of_seeds = np.maximum(self.of_seeds, LEAST_OF_SEEDS * self.of_residuals)
        return of_seeds / cells, np.maximum(self.of_problems - self.of_residuals, 0) / cells


def mean_squares(x_SJ: Floats) -> MeanSquares:
    """Return the mean and the mean squares; leading axes number experiments."""
    seeds, problems = x_SJ.shape[-2:]
    x_S, x_J = x_SJ.mean(axis=-1), x_SJ.mean(axis=-2)
    mean = x_S.mean(axis=-1)
    of_seeds = problems * ((x_S - mean[..., None]) ** 2).sum(axis=-1) / (seeds - 1)
    of_problems = seeds * ((x_J - mean[..., None]) ** 2).sum(axis=-1) / (problems - 1)
    residual_SJ = x_SJ - x_S[..., None] - x_J[..., None, :] + mean[..., None, None]
    of_residuals = (residual_SJ**2).sum(axis=(-2, -1)) / ((seeds - 1) * (problems - 1))
    return MeanSquares(mean, of_seeds, of_problems, of_residuals, seeds, problems)


# Intervals of shares, which lie within 0 and 1


def clipped(estimate: Estimate, low: float, high: float) -> Estimate:
    """Return the estimate with its interval cut to the values that are possible."""
    if estimate.ends is None:
        return estimate
    return Estimate(estimate.mean, max(estimate.ends[0], low), min(estimate.ends[1], high))


def share_interval(x_SJ: Floats) -> Estimate:
    """Estimate the mean share over seeds and problems."""
    if len(x_SJ) < 2:
        return Estimate(float(x_SJ.mean()))
    return near_bound(crossed_interval(x_SJ), x_SJ.shape[1])


def over_problems(x_J: Floats) -> Estimate:
    """Return the mean share of one model, with Student's interval over problems."""
    interval = mean_interval(x_J)
    return interval if len(x_J) == 1 else near_bound(interval, len(x_J))


def near_bound(estimate: Estimate, problems: int) -> Estimate:
    """Return the interval of a share; near 0 or 1 it is extended to Wilson's for as many yes-or-no problems.

    Near a bound most of the variance comes from a few problems. A sample rarely includes them, and the variance of the
    other problems is far too small. No distribution of shares has a higher variance than yes-or-no problems.
    """
    if not is_near_bound(estimate.mean, problems):
        return clipped(estimate, 0, 1)
    from scipy.special import ndtri

    # Wilson's interval of a share, with the mean of the problems for the share of yes.
    z = float(ndtri((1 + CONFIDENCE) / 2))
    center = (estimate.mean + z * z / (2 * problems)) / (1 + z * z / problems)
    variance = estimate.mean * (1 - estimate.mean) / problems + (z / (2 * problems)) ** 2
    half = z * math.sqrt(max(variance, 0)) / (1 + z * z / problems)
    ends = [center - half, center + half, *(estimate.ends or ())]
    return clipped(Estimate(estimate.mean, min(ends), max(ends)), 0, 1)


def is_near_bound(share: float, problems: int) -> bool:
    """Return whether a share is worth fewer problems than intervals need, away from 0 or 1."""
    return min(share, 1 - share) * problems < NEAR_BOUND


def difference_interval(x_SJ: Floats) -> Estimate:
    """Estimate the mean difference of two shares over seeds and problems."""
    return clipped(crossed_interval(x_SJ), -1, 1)


# Comparisons of a difference with 0, and of many


def crossed_p_value(x_SJ: Floats) -> float | None:
    """Return the p-value of a mean of 0; below 0.05 where the 95 % interval excludes 0. None without an interval."""
    spread = crossed(x_SJ)
    return None if spread is None else spread.beyond(abs(spread.mean))


def detectable(x_SJ: Floats) -> float | None:
    """Return the least true mean that is significant with POWER in an experiment of the same size and noise."""
    spread = crossed(x_SJ)
    return None if spread is None else detectable_with(spread)


def detectable_with(spread: Spread) -> float:
    """Return the least true mean that is significant with POWER, by the spread of one experiment."""
    # A deviation that few seeds give is too small on average, by this factor.
    df = spread.seeds - 1
    factor = math.sqrt(2 / df) * math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2))
    planned = dataclasses.replace(spread, of_seeds=spread.of_seeds / factor**2)
    # Power counts one side: the quantile of 80 % is the end of the two-sided interval of 60 %.
    return planned.half(CONFIDENCE) + planned.half(2 * POWER - 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values so that the chance of a single false alarm among them stays below their common level."""
    adjusted, ascending = np.array(p_values, dtype=float), np.argsort(p_values, kind="stable")
    raised = np.arange(len(p_values), 0, -1) * adjusted[ascending]
    # An adjusted value is never below that of a smaller p-value.
    adjusted[ascending] = np.minimum(np.maximum.accumulate(raised), 1)
    return adjusted.tolist()


def wins(ours: Floats, theirs: Floats) -> Floats:
    """Return 1 where ours is higher and 1/2 where the two are equal; the mean is the probability of improvement."""
    return (np.sign(ours - theirs) + 1) / 2


def iqm(x: Floats) -> float:
    """Return the mean of the middle half of the values; a value across its border counts in part."""
    n = x.size
    i = np.arange(n)
    # The i-th smallest value fills i to i + 1: its share is the part of that between the quarters' borders.
    share = np.clip(np.minimum(i + 1, 0.75 * n) - np.maximum(i, 0.25 * n), 0, None)
    return float(np.dot(np.sort(x, axis=None), share) / share.sum())


def iqm_interval(x_ST: Floats) -> Estimate:
    """Estimate the interquartile mean over the runs of all seeds on all tasks, by leaving out one seed at a time."""
    seeds, iqm_of_all = len(x_ST), iqm(x_ST)
    if seeds < 2:
        return Estimate(iqm_of_all)
    without_S = np.array([iqm(np.delete(x_ST, seed, axis=0)) for seed in range(seeds)])
    if np.ptp(without_S) == 0:
        return Estimate(iqm_of_all)
    # The jackknife's variance, (S - 1) / S times the sum of squares, by the sample variance.
    variance = (seeds - 1) ** 2 * float(without_S.var(ddof=1)) / seeds
    return student(iqm_of_all, variance, seeds - 1)


def ranks(beats_MM: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the best and the worst rank that each method may have; `beats_MM`: which method beats which."""
    best_M = 1 + beats_MM.sum(axis=0)  # behind all that beat it
    worst_M = len(beats_MM) - beats_MM.sum(axis=1)  # before all that it beats
    return list(zip(best_M.tolist(), worst_M.tolist(), strict=True))
