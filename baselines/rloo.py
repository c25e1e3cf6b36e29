from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baselines.grpo import Grouped, centered
from harness.methods.verbs import ClippedObjective

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch


@dataclass(frozen=True)
class Rloo(ClippedObjective, Grouped):
    """Clipped policy gradient whose baseline is the mean reward of the other responses to the same prompt.

        A_i = R_i - mean_{j != i} R_j = G / (G - 1) (R_i - mean_j R_j)

    G is the number of responses to a prompt; J is GRPO's. The advantage is that of Dr. GRPO times a constant: with the
    same `normalise` and clips, the gradients differ only by that factor (a test checks it), which AdamW nearly cancels.

    Defaults: the advantage as in verl and TRL; clips as in `grpo`.

    Differs: the paper's objective is one step of REINFORCE on the whole response, without a clip; here each token has
    PPO's clipped ratio.
    """

    source = "arXiv:2402.14740"

    def compared(self, rewards_PG: Tensor, batch: TokenBatch) -> Tensor:
        size = rewards_PG.shape[1]
        return centered(rewards_PG) * (size / (size - 1))
