"""Computes the objectives' advantages and losses by plain loops, written from their formulas, in Python's floats."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import loops
from ragged import Case

# Advantages: one number for each token, from the rewards of the batch.

Group = Callable[[list[float]], list[float]]  # the rewards of a group -> the advantages of its responses


def by_group(case: Case, advantages: Group, rewards: Sequence[float] | None = None) -> list[float]:
    """Returns the advantages of all tokens, where those of a response come from the rewards of its group."""
    given = case.batch.rewards_B.tolist() if rewards is None else rewards
    numbers = case.batch.groups_B.tolist()
    found: list[float] = []
    for number in sorted(set(numbers)):
        found += advantages([r for r, n in zip(given, numbers, strict=True) if n == number])
    return [a for a, span in zip(found, loops.responses(case), strict=True) for _ in span]


def leave_one_out(rewards: list[float]) -> list[float]:
    return [r - statistics.fmean(rewards[:i] + rewards[i + 1 :]) for i, r in enumerate(rewards)]


def centred(rewards: list[float]) -> list[float]:
    return [r - statistics.fmean(rewards) for r in rewards]


def standard(rewards: list[float]) -> list[float]:
    return [a / (statistics.stdev(rewards) + 1e-6) for a in centred(rewards)]


def penalties(case: Case, share: float = 0.2) -> list[float]:
    """Returns what DAPO takes from each reward: 0 up to a length, 1 at the limit, and a line in between."""
    budget = case.batch.budget
    start = (1 - share) * budget
    return [max(0.0, (length - start) / (budget - start)) for length in case.batch.lengths_B.tolist()]


def overlong(case: Case) -> list[float]:
    return [r - 0.5 * p for r, p in zip(case.batch.rewards_B.tolist(), penalties(case), strict=True)]


def over_all(case: Case) -> Group:
    """Divides by the deviation of all rewards of the batch."""
    deviation = statistics.stdev(case.batch.rewards_B.tolist())
    return lambda rewards: [a / (deviation + 1e-6) for a in centred(rewards)]


def over_mean(rewards: list[float]) -> list[float]:
    mean = statistics.fmean(rewards)
    return [(r - mean) / mean if mean > 0 else 0.0 for r in rewards]


def best_of(k: int) -> Group:
    """Standardises the best reward over all choices of k responses; a response has the mean of those it is in."""

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


def above_quantile(quantile: float, interpolated: bool) -> Group:
    def advantages(rewards: list[float]) -> list[float]:
        ordered = sorted(rewards)
        if interpolated:
            place = quantile * (len(rewards) - 1)
            below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
            baseline = below + (above - below) * (place - math.floor(place))
        else:
            shares = {r: sum(other <= r for other in rewards) / len(rewards) for r in ordered}
            baseline = min(r for r, share in shares.items() if share >= quantile)
        return [(r - baseline) / (statistics.stdev(rewards) + 1e-6) for r in rewards]

    return advantages


def optimal_token_baseline(case: Case, zero_tail: bool = True) -> list[float]:
    spans, numbers, rewards = loops.responses(case), case.batch.groups_B.tolist(), case.batch.rewards_B.tolist()
    energy = []  # 1 - 2 p + sum p^2
    for logits, y in zip(case.old_logits_TV.tolist(), case.targets_T.tolist(), strict=True):
        p = loops.softmax(logits)
        energy.append(1 - 2 * p[y] + math.fsum(x * x for x in p))
    found = []
    for row, span in enumerate(spans):
        for place in range(len(span)):
            peers = [i for i in range(len(spans)) if numbers[i] == numbers[row] and len(spans[i]) > place]
            weights = [math.fsum(energy[spans[i].start : spans[i].start + place + 1]) for i in peers]
            above = math.fsum(w * rewards[i] for w, i in zip(weights, peers, strict=True))
            baseline = above / (math.fsum(weights) + 1e-8)
            found.append(rewards[row] - (0.0 if zero_tail and len(peers) == 1 else baseline))
    return found


def verdicts(case: Case, right: float, wrong: float) -> list[float]:
    return by_group(case, lambda rewards: [right if r else -wrong for r in rewards])


# Surrogates: the value of each token, and how much a sum of them with given factors changes with each token's log p.


@dataclass
class Response:
    logp: list[float]
    old: list[float]  # log p before the update
    advantages: list[float]
    entropies: list[float]  # of the present policy


Surrogate = Callable[[Response, list[float]], tuple[list[float], list[float]]]
Local = Callable[[float, float, float], tuple[float, float]]  # log p, log p before, A -> value, slope by log p


def of_tokens(local: Local) -> Surrogate:
    """Makes a surrogate of a function of each token alone."""

    def surrogate(response: Response, factors: list[float]) -> tuple[list[float], list[float]]:
        pairs = [local(*token) for token in zip(response.logp, response.old, response.advantages, strict=True)]
        return [value for value, _ in pairs], [
            factor * slope for factor, (_, slope) in zip(factors, pairs, strict=True)
        ]

    return surrogate


def clipped(
    low: float = 0.2,
    high: float = 0.2,
    dual: float | None = 3.0,
    low_positive: float = math.inf,
    high_negative: float = math.inf,
) -> Surrogate:
    def local(logp: float, old: float, a: float) -> tuple[float, float]:
        r = math.exp(logp - old)
        least, most = (1 - low_positive, 1 + high) if a > 0 else (1 - low, 1 + high_negative)
        value, slope = (r * a, r * a) if least <= r <= most else (min(max(r, least), most) * a, 0.0)
        return (dual * a, 0.0) if dual is not None and a < 0 and value < dual * a else (value, slope)

    return of_tokens(local)


def reinforce(logp: float, old: float, a: float) -> tuple[float, float]:
    return a * logp, a


# The loss of a mini-batch


@dataclass
class Loops:
    """Holds what the loss of an objective is made of."""

    advantages: Sequence[float]
    surrogate: Surrogate
    normalise: str = "token"
    term: Callable[[Response, float, float, int], tuple[float, float]] | None = None

    def loss(self, case: Case, rows: Sequence[int]) -> tuple[float, dict[int, list[float]]]:
        """Computes the loss of the responses `rows` as one mini-batch, and its gradient by each token's logits."""
        spans = [loops.responses(case)[row] for row in rows]
        total, gradient = 0.0, {}
        for span in spans:
            p = {t: loops.softmax(case.logits_TV[t].tolist()) for t in span}
            y = {t: int(case.targets_T[t]) for t in span}
            response = Response(
                [math.log(p[t][y[t]]) for t in span],
                [math.log(loops.softmax(case.old_logits_TV[t].tolist())[y[t]]) for t in span],
                [self.advantages[t] for t in span],
                [loops.entropy(p[t]) for t in span],
            )
            factor = (
                1
                / {
                    "token": sum(map(len, spans)),
                    "sequence": len(spans) * len(span),
                    "constant": len(spans) * case.batch.budget,
                }[self.normalise]
            )
            values, slopes = self.surrogate(response, [factor] * len(span))
            total -= factor * math.fsum(values)
            for i, t in enumerate(span):
                by_logp = -slopes[i]
                if self.term is not None:
                    assert case.old.ref_logp is not None
                    value, slope = self.term(response, response.logp[i], float(case.old.ref_logp[t]), i)
                    total += factor * value
                    by_logp += factor * slope
                gradient[t] = [by_logp * ((v == y[t]) - p[t][v]) for v in range(len(p[t]))]
        return total, gradient


Make = Callable[[Case], Loops]
NORMS = ("token", "sequence", "constant")
