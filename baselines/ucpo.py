from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from harness.base.schema import number
from harness.methods.verbs import Control

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class Ucpo(Control):
    """Moves advantage among the right responses of a group toward the less likely ones.

        q_i  = softmax of mean_t log p_old,t over the m right responses to a prompt, at least 1e-6
        A'_i = A_i m ((1 - tau) / m + tau (1/q_i) / sum_j 1/q_j)   for right responses

    The factors have a mean of 1.

    Defaults: the released code.

    Differs: a response is right if it was verified; in the authors' code, if its shaped reward is positive. q is not
    normalized again after it is bounded. Log-probabilities are divided by the length as in the authors' code; the
    comment in their script says otherwise.
    """

    source = "arXiv:2605.00365"
    min_group = 2
    by_response = True

    tau: float = number(0.2, least=0, most=1)

    def reshape(self, advantages_T: Tensor, old: TokenStats, batch: TokenBatch) -> Tensor:
        right_PG = batch.grouped(batch.right_B & (batch.lengths_B > 0))
        likely_PG = batch.grouped(batch.per_sequence(old.logp) / batch.lengths_B.clamp(min=1))
        q_PG = likely_PG.masked_fill(~right_PG, -inf).softmax(1).clamp(min=1e-6)
        rare_PG = (1 / q_PG).where(right_PG, 0)
        rare_PG = rare_PG / rare_PG.sum(1, keepdim=True)
        factor_PG = (1 - self.tau + self.tau * rare_PG * right_PG.sum(1, keepdim=True)).where(right_PG, 1)
        return advantages_T * factor_PG.flatten()[batch.sequence_T]
