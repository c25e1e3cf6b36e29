from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baselines.grpo import Grouped, centered
from harness.method import ClippedObjective

if TYPE_CHECKING:
    from torch import Tensor

    from harness.batch import TokenBatch


@dataclass(frozen=True)
class Rloo(ClippedObjective, Grouped):
    """Clipped policy gradient whose baseline is the mean reward of the other responses to the same prompt.

    A_i = R_i - mean_{j != i} R_j = G / (G - 1) (R_i - mean_j R_j). That is Dr. GRPO's advantage times a constant, so
    with the same normalise and clips the two differ in nothing but the size of their loss.

    The paper takes one step of REINFORCE on each batch; this has PPO's clipped ratio of each token.
    """

    source = "arXiv:2402.14740"

    def compared(self, rewards_PG: Tensor, batch: TokenBatch) -> Tensor:
        size = rewards_PG.shape[1]
        return centered(rewards_PG) * (size / (size - 1))
