from __future__ import annotations

from dataclasses import dataclass
from math import expm1
from typing import TYPE_CHECKING

from harness.base.schema import choice, number
from harness.methods.verbs import Objective

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats
    from harness.methods.verbs import View


@dataclass(frozen=True)
class A2po(Objective):
    """A*-PO: regression of a response's log ratio on its reward less the optimal value.

        V    = beta1 log mean_i exp(R_i / beta1) = beta1 log(1 + c (e^(1 / beta1) - 1))
        J_t  = (R - V) log p_t
        loss = -J_t + beta2 sg[sum_k log(p_k / p_ref,k)] log p_t

    R is 1 for a right response, or else 0; c is the share of right ones that `train.filter`, which this method demands,
    has measured. The gradient is that of (beta2 sum_k log(p_k / p_ref,k) - (R - V))^2, by 2 beta2.

    Defaults: the authors' code and TRL's `a2po`, with `train.filter={n: 8}`.

    Differs: their loss is the mean of the squares. With `normalise=constant` its gradient is divided by 2 beta2 and the
    length budget, which matters only to the clip of its norm and to AdamW's epsilon. The filter leaves out problems
    that were never solved (the authors' scripts keep them) or always. One response to a prompt is `train.group=1`.
    """

    source = "arXiv:2505.20686"
    needs = frozenset({"ref_logp"})
    ignores_rewards = True
    reads_base = True

    normalise: str = choice("constant", ("token", "sequence", "constant"))
    beta1: float = number(0.5, least=0.01)
    beta2: float = number(1e-3, least=0)

    def advantages(self, old: TokenStats, batch: TokenBatch) -> Tensor:
        values_B = self.beta1 * (batch.base_right_B.double() * expm1(1 / self.beta1)).log1p()
        return (batch.right_B.double() - values_B).to(old.logp)[batch.sequence_T]

    def surrogate(self, view: View) -> Tensor:
        return view.advantages_T * view.current.logp

    def term(self, view: View) -> Tensor | float:
        batch, logp_T = view.batch, view.current.logp
        assert view.current.ref_logp is not None
        moved_B = batch.per_sequence((logp_T - view.current.ref_logp).detach())
        return super().term(view) + self.beta2 * moved_B[batch.sequence_T] * logp_T
