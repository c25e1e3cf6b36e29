"""Simulated coverage of intervals and error rates of tests: the tables of results/reference/statistics/simulation.md.

An answer is right with probability expit(z), where z is a sum of normal effects: of the problem, the seed, the method
on the problem, and the seed on the problem. For 2000 experiments, it takes some minutes:

    python -m studies.intervals.simulation EXPERIMENTS
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit, stdtrit

from harness.cells.evaluations import pass_at_k
from harness.table.statistics import (
    Estimate,
    Floats,
    MeanSquares,
    Spread,
    detectable_with,
    geometric_interval,
    iqm_interval,
    is_near_bound,
    mean_interval,
    mean_squares,
    near_bound,
    wins,
)

SAMPLES = 16
LEVEL = 0.05
AT_ONCE = 2_000_000  # answers drawn at a time, which keeps memory below 200 MB
SEEDS, PROBLEMS, METHODS = (2, 3, 5), (30, 200), (6, 50)
Random = np.random.Generator


@dataclass(frozen=True)
class Effects:
    """The standard deviations of the effects in an answer's logit."""

    level: float = 0.0
    problem: float = 1.5
    seed: float = 0.0
    method: float = 0.3  # of a method on a problem
    both: float = 0.0  # of a seed on a problem

    def truth(self, shift: float = 0.0) -> float:
        """Return the expected share of right answers, over all random effects."""
        return expectation(expit, self.level + shift, self.deviation)

    @property
    def deviation(self) -> float:
        """The standard deviation of the whole logit."""
        return float(np.linalg.norm([self.problem, self.seed, self.method, self.both]))


def expectation(function: Callable[[Floats], Floats], mean: float, deviation: float) -> float:
    """Return the expectation of a function of a normal variable."""
    node_N, weight_N = np.polynomial.hermite_e.hermegauss(180)
    return float(np.dot(function(mean + deviation * node_N), weight_N) / weight_N.sum())


def draw(random: Random, effects: Effects, shape: tuple[int, int, int], shift_M: Floats, scale_M: Floats) -> Floats:
    """Return shares of right answers, by experiment, method, seed and problem.

    `shape` numbers experiments, seeds and problems; `scale_M` multiplies the deviation of each method's seeds.
    """
    experiments, seeds, problems = shape
    methods = len(shift_M)
    z = effects.level + shift_M[:, None, None] + random.normal(0, effects.problem, (experiments, 1, 1, problems))
    z = z + random.normal(0, effects.method, (experiments, methods, 1, problems))
    z = z + random.normal(0, effects.seed, (experiments, methods, seeds, 1)) * scale_M[:, None, None]
    if effects.both:
        z = z + random.normal(0, effects.both, (experiments, methods, seeds, problems))
    rates = np.broadcast_to(expit(z), (experiments, methods, seeds, problems))
    return random.binomial(SAMPLES, rates) / SAMPLES


def pairs(random: Random, effects: Effects, shape: tuple[int, int, int], shift: float = 0.0) -> tuple[Floats, Floats]:
    """Return the shares of a method and of the baseline, by experiment, seed and problem."""
    drawn = draw(random, effects, shape, np.array([shift, 0.0]), np.ones(2))
    return drawn[:, 0], drawn[:, 1]


# Rules: the deviation of a mean, and the quantile that it is multiplied by

Rule = Callable[[MeanSquares, float], tuple[Floats, Floats]]


def chosen(squares: MeanSquares, level: float) -> tuple[Floats, Floats]:
    """Return the rule of `harness.table.statistics`, for many experiments at once."""
    of_seeds, of_problems = squares.parts()
    variance = of_seeds + of_problems
    share = np.clip(of_seeds / positive(variance), 1e-15, 1 - 1e-15)
    return np.sqrt(variance), np.interp(logit(share), *quantiles(squares.seeds, squares.problems, level))


@functools.cache
def quantiles(seeds: int, problems: int, level: float) -> tuple[Floats, Floats]:
    """Return `Spread`'s quantiles in units of the deviation, over the logit of the seeds' share of the variance."""
    grid = np.linspace(-35, 35, 281)
    spreads = (Spread(0, float(expit(x)), float(expit(-x)), seeds, problems) for x in grid)
    return grid, np.array([spread.half(1 - level) for spread in spreads])


def plain(squares: MeanSquares, level: float) -> tuple[Floats, Floats]:
    """Return a t with the degrees of freedom of the seeds on the whole variance."""
    variance = np.sum(squares.parts(), axis=0)
    return np.sqrt(variance), np.full(variance.shape, stdtrit(squares.seeds - 1, 1 - level / 2))


def cochran_cox(squares: MeanSquares, level: float) -> tuple[Floats, Floats]:
    """Return the weighted t quantiles of Cochran and Cox, where the seeds always count."""
    return weighted(squares.parts(), squares, level)


def dropping(squares: MeanSquares, level: float) -> tuple[Floats, Floats]:
    """Return the weighted t quantiles with effects of less than 0 dropped, together with their degrees of freedom."""
    cells = squares.seeds * squares.problems
    seeds_count = squares.of_seeds > squares.of_residuals
    problems_count = squares.of_problems > squares.of_residuals
    residuals = squares.of_residuals * (1.0 - seeds_count - problems_count)
    variances = [squares.of_seeds * seeds_count, squares.of_problems * problems_count, residuals]
    return weighted([variance / cells for variance in variances], squares, level)


def weighted(variances: Sequence[Floats], squares: MeanSquares, level: float) -> tuple[Floats, Floats]:
    """Return the deviation, and the mean of the parts' t quantiles weighted by the parts."""
    freedoms = [squares.seeds - 1, squares.problems - 1, (squares.seeds - 1) * (squares.problems - 1)]
    total = np.sum(variances, axis=0)
    products = [stdtrit(df, 1 - level / 2) * part for df, part in zip(freedoms, variances, strict=False)]
    return np.sqrt(total), np.sum(products, axis=0) / positive(total)


def satterthwaite(squares: MeanSquares, level: float) -> tuple[Floats, Floats]:
    """Return one t quantile, at the degrees of freedom of the sum."""
    of_seeds, of_problems = squares.parts()
    total = of_seeds + of_problems
    df = total**2 / positive(of_seeds**2 / (squares.seeds - 1) + of_problems**2 / (squares.problems - 1))
    return np.sqrt(total), stdtrit(np.maximum(df, squares.seeds - 1), 1 - level / 2)


def problems_alone(squares: MeanSquares, level: float) -> tuple[Floats, Floats]:
    """Return Student's interval over problems, for fixed seeds."""
    variance = squares.of_problems / (squares.seeds * squares.problems)
    return np.sqrt(variance), np.full(variance.shape, stdtrit(squares.problems - 1, 1 - level / 2))


def positive(x: Floats) -> Floats:
    """Return the values with zeros replaced by the least positive number, for use as divisors."""
    return np.maximum(x, np.finfo(float).tiny)


RULES: dict[str, Rule] = {
    "Behrens-Fisher (chosen)": chosen,
    "t, S - 1 degrees of freedom": plain,
    "Cochran-Cox": cochran_cox,
    "Satterthwaite": satterthwaite,
    "Cochran-Cox, small seed effects dropped": dropping,
    "problems alone": problems_alone,
}


# Errors of the test and coverage, over the grid


@dataclass(frozen=True)
class Place:
    """A place of the grid: an experiment without true differences."""

    seeds: int
    problems: int
    effect: float  # the deviation of the seeds' logits
    methods: int
    equal: bool  # all methods have the same seed effect; otherwise theirs range from none to twice as large

    @property
    def scale_M(self) -> Floats:
        """The multiples of the seeds' deviation: 1 of the baseline, then those of the methods."""
        return np.concatenate([[1.0], np.ones(self.methods) if self.equal else np.linspace(0, 2, self.methods)])


def grid() -> Iterator[Place]:
    """Yield all places; without seed effects, only those with equal methods."""
    for numbers in itertools.product(SEEDS, PROBLEMS, (0.0, 0.3, 0.7), METHODS, (True, False)):
        place = Place(*numbers)
        if place.effect or place.equal:
            yield place


@dataclass(frozen=True)
class Errors:
    """The errors of a rule at one place."""

    any_winner: float  # share of experiments in which Holm's p-value is below the level for any method
    covered: float  # share of intervals that contain 0
    half: float  # median half width of the intervals


def errors(place: Place, experiments: int, rules: Sequence[Rule], seed: int = 0) -> list[Errors]:
    """Return the errors of each rule, on the same experiments."""
    numbers = [place.seeds, place.problems, round(10 * place.effect), place.methods, place.equal]
    random = np.random.default_rng([seed, *numbers])
    tests = [np.empty((3, experiments, place.methods)) for _ in rules]
    at_once = max(1, AT_ONCE // ((place.methods + 1) * place.seeds * place.problems))
    for first in range(0, experiments, at_once):
        here = slice(first, min(first + at_once, experiments))
        shape = (here.stop - first, place.seeds, place.problems)
        scores = draw(random, Effects(seed=place.effect), shape, np.zeros(place.methods + 1), place.scale_M)
        squares = mean_squares(scores[:, 1:] - scores[:, :1])
        distance = np.abs(squares.mean)  # from the true difference, 0
        for rule, test in zip(rules, tests, strict=True):
            deviation, quantile = rule(squares, LEVEL)
            # Holm rejects any hypothesis if and only if the least p-value is below level / number of methods.
            _, strict_quantile = rule(squares, LEVEL / place.methods)
            half = quantile * deviation
            test[:, here] = distance <= half, distance > strict_quantile * deviation, half
    results = []
    for covered, rejected, half in tests:
        results.append(Errors(float(rejected.any(axis=1).mean()), float(covered.mean()), float(np.median(half))))
    return results


def grid_tables(experiments: int) -> None:
    """Print the errors of all rules over the grid, and of the chosen rule by its size."""
    results = {place: errors(place, experiments, list(RULES.values())) for place in grid()}
    lines = []
    for i, name in enumerate(RULES):
        of_rule = {place: result[i] for place, result in results.items()}
        widths = [of_rule[Place(3, 30, effect, 6, True)].half for effect in (0.0, 0.3, 0.7)]
        winners = span([result.any_winner for result in of_rule.values()])
        covered = span([result.covered for result in of_rule.values()])
        lines.append([name, winners, covered, *(f"{width:.3f}" for width in widths)])
    show(
        f"Rules, over the whole grid ({len(results)} places, {experiments} experiments each)",
        ["rule", "any false winner, %", "coverage, %", *(f"half width, seed effect {e}" for e in (0, 0.3, 0.7))],
        lines,
    )
    lines = []
    for seeds, problems in itertools.product(SEEDS, PROBLEMS):
        of_size = {p: result[0] for p, result in results.items() if (p.seeds, p.problems) == (seeds, problems)}
        winners_by_methods = []
        for methods in METHODS:
            shares = [result.any_winner for place, result in of_size.items() if place.methods == methods]
            winners_by_methods.append(span(shares))
        covered = span([result.covered for result in of_size.values()])
        widths = [of_size[Place(seeds, problems, effect, 6, True)].half for effect in (0.0, 0.3, 0.7)]
        lines.append([f"{seeds} x {problems}", *winners_by_methods, covered, *(f"{width:.3f}" for width in widths)])
    show(
        "The chosen rule, by size",
        [
            "seeds x problems",
            *(f"any false winner of {methods}, %" for methods in METHODS),
            "coverage, %",
            *(f"half width, seed effect {e}" for e in (0, 0.3, 0.7)),
        ],
        lines,
    )


# Coverage of means, of differences that are not 0, and of the probability of improvement

SETTINGS = {
    "no seed effect": Effects(0.0, 1.7, 0.0, 0.3, 0.5),
    "small seed effect": Effects(0.0, 1.7, 0.17, 0.3, 0.5),
    "large seed effect": Effects(0.0, 1.7, 0.85, 0.3, 0.5),
    "hard problems": Effects(-2.5, 2.5, 0.34, 0.3, 0.5),
    "hard problems, large seed effect": Effects(-2.5, 2.5, 0.85, 0.3, 0.5),
    "problems alike": Effects(0.0, 0.0, 0.34, 0.3, 0.5),
}
SHIFT = 0.5  # logits by which a method is better than the baseline


def held(rule: Rule, x_SJ: Floats, truth: float) -> float:
    """Return the share of a rule's intervals that contain the truth."""
    squares = mean_squares(x_SJ)
    deviation, quantile = rule(squares, LEVEL)
    return float((np.abs(squares.mean - truth) <= quantile * deviation).mean())


@dataclass(frozen=True)
class Coverage:
    """The shares of intervals that contain the truth in one setting."""

    mean: float
    difference: float
    improvement: float
    alone: float  # of the difference, by the rule for fixed seeds


def coverage(seeds: int, problems: int, effects: Effects, experiments: int) -> Coverage:
    """Return the coverage where a method is better than the baseline."""
    ours, theirs = pairs(np.random.default_rng(0), effects, (experiments, seeds, problems), SHIFT)
    better = effects.truth(SHIFT)
    apart = better - effects.truth()
    return Coverage(
        mean=held(chosen, ours, better),
        difference=held(chosen, ours - theirs, apart),
        improvement=held(chosen, wins(ours, theirs), improvement(effects)),
        alone=held(problems_alone, ours - theirs, apart),
    )


@functools.cache
def improvement(effects: Effects) -> float:
    """Return the probability of improvement."""
    ours, theirs = pairs(np.random.default_rng(1), effects, (1_000_000, 1, 1), SHIFT)
    return float(wins(ours, theirs).mean())


def coverage_table(experiments: int) -> None:
    """Print the coverage of the chosen intervals over the settings, lowest to highest."""
    lines = []
    for seeds, problems in itertools.product(SEEDS, PROBLEMS):
        results = [coverage(seeds, problems, effects, experiments) for effects in SETTINGS.values()]
        columns = zip(*map(dataclasses.astuple, results), strict=True)
        ranges = [span(shares) for shares in columns]
        lines.append([f"{seeds} x {problems}", *ranges])
    header = ["seeds x problems", "mean", "difference", "P(better)", "difference, problems alone"]
    show(f"Coverage in {len(SETTINGS)} settings, % ({experiments} experiments each)", header, lines)


# Pass@8 and shares near a bound

K = 8
NEAR = ((3.0, 0.4), (2.0, 0.7), (1.5, 1.0), (1.0, 1.5), (0.3, 1.5), (0.2, 5.0))  # beta-distributed problems
APART = -0.7  # logits between both methods


@dataclass(frozen=True)
class Near:
    """The shares of intervals of Pass@8 that contain the truth."""

    truth: float
    means: float  # of the t intervals alone
    bounded: float  # with Wilson's near a bound
    differences: float
    marked: float  # share of differences that have the mark
    unmarked: float  # coverage of those without, NaN where there are none
    wrong: float  # share of intervals that lie on the wrong side of 0


def near(beta: tuple[float, float], seeds: int, problems: int, effect: float, experiments: int) -> Near:
    """Return the coverage near a bound, where problems' rates are beta-distributed."""
    random = np.random.default_rng([seeds, problems, round(10 * effect), round(10 * beta[0])])
    effects = Effects(problem=0, seed=effect)
    truths = [pass_rate(beta, shift, effects.deviation) for shift in (0.0, APART)]
    z_J = rates(random, beta, (experiments, 1, problems))
    scores = []
    for shift in (0.0, APART):
        z = shift + z_J + random.normal(0, effects.seed, (experiments, seeds, 1))
        z = z + random.normal(0, effects.method, (experiments, 1, problems))
        scores.append(pass_at_k(SAMPLES, random.binomial(SAMPLES, expit(z)), K))
    mean, half = intervals(scores[0])
    pairs_of = zip(mean.tolist(), half.tolist(), strict=True)
    bounded = [near_bound(Estimate(m, m - h, m + h), problems) for m, h in pairs_of]
    limits = np.array([(estimate.low, estimate.high) for estimate in bounded])
    mean_d, half_d = intervals(scores[1] - scores[0])
    held_d = np.abs(mean_d - (truths[1] - truths[0])) <= half_d
    near_0, near_1 = (np.array([is_near_bound(m, problems) for m in x.mean(axis=(1, 2))]) for x in scores)
    marked = near_0 & near_1  # a difference has the mark if both means are near a bound
    return Near(
        truth=truths[0],
        means=float((np.abs(mean - truths[0]) <= half).mean()),
        bounded=float(((limits[:, 0] <= truths[0]) & (truths[0] <= limits[:, 1])).mean()),
        differences=float(held_d.mean()),
        marked=float(marked.mean()),
        unmarked=float(held_d[~marked].mean()) if (~marked).mean() > 0.05 else float("nan"),
        wrong=float((mean_d - half_d > 0).mean()),
    )


def intervals(x_SJ: Floats) -> tuple[Floats, Floats]:
    """Return means and half widths of experiments by the chosen rule."""
    squares = mean_squares(x_SJ)
    deviation, quantile = chosen(squares, LEVEL)
    return squares.mean, quantile * deviation


def rates(random: Random, beta: tuple[float, float], shape: tuple[int, ...]) -> Floats:
    """Return the logits of beta-distributed rates."""
    return logit(np.clip(random.beta(*beta, shape), 1e-12, 1 - 1e-12))


@functools.cache
def pass_rate(beta: tuple[float, float], shift: float, deviation: float) -> float:
    """Return the true Pass@8."""
    random = np.random.default_rng(2)
    z = shift + rates(random, beta, (1_000_000,)) + random.normal(0, deviation, 1_000_000)
    return float((1 - expit(-z) ** K).mean())


def near_table(experiments: int) -> None:
    """Print the coverage near a bound: lowest of three and five seeds, and of three seed effects."""
    lines = []
    for beta, problems in itertools.product(NEAR, PROBLEMS):
        results = [near(beta, s, problems, effect, experiments) for s in (3, 5) for effect in (0.0, 0.3, 0.7)]
        lines.append(
            [
                f"{results[0].truth:.3f}",
                str(problems),
                span([result.means for result in results]),
                span([result.bounded for result in results]),
                span([result.differences for result in results]),
                span([result.marked for result in results]),
                span([result.unmarked for result in results]),
                f"{100 * max(result.wrong for result in results):.1f}",
            ]
        )
    show(
        f"Pass@8 near a bound, 3 and 5 seeds, seed effects 0, .3 and .7, % ({experiments} experiments each)",
        [
            "true Pass@8",
            "problems",
            "mean, t alone",
            "mean, shown",
            "difference",
            "differences with the mark",
            "coverage of those without",
            "differences of the wrong sign, at most",
        ],
        lines,
    )


# Power


def detected(seeds: int, problems: int, effect: float, experiments: int) -> tuple[float, float]:
    """Return the power at true differences as large as `detectable`: at its mean, and at each of its values."""
    random = np.random.default_rng([3, seeds, problems, round(10 * effect)])
    effects, shape = Effects(seed=effect), (experiments, seeds, problems)
    ours, theirs = pairs(random, effects, shape)
    shifts = detectable_values(ours - theirs)
    ours, theirs = pairs(random, effects, shape)
    mean, half = intervals(ours - theirs)
    at_mean = np.abs(mean + shifts.mean()) > half
    at_each = np.abs(mean + shifts) > half
    return float(at_mean.mean()), float(at_each.mean())


def detectable_values(x_SJ: Floats) -> Floats:
    """Return `detectable` of each experiment."""
    squares = mean_squares(x_SJ)
    variances = np.stack(squares.parts(), axis=-1).tolist()
    spreads = (Spread(0, of_seeds, of_problems, squares.seeds, squares.problems) for of_seeds, of_problems in variances)
    return np.array([detectable_with(spread) for spread in spreads])


def power_table(experiments: int) -> None:
    """Print the power of `detectable`, lowest to highest of three seed effects."""
    lines = []
    for seeds, problems in itertools.product((*SEEDS, 10), PROBLEMS):
        results = [detected(seeds, problems, effect, experiments) for effect in (0.0, 0.3, 0.7)]
        at_mean, at_each = zip(*results, strict=True)
        lines.append([f"{seeds} x {problems}", span(at_mean), span(at_each)])
    header = ["seeds x problems", "at the mean of its values", "at each value"]
    show(f"Power at `detectable`, where 80 % is promised, % ({experiments} experiments each)", header, lines)


# The interquartile mean, and entropies at the last step, which are skewed over seeds and sometimes explode


def iqm_table(experiments: int) -> None:
    """Print the coverage of the interquartile mean, lowest to highest of 1 and 6 tasks."""
    lines = []
    for seeds in SEEDS:
        shares = [iqm_coverage(seeds, tasks, experiments) for tasks in (1, 6)]
        lines.append([str(seeds), span(shares)])
    show(f"Coverage of the interquartile mean of 1 and 6 tasks, % ({experiments} experiments)", ["seeds", "IQM"], lines)


def iqm_coverage(seeds: int, tasks: int, experiments: int) -> float:
    """Return the coverage of the interval of the interquartile mean."""
    random = np.random.default_rng(0)
    runs = random.normal(0, 0.05, (experiments, seeds, 1)) + random.normal(0, 0.03, (experiments, seeds, tasks))
    return share_held([iqm_interval(x_ST) for x_ST in runs], 0.0)


def share_held(estimates: Sequence[Estimate], truth: float) -> float:
    """Return the share of intervals that contain the truth; every estimate must have an interval."""
    limits = np.array([(estimate.low, estimate.high) for estimate in estimates], dtype=float)
    return float(((limits[:, 0] <= truth) & (truth <= limits[:, 1])).mean())


Sample = Callable[[Random, tuple[int, ...]], Floats]


def log_normal(deviation: float) -> Sample:
    """Return a way to draw entropies whose logarithms are normal."""
    return lambda random, shape: 0.3 * np.exp(deviation * random.normal(size=shape))


def exploding(share: float) -> Sample:
    """Return a way to draw entropies near 0.3, with a share that is near 3 instead."""

    def sample(random: Random, shape: tuple[int, ...]) -> Floats:
        explodes = random.random(shape) < share
        return np.where(explodes, 3 * log_normal(0.5)(random, shape) / 0.3, log_normal(0.2)(random, shape))

    return sample


SKEWED: dict[str, Sample] = {
    "log-normal, deviation 0.1": log_normal(0.1),
    "log-normal, deviation 0.3": log_normal(0.3),
    "log-normal, deviation 1": log_normal(1.0),
    "log-normal, deviation 2": log_normal(2.0),
    "1 in 10 explodes": exploding(0.1),
    "3 in 10 explode": exploding(0.3),
    "5 in 10 explode": exploding(0.5),
}
Interval = Callable[[Floats], Estimate]


def geometric_mean(x: Floats) -> float:
    """Return the geometric mean."""
    return float(np.exp(np.log(x).mean()))


def median_range(x_S: Floats) -> Estimate:
    """Return the median with the range of the values."""
    return Estimate(float(np.median(x_S)), float(x_S.min()), float(x_S.max()))


def skewed_coverage(
    sample: Sample,
    seeds: int,
    experiments: int,
    interval: Interval = geometric_interval,
    center: Callable[[Floats], float] = geometric_mean,
) -> tuple[float, float]:
    """Return the share of intervals that contain the truth, and the share that reach below 0."""
    random = np.random.default_rng(0)
    truth = center(sample(random, (1_000_000,)))
    estimates = [interval(x_S) for x_S in sample(random, (experiments, seeds))]
    negative = np.mean([estimate.low is not None and estimate.low < 0 for estimate in estimates])
    return share_held(estimates, truth), float(negative)


def skewed_table(experiments: int) -> None:
    """Print the coverage of three intervals of skewed quantities."""
    lines = []
    for seeds, (name, sample) in itertools.product((3, 5), SKEWED.items()):
        geometric, _ = skewed_coverage(sample, seeds, experiments)
        of_mean, negative = skewed_coverage(sample, seeds, experiments, mean_interval, lambda x: float(x.mean()))
        of_median, _ = skewed_coverage(sample, seeds, experiments, median_range, lambda x: float(np.median(x)))
        lines.append([str(seeds), name, *(f"{100 * x:.1f}" for x in (geometric, of_mean, of_median, negative))])
    header = ["seeds", "entropies", "chosen", "mean", "median and range", "mean, below 0"]
    show(f"Intervals of skewed quantities, % ({experiments} experiments each)", header, lines)


# Printing


def span(shares: Sequence[float]) -> str:
    """Return the lowest and the highest share in percent, without NaN."""
    known = [100 * share for share in shares if share == share]
    return f"{min(known):.1f} to {max(known):.1f}" if known else "-"


def show(title: str, header: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Print a table as Markdown."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    print(f"**{title}**\n")
    for line in (header, rule, *lines):
        print(f"| {' | '.join(line)} |")
    print(flush=True)


def main(experiments: int = 2000) -> None:
    """Print all tables."""
    start = time.perf_counter()
    grid_tables(experiments)
    coverage_table(experiments)
    near_table(experiments)
    power_table(experiments // 2)
    iqm_table(experiments)
    skewed_table(experiments)
    print(f"Python {platform.python_version()}, {platform.machine()}: {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
