"""Computes every method by plain loops over tokens, written from its formula: the tests compare with them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol

import pytest
import torch
from ragged import Case

from harness.methods.composition import Method


def softmax(logits: Sequence[float]) -> list[float]:
    highest = max(logits)
    total = math.fsum(math.exp(z - highest) for z in logits)
    return [math.exp(z - highest) / total for z in logits]


def xlogx(x: float) -> float:
    return x * math.log(x) if x else 0.0


def entropy(p: Sequence[float]) -> float:
    return -math.fsum(map(xlogx, p))


def discriminators(p: Sequence[float]) -> list[float]:
    """Return S_i = p_i (H + log p_i) of every token of the vocabulary."""
    h = entropy(p)
    return [x * h + xlogx(x) for x in p]


def responses(case: Case) -> list[range]:
    """Return the flat tokens of each response."""
    spans, start = [], 0
    for length in case.batch.lengths_B.tolist():
        spans.append(range(start, start + length))
        start += length
    return spans


def taken(case: Case) -> tuple[list[float], list[float]]:
    """Return S* and N of every token, before the update."""
    chosen, expected = [], []
    for logits, y in zip(case.old_logits_TV.tolist(), case.targets_T.tolist(), strict=True):
        p = softmax(logits)
        s = discriminators(p)
        chosen.append(s[y])
        expected.append(math.fsum(x * y for x, y in zip(p, s, strict=True)))
    return chosen, expected


# Advantages


def group_advantages(case: Case, divide_by_std: bool = True) -> list[float]:
    rewards, advantages = case.batch.rewards_B.tolist(), []
    groups = case.batch.groups_B.tolist()
    for row, span in enumerate(responses(case)):
        peers = [r for r, g in zip(rewards, groups, strict=True) if g == groups[row]]
        advantage = rewards[row] - statistics.fmean(peers)
        if divide_by_std:
            advantage /= statistics.stdev(peers) + 1e-6
        advantages += [advantage] * len(span)
    return advantages


def gae(case: Case, gamma: float, lam: float) -> list[float]:
    """Compute the double sum of the definition."""
    assert case.old.values is not None
    values, rewards, advantages = case.old.values.tolist(), case.batch.rewards_B.tolist(), []
    for row, span in enumerate(responses(case)):
        for t in span:
            total = 0.0
            for u in range(t, span.stop):
                last = u == span.stop - 1
                delta = (rewards[row] if last else gamma * values[u + 1]) - values[u]
                total += (gamma * lam) ** (u - t) * delta
            advantages.append(total)
    return advantages


def whitened(advantages: Sequence[float]) -> list[float]:
    mean, variance = statistics.fmean(advantages), statistics.pvariance(advantages)
    return [(a - mean) / math.sqrt(variance + 1e-8) for a in advantages]


# Which tokens are kept


def part_of(share: float, count: int) -> Decimal:
    """Return the share of a count in decimals, as a person would compute it."""
    return Decimal(str(share)) * count


def centred(values: Sequence[float]) -> list[float]:
    mean = statistics.fmean(values)
    return [x - mean for x in values]


def keep_clip_b(
    s: Sequence[float], a: Sequence[float], mode: str, mu: float, mu_high: float | None = None
) -> list[bool]:
    mean, sigma = statistics.fmean(s), statistics.pstdev(s)
    if sigma < 1e-12:
        return [True] * len(s)
    if mode == "paper":
        return two_sided([x - mean for x in s], sigma, mu, mu_high)
    return [not (x < 0 and y - mean < -mu * sigma) for x, y in zip(a, s, strict=True)]


def keep_clip_v(
    s: Sequence[float],
    n: Sequence[float],
    a: Sequence[float],
    mode: str,
    mu: float,
    mu_high: float | None = None,
    max_frac: float = 1e-4,
) -> list[bool]:
    d = [x - y for x, y in zip(s, n, strict=True)]
    sigma = statistics.pstdev(d)
    if sigma < 1e-12:
        return [True] * len(s)
    if mode == "paper":
        return two_sided(d, sigma, mu, mu_high)
    keep = [x > 0 or -y <= mu * sigma for x, y in zip(a, d, strict=True)]
    dropped = [t for t in range(len(a)) if not keep[t] and a[t] < 0]
    most = max(math.floor(part_of(max_frac, len(a))), 1)
    for t in sorted(dropped, key=lambda t: d[t])[most:]:
        keep[t] = True
    return keep


def two_sided(d: Sequence[float], sigma: float, mu: float, mu_high: float | None) -> list[bool]:
    return [-mu * sigma <= x <= (mu if mu_high is None else mu_high) * sigma for x in d]


def keep_share(d: Sequence[float], a: Sequence[float], mode: str, share: float) -> list[bool]:
    """Drop the right number of tokens, worst first and none on the safe side; assumes no ties."""
    size = [abs(x) if mode == "paper" else -x for x in d]
    candidates = [t for t in range(len(d)) if size[t] > 0 and (mode == "paper" or a[t] < 0)]
    dropped = sorted(candidates, key=lambda t: -size[t])[: round(part_of(share, len(d)))]
    return [t not in dropped for t in range(len(d))]


# The loss of one token, and its slope with respect to logp


def clipped(r: float, a: float, low: float, high: float, dual: float | None) -> tuple[float, float]:
    """Return min(r A, clip(r) A), at least dual * A where A < 0; with slope d/dlogp, where dr/dlogp = r."""
    straight, held = r * a, min(max(r, 1 - low), 1 + high) * a
    value, slope = (straight, straight) if straight <= held else (held, 0.0)
    if dual is not None and a < 0 and value < dual * a:
        return dual * a, 0.0
    return value, slope


def kept_gradient(
    r: float, a: float, low: float, high: float, dual: float | None, beta1: float, beta2: float
) -> tuple[float, float]:
    if a < 0 and r < 1 - low:
        value = slope = beta1 * (1 - low) * a
    elif a > 0 and r > 1 + high:
        value = slope = beta2 * (1 + high) * a
    else:
        value = slope = r * a
    if dual is not None and a < 0 and value < dual * a:
        return dual * a, 0.0
    return value, slope


def divergence(logp: float, ref: float, estimator: str) -> tuple[float, float]:
    if estimator == "k2":
        return 0.5 * (logp - ref) ** 2, logp - ref
    return math.exp(ref - logp) - (ref - logp) - 1, 1 - math.exp(ref - logp)


@dataclass
class Oracle:
    """Holds what the loss of a mini-batch is made of."""

    advantages: Sequence[float]
    keep: Sequence[bool] | None = None
    counted: Sequence[bool] | None = None  # by the denominator; None: every token
    normalise: str = "token"
    low: float = 0.2
    high: float = 0.2
    dual: float | None = 3.0
    betas: tuple[float, float] | None = None  # of CE-GPPO
    kl: tuple[str, float] = ("k2", 0.0)
    bonus: float = 0.0
    gate: Callable[[float, float], tuple[float, float]] | None = None  # of log p and log p before; with d/dlogp

    def loss(self, case: Case, rows: Sequence[int]) -> tuple[float, dict[int, list[float]]]:
        """Compute the loss of the responses `rows` as one mini-batch, and its gradient by each token's logits."""
        spans = [responses(case)[row] for row in rows]
        keep = self.keep or [True] * len(self.advantages)
        counted = self.counted or [True] * len(keep)
        total, gradient = 0.0, {}
        for span in spans:
            for t in span:
                p = softmax(case.logits_TV[t].tolist())
                y = int(case.targets_T[t])
                logp, r = math.log(p[y]), p[y] / softmax(case.old_logits_TV[t].tolist())[y]
                if self.betas is None:
                    value, slope = clipped(r, self.advantages[t], self.low, self.high, self.dual)
                else:
                    value, slope = kept_gradient(r, self.advantages[t], self.low, self.high, self.dual, *self.betas)
                if self.gate is not None:
                    factor, factor_slope = self.gate(logp, logp - math.log(r))
                    value, slope = factor * value, factor * slope + factor_slope * value
                assert case.old.ref_logp is not None
                kl, kl_slope = divergence(logp, float(case.old.ref_logp[t]), self.kl[0])
                surrogate_factor = keep[t] * counted[t] / self.denominator(case, spans, span, counted)
                term_factor = 1 / self.denominator(case, spans, span, [True] * len(keep))
                total += -surrogate_factor * value + term_factor * (self.kl[1] * kl - self.bonus * entropy(p))
                by_logp = -surrogate_factor * slope + term_factor * self.kl[1] * kl_slope
                gradient[t] = [
                    by_logp * ((i == y) - p[i]) + term_factor * self.bonus * s for i, s in enumerate(discriminators(p))
                ]
        return total, gradient

    def denominator(self, case: Case, spans: Sequence[range], span: range, counted: Sequence[bool]) -> float:
        if self.normalise == "token":
            return max(sum(counted[t] for other in spans for t in other), 1)
        if self.normalise == "sequence":
            return len(spans) * max(sum(counted[t] for t in span), 1)
        return len(spans) * case.batch.budget


class LossByLoops(Protocol):
    def loss(self, case: Case, rows: Sequence[int]) -> tuple[float, dict[int, list[float]]]:
        """Return the loss of these responses as one mini-batch, and its gradient by each token's logits."""


def check_micro_batches(method: Method, case: Case, loops_of: Callable[[range], LossByLoops]) -> None:
    """Compare the losses and gradients of two mini-batches, each in several parts, with those of loops."""
    minibatches = list(case.batch.split(2))
    whole = method.signal(case.old, case.batch, minibatches)
    size = len(case.batch) // 2
    for half, minibatch in enumerate(minibatches):
        rows = range(size * half, size * (half + 1))
        expected, gradient = loops_of(rows).loss(case, rows)
        signal = method.for_step(case.current(minibatch).detach(), whole, minibatch)
        parts = list(minibatch.micro_batches(30))
        assert len(parts) > 2
        case.logits_TV.grad = None
        losses = [method.loss(case.current(part), signal.at(part.index_T), part) for part in parts]
        torch.stack(losses).sum().backward()
        assert torch.stack(losses).sum().item() == pytest.approx(expected, rel=1e-9, abs=1e-12)
        by_token = [gradient.get(t, [0.0] * case.logits_TV.shape[1]) for t in range(len(case.batch.index_T))]
        expected_TV = torch.tensor(by_token, dtype=torch.float64)
        torch.testing.assert_close(case.logits_TV.grad, expected_TV, rtol=1e-9, atol=1e-12)
