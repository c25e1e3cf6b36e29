"""Computes every method by plain loops over tokens, written from its formula: the tests compare with them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

import pytest
import torch
from known import known
from ragged import Case
from torch import Tensor

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


def likeliest(p: Sequence[float]) -> tuple[float, list[float]]:
    """Return the entropy among the two largest of some probabilities, times log V / log 2, and its slopes by logits."""
    kept = sorted(range(len(p)), key=p.__getitem__)[-2:]
    q = [x / math.fsum(p[i] for i in kept) if i in kept else 0.0 for i, x in enumerate(p)]
    scale = math.log2(len(p))
    return scale * entropy(q), [-scale * s for s in discriminators(q)]


def responses(case: Case) -> list[range]:
    """Return the flat tokens of each response."""
    spans, start = [], 0
    for length in case.batch.lengths_B.tolist():
        spans.append(range(start, start + length))
        start += length
    return spans


@dataclass
class PolicyValues:
    """A policy's statistics of each token."""

    logp: list[float]
    entropy: list[float]
    s_star: list[float]
    expected: list[float]

    @classmethod
    def of(cls, logits_TV: Tensor, targets_T: Tensor) -> PolicyValues:
        policy = cls([], [], [], [])
        for logits, y in zip(logits_TV.tolist(), targets_T.tolist(), strict=True):
            p = softmax(logits)
            s = discriminators(p)
            policy.logp.append(math.log(p[y]))
            policy.entropy.append(entropy(p))
            policy.s_star.append(s[y])
            policy.expected.append(math.fsum(x * y for x, y in zip(p, s, strict=True)))
        return policy


def before(case: Case) -> PolicyValues:
    return PolicyValues.of(case.old_logits_TV, case.targets_T)


def now(case: Case) -> PolicyValues:
    return PolicyValues.of(case.logits_TV, case.targets_T)


def taken(case: Case) -> tuple[list[float], list[float]]:
    """Return S* and N of every token, before the update."""
    return before(case).s_star, before(case).expected


# Advantages


Group = Callable[[list[float]], list[float]]  # the rewards of a group -> the advantages of its responses


def by_group(case: Case, advantages: Group, rewards: Sequence[float] | None = None) -> list[float]:
    """Return the advantages of all tokens, computed for each response from the rewards of its group."""
    given = case.batch.rewards_B.tolist() if rewards is None else rewards
    numbers = case.batch.groups_B.tolist()
    result: list[float] = []
    for number in sorted(set(numbers)):
        result += advantages([r for r, n in zip(given, numbers, strict=True) if n == number])
    return [a for a, span in zip(result, responses(case), strict=True) for _ in span]


def centred(values: Sequence[float]) -> list[float]:
    mean = statistics.fmean(values)
    return [x - mean for x in values]


def standard(rewards: list[float]) -> list[float]:
    return [a / (statistics.stdev(rewards) + 1e-6) for a in centred(rewards)]


def group_advantages(case: Case, divide_by_std: bool = True) -> list[float]:
    return by_group(case, standard if divide_by_std else centred)


def gae(case: Case, gamma: float, lam: float) -> list[float]:
    """Compute the double sum of the definition."""
    values, rewards, advantages = known(case.old.values).tolist(), case.batch.rewards_B.tolist(), []
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
    """Return the surrogate of a function of single tokens."""

    def surrogate(response: Response, factors: list[float]) -> tuple[list[float], list[float]]:
        pairs = [local(*token) for token in zip(response.logp, response.old, response.advantages, strict=True)]
        return [value for value, _ in pairs], [
            factor * slope for factor, (_, slope) in zip(factors, pairs, strict=True)
        ]

    return surrogate


def clipped_token(
    r: float,
    a: float,
    low: float,
    high: float,
    dual: float | None,
    low_positive: float = math.inf,
    high_negative: float = math.inf,
) -> tuple[float, float]:
    """Return clip(r) A, at least dual * A where A < 0, with its slope by log p; by default min(r A, clip(r) A)."""
    least, most = (1 - low_positive, 1 + high) if a > 0 else (1 - low, 1 + high_negative)
    value, slope = (r * a, r * a) if least <= r <= most else (min(max(r, least), most) * a, 0.0)
    return (dual * a, 0.0) if dual is not None and a < 0 and value < dual * a else (value, slope)


def clipped(
    low: float = 0.2,
    high: float = 0.2,
    dual: float | None = 3.0,
    low_positive: float = math.inf,
    high_negative: float = math.inf,
) -> Surrogate:
    bounds = (low, high, dual, low_positive, high_negative)
    return of_tokens(lambda logp, old, a: clipped_token(math.exp(logp - old), a, *bounds))


def kept_gradient(
    beta1: float = 0.75, beta2: float = 1.0, low: float = 0.2, high: float = 0.2, dual: float = 10.0
) -> Surrogate:
    """Return CE-GPPO's surrogate."""

    def local(logp: float, old: float, a: float) -> tuple[float, float]:
        r = math.exp(logp - old)
        if a < 0 and r < 1 - low:
            r = beta1 * (1 - low)
        elif a > 0 and r > 1 + high:
            r = beta2 * (1 + high)
        return (dual * a, 0.0) if a < 0 and r > dual else (r * a, r * a)

    return of_tokens(local)


def divergence(logp: float, ref: float, estimator: str) -> tuple[float, float]:
    if estimator == "k2":
        return 0.5 * (logp - ref) ** 2, logp - ref
    return math.exp(ref - logp) - (ref - logp) - 1, 1 - math.exp(ref - logp)


Divergence = Callable[[Response, float, int], tuple[float, float]]  # log p of the first model, and which token


def kl(coefficient: float = 0.0, estimator: str = "k2") -> Divergence:
    def term(response: Response, ref: float, i: int) -> tuple[float, float]:
        value, slope = divergence(response.logp[i], ref, estimator)
        return coefficient * value, coefficient * slope

    return term


NORMS = ("token", "sequence", "constant")
Gradient = dict[int, list[float]]  # of each token, by its logits
Term = Callable[[int], tuple[float, list[float]]]  # the number of a token -> value, slopes by its logits


@dataclass
class Oracle:
    """The parts of the loss of a mini-batch."""

    advantages: Sequence[float]
    surrogate: Surrogate = field(default_factory=clipped)
    normalise: str = "token"
    keep: Sequence[float] | None = None
    counted: Sequence[bool] | None = None  # by the denominator; None: every token
    kl: Divergence = field(default_factory=kl)
    bonus: float = 0.0
    term: Term | None = None  # of each token
    whole: Callable[[Sequence[int]], tuple[float, Gradient]] | None = None  # of the mini-batch

    def loss(self, case: Case, rows: Sequence[int]) -> tuple[float, Gradient]:
        """Compute the loss of the responses `rows` as one mini-batch, and its gradient by each token's logits."""
        spans = [responses(case)[row] for row in rows]
        keep = self.keep or [1.0] * len(self.advantages)
        counted = self.counted or [True] * len(keep)
        total, gradient = 0.0, Gradient()
        for span in spans:
            p = [softmax(case.logits_TV[t].tolist()) for t in span]
            y = [int(case.targets_T[t]) for t in span]
            old = [softmax(case.old_logits_TV[t].tolist()) for t in span]
            response = Response(
                [math.log(p_t[v]) for p_t, v in zip(p, y, strict=True)],
                [math.log(p_t[v]) for p_t, v in zip(old, y, strict=True)],
                [self.advantages[t] for t in span],
                [entropy(p_t) for p_t in p],
            )
            denominator = self.denominator(case, spans, span, counted)
            factors = [keep[t] * counted[t] / denominator for t in span]
            term_factor = 1 / self.denominator(case, spans, span, [True] * len(keep))
            values, slopes = self.surrogate(response, factors)
            total -= math.fsum(factor * value for factor, value in zip(factors, values, strict=True))
            for i, t in enumerate(span):
                value, slope = self.kl(response, float(known(case.old.ref_logp)[t]), i)
                total += term_factor * (value - self.bonus * response.entropies[i])
                by_logp = term_factor * slope - slopes[i]
                gradient[t] = [
                    by_logp * ((v == y[i]) - p[i][v]) + term_factor * self.bonus * s
                    for v, s in enumerate(discriminators(p[i]))
                ]
                if self.term is not None:
                    value, of_term = self.term(t)
                    total += term_factor * value
                    gradient[t] = [x + term_factor * y for x, y in zip(gradient[t], of_term, strict=True)]
        if self.whole is not None:
            value, of_whole = self.whole(rows)
            total += value
            for t, by_logits in of_whole.items():
                gradient[t] = [x + y for x, y in zip(gradient[t], by_logits, strict=True)]
        return total, gradient

    def denominator(self, case: Case, spans: Sequence[range], span: range, counted: Sequence[bool]) -> float:
        if self.normalise == "token":
            return max(sum(counted[t] for other in spans for t in other), 1)
        if self.normalise == "sequence":
            return len(spans) * max(sum(counted[t] for t in span), 1)
        return len(spans) * case.batch.budget


def check_micro_batches(method: Method, case: Case, loss_of: Callable[[Case, range], tuple[float, Gradient]]) -> None:
    """Compare the losses and gradients of two mini-batches, each in several parts, with those of loops."""
    minibatches = list(case.batch.split(2))
    whole = method.signal(case.old, case.batch, minibatches)
    size = len(case.batch) // 2
    for half, minibatch in enumerate(minibatches):
        rows = range(size * half, size * (half + 1))
        expected, gradient = loss_of(case, rows)
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
