from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baselines.grpo import Grouped
from harness.base.schema import number
from harness.methods.verbs import ClippedObjective

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch


@dataclass(frozen=True)
class RsGrpo(ClippedObjective, Grouped):
    """Clipped policy gradient of a risk-seeking mean of the rewards, which leans toward the best of a group.

        soft = log(mean_j exp(beta R_j)) / beta
        A_i  = (exp(beta (R_i - soft)) - 1) / beta

    The means are over the responses to one prompt; J is GRPO's. The larger beta, the more a rare right response weighs
    and the less a rare wrong one. For beta near 0 the advantage is that of Dr. GRPO.

    Defaults: Jackory/RS-GRPO, without a division by the deviation; clips as in `grpo`.

    Differs: beta of 0 is refused, since `grpo(divide_by_std=false)` is that case.
    """

    source = "arXiv:2509.24261"

    beta: float = number(2.0, above=0)

    def compared(self, rewards_PG: Tensor, batch: TokenBatch) -> Tensor:
        # Relative to the best reward, so that no beta overflows, and equal rewards give exactly 1 / 1 - 1 = 0.
        relative_PG = (self.beta * (rewards_PG - rewards_PG.amax(1, keepdim=True))).exp()
        return (relative_PG / relative_PG.mean(1, keepdim=True) - 1) / self.beta
