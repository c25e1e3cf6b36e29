from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baselines.grpo import Grouped
from harness.methods.verbs import ClippedObjective

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch


@dataclass(frozen=True)
class Opo(ClippedObjective, Grouped):
    """Clipped policy gradient whose baseline is the mean reward of the group, weighted by length.

        A_i = R_i - sum_j length_j R_j / sum_j length_j

    The sums are over the responses to one prompt; J is GRPO's. The baseline has the least variance if the squared norm
    of a response's gradient is proportional to its length.

    Defaults: the advantage as in verl; clips as in `grpo`.

    Differs: the paper updates once per rollout batch, where no clip acts.
    """

    source = "arXiv:2505.23585"

    def compared(self, rewards_PG: Tensor, batch: TokenBatch) -> Tensor:
        above_PG = rewards_PG - rewards_PG.amin(1, keepdim=True)  # so that equal rewards have exactly 0
        lengths_PG = batch.grouped(batch.lengths_B).to(rewards_PG)
        total_P1 = (lengths_PG * above_PG).sum(1, keepdim=True)
        return above_PG - total_P1 / lengths_PG.sum(1, keepdim=True)
