from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from baselines.grpo import Grouped, centered
from harness.methods.verbs import ClippedObjective

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch


@dataclass(frozen=True)
class MaxRl(ClippedObjective, Grouped):
    """GRPO that divides by the group's mean reward, which leans toward the log of the success rate.

        A_i = (R_i - mean_j R_j) / mean_j R_j, or 0 if the mean is not above 0

    J is GRPO's. With rewards of 0 and 1 the expectation follows the gradient of the series of the logarithm up to the
    order G - 1, with G responses to a prompt.

    Defaults: prime-rl, which has no further parameter; clips as in `grpo`.

    Differs: prime-rl's comment gives the order as G.
    """

    source = "arXiv:2602.02710"

    def compared(self, rewards_PG: Tensor, batch: TokenBatch) -> Tensor:
        mean_P1 = rewards_PG.mean(1, keepdim=True)
        return centered(rewards_PG) / mean_P1.masked_fill(mean_P1 <= 0, inf)
