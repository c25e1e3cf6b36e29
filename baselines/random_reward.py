from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.base.schema import number
from harness.methods.verbs import Control

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class RandomReward(Control):
    """Replaces every reward by a coin toss: an effect that remains was not learned from right answers.

        R_i = 1 with probability chance, else 0

    The draw is seeded and the same on any number of ranks. This is a control in the sense of an experiment: the logged
    `reward/mean` and all evaluations still use verified answers. A control that shapes rewards must come after it:
    `random_reward+dapo` is a coin minus DAPO's penalty, while `dapo+random_reward` would lose the penalty and is
    refused.

    Defaults: ours.
    """

    source = "arXiv:2509.26114"
    ignores_rewards = True

    chance: float = number(0.5, least=0, most=1)

    def reward(self, rewards_B: Tensor, old: TokenStats, batch: TokenBatch) -> Tensor:
        return (batch.uniform_B("random_reward") < self.chance).to(rewards_B.dtype)
