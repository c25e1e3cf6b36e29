from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from baselines.grpo import Grouped, centered
from harness.method import ClippedObjective

if TYPE_CHECKING:
    from torch import Tensor

    from harness.batch import TokenBatch


@dataclass(frozen=True)
class MaxRl(ClippedObjective, Grouped):
    """GRPO that divides by the group's mean reward, which leans towards the logarithm of the success rate.

    A_i = (R_i - mean_j R_j) / mean_j R_j, and 0 where the mean is not above 0. With rewards of 0 and 1 its expectation
    follows the gradient of the logarithm's series up to the order G - 1.
    """

    source = "arXiv:2602.02710"

    def compared(self, rewards_PG: Tensor, batch: TokenBatch) -> Tensor:
        mean_P1 = rewards_PG.mean(1, keepdim=True)
        return centered(rewards_PG) / mean_P1.masked_fill(mean_P1 <= 0, inf)
