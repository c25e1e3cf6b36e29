from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baselines.grpo import Grouped, centered
from baselines.ppo import whitened
from harness.method import ClippedObjective

if TYPE_CHECKING:
    from torch import Tensor

    from harness.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class ReinforcePp(ClippedObjective, Grouped):
    """Clipped policy gradient whose baseline is the group's mean, with advantages whitened over the whole batch.

    A_i = R_i - mean_j R_j, and then A <- (A - mean A) / sqrt(var A + 1e-8) over all tokens of the rollout batch on all
    ranks, with the population's variance: the variant of REINFORCE++ that has a baseline. As whitening takes the mean
    away, the responses of a group without signal have a small advantage too.
    """

    source = "arXiv:2501.03262"

    def compared(self, rewards_PG: Tensor, batch: TokenBatch) -> Tensor:
        return centered(rewards_PG)

    def advantages(self, old: TokenStats, batch: TokenBatch) -> Tensor:
        return whitened(super().advantages(old, batch), batch)
