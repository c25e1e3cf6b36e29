"""The objectives that look along a response or a group against loops written from their formulas."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import loops
import objective_loops as brute
import pytest
import torch
from known import known
from loops import Oracle, Response
from portions import in_turn
from ragged import Case, case
from registered import method
from torch import Tensor

from harness.methods.batch import TokenBatch


def made() -> Case:
    return case(2, groups=6, size=4)


def future_weights(
    ratios: Sequence[float],
    advantages: Sequence[float],
    half_life: float = 32,
    bounds: tuple[float, float] = (1, 1.2),
    dual: float | None = 10,
    safety: float | None = 10,
) -> list[float]:
    """Compute FIPO's weights of a response by the double sum of the definition."""
    weights = []
    for t, (ratio, advantage) in enumerate(zip(ratios, advantages, strict=True)):
        future = 0.0
        for k in range(t, len(ratios)):
            if dual is None or ratios[k] <= dual:
                future += 0.5 ** ((k - t) / half_life) * math.log(ratios[k])
        weight = min(max(math.exp(future), bounds[0]), bounds[1])
        if safety is not None and advantage < 0 and ratio > safety:
            weight = min(max(weight, 0.8), 1.0)
        weights.append(weight)
    return weights


def fipo(dual: float | None = 10, **options: Any) -> loops.Surrogate:
    clipped = loops.clipped(0.2, 0.28, dual)

    def surrogate(response: Response, factors: list[float]) -> tuple[list[float], list[float]]:
        ratios = [math.exp(x - y) for x, y in zip(response.logp, response.old, strict=True)]
        weights = future_weights(ratios, response.advantages, dual=dual, **options)
        values, slopes = clipped(response, factors)
        weighed = [w * value for w, value in zip(weights, values, strict=True)]
        return weighed, [w * slope for w, slope in zip(weights, slopes, strict=True)]

    return surrogate


def mirror(tau: float, level: str) -> loops.Surrogate:
    """Return the surrogate with a quadratic penalty on the log ratio of tokens or, by its slope, of responses."""

    def surrogate(response: Response, factors: list[float]) -> tuple[list[float], list[float]]:
        moved = [x - y for x, y in zip(response.logp, response.old, strict=True)]
        values, slopes = [], []
        for a, logp, d, factor in zip(response.advantages, response.logp, moved, factors, strict=True):
            slope = a - tau * (d if level == "token" else math.fsum(moved))
            values.append(a * logp - tau / 2 * d**2 if level == "token" else slope * logp)
            slopes.append(factor * slope)
        return values, slopes

    return surrogate


# spec -> the same as loops; {} takes further options of the objective
LOOPS = {
    "fipo({})": lambda c: Oracle(loops.group_advantages(c), fipo()),
    "fipo(half_life=2, lowest=0.5, highest=1.3, dual_clip=1.5, safety=1.3,{})": lambda c: Oracle(
        loops.group_advantages(c), fipo(1.5, half_life=2, bounds=(0.5, 1.3), safety=1.3)
    ),
    "fipo(dual_clip=null, safety=null, highest=9,{})": lambda c: Oracle(
        loops.group_advantages(c), fipo(None, bounds=(1, 9), safety=None)
    ),
    "kimi({})": lambda c: Oracle(brute.by_group(c, loops.centred), mirror(0.1, "token")),
    "kimi(tau=0.7,{})": lambda c: Oracle(brute.by_group(c, loops.centred), mirror(0.7, "token")),
    "kimi(level=sequence, tau=0.3,{})": lambda c: Oracle(brute.by_group(c, loops.centred), mirror(0.3, "sequence")),
}


@pytest.mark.parametrize(("template", "normalise"), in_turn(LOOPS, loops.NORMS))
def test_loss_of_micro_batches_by_loops(template: str, normalise: str) -> None:
    c = made()
    oracle = LOOPS[template](c)
    oracle.normalise = normalise
    loops.check_micro_batches(method(template.format(f"normalise={normalise}")), c, oracle.loss)


def test_fipo_weights_of_every_kind_are_compared() -> None:
    c = made()
    ratios, a = (c.current().logp - c.old.logp).exp().tolist(), loops.group_advantages(c)
    kinds = set()
    for span in loops.responses(c):
        of_span = [ratios[t] for t in span]
        weights = future_weights(of_span, [a[t] for t in span], 2, (0.5, 1.3), 1.5, 1.3)
        kinds |= {"left out" for r in of_span if r > 1.5}
        for t, weight in zip(span, weights, strict=True):
            place = {0.5: "lowest", 1.3: "highest"}.get(weight, "between")
            kinds.add("safe" if a[t] < 0 and ratios[t] > 1.3 else place)
    assert kinds == {"left out", "safe", "lowest", "between", "highest"}


# Losses of whole responses and groups, by automatic differentiation of the formula

Formula = Callable[[Case, range], Tensor]  # the loss of the responses of a mini-batch


def check_gradient(spec: str, c: Case, formula: Formula) -> None:
    """Compare the gradients of two mini-batches, each in several parts, with that of a formula."""
    m = method(spec)
    minibatches = list(c.batch.split(2))
    whole = m.signal(c.old, c.batch, minibatches)
    for half, minibatch in enumerate(minibatches):
        signal = m.for_step(c.current(minibatch).detach(), whole, minibatch)
        parts = list(minibatch.micro_batches(30))
        assert len(parts) > 2
        loss = torch.stack([m.loss(c.current(part), signal.at(part.index_T), part) for part in parts]).sum()
        (mine,) = torch.autograd.grad(loss, c.logits_TV)
        size = len(c.batch) // 2
        (expected,) = torch.autograd.grad(formula(c, range(size * half, size * (half + 1))), c.logits_TV)
        assert expected.abs().max() > 1e-3
        torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-12)


def mirror_descent(tau: float) -> Formula:
    """Return the loss of whole responses: minus the mean of A log p - tau / 2 (log r)^2, by the length budget."""

    def loss(c: Case, rows: range) -> Tensor:
        logp_T, advantages = c.current().logp, brute.by_group(c, loops.centred)
        total = torch.zeros((), dtype=torch.float64)
        for span in (loops.responses(c)[row] for row in rows):
            log_p = sum(logp_T[t] for t in span)
            log_old = sum(c.old.logp[t] for t in span)
            total = total - advantages[span.start] * log_p + tau / 2 * (log_p - log_old) ** 2
        return total / (len(rows) * c.batch.budget)

    return loss


def regression(beta1: float, beta2: float) -> Formula:
    """Return the mean square of A*-PO by 2 beta2 and the length budget, from rewards of 0 and 1 of the base model."""

    def loss(c: Case, rows: range) -> Tensor:
        logp_T, ref_T = c.current().logp, known(c.old.ref_logp)
        total = torch.zeros((), dtype=torch.float64)
        for row in rows:
            solved = round(8 * c.batch.base_right_B[row].item())
            of_base = [1.0] * solved + [0.0] * (8 - solved)
            optimal = beta1 * math.log(statistics.fmean(math.exp(reward / beta1) for reward in of_base))
            moved = sum(logp_T[t] - ref_T[t] for t in loops.responses(c)[row])
            total = total + (beta2 * moved - (c.batch.rewards_B[row] - optimal)) ** 2
        return total / (2 * beta2 * len(rows) * c.batch.budget)

    return loss


def classification(tau: float) -> Formula:
    def loss(c: Case, rows: range) -> Tensor:
        logp_T, right, numbers = c.current().logp, c.batch.right_B.tolist(), c.batch.groups_B.tolist()
        scores = {row: (logp_T - c.old.logp)[list(loops.responses(c)[row])].mean() for row in rows}
        groups = sorted({numbers[row] for row in rows})
        total = torch.zeros((), dtype=torch.float64)
        for group in groups:
            of_group = [row for row in rows if numbers[row] == group]
            if len({right[row] for row in of_group}) == 2:
                positive = torch.stack([(-scores[row] / tau).exp() for row in of_group if right[row]]).sum()
                negative = torch.stack([(scores[row] / tau).exp() for row in of_group if not right[row]]).sum()
                total = total + (1 + positive).log() + (1 + negative).log()
        return total / len(groups)

    return loss


@pytest.mark.parametrize("tau", [0.1, 1.5])
def test_kimi_descends_the_loss_of_whole_responses(tau: float) -> None:
    check_gradient(f"kimi(level=sequence, tau={tau}, normalise=constant)", made(), mirror_descent(tau))


@pytest.mark.parametrize(("spec", "betas"), [("a2po", (0.5, 1e-3)), ("a2po(beta1=0.2, beta2=0.7)", (0.2, 0.7))])
def test_a2po_descends_the_squares_of_whole_responses(spec: str, betas: tuple[float, float]) -> None:
    check_gradient(spec, made(), regression(*betas))


@pytest.mark.parametrize("tau", [0.05, 0.5, 3])
def test_real_descends_the_loss_of_groups(tau: float) -> None:
    check_gradient(f"real(tau={tau})", made(), classification(tau))


def real_weights(c: Case, spec: str, part: TokenBatch) -> Tensor:
    m = method(spec)
    signal = m.for_step(c.current(part).detach(), m.signal(c.old, c.batch, [c.batch]), part)
    return signal.marks["real"]["weight"][part.index_T]


def test_real_sums_cover_the_part_of_a_group_in_the_mini_batch() -> None:
    """A trainer that shuffles responses divides groups; a response alone weighs 1 / (tau (1 + exp(A s / tau)))."""
    c = made()
    row = int(c.batch.right_B.nonzero()[0])
    span = loops.responses(c)[row]
    moved = sum((c.current().logp - c.old.logp)[t].item() for t in span) / len(span)
    weights_T = real_weights(c, "real", c.batch.take([row]))
    assert weights_T.tolist() == pytest.approx([2 / (1 + math.exp(2 * moved))] * len(span))


def test_real_learns_from_verdicts() -> None:
    c, m = made(), method("real")
    c.batch = dataclasses.replace(c.batch, rewards_B=torch.zeros_like(c.batch.rewards_B))
    advantages_T = m.signal(c.old, c.batch, [c.batch]).advantages_T
    assert advantages_T.unique().tolist() == [-1, 0, 1]
    for groups in (c.batch.right_B, ~c.batch.right_B):
        batch = dataclasses.replace(c.batch, right_B=groups & ~groups)
        assert not m.signal(c.old, batch, [batch]).advantages_T.any()
