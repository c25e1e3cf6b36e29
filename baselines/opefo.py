from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.methods.verbs import Control

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class Opefo(Control):
    """Balances the tokens that raise the entropy with the tokens that lower it.

        dH_t   = -A (S* - N)
        lambda = (D- - D+) / (D- + D+)
        w_t    = 1 + lambda where dH > 0, 1 - lambda where dH < 0

    D+ and D- are the absolute sums of the positive and of the negative dH over the rollout batch. With these
    weights both sides are equally strong, 2 D+ D- / (D- + D+).

    Differs: known from summaries only, which do not say whether dH includes N. The method is meant for exactly one
    update per rollout batch: set `train.updates=1`, which a method cannot check. With more updates, the balance holds
    only at the first.
    """

    source = "arXiv:2605.11491"
    needs = frozenset({"sum_p2"})

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        change_T = advantages_T * (old.expected_discriminator - old.discriminator)
        rising = batch.global_sum(change_T.clamp(min=0))
        falling = batch.global_sum((-change_T).clamp(min=0))
        tilt = (falling - rising) / (falling + rising).clamp(min=1e-300)
        return 1 + tilt * change_T.sign()
