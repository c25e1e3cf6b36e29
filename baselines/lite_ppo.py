from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baselines.grpo import Grouped, centered
from harness.methods.verbs import ClippedObjective

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch


@dataclass(frozen=True)
class LitePpo(ClippedObjective, Grouped):
    """GRPO that divides by the deviation of all rewards of the batch instead of the group's.

        A_i = (R_i - mean_j R_j) / (std R + 1e-6)

    The mean covers the responses to the prompt; the sample deviation (n - 1) covers all rewards of the rollout batch on
    all ranks. J is GRPO's.

    Defaults: the deviation of the batch is TRL's `scale_rewards=batch`; clips as in `grpo`.

    Differs: the paper's own code was not read.
    """

    source = "arXiv:2508.08221"

    def compared(self, rewards_PG: Tensor, batch: TokenBatch) -> Tensor:
        responses = batch.global_responses()
        mean = batch.global_sum(rewards_PG) / responses
        deviation = (batch.global_sum((rewards_PG - mean) ** 2) / (responses - 1)).sqrt()
        return centered(rewards_PG) / (deviation + 1e-6)
