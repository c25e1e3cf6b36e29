from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baselines.grpo import GroupObjective
from harness.base.schema import number
from harness.methods.verbs import ClippedObjective

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch


@dataclass(frozen=True)
class AGrae(ClippedObjective, GroupObjective):
    """GRPO that moves its weight from easy to hard problems, and toward right responses, as the policy improves.

        hard = A0 / (2 (sqrt(p) + 1e-6))
        easy = A0 / (2 (1 - sqrt(p) + 1e-6))
        A    = (1 - m) easy + m hard, times min(1, m / alpha) where A > 0

    A0 is GRPO's advantage, p the share of right responses to the prompt, and m the share of right responses in the
    rollout batch on all ranks. J is GRPO's. Where p is 0 or 1 the weights are large and A0 is 0; shaped rewards would
    give such a group an advantage, so the objective asks which responses are right and refuses controls that shape
    rewards.

    Defaults: Yu7-code/A-GRAE, whose alpha is 1 for mathematics and 0.5 for geometry and medicine; clips as in `grpo`.

    Differs: p is from verdicts; in the authors' code, from rewards, which are the same there.
    """

    source = "arXiv:2602.05548"
    ignores_rewards = True

    alpha: float = number(1.0, above=0)

    def compared(self, rewards_PG: Tensor, batch: TokenBatch) -> Tensor:
        right_PG = batch.grouped(batch.right_B).to(rewards_PG)
        advantages_PG = super().compared(right_PG, batch)
        root_P1 = right_PG.mean(1, keepdim=True).sqrt()
        solved = batch.global_sum(batch.right_B) / batch.global_responses()
        hard_P1 = 0.5 / (root_P1 + 1e-6)
        easy_P1 = 0.5 / (1 - root_P1 + 1e-6)
        weighted_PG = advantages_PG * ((1 - solved) * easy_P1 + solved * hard_P1)
        return weighted_PG.clamp(max=0) + weighted_PG.clamp(min=0) * (solved / self.alpha).clamp(max=1)
