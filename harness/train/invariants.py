"""Invariants of every training step of any method. A violated one ends the cell under its own name.

None of them changes a number, and together they take less than a hundredth of a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from harness import ranks
from harness.base.errors import CellFailure
from harness.methods.batch import TokenStats

ROUNDING = 1e-2  # nats; far more than log p or an entropy is off by in any type
SAMPLED_NUMBERS = 64  # compared in each weight: copies of whole weights would cost as much memory as the model
SMALLEST_LR = 1e-8  # below it, rounding in float32 may swallow a step in every weight
SMALLEST_GRADIENT = 1e-7  # root mean square; a smaller one vanishes against AdamW's epsilon of 1e-8


def mean_of_others(sizes: Tensor) -> Tensor:
    """Return the mean of all but the largest; NaN where one is not finite."""
    return (sizes.sum() - sizes.max()) / max(len(sizes) - 1, 1)


# Before the first update of a step the policy is still the one that gave the old log-probabilities, so the ratio is 1
# up to rounding: for all tokens in float32; in the mean in bfloat16, where a rare token may be off by any amount. An
# update may have a dozen tokens, so that one of them would decide about the mean.
RATIO_TOLERANCE: dict[torch.dtype, tuple[Callable[[Tensor], Tensor], float]] = {
    torch.float32: (torch.max, 1e-3),
    torch.bfloat16: (mean_of_others, 0.1),
}


def violated(invariant: str, observed: str) -> CellFailure:
    return CellFailure(f"invariant violated: {invariant}; {observed}")


def check_statistics(old: TokenStats, vocabulary: int) -> None:
    """Raise CellFailure where log-probabilities or entropies are those of no distribution."""
    highest = old.logp.max().item()
    if not highest <= ROUNDING:  # written so that NaN fails too
        raise violated("log-probabilities are not above 0", f"the highest is {highest:.3g}")
    if old.entropy is not None:
        lowest, largest = old.entropy.aminmax()
        low, high = lowest.item(), largest.item()
        if not (low >= -ROUNDING and high <= math.log(vocabulary) + ROUNDING):
            raise violated(
                "entropies lie between 0 and the logarithm of the vocabulary",
                f"they reach from {low:.3g} to {high:.3g}, and log({vocabulary}) is {math.log(vocabulary):.3g}",
            )


def check_first_ratio(log_ratios: Sequence[Tensor], dtype: torch.dtype) -> None:
    """Raise CellFailure where the policy of the first update is not the one of the old log-probabilities."""
    measure, bound = RATIO_TOLERANCE[dtype]
    off = float(measure(torch.cat([*log_ratios]).abs()))
    if not off <= bound:  # written so that NaN fails too
        raise violated(
            "the importance ratio of the first update is 1",
            f"|log ratio| is {off:.2g}, so the policy is not the one that the old log-probabilities came from",
        )


def sampled_numbers(weights: Mapping[str, Tensor]) -> Tensor:
    """Return a copy of a few numbers of each weight.

    Of each, since only some weights may have a gradient: under a head of zeros the body has none.
    """
    return torch.cat([ranks.here(weight.detach()).flatten()[:SAMPLED_NUMBERS] for weight in weights.values()])


def check_changed(before: Tensor, weights: Mapping[str, Tensor], norm: float, lr: float) -> None:
    """Raise CellFailure where an update with a gradient and a learning rate changed no weight; a collective.

    The changed weights may all lie on one rank, as under a head of zeros.
    """
    numbers = sum(x.numel() for x in weights.values())
    changed = ranks.most(int(not torch.equal(before, sampled_numbers(weights))))
    if lr > SMALLEST_LR and norm / math.sqrt(numbers) > SMALLEST_GRADIENT and not changed:
        raise violated(
            "an update changes weights", f"none has changed, at a gradient of norm {norm:.3g} and lr {lr:.3g}"
        )
