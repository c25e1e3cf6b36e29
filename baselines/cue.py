from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.base.schema import number
from harness.methods.verbs import Control

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class Cue(Control):
    """Moves credit among the right responses of a group from frequent answers to rare ones.

        w_i = N c_i^-alpha / sum_j c_j^-alpha, clipped to lowest ... highest, then divided by their mean

    i and j run over the N right responses to the prompt, of which c_i have the answer of i. All other weights are 1;
    so nothing changes for problems with one right answer.

    Defaults: the paper's.

    Differs: the paper compares textual cues of strategies in place of answers, and has a floor of 1.05 in place of the
    division.
    """

    source = "arXiv:2608.03467"
    by_response = True
    reads_answers = True

    alpha: float = number(0.8, least=0, most=1)
    lowest: float = number(0.3, least=0, most=1)
    highest: float = number(3.0, least=1)

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        right_PG, answers_PG = batch.grouped(batch.right_B), batch.grouped(batch.answers_B)
        same_PGG = right_PG[:, None, :] & (answers_PG[:, :, None] == answers_PG[:, None, :])
        rarity_PG = same_PGG.sum(2).clamp(min=1).double() ** -self.alpha
        bounded_PG = relative(rarity_PG, right_PG).clamp(self.lowest, self.highest)
        weights_PG = relative(bounded_PG, right_PG).where(right_PG, 1)
        return weights_PG.flatten().to(advantages_T.dtype)[batch.sequence_T]


def relative(x_PG: Tensor, right_PG: Tensor) -> Tensor:
    """Return values of responses, divided by their mean over the right ones of the group."""
    mean_P1 = (x_PG * right_PG).sum(1, keepdim=True) / right_PG.sum(1, keepdim=True).clamp(min=1)
    return x_PG / mean_P1
