import itertools
import math
import sys
from fractions import Fraction

import numpy as np
import pytest
from intervals import limits, slow_beyond, slow_difference_interval, slow_interval, slow_parts, slow_share_interval
from known import known
from scipy.stats import t

from harness.cells.evaluations import pass_at_k
from harness.table.statistics import (
    Estimate,
    Spread,
    clipped,
    crossed_interval,
    crossed_p_value,
    detectable,
    difference_interval,
    geometric_interval,
    holm,
    iqm,
    iqm_interval,
    is_near_bound,
    mean_interval,
    near_bound,
    ranks,
    share_interval,
)
from studies.intervals import simulation
from studies.intervals.simulation import Place

# Pass@k


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_by_subsets(n: int) -> None:
    for right, k in itertools.product(range(n + 1), range(1, n + 1)):
        subsets = list(itertools.combinations(range(n), k))
        hits = sum(min(subset) < right for subset in subsets)
        assert pass_at_k(n, right, k) == pytest.approx(hits / len(subsets), abs=1e-15)
        assert (pass_at_k(n, right, k) == 1) == (n - right < k)


@pytest.mark.parametrize(
    ("n", "right", "k"), [(5000, 3, 1024), (100_000, 1, 99_999), (4096, 2048, 512), (10_000, 17, 1)]
)
def test_pass_at_k_of_many_samples(n: int, right: int, k: int) -> None:
    exact = 1 - Fraction(math.comb(n - right, k), math.comb(n, k))
    assert pass_at_k(n, right, k) == pytest.approx(float(exact), abs=1e-12)


# Intervals


@pytest.mark.parametrize(("seed_sd", "problem_sd"), [(1.0, 1.0), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_crossed_interval_by_definition(seed_sd: float, problem_sd: float, confidence: float) -> None:
    random = np.random.default_rng(0)
    for seeds, problems in itertools.product((2, 3, 5), (2, 7, 30)):
        x_SJ = random.normal(0, seed_sd, (seeds, 1)) + random.normal(0, problem_sd, problems)
        x_SJ = x_SJ + random.normal(3, 1, (seeds, problems))
        assert limits(crossed_interval(x_SJ, confidence)) == pytest.approx(slow_interval(x_SJ, confidence), rel=1e-9)


@pytest.mark.parametrize(("seeds", "problems"), [(2, 2), (2, 200), (3, 30), (10, 30), (1000, 30), (1000, 10_000)])
@pytest.mark.parametrize("share", [0.0, 1e-8, 0.3, 1 - 1e-4, 1.0])
def test_tail_of_a_sum_of_two_t_variables(seeds: int, problems: int, share: float) -> None:
    spread = Spread(0.0, share, 1 - share, seeds, problems)
    for distance in (0.0, 0.3, 2.0, 20.0):
        expected = slow_beyond(distance, share, 1 - share, seeds, problems)
        assert spread.beyond(distance) == pytest.approx(expected, rel=1e-8, abs=1e-13)
    one = t(seeds - 1) if share == 1 else t(problems - 1)
    if share in (0.0, 1.0):
        assert spread.half(0.95) == pytest.approx(one.ppf(0.975), rel=1e-9)


def test_crossed_interval_and_p_value_are_continuous() -> None:
    """Where MS_seed passes MS_residual, and where MS_problem does, nothing may jump."""
    random = np.random.default_rng(0)
    residual_SJ = random.normal(0, 0.1, (3, 30))
    residual_SJ -= residual_SJ.mean(axis=0) + residual_SJ.mean(axis=1, keepdims=True) - residual_SJ.mean()
    seed_S1, problem_J = np.array([[-1.0], [0.0], [1.0]]), np.linspace(-1, 1, 30)
    deviation = math.sqrt((residual_SJ**2).sum() / 58)  # of MS_residual
    of_problems = deviation / math.sqrt(3 * problem_J.var(ddof=1))
    for effect, passing in ((seed_S1, deviation / math.sqrt(30)), (problem_J, of_problems)):
        below, above = (0.05 + residual_SJ + effect * passing * factor for factor in (1 - 1e-9, 1 + 1e-9))
        assert crossed_p_value(below) == pytest.approx(crossed_p_value(above), rel=1e-6)
        assert limits(crossed_interval(below)) == pytest.approx(limits(crossed_interval(above)), rel=1e-6)


def test_crossed_interval_without_variation() -> None:
    assert crossed_interval(np.array([[0.0, 1.0, 1.0, 0.0]])) == Estimate(0.5)
    assert crossed_interval(np.array([[0.0], [1.0]])) == Estimate(0.5)
    assert crossed_interval(np.full((3, 4), 0.1)).high is None
    assert mean_interval(np.array([0.25])) == Estimate(0.25)
    assert mean_interval(np.array([0.25, 0.25])) == Estimate(0.25)


# Shares


@pytest.mark.parametrize("share", [0.0, 0.01, 0.2, 0.97, 1.0])
@pytest.mark.parametrize(("seeds", "problems"), [(2, 5), (3, 30), (5, 200)])
def test_share_interval_by_definition(share: float, seeds: int, problems: int) -> None:
    x_SJ = np.random.default_rng(0).binomial(4, share, (seeds, problems)) / 4
    if np.ptp(x_SJ) > 0:
        assert limits(share_interval(x_SJ)) == pytest.approx(slow_share_interval(x_SJ), abs=1e-9)
        signed_SJ = 2 * x_SJ - 1
        assert limits(difference_interval(signed_SJ)) == pytest.approx(slow_difference_interval(signed_SJ), abs=1e-9)


def test_share_interval_of_all_right_is_wilsons() -> None:
    z = 1.959963984540054
    every, none = share_interval(np.ones((3, 30))), share_interval(np.zeros((3, 30)))
    assert limits(every) == pytest.approx((1.0, 30 / (30 + z * z), 1.0))
    assert limits(none) == pytest.approx((0.0, 0.0, z * z / (30 + z * z)), abs=1e-15)
    assert share_interval(np.ones((1, 30))) == Estimate(1.0), "one seed tells nothing about seeds"
    assert share_interval(np.full((3, 30), 0.5)) == Estimate(0.5), "nothing varied, far from 0 and 1"


def test_near_bound() -> None:
    assert is_near_bound(0.099, 30)
    assert not is_near_bound(0.1, 30)
    assert is_near_bound(0.986, 200)
    assert not is_near_bound(0.985, 200)
    assert near_bound(Estimate(0.5, -0.2, 1.2), 30) == Estimate(0.5, 0.0, 1.0)
    assert clipped(Estimate(0.487, -0.575, 1.549), 0, 1) == Estimate(0.487, 0, 1)
    assert clipped(Estimate(0.5), 0, 1) == Estimate(0.5)


# The geometric mean


def test_geometric_interval_by_logarithms() -> None:
    x_S = np.array([0.1, 0.2, 0.8])
    low, high = t.interval(0.95, df=2, loc=np.log(x_S).mean(), scale=np.log(x_S).std(ddof=1) / math.sqrt(3))
    expected = (0.016 ** (1 / 3), math.exp(low), math.exp(high))
    assert limits(geometric_interval(x_S)) == pytest.approx(expected)
    for scaled_S in (7 * x_S, 7 * x_S[[2, 0, 1]]):
        assert limits(geometric_interval(scaled_S)) == pytest.approx([7 * x for x in expected])


def test_geometric_interval_of_values_without_a_logarithm() -> None:
    assert geometric_interval(np.array([0.3])) == Estimate(0.3)
    assert geometric_interval(np.array([0.3, 0.3])) == Estimate(0.3)
    assert geometric_interval(np.array([0.3, 0.0, 2.0])) == Estimate(0.0)
    assert geometric_interval(np.array([0.3, -1e-9])) == Estimate(0.0)
    assert geometric_interval(np.array([-1e-9])) == Estimate(0.0)
    unknown = geometric_interval(np.array([0.3, math.nan, 2.0]))
    assert math.isnan(unknown.mean)
    assert (unknown.low, unknown.high) == (None, None)
    assert geometric_interval(np.array([1e-60, 1.0])).high == pytest.approx(sys.float_info.max)


# Tests and what they can see


@pytest.mark.parametrize(("seeds", "problems"), [(2, 2), (3, 7), (5, 30), (3, 200)])
@pytest.mark.parametrize("shift", [0.0, 0.1, 1.0, -3.0])
def test_crossed_p_value_by_the_interval(seeds: int, problems: int, shift: float) -> None:
    random = np.random.default_rng(0)
    for seed_sd in (0.0, 1.0):
        x_SJ = shift + random.normal(0, seed_sd, (seeds, 1)) + random.normal(size=(seeds, problems))
        p = known(crossed_p_value(x_SJ))
        mean, of_seeds, of_problems = slow_parts(x_SJ)
        assert p == pytest.approx(slow_beyond(abs(mean), of_seeds, of_problems, seeds, problems), rel=1e-7, abs=1e-13)
        _, low, high = limits(crossed_interval(x_SJ, 1 - p))
        if p > 1e-9:  # below, 1 - p has too few digits
            assert min(abs(low), abs(high)) < 1e-5 * abs(mean)
        _, low, high = limits(crossed_interval(x_SJ))
        assert (p < 0.05) == (not low <= 0 <= high)
        assert crossed_p_value(-x_SJ[::-1]) == pytest.approx(p)


def test_crossed_p_value_without_interval() -> None:
    by_rounding = np.array([[0.3 - 0.2, 0.9 - 0.8], [0.1, 0.6 - 0.5]])
    assert np.ptp(by_rounding) > 0
    for x_SJ in (np.array([[0.0, 1.0, 1.0]]), np.zeros((3, 4)), by_rounding):
        assert crossed_p_value(x_SJ) is None
        assert detectable(x_SJ) is None
    assert crossed_p_value(np.array([[1.0, -1.0], [-1.0, 1.0]])) == pytest.approx(1.0), "balanced"


def test_crossed_p_value_near_0() -> None:
    assert 0 <= known(crossed_p_value(1000 + np.random.default_rng(0).normal(size=(30, 200)))) < 1e-30


def test_holm_by_hand() -> None:
    # Sorted 0.005, 0.01, 0.03, 0.04: times 4, 3, 2, 1 gives 0.02, 0.03, 0.06, 0.04, and none may lie below one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([0.03]) == [0.03]
    assert holm([]) == []


def test_detectable_of_two_seeds() -> None:
    """By its definition, written out."""
    random = np.random.default_rng(0)
    x_SJ = 0.3 + np.array([[0.25], [-0.25]]) + random.normal(0, 0.3, 30) + random.normal(0, 0.3, (2, 30))
    _, of_seeds, of_problems = slow_parts(x_SJ)
    expected_deviation = math.sqrt(2 / math.pi)  # of one normal value's size, as of a deviation from two seeds
    spread = Spread(0.0, of_seeds / expected_deviation**2, of_problems, 2, 30)
    assert detectable(x_SJ) == pytest.approx(spread.half(0.95) + spread.half(0.6))


# Interquartile mean, ranks


@pytest.mark.parametrize("n", range(1, 14))
def test_iqm_by_four_copies(n: int) -> None:
    x = np.random.default_rng(n).integers(0, 9, n).astype(float)
    copies = sorted(4 * x.tolist())
    assert iqm(x) == pytest.approx(math.fsum(copies[n:-n]) / (2 * n))
    assert iqm(np.random.default_rng(0).permutation(3 * x + 1)) == pytest.approx(3 * iqm(x) + 1)


def test_iqm_interval_by_jackknife() -> None:
    x_ST = np.random.default_rng(0).normal(size=(4, 3))
    whole = iqm(x_ST)
    pseudo = [4 * whole - 3 * iqm(x_ST[[s for s in range(4) if s != out]]) for out in range(4)]
    half = t.ppf(0.975, 3) * np.std(pseudo, ddof=1) / 2
    for order in ([0, 1, 2, 3], [2, 0, 3, 1]):
        interval = iqm_interval(x_ST[order][:, [2, 0, 1]])
        assert limits(interval) == pytest.approx((whole, whole - half, whole + half))
    assert iqm_interval(x_ST[:1]) == Estimate(iqm(x_ST[0]))
    assert iqm_interval(np.ones((3, 2))) == Estimate(1.0)


def test_ranks_by_all_orders() -> None:
    """By enumeration: the places of each method in all orders in which no method precedes one that beats it."""
    random = np.random.default_rng(0)
    for _ in range(30):
        low_M = random.random(5)
        high_M = low_M + random.random(5) / 2
        beats_MM = low_M[:, None] > high_M  # as intervals that do not touch do, and so a partial order
        orders = [
            order
            for order in itertools.permutations(range(5))
            if not any(beats_MM[later, earlier] for earlier, later in itertools.combinations(order, 2))
        ]
        places = [[order.index(m) + 1 for order in orders] for m in range(5)]
        assert ranks(beats_MM) == [(min(each), max(each)) for each in places]
        assert ranks(beats_MM[::-1, ::-1]) == ranks(beats_MM)[::-1]
    assert ranks(np.zeros((3, 3), dtype=bool)) == [(1, 3)] * 3


# Coverage and errors in simulated experiments, as `python -m studies.intervals.simulation` has them, on fewer of them


def test_simulated_rule_is_that_of_tables() -> None:
    random = np.random.default_rng(0)
    x_ESJ = (
        random.normal(0.1, 1, (50, 1, 30)) * 0.1
        + random.normal(0, 0.1, (50, 3, 1))
        + random.normal(0, 0.2, (50, 3, 30))
    )
    mean_E, half_E = simulation.intervals(x_ESJ)
    for x_SJ, mean, half in zip(x_ESJ, mean_E, half_E, strict=True):
        whole, _, high = limits(crossed_interval(x_SJ))
        assert whole == pytest.approx(mean)
        assert high - whole == pytest.approx(half, rel=1e-3), "which interpolates quantiles"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "old"),
    [
        (Place(2, 30, 0.3, 6, True), 0.25),
        (Place(2, 30, 0.3, 50, True), 0.55),
        (Place(3, 30, 0.3, 6, True), 0.1),
        (Place(3, 30, 0.7, 6, False), 0.05),
        (Place(5, 30, 0.7, 6, True), 0.0),
    ],
    ids=str,
)
def test_false_winners_with_holm(place: Place, old: float) -> None:
    """With 1000 experiments, two standard errors of 5 % are 1.4; dropping small seed effects made `old` or more."""
    now, before = simulation.errors(place, 1000, [simulation.chosen, simulation.dropping])
    assert now.any_winner <= 0.064
    assert now.covered >= 0.93
    assert before.any_winner >= old


@pytest.mark.slow
@pytest.mark.parametrize("setting", simulation.SETTINGS)
@pytest.mark.parametrize(
    ("seeds", "problems"),
    [
        (2, 30),
        (3, 30),
        pytest.param(3, 200, marks=pytest.mark.long),
        (5, 30),
        pytest.param(5, 200, marks=pytest.mark.long),
    ],
)
def test_crossed_interval_coverage(seeds: int, problems: int, setting: str) -> None:
    effects = simulation.SETTINGS[setting]
    share = simulation.coverage(seeds, problems, effects, 1000)
    assert share.mean >= 0.93
    assert share.difference >= 0.93
    assert share.improvement >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("beta", simulation.NEAR)
@pytest.mark.parametrize("problems", [30, 200])
def test_coverage_near_a_bound(beta: tuple[float, float], problems: int) -> None:
    shares = simulation.near(beta, 3, problems, 0.3, 600)
    assert shares.bounded >= 0.92
    assert not shares.unmarked < 0.92  # NaN where all have the mark
    assert shares.wrong <= 0.025
    if shares.truth > 0.995 and problems == 30:
        assert shares.means < 0.7, "the t interval alone fails there"


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "least"), [(2, 0.55), (3, 0.62), (5, 0.7), (10, 0.75)])
@pytest.mark.parametrize("effect", [0.0, 0.7])
def test_power_at_detectable(seeds: int, least: float, effect: float) -> None:
    at_mean, _ = simulation.detected(seeds, 30, effect, 600)
    assert least <= at_mean <= 0.93


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "tasks"), [(3, 1), (3, 6), (5, 1), (5, 6)])
def test_coverage_of_the_interquartile_mean(seeds: int, tasks: int) -> None:
    assert (0.87 if seeds == 5 else 0.93) <= simulation.iqm_coverage(seeds, tasks, 2000) <= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("setting", simulation.SKEWED)
def test_coverage_of_the_geometric_mean(seeds: int, setting: str) -> None:
    """Three seeds of which none explodes cannot know that one may, so that of mixtures no interval holds 95 %."""
    sample = simulation.SKEWED[setting]
    held, negative = simulation.skewed_coverage(sample, seeds, 2000)
    of_mean, _ = simulation.skewed_coverage(sample, seeds, 2000, mean_interval, lambda x: float(x.mean()))
    assert negative == 0
    if setting.startswith("log-normal"):
        assert 0.93 <= held <= 0.97
    else:
        assert held > of_mean - 0.06
