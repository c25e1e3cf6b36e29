"""Methods that count the right responses of a group, or the copies of an answer, against loops, in float64."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence

import loops
import pytest
import torch
from control_loops import groups
from loops import Oracle
from ragged import Case, answers_of, case
from registered import method


def of_tokens(c: Case, weights: Sequence[float]) -> list[float]:
    """Return the number of its response for each token."""
    return [weight for weight, span in zip(weights, loops.responses(c), strict=True) for _ in span]


def better_than_the_mean(rewards: list[float]) -> list[float]:
    return [max(r - statistics.fmean(rewards), 0.0) for r in rewards]


def by_rarity(c: Case, alpha: float, lowest: float, highest: float) -> list[float]:
    """Weigh the right responses of each group by how many of them have the same answer."""
    right, answers = c.batch.right_B.tolist(), answers_of(c.groups)
    weights = [1.0] * len(right)
    for group in groups(c):
        winners = [row for row in group if right[row]]
        copies = Counter(answers[row] for row in winners)
        total = math.fsum(copies[answers[row]] ** -alpha for row in winners)
        bounded = {}
        for row in winners:
            bounded[row] = min(max(len(winners) * copies[answers[row]] ** -alpha / total, lowest), highest)
        for row, weight in bounded.items():
            weights[row] = weight / statistics.fmean(bounded.values())
    return of_tokens(c, weights)


def expected_slope(m: int, n: int, k: int) -> float:
    """Return the paper's product, over k."""
    return k * math.prod((n - m + j) / (n + 1 + j) for j in range(1, k))


def by_boundary(c: Case, k: int, tau: float) -> list[float]:
    right, weights = c.batch.right_B.tolist(), []
    for group in groups(c):
        n, m = len(group), sum(right[row] for row in group)
        u = expected_slope(m, n, k)
        weights += [u / expected_slope(1, n, k) if u >= tau * (n + 1) else 0.0] * n
    return of_tokens(c, weights)


def wapo(c: Case, high: float = 9, low_positive: float = math.inf, normalise: str = "constant") -> Oracle:
    advantages = loops.by_group(c, better_than_the_mean)
    return Oracle(advantages, loops.clipped(high=high, low_positive=low_positive), normalise)


ORACLES: dict[str, Callable[[Case], Oracle]] = {
    "wapo": wapo,
    "wapo(clip_high=0.1, clip_low_positive=0.2, normalise=token)": lambda c: wapo(c, 0.1, 0.2, "token"),
    "cue": lambda c: Oracle(loops.group_advantages(c), keep=by_rarity(c, 0.8, 0.3, 3)),
    "cue(alpha=1, lowest=0.9, highest=1.1)": lambda c: Oracle(
        loops.group_advantages(c), keep=by_rarity(c, 1, 0.9, 1.1)
    ),
    "bbg": lambda c: Oracle(loops.group_advantages(c), keep=by_boundary(c, 16, 0.01)),
    "bbg(k=4, tau=0.05)": lambda c: Oracle(loops.group_advantages(c), keep=by_boundary(c, 4, 0.05)),
}


def mixed() -> Case:
    """Make groups of six, with one to five right responses in all but the first."""
    return case(2, groups=6, size=6)


@pytest.mark.parametrize("spec", ORACLES)
def test_loss_of_micro_batches_by_loops(spec: str) -> None:
    c = mixed()
    loops.check_micro_batches(method(spec), c, ORACLES[spec](c).loss)


def test_random_batch_has_weights_of_every_kind() -> None:
    c = mixed()
    assert len({round(weight, 6) for weight in by_rarity(c, 0.8, 0.3, 3)}) > 4
    assert len({round(weight, 6) for weight in by_boundary(c, 16, 0.01)}) > 3
    assert 0.0 in by_boundary(c, 4, 0.05)
    ratios = (c.current().logp - c.old.logp)[torch.tensor(wapo(c).advantages) > 0].exp()
    assert ratios.max() > 1.1
    assert ratios.min() < 0.8
