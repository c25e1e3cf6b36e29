from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.base.schema import number
from harness.method import Control

if TYPE_CHECKING:
    from torch import Tensor

    from harness.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class RandomReward(Control):
    """Replaces every reward by a coin: an effect that stays under it is not one of learning what is right.

    R_i = 1 with probability chance, else 0, by seeded chance, the same on any number of ranks. What is logged as
    reward/mean and what is evaluated stays verified. A control that shapes rewards stands after it
    (random_reward+dapo), as the coin would take away what one before it has made of them.
    """

    source = "arXiv:2509.26114"
    ignores_rewards = True

    chance: float = number(0.5, least=0, most=1)

    def reward(self, rewards_B: Tensor, old: TokenStats, batch: TokenBatch) -> Tensor:
        return (batch.uniform_B("random_reward") < self.chance).to(rewards_B.dtype)
