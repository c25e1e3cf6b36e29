import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import t

from harness.base.statistics import Estimate, crossed_interval, mean_interval, pass_at_k

# Pass@k


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_is_the_share_of_subsets_that_hold_a_right_sample(n: int) -> None:
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


def test_pass_at_k_of_many_problems_at_once() -> None:
    right = np.array([[0, 1, 8], [3, 3, 7]])
    expected = [[pass_at_k(8, int(c), 4) for c in row] for row in right]
    assert pass_at_k(8, right, 4).tolist() == expected


@pytest.mark.parametrize("k", [0, 5])
def test_pass_at_k_refuses_a_k_that_cannot_be_drawn(k: int) -> None:
    with pytest.raises(AssertionError):
        pass_at_k(4, 2, k)


# Intervals


def slow_interval(x_SJ: np.ndarray, confidence: float) -> Estimate:
    """The definition of docs/statistics.md, by loops, with the variance put together from the effects."""
    seeds, problems = x_SJ.shape
    cells = [(s, p) for s in range(seeds) for p in range(problems)]
    mean = math.fsum(x_SJ[c] for c in cells) / len(cells)
    by_seed = [math.fsum(x_SJ[s, p] for p in range(problems)) / problems for s in range(seeds)]
    by_problem = [math.fsum(x_SJ[s, p] for s in range(seeds)) / seeds for p in range(problems)]
    df_s, df_p, df_r = seeds - 1, problems - 1, (seeds - 1) * (problems - 1)
    ms_s = problems * math.fsum((m - mean) ** 2 for m in by_seed) / df_s
    ms_p = seeds * math.fsum((m - mean) ** 2 for m in by_problem) / df_p
    ms_r = math.fsum((x_SJ[s, p] - by_seed[s] - by_problem[p] + mean) ** 2 for s, p in cells) / df_r
    effect_s, effect_p = max((ms_s - ms_r) / problems, 0), max((ms_p - ms_r) / seeds, 0)
    variance = effect_s / seeds + effect_p / problems + ms_r / len(cells)
    t_s, t_p, t_r = (t.ppf((1 + confidence) / 2, df) for df in (df_s, df_p, df_r))
    if effect_s and effect_p:
        quantile = (ms_s * t_s + ms_p * t_p - ms_r * t_r) / (ms_s + ms_p - ms_r)
    else:
        quantile = t_s if effect_s else t_p if effect_p else t_r
    return Estimate(mean, mean - quantile * math.sqrt(variance), mean + quantile * math.sqrt(variance))


@pytest.mark.parametrize(("seed_sd", "problem_sd"), [(1.0, 1.0), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_crossed_interval_equals_its_definition(seed_sd: float, problem_sd: float, confidence: float) -> None:
    random = np.random.default_rng(0)
    for seeds, problems in itertools.product((2, 3, 5), (2, 7, 30)):
        x_SJ = random.normal(0, seed_sd, (seeds, 1)) + random.normal(0, problem_sd, problems)
        x_SJ = x_SJ + random.normal(3, 1, (seeds, problems))
        expected, found = slow_interval(x_SJ, confidence), crossed_interval(x_SJ, confidence)
        assert (found.mean, found.low, found.high) == pytest.approx(
            (expected.mean, expected.low, expected.high), abs=1e-12
        )


def test_without_two_seeds_two_problems_and_some_variation_there_is_no_interval() -> None:
    assert crossed_interval(np.array([[0.0, 1.0, 1.0, 0.0]])) == Estimate(0.5)
    assert crossed_interval(np.array([[0.0], [1.0]])) == Estimate(0.5)
    assert crossed_interval(np.full((3, 4), 0.1)).high is None
    assert mean_interval(np.array([0.25])) == Estimate(0.25)
    assert mean_interval(np.array([0.25, 0.25])) == Estimate(0.25)


def test_interval_over_seeds_is_students() -> None:
    x_S = np.array([1.0, 2.0, 4.0, 4.5])
    low, high = t.interval(0.9, df=3, loc=x_S.mean(), scale=x_S.std(ddof=1) / 2)
    found = mean_interval(x_S, 0.9)
    assert (found.mean, found.low, found.high) == pytest.approx((2.875, low, high), abs=1e-12)


def test_order_of_seeds_and_problems_does_not_matter_and_scale_scales() -> None:
    random = np.random.default_rng(0)
    x_SJ = random.normal(size=(3, 1)) + random.normal(size=20) + random.normal(size=(3, 20))
    whole, shuffled = crossed_interval(x_SJ), crossed_interval(x_SJ[[2, 0, 1]][:, random.permutation(20)])
    scaled = crossed_interval(7 - 2 * x_SJ)
    assert (shuffled.low, shuffled.high) == pytest.approx((whole.low, whole.high))
    assert whole.low is not None
    assert whole.high is not None
    assert (scaled.low, scaled.high) == pytest.approx((7 - 2 * whole.high, 7 - 2 * whole.low))


def test_what_a_problem_adds_to_both_methods_leaves_their_difference() -> None:
    random = np.random.default_rng(0)
    ours_SJ, theirs_SJ = random.normal(size=(2, 3, 20))
    problem_J, seed_S1 = 100 * random.normal(size=20), 100 * random.normal(size=(3, 1))
    alone = crossed_interval(ours_SJ - theirs_SJ)
    paired = crossed_interval((ours_SJ + problem_J + seed_S1) - (theirs_SJ + problem_J + seed_S1))
    assert (paired.mean, paired.low, paired.high) == pytest.approx((alone.mean, alone.low, alone.high))


# Coverage: how often the interval holds the truth, over simulated experiments. Success rates are Phi(z), where z adds
# up what is common, the problem, the seed, and the two together; so the truth is known exactly.

SETTINGS = {  # mean of z, deviations of problem, seed, and both together
    "no seed effect": (0.0, 1.0, 0.0, 0.3),
    "small seed effect": (0.0, 1.0, 0.1, 0.3),
    "large seed effect": (0.0, 1.0, 0.5, 0.3),
    "hard problems": (-1.5, 1.5, 0.2, 0.3),
    "hard problems, large seed effect": (-1.5, 1.5, 0.5, 0.3),
    "problems alike": (0.0, 0.0, 0.2, 0.3),
}
SIZES = [(3, 30), (3, 200), (5, 30), (5, 200)]  # seeds, problems
SAMPLES = 16
Interval = Callable[[np.ndarray], Estimate]


def simulate(
    seeds: int, problems: int, setting: str, paired: bool, random: np.random.Generator
) -> tuple[np.ndarray, float]:
    """The scores of one experiment, and the mean that they estimate."""
    common, problem_sd, seed_sd, both_sd = SETTINGS[setting]

    def scores(mean: float) -> np.ndarray:
        z_SJ = mean + problem_J + random.normal(0, seed_sd, (seeds, 1)) + random.normal(0, both_sd, (seeds, problems))
        return random.binomial(SAMPLES, ndtr(z_SJ)) / SAMPLES

    def truth(mean: float) -> float:
        return float(ndtr(mean / math.sqrt(1 + problem_sd**2 + seed_sd**2 + both_sd**2)))

    problem_J = random.normal(0, problem_sd, problems)
    if not paired:
        return scores(common), truth(common)
    return scores(common + 0.3) - scores(common), truth(common + 0.3) - truth(common)


def coverage(
    seeds: int, problems: int, setting: str, paired: bool, experiments: int, interval: Interval = crossed_interval
) -> float:
    random = np.random.default_rng(0)
    held = 0
    for _ in range(experiments):
        x_SJ, truth = simulate(seeds, problems, setting, paired, random)
        found = interval(x_SJ)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= truth <= found.high
    return held / experiments


@pytest.mark.slow
@pytest.mark.parametrize("paired", [False, True], ids=["mean", "difference"])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(("seeds", "problems"), SIZES)
def test_coverage(seeds: int, problems: int, setting: str, paired: bool) -> None:
    assert 0.93 <= coverage(seeds, problems, setting, paired, experiments=1000) <= 0.98


# The table of docs/statistics.md, with two intervals that were not chosen


def satterthwaite(x_SJ: np.ndarray) -> Estimate:
    """One quantile, at the degrees of freedom of the whole variance."""
    seeds, problems = x_SJ.shape
    effect_SJ = x_SJ - x_SJ.mean(axis=0) - x_SJ.mean(axis=1, keepdims=True) + x_SJ.mean()
    df = np.array([seeds - 1, problems - 1, (seeds - 1) * (problems - 1)])
    squares = [
        problems * seeds * x_SJ.mean(axis=1).var(),
        seeds * problems * x_SJ.mean(axis=0).var(),
        (effect_SJ**2).sum(),
    ]
    ms = np.array(squares) / df
    counts = np.array([ms[0] > ms[2], ms[1] > ms[2]], dtype=float)
    parts = np.array([*counts, 1 - counts.sum()]) * ms / x_SJ.size
    half = t.ppf(0.975, parts.sum() ** 2 / (parts**2 / df).sum()) * math.sqrt(parts.sum())
    return Estimate(x_SJ.mean(), x_SJ.mean() - half, x_SJ.mean() + half)


def problems_alone(x_SJ: np.ndarray) -> Estimate:
    return mean_interval(x_SJ.mean(axis=0))


if __name__ == "__main__":
    print("| seeds x problems | of | chosen | Satterthwaite | problems alone |")
    print("| --- | --- | ---: | ---: | ---: |")
    for (seeds, problems), paired in itertools.product(SIZES, (False, True)):
        ranges = []
        for interval in (crossed_interval, satterthwaite, problems_alone):
            shares = [100 * coverage(seeds, problems, setting, paired, 10_000, interval) for setting in SETTINGS]
            ranges.append(f"{min(shares):.1f} to {max(shares):.1f}")
        print(f"| {seeds} x {problems} | {'difference' if paired else 'mean'} | {' | '.join(ranges)} |")
