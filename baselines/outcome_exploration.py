from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.base.schema import number
from harness.methods.verbs import Control

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class OutcomeExploration(Control):
    """Lowers the advantage of a response by the share of its group that gave the same answer, right or wrong.

        A'_i = A_i - coefficient / G |{j != i: answer_j = answer_i}|

    G is the number of responses to the prompt. Answers are compared in the task's normal form, and responses without an
    answer count as having the same one. A group without signal gets an advantage too, which is meant: problems that are
    never solved keep their variety of answers.

    Defaults: the batch form of outcome-based exploration; the coefficient is ours.

    Differs: the paper's form over the history of a problem, with a bonus as in UCB, is not offered.
    """

    source = "arXiv:2509.06941"
    min_group = 2
    by_response = True
    reads_answers = True

    coefficient: float = number(1.0, least=0)

    def reshape(self, advantages_T: Tensor, old: TokenStats, batch: TokenBatch) -> Tensor:
        answers_PG = batch.grouped(batch.answers_B)
        same_PGG = answers_PG[:, :, None] == answers_PG[:, None, :]
        others_B = (same_PGG.sum(2) - 1).flatten().to(advantages_T)
        penalty_B = self.coefficient * others_B / answers_PG.shape[1]
        return advantages_T - penalty_B[batch.sequence_T]
