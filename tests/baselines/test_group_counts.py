"""Methods that count the right responses of a group, or the copies of an answer, against loops, in float64."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence

import loops
import objective_loops
import pytest
import torch
from loops import Oracle
from ragged import Case, answers_of, case
from registered import method


def of_tokens(c: Case, weights: Sequence[float]) -> list[float]:
    """Return the number of its response for each token."""
    return [weight for weight, span in zip(weights, loops.responses(c), strict=True) for _ in span]


def groups_of(c: Case) -> list[list[int]]:
    size = len(c.groups[0])
    return [list(range(start, start + size)) for start in range(0, len(c.batch), size)]


def better_than_the_mean(rewards: list[float]) -> list[float]:
    return [max(r - statistics.fmean(rewards), 0.0) for r in rewards]


def by_rarity(c: Case, alpha: float, lowest: float, highest: float) -> list[float]:
    """Weigh the right responses of each group by how many of them have the same answer."""
    right, answers = c.batch.right_B.tolist(), answers_of(c.groups)
    weights = [1.0] * len(right)
    for group in groups_of(c):
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
    for group in groups_of(c):
        n, m = len(group), sum(right[row] for row in group)
        u = expected_slope(m, n, k)
        weights += [u / expected_slope(1, n, k) if u >= tau * (n + 1) else 0.0] * n
    return of_tokens(c, weights)


def weighed(c: Case, weights: Sequence[float]) -> Oracle:
    return Oracle(loops.group_advantages(c), keep=weights)  # type: ignore[arg-type]


def wapo(c: Case, high: float = 9, low_positive: float = math.inf, normalise: str = "constant") -> Oracle:
    advantages = objective_loops.by_group(c, better_than_the_mean)
    return Oracle(advantages, loops.clipped(high=high, low_positive=low_positive), normalise)


ORACLES: dict[str, Callable[[Case], Oracle]] = {
    "wapo": wapo,
    "wapo(clip_high=0.1, clip_low_positive=0.2, normalise=token)": lambda c: wapo(c, 0.1, 0.2, "token"),
    "cue": lambda c: weighed(c, by_rarity(c, 0.8, 0.3, 3)),
    "cue(alpha=1, lowest=0.9, highest=1.1)": lambda c: weighed(c, by_rarity(c, 1, 0.9, 1.1)),
    "bbg": lambda c: weighed(c, by_boundary(c, 16, 0.01)),
    "bbg(k=4, tau=0.05)": lambda c: weighed(c, by_boundary(c, 4, 0.05)),
}


def mixed() -> Case:
    """Make groups of six, with one to five right responses in all but the first."""
    return case(2, groups=6, size=6)


@pytest.mark.parametrize("spec", ORACLES)
def test_loss_of_micro_batches_by_loops(spec: str) -> None:
    c = mixed()
    oracle = ORACLES[spec](c)
    loops.check_micro_batches(method(spec), c, lambda rows: oracle)


def test_random_batch_has_weights_of_every_kind() -> None:
    c = mixed()
    assert len({round(weight, 6) for weight in by_rarity(c, 0.8, 0.3, 3)}) > 4
    assert len({round(weight, 6) for weight in by_boundary(c, 16, 0.01)}) > 3
    assert 0.0 in by_boundary(c, 4, 0.05)
    ratios = (c.current().logp - c.old.logp)[torch.tensor(wapo(c).advantages) > 0].exp()
    assert ratios.max() > 1.1
    assert ratios.min() < 0.8


def answered(answers: Sequence[int], right: Sequence[int]) -> Case:
    """Make one group with these answers and verdicts."""
    c = case(3, groups=1, size=len(answers))
    verdicts_B = torch.tensor(right)
    c.batch = dataclasses.replace(
        c.batch, answers_B=torch.tensor(answers), right_B=verdicts_B > 0, rewards_B=verdicts_B.double()
    )
    return c


def weights_of(spec: str, c: Case) -> list[float]:
    """Return the weight of each response."""
    weights_T = method(spec).signal(c.old, c.batch, [c.batch]).weights_T
    return weights_T[c.batch.starts_B].tolist()


def test_cue_gives_each_answer_the_same_credit_at_alpha_1() -> None:
    weights = weights_of("cue(alpha=1)", answered([0, 0, 0, 1, 2, 2], [1, 1, 1, 1, 0, 0]))
    assert weights == pytest.approx([2 / 3, 2 / 3, 2 / 3, 2, 1, 1])


@pytest.mark.parametrize(
    ("answers", "right"), [([0] * 5, [1, 1, 1, 0, 0]), ([0, 1, 2], [1, 1, 1]), ([0, 1, 1], [0, 0, 0])]
)
def test_cue_changes_nothing_where_no_right_answer_is_rarer(answers: list[int], right: list[int]) -> None:
    assert weights_of("cue", answered(answers, right)) == pytest.approx([1.0] * len(answers), abs=1e-15)


@pytest.mark.parametrize("n", [2, 5, 16])
@pytest.mark.parametrize("k", [2, 16, 256])
def test_bbg_weighs_by_the_expected_slope_of_pass_at_k(n: int, k: int) -> None:
    for m in range(n + 1):
        c = answered([0] * n, [1] * m + [0] * (n - m))
        expected = expected_slope(m, n, k) / expected_slope(1, n, k)
        assert weights_of(f"bbg(k={k}, tau=0)", c) == pytest.approx([expected] * n, rel=1e-12)
