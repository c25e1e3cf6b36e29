from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baselines.grpo import Grouped, centered
from baselines.ppo import whitened
from harness.methods.verbs import ClippedObjective

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class ReinforcePp(ClippedObjective, Grouped):
    """Clipped policy gradient with the group's mean as baseline and advantages whitened over the batch.

        A_i = R_i - mean_j R_j
        A  <- (A - mean A) / sqrt(var A + 1e-8) over all tokens of the rollout batch on all ranks

    J is GRPO's. Whitening subtracts the mean of the batch, so the responses of a group without signal get a small
    advantage, too.

    Defaults: the variant of REINFORCE++ with a baseline, as in verl (`reinforce_plus_plus_baseline`) and NeMo-RL; clips
    as in `grpo`.

    Differs: the variance is the population's over all ranks.
    """

    source = "arXiv:2501.03262"

    def compared(self, rewards_PG: Tensor, batch: TokenBatch) -> Tensor:
        return centered(rewards_PG)

    def advantages(self, old: TokenStats, batch: TokenBatch) -> Tensor:
        return whitened(super().advantages(old, batch), batch)
