"""The weights, selections and terms of controls in plain loops over tokens, written from their formulas."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import loops
import numpy as np
from known import known
from loops import PolicyValues, Term, before, discriminators, group_advantages, now, part_of, responses, softmax
from objective_loops import uncertain
from ragged import Case, answers_of

from harness.base import seeds


def lp_reg_term(c: Case, share: float, coefficient: float) -> Term:
    """Adds k3 to the filtered old policy for the least likely negative tokens that are now below it."""
    a, target_T = group_advantages(c), c.old.min_p_logp
    negative = sorted((t for t in range(len(a)) if a[t] < 0), key=before(c).logp.__getitem__)
    chosen = negative[: math.floor(part_of(share, len(negative)))]

    def term(t: int) -> tuple[float, list[float]]:
        p, y, target = softmax(c.logits_TV[t].tolist()), int(c.targets_T[t]), float(known(target_T)[t])
        d = target - math.log(p[y])
        if t not in chosen or d <= 0 or target == -math.inf:
            return 0.0, [0.0] * len(p)
        slope = coefficient * (1 - math.exp(d))
        return coefficient * (math.exp(d) - d - 1), [slope * ((v == y) - p[v]) for v in range(len(p))]

    return term


def likeliest_bonus(c: Case, coefficient: float) -> Term:
    """Adds the entropy among the two likeliest tokens to the objective."""

    def term(t: int) -> tuple[float, list[float]]:
        h, slopes = loops.likeliest(softmax(c.logits_TV[t].tolist()))
        return -coefficient * h, [-coefficient * slope for slope in slopes]

    return term


def less_for_repetition(c: Case, coefficient: float) -> list[float]:
    """Takes a part from each advantage for every other response of the group with the same answer, also with none."""
    groups = [(number, rollout) for number, group in enumerate(c.groups) for rollout in group]
    named = [(number, answer) for (number, _), answer in zip(groups, answers_of(c.groups), strict=True)]
    a, result = group_advantages(c), []
    for row, span in enumerate(responses(c)):
        others = sum(other == named[row] for i, other in enumerate(named) if i != row)
        result += [a[t] - coefficient * others / len(c.groups[0]) for t in span]
    return result


def near_behaviour(c: Case, threshold: float) -> list[bool]:
    """Drops tokens one by one, the farthest from the policy that sampled them first, until the mean is small enough."""
    sampled = [x for group in c.groups for rollout in group for x in rollout.logp]
    squares = [(x - y) ** 2 for x, y in zip(before(c).logp, sampled, strict=True)]
    left = sorted(range(len(squares)), key=squares.__getitem__)
    while len(left) > 1 and statistics.fmean(squares[t] for t in left) >= threshold:
        left.pop()
    return [t in left for t in range(len(squares))]


def sign(x: float) -> int:
    return (x > 0) - (x < 0)


def strongest(size: Sequence[float], count: int) -> set[int]:
    """Return the tokens of the largest sizes; among equal sizes, the earlier token."""
    return set(sorted(range(len(size)), key=lambda t: (-size[t], t))[:count])


# Weights


def covariances(c: Case) -> list[float]:
    a, logp = group_advantages(c), before(c).logp
    mean_a, mean_logp = statistics.fmean(a), statistics.fmean(logp)
    return [(x - mean_a) * (y - mean_logp) for x, y in zip(a, logp, strict=True)]


def keep_clip_cov(c: Case, fraction: float, lowest: float, highest: float) -> list[bool]:
    lots: list[float] = []
    for row, length in enumerate(c.batch.lengths_B.tolist()):
        lots += list(np.random.default_rng(seeds.derive(c.batch.seed, "clip_cov", "token", row)).random(length))
    band = [t for t, x in enumerate(covariances(c)) if lowest < x < highest]
    drawn = sorted(band, key=lambda t: -lots[t])[: max(math.floor(part_of(fraction, len(lots))), 1)]
    return [t not in drawn for t in range(len(lots))]


def keep_top_entropy(c: Case, share: float) -> list[bool]:
    chosen = strongest(h := before(c).entropy, math.ceil(part_of(share, len(h))))
    return [t in chosen for t in range(len(h))]


def within_entropy_ratio(c: Case, low: float, high: float) -> list[bool]:
    ratios = [(x + 1e-8) / (y + 1e-8) for x, y in zip(now(c).entropy, before(c).entropy, strict=True)]
    return [1 - low < x < 1 + high for x in ratios]


def steer(c: Case, mode: str, lowest: float, highest: float) -> list[float]:
    def sizes(policy: PolicyValues) -> list[float]:
        result = []
        for t, x in enumerate(group_advantages(c)):
            p = math.exp(policy.logp[t])
            omega = x / math.exp(before_logp[t]) * p * (1 - p) * (policy.logp[t] + policy.entropy[t])
            result.append(abs(omega))
        return result

    before_logp = before(c).logp
    fixed, weights = sizes(before(c)), []
    for size in sizes(now(c)):
        if mode == "exponential":
            k = -math.log(lowest) / max(*fixed, 0.02)
            weights.append(min(max(math.exp(-k * size), lowest), 1))
        else:
            part = (size - min(fixed)) / (max(fixed) - min(fixed))
            weights.append(min(max(highest - part * (highest - lowest), lowest), highest))
    return weights


def stare(c: Case, target: float, share: float, positive: float, negative: float | None) -> list[float]:
    a, policy = group_advantages(c), before(c)
    weights = [1.0] * len(a)
    if statistics.fmean(policy.entropy) >= target:
        return weights
    for side, weight in ((1, positive), (-1, negative)):
        members = [t for t, x in enumerate(a) if sign(x) == side]
        for t in sorted(members, key=lambda t: policy.logp[t])[: math.ceil(part_of(share, len(members)))]:
            weights[t] = 1.0 if weight is None else weight
    return weights


def entropy_changes(c: Case) -> list[float]:
    """Predict the change of each token's entropy for a common step, -A (S* - N)."""
    policy = before(c)
    return [-x * (s - n) for x, s, n in zip(group_advantages(c), policy.s_star, policy.expected, strict=True)]


def opefo(c: Case) -> list[float]:
    changes = entropy_changes(c)
    up, down = math.fsum(x for x in changes if x > 0), -math.fsum(x for x in changes if x < 0)
    tilt = (down - up) / (down + up)
    return [1 + tilt if x > 0 else 1 - tilt if x < 0 else 1.0 for x in changes]


def entropic(c: Case, target: float, k_p: float, k_i: float, integral: float = 0.0) -> list[float]:
    error = statistics.fmean(before(c).entropy) - target
    alpha = min(max(k_p * error + k_i * (integral + error), -1), 1)
    return [1 + alpha if x > 0 else 1 - alpha if x < 0 else 1.0 for x in group_advantages(c)]


def entrocraft(c: Case, lower: float, upper: float) -> list[bool]:
    h = statistics.fmean(before(c).entropy)
    return [not (h > upper and x < 0) and not (h < lower and x > 0) for x in group_advantages(c)]


def keep_quadrants(c: Case, keep: set[tuple[int, int]], with_baseline: bool) -> list[bool]:
    policy = before(c)
    deviations = [s - n * with_baseline for s, n in zip(policy.s_star, policy.expected, strict=True)]
    return [(sign(x), sign(d)) in keep for x, d in zip(group_advantages(c), deviations, strict=True)]


def keep_responses(c: Case, delta: float) -> list[bool]:
    a, old, new = group_advantages(c), before(c).logp, now(c).logp
    keep: list[bool] = []
    for span in responses(c):
        fall = statistics.fmean(old[t] - new[t] for t in span)
        keep += [not (sum(a[t] for t in span) < 0 and fall > delta)] * len(span)
    return keep


def keep_predicted(c: Case, wanted: float, most: float) -> list[bool]:
    """Drop tokens one by one until the mean change is on the other side of the wanted change."""
    changes = entropy_changes(c)
    keep = [True] * len(changes)
    direction = sign(wanted - statistics.fmean(changes))
    for t in sorted(range(len(changes)), key=lambda t: direction * changes[t]):
        mean = math.fsum(x for x, kept in zip(changes, keep, strict=True) if kept) / len(changes)
        no_help = direction * changes[t] >= 0
        if direction * (wanted - mean) <= 0 or no_help or keep.count(False) >= math.floor(part_of(most, len(changes))):
            break
        keep[t] = False
    return keep


# Advantages and rewards


def low_prob(c: Case, alpha: float) -> list[float]:
    return [
        (alpha * math.exp(logp) + (1 - alpha)) * x for x, logp in zip(group_advantages(c), before(c).logp, strict=True)
    ]


def entropy_advantage(c: Case, scale: float, bound: float) -> list[float]:
    return [x + min(scale * h, abs(x) / bound) for x, h in zip(group_advantages(c), before(c).entropy, strict=True)]


def repo_r(c: Case, zeta: float) -> list[float]:
    return [
        max(x * (1 - zeta * logp), 0) if x > 0 else min(x * (1 + zeta * logp), 0)
        for x, logp in zip(group_advantages(c), before(c).logp, strict=True)
    ]


def groups(c: Case) -> list[list[int]]:
    """Return the responses to each prompt."""
    of = c.batch.groups_B.tolist()
    return [[row for row, g in enumerate(of) if g == group] for group in dict.fromkeys(of)]


def mean_logps(c: Case) -> list[float]:
    logp = before(c).logp
    return [statistics.fmean(logp[t] for t in span) for span in responses(c)]


def unlikely_rewards(c: Case, beta: float) -> list[float]:
    rewards, right, mean = c.batch.rewards_B.tolist(), c.batch.right_B.tolist(), mean_logps(c)
    for group in groups(c):
        for rank, row in enumerate(sorted(group, key=lambda row: (mean[row], row))):
            if right[row]:
                rewards[row] *= 1 - beta * rank / len(group)
    return rewards


def ucpo(c: Case, tau: float) -> list[float]:
    a, right, mean, factors = group_advantages(c), c.batch.right_B.tolist(), mean_logps(c), [1.0] * len(c.batch)
    for group in groups(c):
        winners = [row for row in group if right[row]]
        if winners:
            q = [max(x, 1e-6) for x in softmax([mean[row] for row in winners])]
            for row, x in zip(winners, q, strict=True):
                m = len(winners)
                factors[row] = m * ((1 - tau) / m + tau * (1 / x) / math.fsum(1 / y for y in q))
    return [x * factors[row] for row, span in enumerate(responses(c)) for x in a[span.start : span.stop]]


def random_rewards(c: Case, chance: float) -> list[float]:
    draws = [
        np.random.default_rng(seeds.derive(c.batch.seed, "random_reward", "response", row)).random()
        for row in range(len(c.batch))
    ]
    return [float(x < chance) for x in draws]


# Terms


def kl_cov_term(c: Case, fraction: float, coefficient: float) -> Term:
    old, new = before(c).logp, now(c).logp
    held = strongest(covariances(c), max(math.floor(part_of(fraction, len(old))), 1))

    def term(t: int) -> tuple[float, list[float]]:
        p, y = softmax(c.logits_TV[t].tolist()), int(c.targets_T[t])
        weight = coefficient * (t in held)
        slope = weight * sign(new[t] - old[t])
        return weight * abs(new[t] - old[t]), [slope * ((i == y) - x) for i, x in enumerate(p)]

    return term


def top_positions(c: Case, h: Sequence[float], rows: Sequence[int], quantile: float) -> list[list[int]]:
    """Return the positions of each response whose entropy is above its quantile."""
    tops = []
    for span in (responses(c)[row] for row in rows):
        above = uncertain([h[t] for t in span], quantile)
        tops.append([t for t, is_above in zip(span, above, strict=True) if is_above])
    return tops


def top_entropy(c: Case, h: Sequence[float], rows: Sequence[int], quantile: float) -> float:
    """Return the mean over responses of the mean entropy of their chosen positions, 0 if none is chosen."""
    means = [statistics.fmean(h[t] for t in top) if top else 0.0 for top in top_positions(c, h, rows, quantile)]
    return statistics.fmean(means)


def siren_loss(
    c: Case, rows: Sequence[int], coefficient: float, quantile: float, anchor: float
) -> tuple[float, dict[int, list[float]]]:
    h, gradient = now(c).entropy, {}
    away = top_entropy(c, h, rows, quantile) - anchor
    for top in top_positions(c, h, rows, quantile):
        for t in top:
            slope = 2 * coefficient * away / (len(rows) * len(top))
            gradient[t] = [-slope * s for s in discriminators(softmax(c.logits_TV[t].tolist()))]
    return coefficient * away**2, gradient
