"""Watches what holds at every step, whatever the method. A breach ends the cell by the name of what does not hold.

None of these changes a number, and together they take less than a hundredth of a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from harness.base.errors import CellFailure
from harness.batch import TokenBatch, TokenStats
from harness.dist import ranks
from harness.tokens.metrics import p99

ROUNDING = 1e-2  # nats, in any type
# Before the first update of a step the policy is the one that `old` came from, so the ratio is 1 up to rounding: for
# all tokens, or for 99 % of them where a few rare ones may be off by any amount.
RATIO_TOLERANCE: dict[torch.dtype, tuple[Callable[[Tensor], Tensor | float], float]] = {
    torch.float32: (torch.max, 1e-3),
    torch.bfloat16: (p99, 0.5),
}
NUMBERS = 64  # of each weight, so many are looked at
SMALLEST_STEP = 1e-8  # learning rate, of which rounding leaves something in any weight of float32
SMALLEST = 1e-7  # gradient of a number, root mean square, which AdamW does not take for nothing


def broken(name: str, found: str) -> CellFailure:
    return CellFailure(f"this must hold and does not: {name}; {found}")


def check_statistics(old: TokenStats, vocabulary: int) -> None:
    highest = old.logp.max().item()
    if not highest <= ROUNDING:  # nor is NaN
        raise broken("log-probabilities are not above 0", f"the highest is {highest:.3g}")
    if old.entropy is not None:
        low, high = (x.item() for x in old.entropy.aminmax())
        if not (low >= -ROUNDING and high <= math.log(vocabulary) + ROUNDING):
            raise broken(
                "entropies lie between 0 and the logarithm of the vocabulary",
                f"they reach from {low:.3g} to {high:.3g}, and log({vocabulary}) is {math.log(vocabulary):.3g}",
            )


def check_rewards(rewards: Sequence[float]) -> None:
    if wrong := set(rewards) - {0.0, 1.0}:
        raise broken("rewards are 0 or 1", f"there is {min(wrong)}")


def check_first_ratio(log_ratios: Sequence[Tensor], dtype: torch.dtype) -> None:
    measure, bound = RATIO_TOLERANCE[dtype]
    if not (worst := float(measure(torch.cat([*log_ratios]).abs()))) <= bound:
        raise broken(
            "the importance ratio of the first update is 1",
            f"|log ratio| reaches {worst:.2g}, so the policy is not the one that the old log-probabilities came from",
        )


def check_denominators(batch: TokenBatch, minibatches: Sequence[TokenBatch]) -> None:
    """Every rank must come to it."""
    if ranks.several():
        each = ranks.each([part.global_tokens() for part in (batch, *minibatches)])
        if any(theirs != each[0] for theirs in each):
            raise broken("ranks divide by the same numbers of tokens", f"these are theirs: {each}")


def sample(weights: Mapping[str, Tensor]) -> Tensor:
    """Returns a copy of a few numbers of each weight: only some may have a gradient, as under a head of zeros."""
    return torch.cat([ranks.here(x.detach()).flatten()[:NUMBERS] for x in weights.values()])


def check_changed(before: Tensor, weights: Mapping[str, Tensor], norm: float, lr: float) -> None:
    """Every update changes weights, unless there was no gradient to speak of. Those that it changes may all lie on one
    rank, as under a head of zeros; every rank must come to it."""
    numbers = sum(x.numel() for x in weights.values())
    changed = ranks.most(int(not torch.equal(before, sample(weights))))
    if lr > SMALLEST_STEP and norm / math.sqrt(numbers) > SMALLEST and not changed:
        raise broken("an update changes weights", f"none has changed, at a gradient of norm {norm:.3g} and lr {lr:.3g}")


def check_evaluation(asked: Sequence[str], wanted: Sequence[str], right: Sequence[Sequence[int]], samples: int) -> None:
    if [*asked] != [*wanted] or any(len(row) != samples for row in right):
        raise broken(
            "an evaluation asks every problem so many times",
            f"{len(set(wanted) - set(asked))} of {len(wanted)} were not asked {samples} times",
        )
