from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from harness.base.schema import choice, number
from harness.methods.verbs import Objective, View

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class Real(Objective):
    """Classification of right and wrong responses by how far the policy has moved toward them.

        s_i = mean_t log r_t
        L   = log(1 + sum_right exp(-s_i / tau)) + log(1 + sum_wrong exp(s_i / tau)), averaged over groups

    L = 0 for a group without both kinds. The gradient is that of L, through a weight of each response:

        w_i = n / tau exp(-A_i s_i / tau) / (1 + sum_j exp(-A_j s_j / tau)), over the responses of its kind
        J_t = sg[w_i] A_i log p_t, averaged over responses

    n is the size of the group, and A is 1 for a right response, -1 for a wrong one, 0 in a group of one kind. No token
    is clipped. Controls that shape rewards are refused, and so is every `normalise` except `sequence`.

    Defaults: ms-swift; the authors' tau was not found.

    Differs: where a trainer divides a group among mini-batches, as TRL does, the sums cover one part of it.
    """

    source = "arXiv:2602.05630"
    min_group = 2
    ignores_rewards = True
    silent_without_signal = True

    normalise: str = choice("sequence", ("sequence",))
    tau: float = number(0.5, above=0)

    def advantages(self, old: TokenStats, batch: TokenBatch) -> Tensor:
        right_PG = batch.grouped(batch.right_B)
        both_P1 = right_PG.any(1, keepdim=True) & ~right_PG.all(1, keepdim=True)
        label_B = (2 * right_PG.to(old.logp.dtype) - 1) * both_P1
        return label_B.flatten()[batch.sequence_T]

    def step_marks(self, view: View) -> Mapping[str, Tensor]:
        batch = view.batch
        label_B = batch.per_sequence(view.advantages_T).sign()
        log_ratio_T = view.current.logp.detach() - view.old.logp
        moved_B = batch.per_sequence(log_ratio_T) / batch.lengths_B.clamp(min=1)
        exponent_B = -label_B * moved_B / self.tau
        peers_BB = batch.groups_B[:, None] == batch.groups_B
        same_BB = peers_BB & (label_B[:, None] == label_B)
        log_sum_B = exponent_B.where(same_BB, -inf).logsumexp(1)
        share_B = (exponent_B - log_sum_B.logaddexp(log_sum_B.new_zeros(()))).exp()
        weight_B = share_B * peers_BB.sum(1) / self.tau
        return {"weight": weight_B[batch.sequence_T]}

    def surrogate(self, view: View) -> Tensor:
        return view.marks["weight"] * view.advantages_T * view.current.logp
