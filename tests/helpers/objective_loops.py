"""The advantages and losses of objectives in plain loops, written from their formulas, in Python's floats."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence

import loops
from loops import Divergence, Group, Oracle, Response, Surrogate, by_group, of_tokens, standard
from ragged import Case

# Advantages: one number for each token, from the rewards of the batch.


def leave_one_out(rewards: list[float]) -> list[float]:
    return [r - statistics.fmean(rewards[:i] + rewards[i + 1 :]) for i, r in enumerate(rewards)]


def overlong(case: Case) -> list[float]:
    """Take DAPO's penalty from each reward: 0 up to a length, a half at the limit, linear in between."""
    start, budget = 0.8 * case.batch.budget, case.batch.budget
    pairs = zip(case.batch.rewards_B.tolist(), case.batch.lengths_B.tolist(), strict=True)
    return [reward - 0.5 * max(0.0, (length - start) / (budget - start)) for reward, length in pairs]


def over_all(case: Case) -> Group:
    """Divide by the deviation of all rewards of the batch."""
    deviation = statistics.stdev(case.batch.rewards_B.tolist())
    return lambda rewards: [a / (deviation + 1e-6) for a in loops.centred(rewards)]


def over_mean(rewards: list[float]) -> list[float]:
    mean = statistics.fmean(rewards)
    return [(r - mean) / mean if mean > 0 else 0.0 for r in rewards]


def best_of(k: int) -> Group:
    """Standardize the best reward over all choices of k responses; a response gets the mean of its choices."""

    def advantages(rewards: list[float]) -> list[float]:
        choices = list(itertools.combinations(range(len(rewards)), k))
        best = [max(rewards[i] for i in choice) for choice in choices]
        mean, deviation = statistics.fmean(best), statistics.pstdev(best)
        standard = [(b - mean) / (deviation + 1e-6) for b in best]
        return [
            statistics.fmean(s for s, choice in zip(standard, choices, strict=True) if i in choice)
            for i in range(len(rewards))
        ]

    return advantages


def risk_seeking(beta: float) -> Group:
    """Returns the ratio of each exp(beta R) to their mean, less 1, by beta."""

    def advantages(rewards: list[float]) -> list[float]:
        soft = math.log(statistics.fmean(math.exp(beta * r) for r in rewards)) / beta
        return [(math.exp(beta * (r - soft)) - 1) / beta for r in rewards]

    return advantages


def best_with(k: int, baseline: str) -> Group:
    """Enumerates all choices of k responses; a response's share is the sum of the best of those that it is in."""

    def share(rewards: list[float], i: int) -> float:
        best = [
            max(rewards[j] for j in choice) for choice in itertools.combinations(range(len(rewards)), k) if i in choice
        ]
        return math.fsum(best) / math.comb(len(rewards), k)

    def without_it(rewards: list[float], i: int) -> float:
        n, others = len(rewards), rewards[:i] + rewards[i + 1 :]
        if baseline == "sloo":  # the mean share of the others, where this response is left out
            return statistics.fmean(share(others, j) for j in range(n - 1))
        choices = [c for c in itertools.combinations(range(n), k) if i in c]  # the best of each choice without it
        return math.fsum(max(rewards[j] for j in c if j != i) for c in choices) / math.comb(n, k)

    return lambda rewards: [len(rewards) * (share(rewards, i) - without_it(rewards, i)) for i in range(len(rewards))]


def by_difficulty(case: Case) -> list[float]:
    """Weighs GRPO's advantages by the pass rates of the group and of the batch, response by response."""
    right = [float(r) for r in case.batch.right_B.tolist()]
    solved = statistics.fmean(right)

    def advantages(verdicts: list[float]) -> list[float]:
        root, weighed = math.sqrt(statistics.fmean(verdicts)), []
        for a in standard(verdicts):
            hard, easy = 0.5 * a / (root + 1e-6), 0.5 * a / (1 - root + 1e-6)
            a = (1 - solved) * easy + solved * hard
            weighed.append(a * solved if a > 0 else a)
        return weighed

    return by_group(case, advantages, right)


def over_length(case: Case) -> list[float]:
    """Takes the mean reward of all tokens of the group from each reward."""
    lengths, rewards = case.batch.lengths_B.tolist(), case.batch.rewards_B.tolist()
    numbers, result = case.batch.groups_B.tolist(), []
    for i, number in enumerate(numbers):
        of_tokens = [
            r for r, n, length in zip(rewards, numbers, lengths, strict=True) if n == number for _ in range(length)
        ]
        result += [rewards[i] - statistics.fmean(of_tokens)] * lengths[i]
    return result


def scaled_up(case: Case) -> list[float]:
    """Multiplies centred rewards so that groups of equal rewards do not make the sum smaller."""
    numbers, rewards = case.batch.groups_B.tolist(), case.batch.rewards_B.tolist()
    kinds: dict[int, set[float]] = {}
    for number, r in zip(numbers, rewards, strict=True):
        kinds.setdefault(number, set()).add(r)
    able = sum(len(kind) > 1 for kind in kinds.values())
    return [len(kinds) / able * a for a in by_group(case, loops.centred)]


def above_quantile(quantile: float, interpolated: bool) -> Group:
    def advantages(rewards: list[float]) -> list[float]:
        ordered = sorted(rewards)
        if interpolated:
            place = quantile * (len(rewards) - 1)
            below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
            baseline = below + (above - below) * (place - math.floor(place))
        else:
            enough = loops.part_of(quantile, len(rewards))
            baseline = min(r for r in ordered if sum(other <= r for other in rewards) >= enough)
        return [(r - baseline) / (statistics.stdev(rewards) + 1e-6) for r in rewards]

    return advantages


def optimal_token_baseline(case: Case, zero_tail: bool = True) -> list[float]:
    spans, numbers, rewards = loops.responses(case), case.batch.groups_B.tolist(), case.batch.rewards_B.tolist()
    energy = []  # 1 - 2 p + sum p^2
    for logits, y in zip(case.old_logits_TV.tolist(), case.targets_T.tolist(), strict=True):
        p = loops.softmax(logits)
        energy.append(1 - 2 * p[y] + math.fsum(x * x for x in p))
    result = []
    for row, span in enumerate(spans):
        for place in range(len(span)):
            peers = [i for i in range(len(spans)) if numbers[i] == numbers[row] and len(spans[i]) > place]
            weights = [math.fsum(energy[spans[i].start : spans[i].start + place + 1]) for i in peers]
            above = math.fsum(w * rewards[i] for w, i in zip(weights, peers, strict=True))
            baseline = above / (math.fsum(weights) + 1e-8)
            result.append(rewards[row] - (0.0 if zero_tail and len(peers) == 1 else baseline))
    return result


def verdicts(case: Case, right: float, wrong: float) -> list[float]:
    return by_group(case, lambda rewards: [right if r else -wrong for r in rewards])


# Surrogates


def reinforce(logp: float, old: float, a: float) -> tuple[float, float]:
    return a * logp, a


def topr(level: str) -> Surrogate:
    """Weighs the tokens of wrong responses by their ratio, or by that of the response, which is at most 1."""

    def surrogate(response: Response, factors: list[float]) -> tuple[list[float], list[float]]:
        ratios = [math.exp(x - y) for x, y in zip(response.logp, response.old, strict=True)]
        if level == "sequence":
            ratios = [math.prod(ratios)] * len(ratios)
        slopes = [a if a > 0 else a * min(r, 1) for a, r in zip(response.advantages, ratios, strict=True)]
        values = [slope * logp for slope, logp in zip(slopes, response.logp, strict=True)]
        return values, [factor * slope for factor, slope in zip(factors, slopes, strict=True)]

    return surrogate


def times_length(inner: Surrogate) -> Surrogate:
    """Multiplies the values and slopes of another surrogate by the number of tokens."""

    def surrogate(response: Response, factors: list[float]) -> tuple[list[float], list[float]]:
        values, slopes = inner(response, factors)
        return [len(factors) * value for value in values], [len(factors) * slope for slope in slopes]

    return surrogate


def gspo(low: float, high: float, dual: float | None = None) -> Surrogate:
    """Clip the geometric mean of the ratios; its slope is that of each token's own log p."""

    def surrogate(response: Response, factors: list[float]) -> tuple[list[float], list[float]]:
        mean = statistics.fmean(x - y for x, y in zip(response.logp, response.old, strict=True))
        s = math.exp(min(mean, 10))
        values, slopes = [], []
        for a in response.advantages:
            value, slope = loops.clipped_token(s, a, low, high, dual)
            values.append(value)
            slopes.append(slope if mean < 10 else 0.0)
        return values, [factor * slope for factor, slope in zip(factors, slopes, strict=True)]

    return surrogate


def gmpo(low: float, high: float) -> Surrogate:
    """Take the product of the clipped ratios to the power of 1 / n; every token moves every value."""

    def surrogate(response: Response, factors: list[float]) -> tuple[list[float], list[float]]:
        product, moves, n = 1.0, [], len(factors)
        for logp, old, a in zip(response.logp, response.old, response.advantages, strict=True):
            r = math.exp(logp - old)
            held = min(r, math.exp(high)) if a > 0 else max(r, math.exp(-low)) if a < 0 else r
            product *= held
            moves.append(held == r)
        mean = product ** (1 / n)
        values = [a * mean for a in response.advantages]
        total = math.fsum(factor * value for factor, value in zip(factors, values, strict=True))
        return values, [total / n if moved else 0.0 for moved in moves]

    return surrogate


def cispo(least: float, most: float) -> Surrogate:
    def local(logp: float, old: float, a: float) -> tuple[float, float]:
        weight = min(max(math.exp(logp - old), least), most)
        return weight * a * logp, weight * a

    return of_tokens(local)


def sapo(tau_positive: float, tau_negative: float) -> Surrogate:
    def local(logp: float, old: float, a: float) -> tuple[float, float]:
        r, tau = math.exp(logp - old), tau_positive if a > 0 else tau_negative
        s = 1 / (1 + math.exp(-tau * (r - 1)))
        return 4 / tau * s * a, 4 * s * (1 - s) * r * a

    return of_tokens(local)


def dppo(measure: str, delta: float, cap: float) -> Surrogate:
    def local(logp: float, old: float, a: float) -> tuple[float, float]:
        p, q = math.exp(logp), math.exp(old)
        far = abs(p - q)
        if measure == "kl":
            far = q * math.log(q / p) + (1 - q) * math.log((1 - q + 1e-8) / (1 - p + 1e-8))
        along = (p - q) * a > 0
        weight = 0.0 if along and far > delta else min(p / q, cap)
        return weight * a * logp, weight * a

    return of_tokens(local)


def vespo(positive: tuple[float, float], negative: tuple[float, float]) -> Surrogate:
    """Return VESPO's surrogate, with k and lambda for either sign of the advantage."""

    def surrogate(response: Response, factors: list[float]) -> tuple[list[float], list[float]]:
        w = math.prod(math.exp(min(max(x - y, -20), 20)) for x, y in zip(response.logp, response.old, strict=True))
        w = min(max(w, 1e-8), math.exp(20))
        weights = []
        for a in response.advantages:
            k, rate = positive if a >= 0 else negative
            weights.append(w**k * math.exp(rate * (1 - w)) * a)
        values = [weight * logp for weight, logp in zip(weights, response.logp, strict=True)]
        return values, [factor * weight for factor, weight in zip(factors, weights, strict=True)]

    return surrogate


def uncertain(entropies: Sequence[float], quantile: float) -> list[bool]:
    """Return a flag for each entropy above the quantile, which is interpolated between sorted neighbors."""
    ordered, place = sorted(entropies), loops.part_of(quantile, len(entropies) - 1)
    below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
    return [h > below + (above - below) * float(place - math.floor(place)) for h in entropies]


def by_entropy(sure: Surrogate, unsure: Surrogate, quantile: float = 0.8) -> Surrogate:
    """Return a surrogate that differs for tokens of low and of high entropy."""

    def surrogate(response: Response, factors: list[float]) -> tuple[list[float], list[float]]:
        sides = sure(response, factors), unsure(response, factors)
        which = uncertain(response.entropies, quantile)
        values, slopes = ([sides[side][i][t] for t, side in enumerate(which)] for i in range(2))
        return values, slopes

    return surrogate


def kl_by_entropy(sure: float, unsure: float, estimator: str = "k3", quantile: float = 0.8) -> Divergence:
    def term(response: Response, ref: float, i: int) -> tuple[float, float]:
        value, slope = loops.divergence(response.logp[i], ref, estimator)
        weight = unsure if uncertain(response.entropies, quantile)[i] else sure
        return weight * value, weight * slope

    return term


def aspo(low: float, high: float, inverse_cap: float = 3.0, dual: float = 3.0) -> Surrogate:
    def local(logp: float, old: float, a: float) -> tuple[float, float]:
        r = math.exp(logp - old)
        if a > 0:
            return (a / (1 + high), 0.0) if r > 1 + high else (a * min(1 / r, inverse_cap),) * 2
        return (a * (1 - low), 0.0) if r < 1 - low else (a * min(r, dual),) * 2

    return of_tokens(local)


def dcpo(low: float, high: float, cap: float = 10.0, dual: float | None = 10.0) -> Surrogate:
    def local(logp: float, old: float, a: float) -> tuple[float, float]:
        q = math.exp(old)
        least = 0.5 + 0.5 * math.sqrt(max(1 - 4 * low / q, 0))
        most = min(0.5 + 0.5 * math.sqrt(1 + 4 * high / q), cap)
        return loops.clipped_token(math.exp(logp - old), a, 1 - least, most - 1, dual)

    return of_tokens(local)


def bapo_bounds(
    ratios: list[float], advantages: list[float], low: float, high: float, ends: tuple[float, float], target: float
) -> tuple[float, float]:
    """Search the bounds step by step, the lower one first, until the positive tokens have their share."""

    def share() -> float:
        held = [min(r, high) if a >= 0 else max(r, low) for r, a in zip(ratios, advantages, strict=True)]
        parts = [r * a for r, a in zip(held, advantages, strict=True)]
        negative = -math.fsum(x for x in parts if x < 0)
        return math.fsum(x for x in parts if x > 0) / negative if negative else math.inf

    while share() < target and low < ends[0]:
        low = min(low + 0.05, ends[0])
    while share() < target and high < ends[1]:
        high = min(high + 0.05, ends[1])
    return low, high


Make = Callable[[Case], Oracle]
