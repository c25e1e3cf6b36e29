from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.base.schema import number
from harness.method import Control

if TYPE_CHECKING:
    from torch import Tensor

    from harness.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class Overlong(Control):
    """Takes from the reward of a response that comes near the limit of its length, the more the nearer.

    R'_i = R_i - factor max((|o_i| - (1 - share) L) / (share L), 0), L the most tokens a response may have.

    share 0.2 is the 4,096 of 20,480 tokens of DAPO's script. Its factor is 1, for rewards of -1 and 1; ours are 0 and
    1, so that 0.5 gives the same advantages.
    """

    source = "arXiv:2503.14476"

    share: float = number(0.2, above=0, most=1)
    factor: float = number(0.5, least=0)

    def reward(self, rewards_B: Tensor, old: TokenStats, batch: TokenBatch) -> Tensor:
        room = self.share * batch.budget
        beyond_B = batch.lengths_B.to(rewards_B.dtype) - batch.budget + room
        return rewards_B - self.factor * (beyond_B / room).clamp(min=0)
