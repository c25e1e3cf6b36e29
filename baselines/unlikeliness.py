from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.base.schema import number
from harness.methods.verbs import Control

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class Unlikeliness(Control):
    """Rewards a right response less, the more likely it is within its group.

        R'_i = R_i (1 - beta rank_i / G) where response i is right

    rank_i is the position of response i among all G responses to the prompt, by the mean of log p_old over its tokens:
    0 for the least likely, G - 1 for the most likely; among equals, the earlier response ranks lower. Mean and
    deviation of the group are those of R'.

    Defaults: the released code.

    Differs: a response is right if it was verified, regardless of its shaped reward. The authors' code skips groups
    without advantage and has a KL term.
    """

    source = "arXiv:2506.02355"
    min_group = 2

    beta: float = number(0.25, least=0, most=1)

    def reward(self, rewards_B: Tensor, old: TokenStats, batch: TokenBatch) -> Tensor:
        likely_PG = batch.grouped(batch.per_sequence(old.logp) / batch.lengths_B)
        rank_PG = likely_PG.argsort(dim=1, stable=True).argsort(1)
        factor_B = 1 - self.beta * rank_PG.flatten().to(rewards_B.dtype) / rank_PG.shape[1]
        return rewards_B * factor_B.where(batch.right_B, 1)
