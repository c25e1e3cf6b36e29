from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor, inf
from typing import TYPE_CHECKING

from harness.base.schema import number
from harness.methods.shares import share_of
from harness.methods.verbs import Control, View

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class LpReg(Control):
    """Holds improbable tokens of wrong responses near the old policy without its noise, so that they do not vanish.

        q   = p_old without the tokens below 0.02 of the largest probability, normalized again
        L_t = coefficient (q / p - log(q / p) - 1), where p < q

    Only floor(share n) tokens have the term, those with the lowest p_old among the n tokens with A < 0 in the rollout
    batch on all ranks. A token that is not in q has none.

    Defaults: CarlanLark/Lp-Reg-dev, its script for 14 B (for 32 B: `share=0.005`). The script has clips of 1 and 9.

    Differs: the authors' code selects by p in each micro-batch at the update, and selects nothing if the share is one
    token or less. It takes the clip off the selected tokens, which matters only below the lower clip: `clip_low=1`. Its
    KL estimate is clamped.
    """

    source = "arXiv:2510.03222"
    needs = frozenset({"min_p"})

    share: float = number(0.01, least=0, most=1)
    coefficient: float = number(1.0, least=0)

    def marks(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Mapping[str, Tensor]:
        assert old.min_p_logp is not None
        negative_T = advantages_T < 0
        chosen = floor(share_of(self.share, batch.global_count(negative_T)))
        surprise_T = (-old.logp).masked_fill(~negative_T, -inf)
        held_T = (batch.global_order(surprise_T) < chosen) & (old.min_p_logp > -inf)
        return {"held": held_T, "target": old.min_p_logp.where(held_T, old.logp)}

    def term(self, view: View) -> Tensor:
        difference_T = view.marks["target"] - view.current.logp
        below_T = view.marks["held"] & (difference_T.detach() > 0)
        difference_T = difference_T.masked_fill(~below_T, 0)  # before exp, which may overflow; the term is then 0
        return self.coefficient * (difference_T.exp() - difference_T - 1)
