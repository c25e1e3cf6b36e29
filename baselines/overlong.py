from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.base.schema import number
from harness.methods.verbs import Control

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class Overlong(Control):
    """Lowers the reward of a response near the length limit, the more the nearer it comes.

        R'_i = R_i - factor max((length_i - (1 - share) L) / (share L), 0)

    L is the largest number of tokens that a response may have. Objectives that use only which responses are right, and
    not their rewards, refuse this control (`a_grae`, `passk`, `real`, `topr`, `w_reinforce` and its variants).

    Defaults: verl's DAPO script, with a share of 4,096 of 20,480 tokens. Its factor is 1 for rewards of -1 and 1; here
    rewards are 0 and 1, and 0.5 gives the same advantages.

    Differs: no difference is known.
    """

    source = "arXiv:2503.14476"

    share: float = number(0.2, above=0, most=1)
    factor: float = number(0.5, least=0)

    def reward(self, rewards_B: Tensor, old: TokenStats, batch: TokenBatch) -> Tensor:
        room = self.share * batch.budget
        beyond_B = batch.lengths_B.to(rewards_B.dtype) - batch.budget + room
        return rewards_B - self.factor * (beyond_B / room).clamp(min=0)
